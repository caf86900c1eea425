"""Taking up an interrupted run: what of its evidence stands, and from which step it goes on.

An engine that is gone took its caches with it, so what is kept are whole sections of the plan: the fan-out, or a part.
The one that was interrupted is done again from its start, in a new life of the engine. Nothing of the identity may have
changed: not the configuration, the model, the plan, the gates, the tool, the host, or the machine.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ninfer_engine.contract.base import Document, canonical_json
from ninfer_engine.contract.status import StatusDocument
from ninfer_lifecycle.errors import UsageError
from ninfer_lifecycle.evidence import (
    EpochEvidence,
    FactEvidence,
    RequestEvidence,
    StepEvidence,
)
from ninfer_lifecycle.probes.journal import FILES
from ninfer_lifecycle.probes.plans import Schedule, Section
from ninfer_lifecycle.probes.subject import identity_sha256
from ninfer_lifecycle.qualify.rundir import RunDirectory

INTERRUPTED = "the run was interrupted"


@dataclass(frozen=True, slots=True)
class Kept:
    """What goes on: records of whole sections, how many steps they are, and where the next record stands."""

    records: tuple[Document, ...] = ()
    steps: int = 0
    epoch: int = 0
    order: int = 0


def require_same_identity(run: RunDirectory, now: Mapping[str, Any]) -> None:
    """Raises UsageError that names what is not as it was when the run began."""
    then = _json(run.path / "run.json").get("identity", {})
    for name in sorted(set(then) | set(now)):
        if canonical_json(then.get(name)) != canonical_json(now.get(name)):
            raise UsageError(f"run {run.run_id} cannot be taken up again: its {name} was "
                             f"{_shown(then.get(name))} and is {_shown(now.get(name))} now",
                             "begin a new run: evidence of two identities proves nothing of either")


def schedule_of(run: RunDirectory) -> Schedule:
    """The plan as the run wrote it down."""
    try:
        return Schedule.model_validate_json((run.path / "plan.json").read_bytes())
    except (OSError, ValidationError) as error:
        raise UsageError(f"the plan of run {run.run_id} cannot be read", "begin a new run") from error


def keep(run: RunDirectory, schedule: Schedule) -> Kept:
    """What stands of the run. Raises UsageError when it was done, or when a life of its engine left no trace."""
    records = {kind: _records(run.evidence / name, kind) for kind, name in FILES.items()}
    steps = sorted((record for record in records[StepEvidence] if isinstance(record, StepEvidence)),
                   key=lambda step: step.order)
    done = whole_sections(schedule.sections, schedule.steps, steps)
    if done == len(schedule.steps):
        raise UsageError(f"run {run.run_id} carried out its whole plan", "begin a new run")
    if done == 0:
        return Kept()
    last = steps[done - 1].order
    kept = [record for kind in records if kind is not EpochEvidence
            for record in records[kind] if _order(record) <= last]
    epoch = max(record.epoch for record in kept if isinstance(record, (RequestEvidence, FactEvidence, StepEvidence)))
    lives = [record for record in records[EpochEvidence] if isinstance(record, EpochEvidence)]
    ended = next((life for life in lives if life.epoch == epoch), None) or _life_of(run, epoch, kept)
    return Kept((*kept, *(life for life in lives if life.epoch < epoch),
                 ended.model_copy(update={"interrupted": True, "stop_reason": ended.stop_reason or INTERRUPTED})),
                done, epoch + 1, last)


def whole_sections(sections: Sequence[Section], planned: Sequence[str], steps: Sequence[StepEvidence]) -> int:
    """How many steps the leading sections have of which every step was done, or skipped for a reason."""
    settled = 0
    for name, step in zip(planned, steps, strict=False):
        if step.name != name or step.outcome == "failed":
            break
        settled += 1
    whole = 0
    for section in sections:
        if whole + section.steps > settled:
            break
        whole += section.steps
    return whole


def _life_of(run: RunDirectory, epoch: int, kept: Sequence[Document]) -> EpochEvidence:
    """The life that no one wrote down, because the tool was killed too: from the status documents that it left."""
    instances = {record.server_instance_id for record in kept
                 if isinstance(record, RequestEvidence) and record.engine is None and record.epoch == epoch
                 and record.server_instance_id}
    samples = []
    for line in _lines(run.path / "status.jsonl"):
        status = StatusDocument.model_validate(line["status"])
        if status.identity.server_instance_id in instances:
            samples.append((str(line["at"]), status))
    if not samples:
        raise UsageError(f"run {run.run_id} cannot be taken up again: nothing tells of its engine's life {epoch}",
                         "begin a new run")
    (started_at, first), (_, last) = samples[0], samples[-1]
    return EpochEvidence(
        epoch=epoch, server_instance_id=first.identity.server_instance_id, started_at=started_at,
        prefill_counter_before=first.scheduler.computed_prefill_tokens,
        prefill_counter_after=last.scheduler.computed_prefill_tokens, identity_sha256=identity_sha256(first))


def _order(record: Document) -> int:
    order: int = record.model_dump()["order"]
    return order


def _records(path: Path, kind: type[Document]) -> list[Document]:
    try:
        return [kind.model_validate(line) for line in _lines(path)]
    except ValidationError as error:
        raise UsageError(f"{path} holds something else than evidence of this version", "begin a new run") from error


def _lines(path: Path) -> list[dict[str, Any]]:
    """Whole lines of a file; one that was cut off in its middle is none. No file: no lines."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read", "give the directory of a run") from error
    return value if isinstance(value, dict) else {}


def _shown(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."
