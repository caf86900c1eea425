"""A pretended engine as a process: `lane_engine.py serve --port N --model-id FAULT+FAULT ...`.

It speaks the whole contract (fault_engine) with the faults that its model's name lists; a name that lists none is an
honest engine. `dies_at_once` and `never_ready` are faults of the process, not of its answers.
"""

import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "lifecycle"))

import fault_engine
from fault_model import Fault


def main() -> None:
    options = dict(zip(sys.argv[2::2], sys.argv[3::2], strict=False))
    names = options.get("--model-id", "").split("+")
    if "dies_at_once" in names:
        sys.stdout.write("the reason is on this line\n")
        sys.exit(3)
    ended = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
    port = int(options.get("--port", "8080"))

    class OnPort(fault_engine._Server):
        """A server at the port that the host chose."""

        def __init__(self, _address: object, handler: object) -> None:
            super().__init__((options.get("--host", "127.0.0.1"), port), handler)

    fault_engine._Server = OnPort  # type: ignore[misc]  # the engine makes its server by this name
    engine = fault_engine.FaultEngine(
        [Fault(name) for name in names if name in set(Fault)], config_sha256=options["--config-sha256"],
        model_sha256=options["--model-sha256"], api_key=Path(options["--api-key-file"]).read_text().strip(),
        store_dir=Path(options["--session-checkpoint-dir"]))
    if "never_ready" not in names:
        engine.start()
    while not ended:
        signal.pause()
    engine.stop()
    os._exit(0)


if __name__ == "__main__":
    main()
