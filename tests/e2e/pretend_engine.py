"""The fault-injecting engine as a container's program: `pretend_engine.py serve --port N ...`, without a model.

Standard library only. What it saved lies in the store's directory and is there in the next life.
"""

import pickle
import signal
import sys
from pathlib import Path

import fault_engine
from fake_engine_server import parse_options

Listening = fault_engine._Server


def main() -> None:
    """Serve until SIGTERM; then save every session, as an engine does."""
    options = parse_options(sys.argv[2:])  # type: ignore[no-untyped-call]  # standard library only
    address = options["host"], int(options.get("port", 8080))
    fault_engine._Server = lambda _, handler: Listening(address, handler)  # type: ignore[assignment, misc]
    store = Path(options["session-checkpoint-dir"])
    saved = store / "saved"
    engine = fault_engine.FaultEngine(
        config_sha256=options["config-sha256"], model_sha256=options["model-sha256"], store_dir=store / "sessions",
        api_key=Path(options["api-key-file"]).read_text(encoding="utf-8").strip())
    if saved.exists():
        engine.disk.saved = pickle.loads(saved.read_bytes())  # noqa: S301 - written by the life before this one
        engine.restart(kill=True)
    signal.signal(signal.SIGTERM, lambda *_: stop(engine, saved))
    engine.start()
    sys.stdout.write("pretend engine: ready\n")
    sys.stdout.flush()
    while True:
        signal.pause()


def stop(engine: fault_engine.FaultEngine, saved: Path) -> None:
    """Save and end."""
    engine.flush()
    saved.write_bytes(pickle.dumps(engine.disk.saved))
    sys.exit(0)


if __name__ == "__main__":
    main()
