"""`ninfer-engine serve`: from flags to a listening server, and the exit code when it has stopped."""

import os
import sys
from pathlib import Path

import torch

from ninfer_engine.context.errors import ContextError
from ninfer_engine.contract.flags import EngineFlags
from ninfer_engine.model.errors import ModelError
from ninfer_engine.runtime.build import Built, StartError, build_engine
from ninfer_engine.runtime.capacity import CapacityError
from ninfer_engine.runtime.quota import usable_cpus
from ninfer_engine.server.app import create_app
from ninfer_engine.server.logs import configure_logging
from ninfer_engine.server.model import ServedModel
from ninfer_engine.server.request_log import RequestLog
from ninfer_engine.server.serve import EngineDiedError, Patience, serve
from ninfer_engine.server.traces import Traces, TracingError, from_environment

EXIT_CANNOT_START = 2
EXIT_ENGINE_DIED = 70
EXIT_ENGINE_WEDGED = 71
_SWITCH_S = 0.0005  # the engine thread asks for the interpreter after every operator: it must not wait long for it


def run_server(flags: EngineFlags, patience: Patience = Patience()) -> int:  # noqa: B008 - frozen
    """Serve until told to stop. Returns 0 after a graceful stop, 2 when the engine cannot start as asked, 70 when its
    thread died (the last log lines say why), 71 when it hung in a step."""
    configure_logging(flags.log_level)
    torch.set_num_threads(usable_cpus())
    sys.setswitchinterval(_SWITCH_S)
    try:
        api_key = read_key(flags.api_key_file)
        traces = from_environment(flags.model_id or Path(flags.model).resolve().name)
        built = build_engine(flags, api_key)
    except (StartError, CapacityError, ModelError, ContextError, OSError, TracingError) as error:
        sys.stderr.write(f"ninfer-engine: {error}\n")
        return EXIT_CANNOT_START
    try:
        return _serve(flags, built, api_key, patience, traces)
    finally:
        traces.close()


def read_key(path: str | None) -> str | None:
    """The API key in a file, without white space around it. Raises StartError when there is none in it."""
    if path is None:
        return None
    key = Path(path).read_text(encoding="utf-8").strip()
    if not key:
        raise StartError(f"--api-key-file {path} is empty: put the key there, or leave the flag out")
    return key


def _serve(flags: EngineFlags, built: Built, api_key: str | None, patience: Patience, traces: Traces) -> int:
    log = RequestLog(Path(flags.request_log_jsonl) if flags.request_log_jsonl else None,
                     built.identity.server_instance_id)
    served = ServedModel(built.identity.model_id, built.model.tokenizer, built.model.chat)
    built.engine.start()
    try:
        app = create_app(built.engine, served, flags, api_key, log, traces=traces)
        serve(app, flags.host, flags.port, built.engine.close, patience)
    except OSError as error:
        sys.stderr.write(f"ninfer-engine: cannot listen on {flags.host}:{flags.port}: {error.strerror}; "
                         "choose another --port\n")
        built.engine.close()
        return EXIT_CANNOT_START
    except EngineDiedError as error:
        sys.stderr.write(f"ninfer-engine: {error}\n")
        return end_now(EXIT_ENGINE_WEDGED if error.wedged else EXIT_ENGINE_DIED)
    return 0


def end_now(code: int) -> int:
    """End the process with a code, threads that wait for a dead engine included: a normal exit would join them."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
