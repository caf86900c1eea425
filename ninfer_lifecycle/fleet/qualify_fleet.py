"""One fleet, from its file to a signed statement: jobs, side by side; receipts, each verified; the statement."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from ninfer_lifecycle import __version__
from ninfer_lifecycle.errors import ExitCode, NinferError
from ninfer_lifecycle.fleet.places import Local, fetch_receipt, job_of
from ninfer_lifecycle.fleet.profile_text import profile_text
from ninfer_lifecycle.fleet.running import Done, run_jobs
from ninfer_lifecycle.fleet.schema import Fleet, FleetLane
from ninfer_lifecycle.fleet.statement import SUFFIX, FleetResult, LaneResult, build_statement, worst
from ninfer_lifecycle.fleet.unreachable import Attempt, inconclusive_receipt
from ninfer_lifecycle.gates.verdict import Result
from ninfer_lifecycle.hosts.signals import shielded
from ninfer_lifecycle.profiles.loader import load_profile
from ninfer_lifecycle.profiles.schema import ModelSection, Profile
from ninfer_lifecycle.qualify.identity import tool_tree_sha256
from ninfer_lifecycle.qualify.issue import QUALIFIER_ID
from ninfer_lifecycle.qualify.models import ModelOnDisk
from ninfer_lifecycle.receipts.keys import PublicKey, Signer, load_public_key
from ninfer_lifecycle.receipts.sources import read_receipt
from ninfer_lifecycle.receipts.statement import Digest, Qualifier
from ninfer_lifecycle.receipts.store import publish, write_atomic
from ninfer_lifecycle.receipts.times import format_time, parse_time
from ninfer_lifecycle.receipts.trust import Role, trust_keys
from ninfer_lifecycle.receipts.verification import Expectations, VerifiedReceipt
from ninfer_lifecycle.receipts.verify import verify

RESULTS = {int(ExitCode.PASSED): Result.PASSED, int(ExitCode.FAILED): Result.FAILED,
           int(ExitCode.INCONCLUSIVE): Result.INCONCLUSIVE}
EXIT_CODES = {Result.PASSED: ExitCode.PASSED, Result.FAILED: ExitCode.FAILED,
              Result.INCONCLUSIVE: ExitCode.INCONCLUSIVE}


@dataclass(frozen=True, slots=True)
class FleetWanted:
    """What is asked for. raw: the bytes of the file, the statement's subject. base: of relative paths in it."""

    fleet: Fleet
    raw: bytes
    file_name: str
    base: Path
    validity: timedelta = timedelta(days=90)


@dataclass(frozen=True, slots=True)
class FleetWiring:
    """The effects of a fleet's qualification. now: whole seconds."""

    local: Local
    signer: Signer
    make_model: Callable[[ModelSection], ModelOnDisk]
    now: Callable[[], datetime]
    say: Callable[[str], None] = lambda line: None


@dataclass(frozen=True, slots=True)
class FleetQualified:
    """The outcome. receipts: by lane, as paths on this machine."""

    result: FleetResult
    statement: Path
    receipts: Mapping[str, Path]

    @property
    def exit_code(self) -> ExitCode:
        """Of the worst lane."""
        return EXIT_CODES[self.result.result]


@dataclass(frozen=True, slots=True)
class _Lane:
    """A lane that can be asked, and whose receipts are believed when this key signed them."""

    lane: FleetLane
    profile: Profile
    key: PublicKey


def qualify_fleet(wanted: FleetWanted, wiring: FleetWiring) -> FleetQualified:
    """Qualify every lane; one lane's trouble is that lane's alone.

    Raises UsageError before anything starts for a profile or a key that cannot be read: that is the file's fault.
    """
    lanes = [_resolve(lane, wanted.base, wiring.signer.public_key) for lane in wanted.fleet.lanes]
    for item in lanes:
        if item.lane.place.ssh is None and item.profile.model.source == "tiny":
            wiring.make_model(item.profile.model)  # once, before several lanes would make it at the same time
    jobs = {item.lane.name: job_of(item.lane, profile_text(item.profile, item.lane.name), wiring.local)
            for item in lanes}
    started = wiring.now()
    done: dict[str, Done] = {}
    try:
        run_jobs(jobs, {item.lane.name: item.lane.deadline_seconds for item in lanes}, wanted.fleet.parallelism,
                 wiring.local.folder, wiring.say, done=done)
    except BaseException as error:
        with shielded():
            _write_partial(wiring.local.folder, wanted.fleet, done, error)
        raise
    receipts: dict[str, Path] = {}
    results = tuple(_settle(item, done[item.lane.name], started, wanted, wiring, receipts) for item in lanes)
    result = FleetResult(
        result=worst(lane.result for lane in results), fleet=wanted.fleet.name, started_on=format_time(started),
        finished_on=format_time(wiring.now()), lanes=results,
        qualifier=Qualifier(id=QUALIFIER_ID, version=__version__, source_digest=Digest(sha256=tool_tree_sha256())))
    path = wiring.local.receipts_dir / f"{wanted.fleet.name}.{started:%Y%m%dT%H%M%SZ}{SUFFIX}"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, build_statement(result, wanted.raw, wanted.file_name, wiring.signer))
    return FleetQualified(result, path, receipts)


def _write_partial(folder: Path, fleet: Fleet, done: Mapping[str, Done], error: BaseException) -> None:
    """The record of a fleet that was cut off: the exit code of each lane that had ended. Unsigned; no statement."""
    codes = {lane.name: done[lane.name].exit_code if lane.name in done else None for lane in fleet.lanes}
    write_atomic(folder / "partial.json", json.dumps({"signed": False, "fleet": fleet.name, "exitCodes": codes,
                                                      "reason": type(error).__name__}, indent=2).encode() + b"\n")


def _resolve(lane: FleetLane, base: Path, own: PublicKey) -> _Lane:
    beside = base / lane.profile
    name = str(beside) if lane.profile.endswith((".yaml", ".yml")) and beside.is_file() else lane.profile
    return _Lane(lane, load_profile(name).profile, load_public_key(base / lane.key) if lane.key else own)


def _settle(
    item: _Lane, done: Done, started: datetime, wanted: FleetWanted, wiring: FleetWiring, receipts: dict[str, Path]
) -> LaneResult:
    """What the statement says of a lane: its verified receipt, or the reason why there is none."""
    try:
        path = _receipt_path(item, done, wiring.local)
        receipt = _verified(path, item, started, wiring.now())
        if item.lane.place.ssh is not None:
            path = _kept(path, wiring.local.receipts_dir / item.profile.name)
        reason = None if receipt.predicate.result is Result.PASSED else _first_not_passed(receipt)
    except NinferError as error:
        wiring.say(f"lane {item.lane.name}: {error.message}")
        attempt = Attempt(started, wiring.now(), error.message)
        # Another machine chains its receipts itself: one of ours must not take a place in that chain.
        folder = wiring.local.folder / item.lane.name if item.lane.place.ssh else wiring.local.receipts_dir
        made = inconclusive_receipt(item.lane, item.profile, attempt, wiring.signer, folder, wiring.make_model,
                                    wanted.validity)
        if made is None:
            return _lane_result(item, None, error.message)
        own = _Lane(item.lane, item.profile, wiring.signer.public_key)
        path, receipt, reason = made, _verified(made, own, started, wiring.now()), error.message
    receipts[item.lane.name] = path
    return _lane_result(item, receipt, reason)


def _lane_result(item: _Lane, receipt: VerifiedReceipt | None, reason: str | None) -> LaneResult:
    return LaneResult(
        name=item.lane.name, profile=item.profile.name, place=item.lane.place.told, labels=item.lane.labels,
        result=receipt.predicate.result if receipt else Result.INCONCLUSIVE,
        receipt=Digest(sha256=receipt.payload_sha256) if receipt else None,
        lock=receipt.statement.subject[0].digest if receipt else None, reason=reason)


class NoReceiptError(NinferError):
    """A lane ended without a receipt."""

    exit_code = ExitCode.INCONCLUSIVE


def _receipt_path(item: _Lane, done: Done, local: Local) -> Path:
    """The receipt that a lane names, on this machine. Raises NinferError with why there is none."""
    lane = item.lane
    if done.late:
        raise NoReceiptError(f"it was not done after {lane.deadline_seconds} s")
    if done.exit_code not in RESULTS:
        raise NoReceiptError(f"it ended with {done.exit_code}: {done.last_words}" if done.exit_code is not None
                             else done.last_words)
    try:
        named = str(json.loads(done.stdout)["receipt"])
    except (ValueError, KeyError, TypeError):
        raise NoReceiptError(done.last_words) from None
    if lane.place.ssh is None:
        return Path(named)
    return fetch_receipt(lane, named, local.folder / lane.name / "receipt")


def _kept(fetched: Path, folder: Path) -> Path:
    """A copy among this machine's receipts, everything beside it included; what is there already stays as it is."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = fetched.name.removesuffix(".intoto.json")
    for file in sorted(fetched.parent.glob(f"{stem}.*"), key=lambda file: file == fetched):
        target = folder / file.name
        if target.exists() and target.read_bytes() != file.read_bytes():
            return fetched  # another history has this place here; the copy below the run stands on its own
        if not target.exists():
            publish(target, file.read_bytes())
    return folder / fetched.name


def _verified(path: Path, item: _Lane, started: datetime, now: datetime) -> VerifiedReceipt:
    """The receipt, when the lane's key signed it, it is of this profile and lane, and it began in this run."""
    found = read_receipt(path)
    receipt = verify(found.raw, found.files, Expectations(
        trust=trust_keys(Role.QUALIFIER, item.key), now=now + timedelta(seconds=1), lock=found.own_lock(),
        results=frozenset(Result))).require()
    stated = receipt.predicate
    if (stated.profile, stated.lane) != (item.profile.name, item.lane.name):
        raise NoReceiptError(f"its receipt is of {stated.profile} on lane {stated.lane}")
    if parse_time(stated.started_on) < started - timedelta(minutes=5):
        raise NoReceiptError(f"its receipt is of an earlier run, of {stated.started_on}")
    return receipt


def _first_not_passed(receipt: VerifiedReceipt) -> str:
    first = receipt.verdict.not_passed[0]
    return f"{first.title} is {first.result}: {first.reason}"
