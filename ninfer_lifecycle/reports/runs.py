"""Runs in progress, from the files that a run writes as it goes: steps, progress, gates so far.

Nothing here is signed or a verdict. Files may be cut off in their last line or be missing; words in them are the
engine's. A run is read again only where its files changed.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from ninfer_engine.contract.base import Document
from ninfer_engine.contract.status import StatusDocument
from ninfer_lifecycle.evidence import PoolEvidence, RequestEvidence, Step, StepEvidence
from ninfer_lifecycle.gates.plans import Asked, summary_of
from ninfer_lifecycle.gates.tally import is_failed
from ninfer_lifecycle.gates.thresholds import Thresholds
from ninfer_lifecycle.qualify.settling import Expected, LiveGate, Settling
from ninfer_lifecycle.reports import words
from ninfer_lifecycle.reports.occupancy import PoolSample, pools_of

QUIET_S = 300
"""A run that wrote nothing for so long is not called running any more."""
MAX_RUNS = 12
_FORKS = 60
_TAIL = 64 * 1024
_RecordT = TypeVar("_RecordT", bound=Document)


@dataclass(frozen=True, slots=True)
class RunView:
    """One run as it stands. state: running, quiet, done or died (then `why`). quiet_s: since a file of it changed."""

    run_id: str
    profile: str
    state: str
    why: str
    quiet_s: float
    eta_s: float | None
    planned: tuple[str, ...]
    ended: tuple[StepEvidence, ...]
    gates: tuple[LiveGate, ...]
    forks_us: tuple[int, ...]
    requests: int
    unanswered: int
    pools: tuple[PoolSample, ...]

    def to_json(self) -> dict[str, Any]:
        """What the page shows."""
        return {
            "id": words.shown(self.run_id), "profile": words.shown(self.profile), "state": self.state,
            "why": words.shown(self.why), "quiet": round(self.quiet_s), "eta": self.eta_s,
            "done": len(self.ended), "steps": [words.shown(name) for name in self.planned],
            "ended": [[step.outcome, step.wall_us] for step in self.ended], "forks": list(self.forks_us),
            "requests": self.requests, "unanswered": self.unanswered,
            "gates": [{"title": words.shown(gate.title), "result": gate.result and gate.result.value,
                       "trials": gate.trials, "planned": gate.planned, "misses": gate.misses, "gaps": gate.gaps}
                      for gate in self.gates],
            "pools": [[pool.pool, pool.unit, pool.occupied, pool.capacity] for pool in self.pools],
        }


@dataclass
class RunWatcher:
    """The runs below a folder, newest first. Effects: reads files."""

    folder: Path
    _seen: dict[Path, tuple[tuple[int, ...], RunView]] = field(default_factory=dict)

    def look(self, now_s: float) -> tuple[RunView, ...]:
        """The newest runs. now_s: Unix time, to tell how long a run has been silent."""
        found = sorted((path for path in self.folder.glob("*") if (path / "plan.json").is_file()),
                       key=lambda path: path.name, reverse=True)[:MAX_RUNS]
        self._seen = {path: seen for path, seen in self._seen.items() if path in found}
        return tuple(self._view(path, now_s) for path in found)

    def _view(self, path: Path, now_s: float) -> RunView:
        stamp, changed_s = _stamp(path)
        quiet = max(0.0, now_s - changed_s)
        known = self._seen.get(path)
        if known is not None and known[0] == (*stamp, int(quiet > QUIET_S)):
            return known[1]
        view = read_run(path, quiet)
        self._seen[path] = ((*stamp, int(quiet > QUIET_S)), view)
        return view


def read_run(path: Path, quiet_s: float) -> RunView:
    """One run from its directory, however little of it is there."""
    requests = _records(path / "evidence" / "requests.jsonl", RequestEvidence)
    ended = tuple(sorted(_records(path / "evidence" / "steps.jsonl", StepEvidence), key=lambda step: step.order))
    plan, partial = _document(path / "plan.json"), _document(path / "partial.json")
    planned = tuple(str(name) for name in plan.get("steps", ()))
    expected = _expected(path, planned)
    settling = None if expected is None else Settling(expected)
    for record in requests:
        if settling is not None:
            settling.note(record)
    state, why = _state(path, partial, quiet_s)
    return RunView(
        run_id=path.name, profile=_profile(path), state=state, why=why, quiet_s=quiet_s,
        eta_s=_eta(planned, ended) if state == "running" else None, planned=planned, ended=ended,
        gates=settling.gates() if settling is not None else (), forks_us=_forks(requests), requests=len(requests),
        unanswered=sum(is_failed(record) for record in requests), pools=_pools(path / "status.jsonl"))


def _state(path: Path, partial: dict[str, Any], quiet_s: float) -> tuple[str, str]:
    """A record of a run that died is old news where evidence came after it: then the run was taken up again."""
    if partial and _changed(path / "partial.json") >= _changed(path / "evidence" / "steps.jsonl"):
        return "died", str(partial.get("reason", ""))
    if (path / "summary.json").is_file():
        return "done", ""
    return ("quiet" if quiet_s > QUIET_S else "running"), ""


def _changed(path: Path) -> int:
    """Time of change in nanoseconds, 0 where the file is not there."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _eta(planned: Sequence[str], ended: Sequence[StepEvidence]) -> float | None:
    """Seconds left when the steps to come take as long as the steps of their name, sizes included, or the mean."""
    if not ended:
        return None
    known: dict[str, list[int]] = {}
    for step in ended:
        known.setdefault(step.name, []).append(step.wall_us)
    mean = sum(step.wall_us for step in ended) / len(ended)
    left = sum(sum(walls) / len(walls) if (walls := known.get(name)) else mean for name in planned[len(ended):])
    return round(left / 1e6, 1)


def _forks(requests: Sequence[RequestEvidence]) -> tuple[int, ...]:
    walls = [record.wall_us for record in requests
             if record.step is Step.FORK and record.wall_us is not None and not is_failed(record)]
    return tuple(walls[-_FORKS:])


def _expected(path: Path, planned: tuple[str, ...]) -> Expected | None:
    """What the run is held to, from its lock file; None where that cannot be read as this version writes it."""
    lock = _document(path / "lock.json")
    try:
        limits = Thresholds.model_validate_json(json.dumps(lock["gates"]))
        return Expected(summary_of(Asked.model_validate_json(json.dumps(lock["probes"]))), limits, planned)
    except (KeyError, ValueError):
        return None


def _profile(path: Path) -> str:
    asked = _document(path / "run.json").get("wanted")
    return str(asked.get("profile", path.name)).rsplit("/", 1)[-1] if isinstance(asked, dict) else path.name


def _pools(path: Path) -> tuple[PoolSample, ...]:
    """Of the newest whole status document."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL))
            lines = [line for line in file.read().splitlines(keepends=True) if line.endswith(b"\n")]
        return pools_of(PoolEvidence.of(StatusDocument.model_validate(json.loads(lines[-1])["status"]), 0, 0))
    except (OSError, ValueError, IndexError, KeyError, TypeError):
        return ()


def _records(path: Path, kind: type[_RecordT]) -> list[_RecordT]:
    """Whole lines of this version's evidence; others are left out, since this is a view and no verdict."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError:
        return []
    found = []
    for line in lines:
        try:
            if line.endswith(b"\n"):
                found.append(kind.model_validate_json(line))
        except ValidationError:
            continue
    return found


def _document(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _stamp(path: Path) -> tuple[tuple[int, ...], float]:
    """Sizes and times of change of what is read, and the newest of those times in Unix seconds."""
    stamps: list[int] = []
    for name in ("plan.json", "status.jsonl", "partial.json", "summary.json", "evidence/requests.jsonl",
                 "evidence/steps.jsonl"):
        try:
            state = (path / name).stat()
            stamps += [state.st_size, state.st_mtime_ns]
        except OSError:
            stamps += [0, 0]
    return tuple(stamps), max(stamps[1::2]) / 1e9
