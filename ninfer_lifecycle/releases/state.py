"""The one state file of this machine's lanes: read whole, replaced whole, changed by compare-and-swap.

    STATE_DIR/releases/state.json          what is live (records.ReleaseState)
                       state.lock          held for the moment of a write
                       LANE/owner.lock     held by whoever changes the lane, for as long as that takes
                       LANE/api.key        the key of the lane's clients; every engine on the lane answers to it
                       LANE/router.log
                       LANE/runs/ID/       an engine's log and key
                       LANE/stores/CONFIG/ durable stores, one a configuration

The kernel frees both locks with the process that holds them, however it ends. What the owner lock's file says of its
holder is for people; only the lock itself decides.
"""

import fcntl
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from ninfer_lifecycle.errors import ExitCode, HostError, NinferError, UsageError
from ninfer_lifecycle.hosts.facts import boot_id, process_start_ticks, utc_now
from ninfer_lifecycle.receipts.store import write_atomic
from ninfer_lifecycle.releases.records import LANE_PATTERN, Entry, LaneState, Owner, ReleaseState
from ninfer_lifecycle.text import did_you_mean


class LaneBusyError(HostError):
    """Someone else changes this lane."""

    def __init__(self, lane: str, owner: Owner | None) -> None:
        who = f"process {owner.pid} works on it since {owner.since}: {owner.purpose}" if owner else "by another ninfer"
        super().__init__(f"lane {lane} is being changed; {who}", "wait until it is done; `ninfer release status` shows "
                         "how far it is")
        self.owner = owner


class SwapError(NinferError):
    """The lane was changed since it was read: somebody writes without holding its owner lock."""

    exit_code = ExitCode.INCONCLUSIVE

    def __init__(self, lane: str, expected: int, found: int) -> None:
        super().__init__(f"lane {lane} is at revision {found} and was read at {expected}",
                         "nothing was written; look at `ninfer release history`, then try again")


class ReleaseFile:
    """The state file below a state directory. Every method reads anew."""

    def __init__(self, state_dir: Path) -> None:
        self.directory = state_dir.resolve() / "releases"
        self.path = self.directory / "state.json"

    def read(self) -> ReleaseState:
        """All lanes. UsageError when the file is damaged or cannot be read."""
        try:
            return ReleaseState.model_validate_json(self.path.read_bytes())
        except FileNotFoundError:
            return ReleaseState()
        except OSError as error:
            raise UsageError(f"cannot read {self.path}: {error.strerror}", "give the directory that `ninfer promote` "
                             "wrote to: --state-dir, or NINFER_STATE_DIR") from error
        except ValidationError as error:
            raise UsageError(f"{self.path} cannot be understood", "put back an earlier copy of it, or remove it and "
                             "stop what runs by hand (docker ps, ps)") from error

    def lane(self, name: str) -> LaneState:
        """One lane. UsageError when there is none of that name."""
        lanes = self.read().lanes
        if name not in lanes:
            near = did_you_mean(name, lanes)
            raise UsageError(f"there is no lane {name!r}{near}", "`ninfer release status` lists the lanes; the first "
                             "`ninfer promote PROFILE --lane NAME` makes one")
        return lanes[name]

    def swap(self, lane: LaneState) -> LaneState:
        """Write `lane` if the file still holds the revision that it was made from; what was written.

        A lane of revision 0 must not be there yet. Effects: the file is replaced in one step, with fsync.
        Raises SwapError, and then nothing was written.
        """
        with self._writing():
            state = self.read()
            found = state.lanes[lane.name].revision if lane.name in state.lanes else 0
            if found != lane.revision:
                raise SwapError(lane.name, lane.revision, found)
            written = lane.model_copy(update={"revision": lane.revision + 1})
            self._write(state, {**state.lanes, lane.name: written})
            return written

    def drop(self, lane: LaneState) -> None:
        """Forget a lane but for its history, under the same condition."""
        with self._writing():
            state = self.read()
            found = state.lanes[lane.name].revision if lane.name in state.lanes else 0
            if found != lane.revision:
                raise SwapError(lane.name, lane.revision, found)
            self._write(state.model_copy(update={"out_of_service": {
                **state.out_of_service, **({lane.name: lane.history} if lane.history else {})}}),
                {name: item for name, item in state.lanes.items() if name != lane.name})

    def history(self, lane: str | None = None) -> tuple[tuple[str, Entry], ...]:
        """What became of every change, oldest first, each with its lane; of one lane, or of all that there ever were.

        UsageError for a lane that never was.
        """
        histories = self.read().histories()
        if lane is not None and lane not in histories:
            self.lane(lane)
        found = [(name, entry) for name, entries in histories.items() for entry in entries if lane in {None, name}]
        return tuple(sorted(found, key=lambda one: one[1].at))

    def folder(self, lane: str) -> Path:
        """Where a lane keeps its files; made when it is not there. UsageError for a name that is none."""
        if re.fullmatch(LANE_PATTERN, lane) is None:
            raise UsageError(f"{lane!r} is no name of a lane", "at most 64 small letters, digits, dots, dashes and "
                             "underscores, such as tiny-2")
        path = self.directory / lane
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        return path

    def api_key(self, lane: str) -> Path:
        """The key file of a lane's clients, made once."""
        path = self.folder(lane) / "api.key"
        if not path.exists():
            made = path.with_name(f".api.key.{os.getpid()}")
            made.unlink(missing_ok=True)
            made.touch(mode=0o600)
            made.write_text(secrets.token_urlsafe(32) + "\n", encoding="utf-8")
            made.replace(path)
        return path

    @contextmanager
    def owning(self, lane: str, purpose: str) -> Iterator[Owner]:
        """Inside, nobody else changes this lane. LaneBusyError at once, with who does, when somebody works on it."""
        pid = os.getpid()
        owner = Owner(pid=pid, start=process_start_ticks(pid) or 0, boot=boot_id(), purpose=purpose, since=utc_now())
        with (self.folder(lane) / "owner.lock").open("a+", encoding="utf-8") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise LaneBusyError(lane, self.owner(lane)) from None
            lock.truncate(0)
            lock.write(owner.model_dump_json() + "\n")
            lock.flush()
            yield owner

    def owner(self, lane: str) -> Owner | None:
        """Who took the owner lock last, while that process lives; None when it is gone or cannot be told."""
        try:
            said = Owner.model_validate_json((self.folder(lane) / "owner.lock").read_bytes())
        except (OSError, ValidationError):
            return None
        return said if said.boot == boot_id() and process_start_ticks(said.pid) == said.start else None

    def is_owned(self, lane: str) -> bool:
        """Whether somebody changes the lane at this moment."""
        with (self.folder(lane) / "owner.lock").open("a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = (self.directory / "state.lock").open("w")
        except OSError as error:
            raise UsageError(f"cannot write {self.directory}: {error.strerror}", "give a directory that can be "
                             "written: --state-dir") from error
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _write(self, state: ReleaseState, lanes: dict[str, LaneState]) -> None:
        gone = {name: entries for name, entries in state.out_of_service.items() if name not in lanes}
        new = state.model_copy(update={"revision": state.revision + 1, "lanes": lanes, "out_of_service": gone})
        write_atomic(self.path, new.model_dump_json(indent=1).encode() + b"\n")
