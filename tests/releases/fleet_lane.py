"""`ninfer` whose engines are pretended: what a fleet's lanes run in the tests. A profile's description names its fault.

Only `--host process` is pretended; `--host docker` asks the daemon that the environment names.
"""

import sys
from pathlib import Path
from unittest import mock

for folder in ("unit", "lifecycle"):
    sys.path.insert(0, str(Path(__file__).parents[1] / folder))


def main() -> int:
    """As `ninfer`, with a host that starts no process."""
    from fault_host import FaultHost
    from fault_model import Fault

    from ninfer_lifecycle import cli
    from ninfer_lifecycle.qualify.models import ModelOnDisk
    text = Path(sys.argv[2]).read_text()
    if "sleeps" in text:
        sys.stdout.write("it sleeps\n")
        sys.stdout.flush()
        import signal
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        signal.pause()
    if "breaks" in text:
        sys.stderr.write("ninfer: it broke before it began\n  mend it\n")
        return 2
    faults = [fault for fault in Fault if fault.value in text]
    from ninfer_lifecycle.hosts.choice import open_host

    def host(kind: str) -> object:
        return FaultHost(*faults) if kind == "process" else open_host("docker")

    model = ModelOnDisk(Path.cwd(), "a" * 64)
    with mock.patch("ninfer_lifecycle.commands.qualify.open_host", host), \
            mock.patch("ninfer_lifecycle.commands.qualify.ensure_model", lambda *_: model), \
            mock.patch("ninfer_lifecycle.qualify.prepare.engine_tree_sha256", lambda: "2" * 64):
        return cli.run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
