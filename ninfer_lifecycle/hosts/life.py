"""One container of ours over all its lives: begun, watched, read, stopped, removed."""

from typing import Literal

from ninfer_lifecycle.errors import HostError
from ninfer_lifecycle.hosts.base import EngineSpec
from ninfer_lifecycle.hosts.container import ENGINE_PORT, Asked, has_ended, is_running, published_port
from ninfer_lifecycle.hosts.container_log import LogKeeper
from ninfer_lifecycle.hosts.daemon import Attrs, ContainerGoneError, Daemon
from ninfer_lifecycle.hosts.ends import CgroupWitness, end_of
from ninfer_lifecycle.hosts.events import EventWatch
from ninfer_lifecycle.hosts.inside import listens_inside
from ninfer_lifecycle.hosts.mounts import Belongings
from ninfer_lifecycle.hosts.placing import ENGINE_LOG, tail_of
from ninfer_lifecycle.hosts.readiness import Clock, Ended, ended_error

LAST_LINES = 200
_PORT_BOUND_S = 10.0
_KILLED_S = 20.0
_POLL_S = 0.05
_LOOK_S = 0.5
"""Between two looks at a container of which nothing was announced: an event that got lost costs no more."""


class Life:
    """A container with what it was asked to be. Every method keeps a deadline of its own."""

    def __init__(self, daemon: Daemon, watch: EventWatch, clock: Clock, handle: str, spec: EngineSpec, asked: Asked,
                 belongings: Belongings, log_mode: Literal["ab", "wb"] = "ab") -> None:
        self._daemon, self._watch, self._clock = daemon, watch, clock
        self.handle, self.spec, self.asked, self.belongings = handle, spec, asked, belongings
        self._pid: int | None
        self._log = LogKeeper(daemon, handle, spec.run_dir / ENGINE_LOG, log_mode)
        self._cgroup, self._kills, self._pid = CgroupWitness(None), 0, None
        self._looked_at = float("-inf")

    def begin(self) -> None:
        """Start the container, and read what it writes from now on."""
        self._watch.new_life(self.handle)
        self._cgroup, self._kills, self._pid = CgroupWitness(None), 0, None
        self._daemon.start(self.handle)
        self._log.follow()

    def attend(self) -> None:
        """Read what a container writes that somebody else started: a swarm starts its tasks itself."""
        self._log.follow()

    def bound_port(self) -> int:
        """The published port, read until it is bound: the daemon answers `start` before its proxy is there.

        Raises EngineEndedError when the container ends before that.
        """
        ends = self._clock.now() + _PORT_BOUND_S
        while True:
            attrs = self._daemon.inspect(self.handle)
            if (end := self.end_in(attrs)) is not None:
                raise ended_error(end)
            if (port := published_port(attrs)) is not None:
                return port
            if self._clock.now() >= ends:
                raise HostError(f"the container publishes no port after {_PORT_BOUND_S:g} s",
                                "look at the daemon's log and its iptables rules")
            self._clock.sleep(_POLL_S)

    def ended(self, at_once: bool = False) -> Ended | None:
        """How it ended; None while it lives. Cheap: the daemon is asked when an end was announced, or now and then."""
        now = self._clock.now()
        if not at_once and not self._watch.has_died(self.handle) and now - self._looked_at < _LOOK_S:
            return None
        self._looked_at = now
        return self.end_in(self._daemon.inspect(self.handle))

    def listens(self) -> bool:
        """Whether the engine listens inside, by the kernel's own table; False where that cannot be seen from here."""
        return self._pid is not None and listens_inside(self.handle, self._pid, ENGINE_PORT)

    def end_in(self, attrs: Attrs) -> Ended | None:
        """How it ended by this inspect document and every other witness; None while it lives."""
        if not has_ended(attrs):
            self._count_kills(attrs)
            return None
        self._log.settle()
        return end_of(attrs, self._last_lines(), self._watch.ran_out_of_memory(self.handle), self._kills)

    def stop(self, grace_s: float) -> None:
        """SIGTERM, SIGKILL after the grace; 0: SIGKILL at once. One that has ended or is gone is no error."""
        try:
            if grace_s > 0 and is_running(self._daemon.inspect(self.handle)):
                self._daemon.signal(self.handle, "SIGTERM")
                if self._is_down(grace_s):
                    return
            self._daemon.signal(self.handle, "SIGKILL")
            if not self._is_down(_KILLED_S):
                raise HostError(f"container {self.handle[:12]} does not stop", "look at the daemon's log, and for a "
                                "process in uninterruptible sleep (ps -o pid,stat,wchan)")
        except ContainerGoneError:
            return

    def await_end(self, grace_s: float) -> None:
        """Somebody else was told to stop it: return when it is down, having killed it after the grace."""
        try:
            if not self._is_down(grace_s):
                self.stop(0.0)
        except ContainerGoneError:
            return

    def finish(self) -> None:
        """It has ended: read the rest of what it wrote."""
        self._log.finish()

    def remove(self, grace_s: float) -> None:
        """Stop, read the rest of its output, remove container and copy of the key. One already gone is fine."""
        try:
            self.stop(grace_s)
            self._log.finish()
            self._daemon.remove(self.handle)
        finally:
            self._log.stop()
            self.belongings.forget_key()

    def let_go(self) -> None:
        """Stop reading; the container lives on."""
        self._log.stop()

    def _is_down(self, within_s: float) -> bool:
        """Whether it is down within that time; woken by the daemon's announcement."""
        ends = self._clock.now() + within_s
        while True:
            attrs = self._daemon.inspect(self.handle)
            if not is_running(attrs):
                return True
            self._count_kills(attrs)
            left = ends - self._clock.now()
            if left <= 0:
                return False
            if self._watch.wait_for_death(self.handle, min(left, _LOOK_S)):
                self._clock.sleep(_POLL_S)  # announced a moment before the state says so

    def _count_kills(self, attrs: Attrs) -> None:
        """Look at the kernel's counter while there is one: it goes with the container."""
        if self._cgroup.file is None and (pid := int(attrs["State"].get("Pid") or 0)):
            self._pid, self._cgroup = pid, CgroupWitness.of(self.handle, pid)
        self._kills = max(self._kills, self._cgroup.kills() or 0)

    def _last_lines(self) -> str:
        try:
            return self._daemon.tail(self.handle, LAST_LINES)
        except HostError:
            return tail_of(self.spec.run_dir / ENGINE_LOG, LAST_LINES)  # what the reader still got
