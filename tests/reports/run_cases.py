"""Directories of runs, as far as they have come: with the plan and the lock of the published receipt."""

import json
from collections.abc import Sequence
from pathlib import Path

from report_cases import REAL, ROOT, real

from ninfer_engine.contract.base import Document
from ninfer_engine.contract.status import Cache, Identity, Pool, Restore, Runtime, Scheduler, StatusDocument
from ninfer_lifecycle.evidence import RequestEvidence, StepEvidence, jsonl
from ninfer_lifecycle.gates.tally import Evidence

LOCK = REAL.with_name("tiny-cpu-full.tiny.000001.lock.json")


def planned() -> list[StepEvidence]:
    """The steps of the published run, in order."""
    return sorted(real().evidence.steps, key=lambda step: step.order)


def begin(runs: Path, name: str = "20261201T000000Z-tiny-cpu-full-abc123") -> Path:
    """A run that has written its plan and nothing else."""
    path = runs / name
    (path / "evidence").mkdir(parents=True)
    (path / "plan.json").write_text(json.dumps({"plan": "fanout", "steps": [step.name for step in planned()]}))
    (path / "lock.json").write_bytes(LOCK.read_bytes())
    (path / "run.json").write_text(json.dumps({"wanted": {"profile": "profiles/tiny-cpu-full"}}))
    return path


def go_on(path: Path, steps: int, evidence: Evidence | None = None) -> None:
    """Write what the run has after so many steps of its plan."""
    found = evidence or real().evidence
    done = sorted(found.steps, key=lambda step: step.order)[:steps]
    last = done[-1].order if done else 0
    write(path, "requests", [record for record in found.requests if record.order <= last])
    write(path, "steps", done)


def write(path: Path, kind: str, records: Sequence[Document]) -> None:
    """An evidence file."""
    ordered = sorted(records, key=lambda record: record.model_dump()["order"])
    (path / "evidence" / f"{kind}.jsonl").write_bytes(jsonl(ordered))


def status(instance: str, images: int) -> bytes:
    """A line of status.jsonl."""
    document = StatusDocument(
        identity=Identity(deployment_profile=None, model_id="m", model_artifact_sha256="0" * 64, binary_sha256="1" * 64,
                          config_sha256=None, build_profile="b", engine_version="0", device="cpu",
                          server_instance_id=instance),
        runtime=Runtime(public_model_id="m", max_context=1, kv_capacity_mode="auto", kv_capacity_tokens=1,
                        kv_cache="fp32", speculative_backend="none"),
        scheduler=Scheduler(max_concurrency=1, max_pending_requests=1),
        cache=Cache(device_state=Pool(occupied=images, capacity=4)), restore=Restore())
    line = {"at": "2026-12-01T00:00:00Z", "sample": images + 1, "status": document.model_dump(mode="json")}
    return json.dumps(line).encode() + b"\n"


__all__ = ["LOCK", "ROOT", "RequestEvidence", "begin", "go_on", "planned", "status", "write"]
