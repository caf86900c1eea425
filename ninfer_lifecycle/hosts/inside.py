"""What the kernel of this machine says of a container's own network: whether its engine listens there.

Between a client and the engine stand the daemon's proxy and its rules. An engine that listens and cannot be reached is
another fault than one that still loads, and waiting does not mend it.
"""

from pathlib import Path

_LISTEN = "0A"


def is_of_container(container: str, pid: int, proc: Path = Path("/proc")) -> bool:
    """Whether the process of that number here is in this container: a daemon elsewhere tells numbers of its own."""
    try:
        return container in (proc / str(pid) / "cgroup").read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return False


def listens_inside(container: str, pid: int, port: int, proc: Path = Path("/proc")) -> bool:
    """Whether something in the container listens on `port`, on any of its addresses. False where that is not seen."""
    if not is_of_container(container, pid, proc):
        return False
    for name in ("tcp", "tcp6"):
        try:
            rows = (proc / str(pid) / "net" / name).read_text(encoding="ascii").splitlines()[1:]
        except (OSError, UnicodeDecodeError):
            continue
        for row in rows:
            fields = row.split()
            if len(fields) > 3 and fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                return True
    return False
