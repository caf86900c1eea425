"""One qualification, from a name on the command line to a verified receipt: the order of effects, nothing else.

    resolve -> key -> host, image -> model -> prepare -> start, probe, stop -> gates -> sign -> verify
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from shutil import rmtree

from ninfer_lifecycle.errors import ExitCode, NinferError
from ninfer_lifecycle.gates.evaluate import evaluate
from ninfer_lifecycle.gates.tally import Evidence
from ninfer_lifecycle.gates.verdict import Result
from ninfer_lifecycle.hosts.base import Host, HostKind
from ninfer_lifecycle.hosts.signals import shielded
from ninfer_lifecycle.probes.journal import Journal
from ninfer_lifecycle.probes.run import Effects, Watcher
from ninfer_lifecycle.profiles.loader import load_profile
from ninfer_lifecycle.profiles.schema import Profile
from ninfer_lifecycle.qualify.budget import summary_of_run
from ninfer_lifecycle.qualify.issue import Issued, issue, qualifier_key
from ninfer_lifecycle.qualify.observe import Observation, carry_out, evidence_of
from ninfer_lifecycle.qualify.prepare import (
    BaselineParts,
    MakeModel,
    Parts,
    Prepared,
    Reaps,
    Wanted,
    image_of,
    prepare,
    resolve,
)
from ninfer_lifecycle.qualify.rundir import RunDirectory, held, open_run_directory
from ninfer_lifecycle.receipts.keys import Signer, load_signer


@dataclass(frozen=True, slots=True)
class Wiring:
    """The effects of a qualification. say: one line of prose for people, never a result."""

    make_host: Callable[[HostKind], Host]
    make_model: MakeModel
    display: Callable[[], AbstractContextManager[Watcher]]
    say: Callable[[str], None]
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    effects: Effects = field(default_factory=Effects)


@dataclass(frozen=True, slots=True)
class Signing:
    """Where receipts go and who signs. key None: this machine's own key below state_dir. open_key: opens a private key
    file; asks for the passphrase of one that has it.
    """

    receipts_dir: Path
    state_dir: Path
    key: Path | None = None
    open_key: Callable[[Path], Signer] = load_signer
    validity: timedelta = timedelta(days=90)


@dataclass(frozen=True, slots=True)
class Qualified:
    """A qualification that came to a verdict."""

    prepared: Prepared
    observed: Observation
    issued: Issued

    @property
    def result(self) -> Result:
        """The verdict, from the verified receipt."""
        return self.issued.receipt.verdict.result

    @property
    def exit_code(self) -> ExitCode:
        """What the shell is told."""
        return EXIT_CODES[self.result]


EXIT_CODES = {Result.PASSED: ExitCode.PASSED, Result.FAILED: ExitCode.FAILED,
              Result.INCONCLUSIVE: ExitCode.INCONCLUSIVE}


def qualify(wanted: Wanted, signing: Signing, wiring: Wiring) -> Qualified:
    """Run the main job. Raises NinferError; a run that died after it began has left `partial.json` and its evidence."""
    profile = resolve(wanted)
    # Read first: a key that cannot sign should not cost a run.
    signer = qualifier_key(signing.key, signing.state_dir, wiring.say, signing.open_key)
    with wiring.make_host(wanted.host or profile.host.kind) as host:
        # The host and its image before the model: what takes seconds to refuse should not wait for what takes longer.
        image = image_of(profile, host)
        if wanted.resume is not None:
            _reap(host, open_run_directory(wanted.resume), wiring)
        wiring.say(f"model: {profile.model.source}")
        parts = Parts(host.kind, image, wiring.make_model(profile.model), baseline_parts(profile, host, wiring))
        prepared = prepare(wanted, profile, parts, wiring.now())
        wiring.say(f"run {prepared.run.path}: {prepared.estimate}")
        if prepared.kept.steps:
            wiring.say(f"going on after step {prepared.kept.steps} of {len(prepared.planned.steps)}")
        try:
            with held(prepared.run):
                return _qualify(prepared, host, signer, signing, wiring)
        finally:
            # The engine goes before its store and key do.
            with shielded():
                try:
                    host.cleanup()
                finally:
                    rmtree(prepared.run.store, ignore_errors=True)
                    for name in ("baseline", *prepared.others):
                        rmtree(prepared.run.path / name / "store", ignore_errors=True)
                    (prepared.run.path / "api.key").unlink(missing_ok=True)


def _reap(host: Host, run: RunDirectory, wiring: Wiring) -> None:
    """Before a run is taken up again: what its killed tool left would answer for it, and hold its store."""
    with held(run):
        count = host.reap(run.path) if isinstance(host, Reaps) else 0
    if count:
        wiring.say(f"removed {count} engine{'s' if count > 1 else ''} that the interrupted run had left")


def _qualify(prepared: Prepared, host: Host, signer: Signer, signing: Signing, wiring: Wiring) -> Qualified:
    journal = Journal(prepared.run.evidence, prepared.kept.records)
    started = prepared.started_on or wiring.now()
    try:
        with wiring.display() as watcher:
            environment = carry_out(prepared, host, journal, watcher, wiring.effects)
        observed = Observation(evidence_of(journal), environment, started, wiring.now())
        prepared.run.write_json("summary.json", summary_of_run(
            observed.evidence, prepared.planned.schedule.estimated_tokens, prepared.lock.configuration_sha256))
        (prepared.run.path / "partial.json").unlink(missing_ok=True)
        return Qualified(prepared, observed,
                         issue(prepared, observed, signer, signing.receipts_dir, signing.validity))
    except BaseException as error:
        with shielded(), suppress(OSError):  # a disk that is full must not hide why the run ended
            write_partial(prepared, evidence_of(journal), error)
        raise
    finally:
        journal.close()


def baseline_parts(profile: Profile, host: Host, wiring: Wiring) -> BaselineParts | None:
    """What the profile to compare with needs on this host. Raises UsageError and ProfileError."""
    if profile.probes.baseline is None:
        return None
    other = load_profile(profile.probes.baseline).profile
    return BaselineParts(other, image_of(other, host), wiring.make_model(other.model))


def write_partial(prepared: Prepared, evidence: Evidence, error: BaseException) -> None:
    """The record of a run that died: why, where, and what the gates make of what there is. Unsigned; no receipt."""
    verdict = evaluate(prepared.planned.summary, prepared.profile.gates, evidence)
    last = evidence.steps[-1] if evidence.steps else None
    prepared.run.write_json("partial.json", {
        "signed": False,
        "reason": error.message if isinstance(error, NinferError) else type(error).__name__,
        "advice": error.advice if isinstance(error, NinferError) else "",
        "failureStage": last.name if last and last.outcome == "failed" else ("probe" if evidence.requests else "start"),
        "requests": len(evidence.requests),
        "stepsDone": sum(step.outcome == "done" for step in evidence.steps),
        "stepsPlanned": len(prepared.planned.steps),
        "notPassed": [{"check": check.title, "result": check.result.value, "reason": check.reason}
                      for check in verdict.not_passed],
    })
