"""What every host does with a spec: the flags of place, the key, the log's tail, a free port."""

import socket
from dataclasses import dataclass
from pathlib import Path

from ninfer_engine.contract.flags import EngineFlags
from ninfer_lifecycle.client import DEFAULT_DEADLINES, Deadlines, EngineClient
from ninfer_lifecycle.errors import HostError
from ninfer_lifecycle.hosts.base import EngineSpec

REQUEST_LOG = "requests.jsonl"
ENGINE_LOG = "engine.log"
_TAIL_BYTES = 2**20


class PortTakenError(HostError):
    """The port that was asked for is in use."""

    def __init__(self, port: int) -> None:
        super().__init__(f"port {port} on 127.0.0.1 is taken", "stop what listens there (ss -ltnp shows it), or leave "
                         "the port out and any free one is used")


@dataclass(frozen=True, slots=True)
class Places:
    """Paths and address as the engine sees them."""

    model: str
    host: str
    port: int
    key_file: str | None
    store_dir: str | None
    request_log: str | None


def placed_flags(spec: EngineSpec, places: Places) -> EngineFlags:
    """The spec's flags with the flags of place filled in. Validated again: a copy alone would check nothing."""
    return EngineFlags.model_validate({
        **spec.flags.model_dump(),
        "model": places.model, "host": places.host, "port": places.port, "api_key_file": places.key_file,
        "session_checkpoint_dir": places.store_dir, "request_log_jsonl": places.request_log,
        "config_sha256": spec.expected.config_sha256 or spec.flags.config_sha256,
    })


def check_inputs(spec: EngineSpec) -> None:
    """Refuse before anything starts: no model, no key. Creates run_dir and store_dir."""
    if not spec.model_dir.exists():
        raise HostError(f"no model at {spec.model_dir}", "set model.path in the profile, or use source: tiny")
    if spec.key_file is not None:
        read_key(spec.key_file)
    try:
        spec.run_dir.mkdir(parents=True, exist_ok=True)
        if spec.store_dir is not None:
            spec.store_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HostError(f"cannot make {error.filename}: {error.strerror}", "give a directory that can be written "
                        "(--run-dir)") from error


def read_key(path: Path) -> str:
    """The API key in a file. Never logged; HostError when there is none."""
    try:
        key = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise HostError(f"cannot read the key file {path}", "give a file that holds one line, readable by you") \
            from error
    if not key:
        raise HostError(f"the key file {path} is empty", "write the key into it, on one line")
    return key


def client_of(spec: EngineSpec, base_url: str, deadlines: Deadlines = DEFAULT_DEADLINES) -> EngineClient:
    """A client with the spec's key."""
    return EngineClient(base_url, read_key(spec.key_file) if spec.key_file else None, deadlines)


def tail_of(file: Path, lines: int, start: int = 0) -> str:
    """The last `lines` lines of a file from byte `start` on; at most its last MiB is read."""
    try:
        with file.open("rb") as stream:
            end = stream.seek(0, 2)
            stream.seek(max(start, end - _TAIL_BYTES))
            data = stream.read()
    except FileNotFoundError:
        return ""
    return "\n".join(data.decode("utf-8", errors="replace").splitlines()[-lines:] if lines > 0 else [])


def port_is_free(port: int) -> bool:
    """Whether 127.0.0.1:`port` could be listened on at this moment."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def free_port() -> int:
    """A port of 127.0.0.1 that was free a moment ago; whoever uses it must be ready to lose the race."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
