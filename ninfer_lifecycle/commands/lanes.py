"""What promote, rollback and release have in common: where the state lies, the real effects, how a lane is shown."""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from ninfer_lifecycle.errors import NinferError
from ninfer_lifecycle.hosts.choice import open_host
from ninfer_lifecycle.releases.change import ChangeError, Wiring
from ninfer_lifecycle.releases.engines import Engines
from ninfer_lifecycle.releases.promote import Promoted
from ninfer_lifecycle.releases.records import LaneState, Release, Strategy
from ninfer_lifecycle.releases.room import available_memory
from ninfer_lifecycle.releases.routers import Routers
from ninfer_lifecycle.releases.state import ReleaseFile
from ninfer_lifecycle.state import default_state_dir

StateDir = Annotated[Path | None, typer.Option("--state-dir", help="default: $NINFER_STATE_DIR, or the XDG place")]
StrategyOption = Annotated[Strategy | None, typer.Option("--strategy", help="beside the incumbent, or in its place; "
                                                                          "default: as memory allows")]


def release_file(state_dir: Path | None) -> ReleaseFile:
    """The state of this machine's lanes."""
    return ReleaseFile(state_dir or default_state_dir())


def wiring_of(files: ReleaseFile) -> Wiring:
    """The real effects. Prose goes to stderr."""
    return Wiring(files=files, engines=Engines(open_host), routers=Routers(files, partial(heal_command, files)),
                  say=lambda line: typer.echo(line, err=True))


def heal_command(files: ReleaseFile, lane: str) -> Sequence[str]:
    """What a lane's router calls when the live engine cannot be reached."""
    return (sys.executable, "-m", "ninfer_lifecycle.cli", "release", "recover", lane, "--state-dir",
            str(files.directory.parent))


def free_memory() -> int | None:
    """What this machine has left."""
    try:
        return available_memory(Path("/proc/meminfo").read_text(encoding="utf-8"))
    except OSError:
        return None


def release_document(release: Release | None) -> dict[str, Any] | None:
    """A release for --json."""
    if release is None:
        return None
    return {"release": release.release_id, "profile": release.profile, "host": release.kind,
            "configurationSha256": release.configuration_sha256, "lockSha256": release.lock_sha256,
            "receiptSha256": release.receipt_sha256, "runDir": str(release.run_dir),
            "engineUrl": release.engine.base_url if release.engine else None}


def lane_document(files: ReleaseFile, lane: LaneState) -> dict[str, Any]:
    """A lane for --json, as the state file has it."""
    change = lane.change
    return {"lane": lane.name, "url": lane.url, "revision": lane.revision,
            "apiKeyFile": str(files.folder(lane.name) / "api.key"),
            "live": release_document(lane.live), "previous": release_document(lane.previous),
            "change": None if change is None else {
                "kind": change.kind, "stage": change.stage.value, "strategy": change.strategy.value,
                "candidate": change.candidate.release_id, "since": change.owner.since, "owner": change.owner.pid,
                "ownerLives": files.owner(lane.name) is not None}}


def promoted_document(files: ReleaseFile, promoted: Promoted) -> dict[str, Any]:
    """The end of a promotion or a rollback for --json."""
    return {"changed": not promoted.already, "strategy": promoted.choice.strategy.value,
            "reason": promoted.choice.reason, "retired": promoted.retired, "failureStage": None,
            "incumbentPreserved": None, **lane_document(files, promoted.lane)}


def failed_document(files: ReleaseFile, lane: str, error: NinferError) -> dict[str, Any]:
    """A refused or failed one: where it failed, and whether what was live is live."""
    known = files.read().lanes.get(lane)
    stage, preserved = ((error.failure_stage, error.incumbent_preserved) if isinstance(error, ChangeError)
                        else ("before", None))
    return {"changed": False, "lane": lane, "failureStage": stage, "incumbentPreserved": preserved,
            "error": error.message, "advice": error.advice,
            "live": release_document(known.live) if known else None}
