"""Probe an engine that someone else runs: asked as in a qualification, but not proven to be any configuration.

So there is no restart, no lock document and no receipt. The verdict is for the person at the keyboard, and is written
down unsigned.
"""

import secrets
from contextlib import ExitStack
from dataclasses import dataclass

from ninfer_lifecycle.client import EngineClient, EngineReplyError
from ninfer_lifecycle.errors import EngineError
from ninfer_lifecycle.gates.evaluate import evaluate
from ninfer_lifecycle.gates.tally import Evidence
from ninfer_lifecycle.gates.thresholds import Thresholds
from ninfer_lifecycle.gates.verdict import Verdict
from ninfer_lifecycle.probes.journal import Journal
from ninfer_lifecycle.probes.plain import PlainEngine
from ninfer_lifecycle.probes.plans import Planned, make_plan
from ninfer_lifecycle.probes.run import Effects, Peer, ProbeRun, Watcher
from ninfer_lifecycle.probes.stepping import run_steps
from ninfer_lifecycle.probes.subject import RemoteSubject, Subject
from ninfer_lifecycle.qualify.budget import summary_of_run
from ninfer_lifecycle.qualify.observe import evidence_of
from ninfer_lifecycle.qualify.orchestrate import Wiring
from ninfer_lifecycle.qualify.prepare import Wanted, resolve, run_id_of
from ninfer_lifecycle.qualify.progress import Fan
from ninfer_lifecycle.qualify.rundir import RunDirectory, StatusRecorder, create_run_directory


@dataclass(frozen=True, slots=True)
class Measured:
    """What was found of an engine of unproven configuration."""

    run: RunDirectory
    evidence: Evidence
    verdict: Verdict


def measure(wanted: Wanted, base_url: str, api_key: str | None, wiring: Wiring) -> Measured:
    """Carry out the profile's plan, without restarts, against the engine at `base_url`. Raises NinferError.

    A baseline of `wanted` is the address of another running engine, asked with the same key.
    """
    profile = resolve(wanted)
    probes = profile.probes.model_copy(update={"restarts": 0})
    planned = make_plan(probes, secrets.token_hex(16), profile.gates)
    with ExitStack() as stack:
        client, watcher = stack.enter_context(client_for(base_url, api_key)), stack.enter_context(wiring.display())
        baseline = stack.enter_context(client_for(wanted.baseline, api_key)) if wanted.baseline else None
        model = served_model(client)
        run = create_run_directory(wanted.runs_dir, run_id_of(profile, wiring.now()))
        run.write_json("plan.json", planned.schedule.model_dump(mode="json"))
        run.write_command(wanted.command)
        peer = Peer(baseline, served_model(baseline), baseline.status()) if baseline is not None else None
        evidence = probe_running(RemoteSubject(client), model, planned, run, watcher, wiring.effects, peer)
    return Measured(run, evidence, judge_run(run, planned, profile.gates, evidence))


def probe_running(subject: Subject, model: str, planned: Planned, run: RunDirectory, watcher: Watcher,
                  effects: Effects, baseline: Peer | None = None) -> Evidence:
    """Carry a plan out on an engine that runs already; the evidence, which is in `run` too. Raises NinferError."""
    journal, recorder = Journal(run.evidence), StatusRecorder(run.path / "status.jsonl", effects.now)
    try:
        probe = ProbeRun(subject, model, journal, planned.schedule.nonce, Fan((recorder, watcher)), effects,
                         baseline=baseline)
        run_steps(planned.steps, probe)
        probe.finish(subject.facts())
    finally:
        journal.close()
        recorder.close()
    return evidence_of(journal)


def judge_run(run: RunDirectory, planned: Planned, gates: Thresholds, evidence: Evidence) -> Verdict:
    """What the gates make of it. Effects: writes summary and verdict, unsigned, into the run's directory."""
    verdict = evaluate(planned.summary, gates, evidence)
    run.write_json("summary.json", summary_of_run(evidence, planned.schedule.estimated_tokens))
    run.write_json("verdict.json", {"signed": False, **verdict.to_json()})
    return verdict


def client_for(base_url: str, api_key: str | None) -> EngineClient:
    """The client for whatever answers there: an engine of ours, or a plain OpenAI-compatible server."""
    client = EngineClient(base_url, api_key)
    try:
        client.status()
    except EngineReplyError as error:
        client.close()
        if error.status not in {404, 405, 501}:
            raise
        return PlainEngine(base_url, api_key)
    return client


def served_model(client: EngineClient) -> str:
    """The name of the one model that it serves. Raises EngineError when it serves none."""
    models = client.models()
    if not models:
        raise EngineError(f"{client.base_url} serves no model", "start the engine with a model")
    return models[0].id
