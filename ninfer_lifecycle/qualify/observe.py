"""Start the engine, carry out the plan, stop the engine: the part of a qualification that has an engine."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from ninfer_engine.contract.status import StatusDocument
from ninfer_lifecycle.errors import EngineError
from ninfer_lifecycle.gates.tally import Evidence
from ninfer_lifecycle.hosts.base import Host
from ninfer_lifecycle.hosts.placing import client_of
from ninfer_lifecycle.probes.journal import Journal
from ninfer_lifecycle.probes.run import Effects, ProbeRun, Watcher, run_steps
from ninfer_lifecycle.probes.subject import HostedSubject, life_facts
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
                    tuple(journal.facts))


def carry_out(
    prepared: Prepared, host: Host, journal: Journal, watcher: Watcher, effects: Effects
) -> Mapping[str, str]:
    """Run the plan against a fresh engine and stop it; the host's environment.

    Whatever ends it, the life that ran is written down as far as it is known, and the engine is the host's to remove.
    """
    engine = host.start(prepared.spec)
    recorder = StatusRecorder(prepared.run.path / "status.jsonl")
    subject = HostedSubject(host, engine, lambda url: client_of(prepared.spec, url),
                            grace_s=prepared.profile.host.stop_seconds)
    run: ProbeRun | None = None
    try:
        run = ProbeRun(subject, prepared.model_name, journal, prepared.planned.schedule.nonce,
                       Fan((recorder, watcher)), effects)
        refuse_drift(prepared, run.status)
        run_steps(prepared.planned.steps, run)
        ended = host.stop(subject.engine, prepared.profile.host.stop_seconds)
        run.finish(life_facts(ended, "the plan was done"))
        return ended.environment
    except BaseException:
        if run is not None:
            run.abandon()
        raise
    finally:
        subject.close()
        recorder.close()


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
