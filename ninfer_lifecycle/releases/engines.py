"""Releases on hosts: start one, bring a stopped one back, stop it and keep it, put it away for good.

Nothing here writes the state file. Each function may be interrupted at any point and called again: what an earlier call
left is found by the release's run directory.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from ninfer_lifecycle.errors import HostError, NinferError
from ninfer_lifecycle.hosts.base import EngineSpec, Host, HostKind, RunningEngine
from ninfer_lifecycle.hosts.mounts import forget_keys
from ninfer_lifecycle.hosts.orphans import KEY_NAME
from ninfer_lifecycle.hosts.placing import client_of
from ninfer_lifecycle.hosts.readiness import identity_difference
from ninfer_lifecycle.qualify.prepare import Reaps
from ninfer_lifecycle.releases.records import Release

_LOOK_S = 10.0
_PUT_AWAY_GRACE_S = 5.0


@dataclass(frozen=True, slots=True)
class Engines:
    """What promote and its relatives do to engines. make_host: opens a host of a kind."""

    make_host: Callable[[HostKind], Host]

    def start(self, release: Release, spec: EngineSpec, started: Callable[[RunningEngine], None]) -> RunningEngine:
        """Start the engine and leave it running. `started` is called while the host still owns it: when that fails,
        the engine goes. Raises HostError and EngineError. Effects: makes its run directory, with a copy of the key.
        """
        spec.run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        restore_key(spec)
        with self.make_host(release.kind) as place:
            engine = place.start(spec)
            started(engine)
            place.release(engine)
        return engine

    def is_well(self, release: Release) -> bool:
        """Whether the engine runs and is, at the address that is recorded, what the release says."""
        return self.fault(release) is None

    def fault(self, release: Release) -> str | None:
        """Why it is not well, in words; None when it is."""
        if release.engine is None:
            return "it never ran"
        try:
            with self.make_host(release.kind) as place:
                facts = place.inspect(release.engine)
            if not facts.running:
                code = "" if facts.exit_code is None else f" with exit code {facts.exit_code}"
                return f"its engine has ended{code}"
            with client_of(release.engine.spec, release.engine.base_url) as client:
                document = client.status(_LOOK_S)
        except NinferError as error:
            return error.message
        return identity_difference(document, release.engine.spec.expected) if document.status == "ok" \
            else f"its status is {document.status}"

    def revive(self, release: Release, started: Callable[[RunningEngine], None]) -> RunningEngine:
        """Bring a release back that is stopped, died, or was being brought back when a tool was killed.

        Its address may be another one. Raises HostError and EngineError.
        """
        if release.engine is None:
            raise HostError(f"release {release.release_id} never ran", "promote a profile")
        with self.make_host(release.kind) as place:
            engine = self._begin_again(place, release, release.engine)
            started(engine)
            place.release(engine)
        return engine

    @staticmethod
    def _begin_again(place: Host, release: Release, engine: RunningEngine) -> RunningEngine:
        restore_key(engine.spec)
        if release.kind == "process":
            # A process that a killed tool started in its place is in no record: its key tells it.
            if isinstance(place, Reaps):
                place.reap(release.run_dir)
            return replace(place.start(engine.spec), epoch=engine.epoch + 1)
        if place.inspect(engine).image_id is not None:
            return place.restart(engine, release.stop_seconds)
        if isinstance(place, Reaps):  # someone removed the container; what a killed tool put in its place goes too
            place.reap(release.run_dir)
        return replace(place.start(engine.spec), epoch=engine.epoch + 1)

    def stop(self, release: Release, grace_s: float | None = None) -> None:
        """Stop it and keep what it takes to bring it back: container, store, key, log. One that is gone is stopped."""
        if release.engine is None:
            return
        with self.make_host(release.kind) as place:
            facts = place.inspect(release.engine)
            if facts.running:
                place.stop(release.engine, release.stop_seconds if grace_s is None else grace_s)
            # One that was brought back by a tool that was killed before it could write that down.
            if isinstance(place, Reaps) and (release.kind == "process" or facts.image_id is None):
                place.reap(release.run_dir)

    def put_away(self, release: Release) -> None:
        """Remove it for good, whether or not it is recorded that it ran; its log stays, every copy of its key goes."""
        with self.make_host(release.kind) as place:
            if release.engine is not None:
                try:
                    place.adopt(release.engine)
                    place.stop(release.engine, _PUT_AWAY_GRACE_S)
                    place.cleanup()
                except HostError:
                    pass  # what is gone needs no removal; what is not is found by the next lines
            if isinstance(place, Reaps):
                place.reap(release.run_dir)
        (release.run_dir / KEY_NAME).unlink(missing_ok=True)
        forget_keys(release.run_dir)

    def is_idle(self, release: Release) -> bool:
        """Whether the engine says that nothing runs and nothing waits; one that does not answer finishes nothing."""
        if release.engine is None:
            return True
        try:
            with self.make_host(release.kind) as place:
                if not place.inspect(release.engine).running:
                    return True
            with client_of(release.engine.spec, release.engine.base_url) as client:
                scheduler = client.status(_LOOK_S).scheduler
        except NinferError:
            return True
        return scheduler.running == 0 and scheduler.waiting == 0


def restore_key(spec: EngineSpec) -> None:
    """The engine's copy of the lane's key, made again where it was put away."""
    lane_key = spec.run_dir.parents[1] / KEY_NAME
    own = spec.run_dir / KEY_NAME
    if not own.exists() and lane_key.exists():
        copy_key(lane_key, own)


def copy_key(source: Path, target: Path) -> None:
    """A copy that only its owner can read, from its first moment."""
    target.unlink(missing_ok=True)
    target.touch(mode=0o600)
    shutil.copyfile(source, target)
