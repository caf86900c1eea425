"""How an engine ended, and whether memory was the reason: no single witness is trusted to speak.

The daemon's State.OOMKilled may lack (moby 15621) or tell of a worker that died while the engine lived on; an exit code
of 137 is any SIGKILL; the cgroup's counter vanishes with the cgroup; the engine says only what it lived to say.
"""

import time
from dataclasses import dataclass
from pathlib import Path

from ninfer_lifecycle.client import EngineDeadlineError, EngineProtocolError, EngineUnreachableError
from ninfer_lifecycle.errors import HostError, NinferError
from ninfer_lifecycle.hosts.base import Host, RunningEngine
from ninfer_lifecycle.hosts.daemon import Attrs
from ninfer_lifecycle.hosts.readiness import SETTLES_S, Ended, ended_error, says_out_of_memory

SIGKILLED = 137
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class MemoryWitnesses:
    """What each witness says. event: the daemon announced it. cgroup_kills: last count read while the engine lived."""

    flag: bool = False
    event: bool = False
    cgroup_kills: int = 0
    exit_code: int | None = None
    last_lines: str = ""

    def named(self) -> tuple[str, ...]:
        """The witnesses that say that memory ran out, in words. A SIGKILL alone is none; it is told beside another."""
        says = [(self.flag, "State.OOMKilled"), (self.event, "an oom event"),
                (self.cgroup_kills > 0, f"the cgroup counts {self.cgroup_kills}"),
                (says_out_of_memory(self.last_lines), "the engine's own words")]
        found = [words for said, words in says if said]
        return (*found, f"exit code {SIGKILLED}") if found and self.exit_code == SIGKILLED else tuple(found)


def end_of(attrs: Attrs, last_lines: str, event: bool, cgroup_kills: int) -> Ended:
    """How a container ended, from its inspect document and the other witnesses."""
    state = attrs["State"]
    code = int(state["ExitCode"])
    named = MemoryWitnesses(bool(state.get("OOMKilled")), event, cgroup_kills, code, last_lines).named()
    # What the daemon could not start at all it explains here: the container itself wrote nothing.
    said = last_lines if last_lines.strip() else str(state.get("Error") or "")
    return Ended(code, bool(named), said, named)


@dataclass(frozen=True, slots=True)
class CgroupWitness:
    """Where the kernel counts kills for lack of memory of one life; None where that cannot be seen from here."""

    file: Path | None

    @classmethod
    def of(cls, container: str, pid: int, root: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc")
           ) -> "CgroupWitness":
        """Of a container by the process id that its daemon tells: memory.events of cgroup 2, memory.oom_control of 1.

        The id must be in the cgroup's path: a daemon elsewhere tells a number that means another process here.
        """
        try:
            lines = (proc / str(pid) / "cgroup").read_text(encoding="ascii").splitlines()
        except (OSError, UnicodeDecodeError):
            return cls(None)
        for line in lines:
            number, controllers, path = [*line.split(":", 2), "", ""][:3]
            if container not in path:
                continue
            if "memory" in controllers.split(","):
                return cls(root / "memory" / path.lstrip("/") / "memory.oom_control")
            if number == "0" and not controllers and (root / "cgroup.controllers").exists():
                return cls(root / path.lstrip("/") / "memory.events")
        return cls(None)

    def kills(self) -> int | None:
        """The count now; None when it cannot be read (any more)."""
        if self.file is None:
            return None
        try:
            fields = dict(line.split() for line in self.file.read_text(encoding="ascii").splitlines())
            return int(fields["oom_kill"])
        except (OSError, ValueError, KeyError):
            return None


def explained(host: Host, engine: RunningEngine, error: NinferError) -> NinferError:
    """The error of a broken conversation, or, when the engine has ended, the error that says how.

    A connection breaks a moment before the place knows of the end: it is given a second to notice.
    """
    if not isinstance(error, (EngineUnreachableError, EngineDeadlineError, EngineProtocolError)):
        return error
    ends = time.monotonic() + SETTLES_S
    try:
        while (facts := host.inspect(engine)).running:
            if time.monotonic() >= ends:
                return error
            time.sleep(_POLL_S)
        return ended_error(Ended(facts.exit_code, facts.oom_killed, host.logs(engine, 200), facts.memory_witnesses))
    except HostError as gone:
        return gone
