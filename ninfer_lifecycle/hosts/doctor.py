"""The preflight: what a profile needs of a place, looked at before anything is started. Nothing is changed.

`examine` never raises for what it finds; a check that cannot be made is a finding too. promote and qualify can use the
same findings as `ninfer doctor`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import ninfer_lifecycle
from ninfer_lifecycle.errors import HostError, NinferError
from ninfer_lifecycle.hosts.base import HostKind
from ninfer_lifecycle.hosts.daemon import Daemon, DaemonFacts, ImageMissingError
from ninfer_lifecycle.hosts.doctor_box import box_findings
from ninfer_lifecycle.hosts.doctor_gpu import gpu_findings, wants_gpu
from ninfer_lifecycle.hosts.doctor_room import room_findings
from ninfer_lifecycle.hosts.findings import Finding, Level, ok, problem, unknown, warning
from ninfer_lifecycle.hosts.machine import THIS_MACHINE, Machine
from ninfer_lifecycle.hosts.model_digest import model_digest
from ninfer_lifecycle.hosts.mounts import check_readable, container_user
from ninfer_lifecycle.profiles.schema import Profile

LEAST_API = (1, 41)
"""Of Docker 20.10: what the tests run against."""
_SKEW_WARNS_S = 5.0
_SKEW_BREAKS_S = 300.0
_IMAGE_BYTES = {"cpu": 2 * 2**30, "gpu": 12 * 2**30}


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be started where. run_dir: where the store and the logs would lie. port: 0 for any. hash_model: read
    the whole model and compare its digest.
    """

    profile: Profile
    kind: HostKind
    run_dir: Path
    port: int = 0
    hash_model: bool = True


@dataclass(frozen=True, slots=True)
class Doctor:
    """Looks at one place. open_daemon: raises HostError where there is none. say: what takes long, as it begins."""

    open_daemon: Callable[[], Daemon]
    machine: Machine = THIS_MACHINE
    say: Callable[[str], None] = field(default=lambda _: None)

    def examine(self, asked: Asked | None) -> tuple[Finding, ...]:
        """Everything that was found. asked None: the machine and its daemon alone."""
        return tuple(self._all(asked))

    def _all(self, asked: Asked | None) -> Iterator[Finding]:
        yield self._clock()
        daemon: Daemon | None = None
        facts: DaemonFacts | None = None
        try:
            if asked is None or asked.kind != "process":
                try:
                    daemon = self.open_daemon()
                    facts = daemon.facts()
                except HostError as error:
                    yield problem("daemon", error.message, error.advice)
                else:
                    yield from self._daemon(facts)
            if asked is None:
                return
            lacking = 0
            if asked.kind != "process":
                image = self._image(asked, daemon, facts)
                yield image
                yield from box_findings(asked.profile, asked.kind, facts)
                if image.level is Level.PROBLEM:
                    lacking = _IMAGE_BYTES["gpu" if wants_gpu(asked.profile) else "cpu"]
            else:
                yield self._engine()
            yield from self._port(asked)
            yield from self._model(asked)
            yield from room_findings(asked.profile, asked.run_dir, facts, self.machine, lacking)
            yield from gpu_findings(asked.profile, asked.kind, facts, self.machine)
        finally:
            if daemon is not None:
                daemon.close()

    # Place

    def _clock(self) -> Finding:
        made = max((file.stat().st_mtime for file in Path(ninfer_lifecycle.__file__).parent.glob("*.py")), default=0.0)
        behind = made - self.machine.unix_s()
        if behind > _SKEW_BREAKS_S:
            return problem("clock", f"this machine's clock is {behind:.0f} s before this tool was installed",
                           "set it (timedatectl set-ntp true): receipts say when they were made")
        return ok("clock", "this machine's clock is after this tool's installation")

    def _daemon(self, facts: DaemonFacts) -> Iterator[Finding]:
        yield ok("daemon", f"Docker {facts.version}, {facts.storage_driver}, cgroup {facts.cgroup_version}")
        version = tuple(int(part) for part in facts.api_version.split(".") if part.isdigit())
        if version < LEAST_API:
            yield problem("api", f"the daemon speaks API {facts.api_version}", "update Docker to 20.10 or later")
        else:
            yield ok("api", f"API {facts.api_version}")
        try:
            skew = abs(datetime.fromisoformat(facts.system_time[:19] + "+00:00").timestamp() - self.machine.unix_s())
        except ValueError:
            yield unknown("daemon clock", "the daemon does not tell its time", "compare the clocks by hand (date -u)")
            return
        told = f"the daemon's clock differs from this one by {skew:.0f} s"
        if skew > _SKEW_BREAKS_S:
            yield problem("daemon clock", told, "set both by NTP")
        elif skew > _SKEW_WARNS_S:
            yield warning("daemon clock", told, "set both by NTP")
        else:
            yield ok("daemon clock", "the daemon's clock agrees with this one")

    def _image(self, asked: Asked, daemon: Daemon | None, facts: DaemonFacts | None) -> Finding:
        reference = asked.profile.image.reference
        if daemon is None or facts is None:
            return unknown("image", f"{reference} could not be looked up without a daemon", "start the daemon first")
        try:
            found = daemon.image(reference)
        except ImageMissingError as error:
            return problem("image", error.message, error.advice)
        except HostError as error:
            return unknown("image", error.message, error.advice)
        if asked.profile.image.digest is None:
            return warning("image", f"{reference} is {found.id} today, and may be another image tomorrow",
                           "name image.digest in the profile, or run from a lock")
        return ok("image", f"{reference} is {found.id}")

    def _engine(self) -> Finding:
        lacking = [name for name in ("torch", "starlette", "safetensors") if not self.machine.has_module(name)]
        if lacking:
            return problem("engine", f"the engine needs {', '.join(lacking)} beside this tool",
                           "pip install 'ninfer[engine]', or use --host docker")
        return ok("engine", "the engine is installed beside this tool")

    def _port(self, asked: Asked) -> Iterator[Finding]:
        if asked.port and not self.machine.port_is_free(asked.port):
            yield problem("port", f"port {asked.port} on 127.0.0.1 is taken",
                          "stop what listens there (ss -ltnp shows it), or leave the port out")
            return
        try:
            port = asked.port or self.machine.free_port()
        except OSError as error:
            yield problem("port", f"no port of 127.0.0.1 can be bound: {error.strerror}",
                          "look at the loopback interface (ip addr show lo)")
            return
        yield ok("port", f"127.0.0.1:{port} can be bound" + ("" if asked.port else ", as any free one would be"))

    # Model

    def _model(self, asked: Asked) -> Iterator[Finding]:
        model = asked.profile.model
        if model.source == "tiny":
            yield (ok("model", "the tiny model is made on the spot") if self.machine.has_module("torch") else
                   problem("model", "the tiny model is made by torch, which is not installed here",
                           "pip install 'ninfer[engine]', or give model.source: path"))
            return
        path = Path(model.path or "")
        if not path.exists():
            yield problem("model", f"no model at {path}", "set model.path in the profile")
            return
        if asked.kind != "process":
            try:
                check_readable(path.resolve(), container_user()[0])
            except (HostError, OSError) as error:
                advice = error.advice if isinstance(error, NinferError) else "make it readable"
                yield problem("model", getattr(error, "message", str(error)), advice)
                return
        yield self._digest(asked, path)

    def _digest(self, asked: Asked, path: Path) -> Finding:
        named = asked.profile.model.sha256
        if not asked.hash_model:
            return unknown("model", f"the digest of {path} was not computed", "leave out --skip-model-hash")
        try:
            found = model_digest(path, self.say)
        except HostError as error:
            return problem("model", error.message, error.advice)
        if named is None:
            return problem("model", f"the profile names no digest of {path}", f"set model.sha256: {found}")
        if named != found:
            return problem("model", f"{path} has sha256 {found} and the profile names {named}",
                           "get the model that was qualified, or set model.sha256 and qualify again")
        return ok("model", f"{path} has the digest that the profile names")

