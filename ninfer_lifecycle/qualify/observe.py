"""Start the engine, carry out the plan, stop the engine: the part of a qualification that has an engine."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from ninfer_engine.contract.status import StatusDocument
from ninfer_lifecycle.errors import EngineError, NinferError
from ninfer_lifecycle.gates.evaluate import evaluate
from ninfer_lifecycle.gates.tally import Evidence
from ninfer_lifecycle.gates.verdict import CheckName, Result
from ninfer_lifecycle.hosts.base import Host
from ninfer_lifecycle.hosts.ends import explained
from ninfer_lifecycle.hosts.placing import client_of
from ninfer_lifecycle.probes.journal import Journal
from ninfer_lifecycle.probes.run import Effects, Peer, ProbeRun, Watcher
from ninfer_lifecycle.probes.stepping import run_steps
from ninfer_lifecycle.probes.subject import HostedSubject, Others, life_facts
from ninfer_lifecycle.qualify.prepare import Prepared
from ninfer_lifecycle.qualify.progress import Fan
from ninfer_lifecycle.qualify.rundir import StatusRecorder


@dataclass(frozen=True, slots=True)
class Observation:
    """What was observed. environment: the host's words on itself."""

    evidence: Evidence
    environment: Mapping[str, str]
    started: datetime
    finished: datetime


def evidence_of(journal: Journal) -> Evidence:
    """The journal as the gates take it."""
    return Evidence(tuple(journal.requests), tuple(journal.saves), tuple(journal.epochs), tuple(journal.steps),
                    tuple(journal.facts), tuple(journal.pools))


def carry_out(
    prepared: Prepared, host: Host, journal: Journal, watcher: Watcher, effects: Effects
) -> Mapping[str, str]:
    """Run the plan against a fresh engine and stop it; the host's environment.

    Whatever ends it, the life that ran is written down as far as it is known, and the engine is the host's to remove.
    """
    engine = host.start(prepared.spec)
    recorder = StatusRecorder(prepared.run.path / "status.jsonl", effects.now)
    subject = HostedSubject(host, engine, lambda url: client_of(prepared.spec, url),
                            grace_s=prepared.profile.host.stop_seconds,
                            others=Others(prepared.others, lambda url: client_of(prepared.spec, url)))
    run: ProbeRun | None = None
    peer: Peer | None = None
    try:
        peer = _start_baseline(prepared, host)
        run = ProbeRun(subject, prepared.model_name, journal, prepared.planned.schedule.nonce,
                       Fan((recorder, watcher)), effects, prepared.kept.epoch, prepared.kept.order, baseline=peer)
        refuse_drift(prepared, run.status)
        settled = settled_by(prepared, journal) if prepared.fail_fast else lambda: None
        run_steps(prepared.planned.steps[prepared.kept.steps:], run, settled)
        ended = host.stop(subject.engine, prepared.profile.host.stop_seconds)
        run.finish(life_facts(ended, "the plan was done"))
        return ended.environment
    except BaseException as error:
        told = explained(host, subject.answering, error) if isinstance(error, NinferError) else error
        if run is not None:
            run.abandon()
        if told is error:
            raise
        raise told from error
    finally:
        if peer is not None:
            peer.client.close()
        subject.close()
        recorder.close()


def _start_baseline(prepared: Prepared, host: Host) -> Peer | None:
    """The engine to compare with, beside the one under test; the host removes both."""
    if prepared.baseline is None:
        return None
    engine = host.start(prepared.baseline.spec)
    client = client_of(prepared.baseline.spec, engine.base_url)
    return Peer(client, prepared.baseline.model_name, client.status())


CERTAIN = frozenset({
    CheckName.FORK_HITS, CheckName.FIRST_SIBLING_HOT, CheckName.RESUME_HITS, CheckName.SAVES_COMPLETE,
    CheckName.ACCOUNTING, CheckName.WORK_ACCOUNTED, CheckName.REUSE_AS_EXPECTED, CheckName.FACT_HOLDS,
    CheckName.CONTROL_NEVER_SEEN, CheckName.CONTROL_EXACT_REPEAT})
"""Checks that no further evidence can mend: one miss fails them. Medians and intervals are not among them."""


def settled_by(prepared: Prepared, journal: Journal) -> Callable[[], str | None]:
    """Says which check has failed for certain, once one has."""
    def settled() -> str | None:
        verdict = evaluate(prepared.planned.summary, prepared.profile.gates, evidence_of(journal))
        failed = (check for check in verdict.not_passed if check.result is Result.FAILED and check.name in CERTAIN)
        return next((f"{check.title} has failed for certain: {check.reason}" for check in failed), None)

    return settled


def refuse_drift(prepared: Prepared, status: StatusDocument) -> None:
    """Raises EngineError when what runs is not what the configuration says, beyond what readiness compares."""
    said, flags = status.runtime, prepared.spec.flags
    facts: list[tuple[str, object, object]] = [
        ("max_context", flags.max_context, said.max_context),
        ("max_concurrency", flags.max_concurrency, status.scheduler.max_concurrency),
        ("public model id", prepared.model_name, said.public_model_id),
    ]
    if prepared.configuration.engine_tree_sha256 is not None:
        facts.append(("engine tree", prepared.configuration.engine_tree_sha256, status.identity.binary_sha256))
    for name, asked, runs in facts:
        if asked != runs:
            raise EngineError(f"drift: {name} is {runs} and {asked} was asked for",
                              "the engine that started is not the one that the profile describes")
