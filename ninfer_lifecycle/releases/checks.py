"""What a candidate must show before it gets the lane, and what the lane must show afterwards.

QuickCheck: the plan `quick` at the profile's smallest size, without restarts, under the gates' own thresholds: forks
hot, sessions kept apart, the HTTP contract kept, resumed answers equal to cold ones. Timings were judged by the
receipt, on a machine that did nothing else; here an incumbent may be serving. prove: one status and one generation
through the lane's own address.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ninfer_lifecycle.client import EngineClient
from ninfer_lifecycle.errors import EngineError, RefusedError
from ninfer_lifecycle.gates.evaluate import evaluate
from ninfer_lifecycle.gates.thresholds import Thresholds
from ninfer_lifecycle.gates.verdict import Result
from ninfer_lifecycle.hosts.base import RunningEngine
from ninfer_lifecycle.hosts.placing import client_of, read_key
from ninfer_lifecycle.hosts.readiness import identity_difference
from ninfer_lifecycle.probes.journal import Journal
from ninfer_lifecycle.probes.plans import make_plan
from ninfer_lifecycle.probes.run import Effects, ProbeRun, Watcher
from ninfer_lifecycle.probes.stepping import run_steps
from ninfer_lifecycle.probes.subject import RemoteSubject
from ninfer_lifecycle.profiles.schema import ProbeSection, Profile
from ninfer_lifecycle.qualify.measure import served_model
from ninfer_lifecycle.qualify.observe import evidence_of
from ninfer_lifecycle.qualify.progress import Fan
from ninfer_lifecycle.qualify.rundir import RunDirectory
from ninfer_lifecycle.releases.records import LaneState, Release

PROVE_S = 120.0


class QuickCheckError(RefusedError):
    """The candidate runs and is not fit to serve."""


@dataclass(frozen=True, slots=True)
class QuickCheck:
    """Carries out the quick qualification. effects: clock, sleep and ids of the probes."""

    effects: Effects = field(default_factory=Effects)
    watcher: Watcher = field(default_factory=lambda: Fan(()))

    def __call__(self, profile: Profile, engine: RunningEngine, directory: Path) -> None:
        """Return when the candidate passes. Effects: writes evidence and verdict below `directory`.

        Raises QuickCheckError naming the first check that did not pass, and NinferError when it could not be asked.
        """
        planned = make_plan(quick_section(profile.probes), secrets.token_hex(16))
        run = RunDirectory(directory, directory.name)
        directory.mkdir(parents=True, exist_ok=True)
        run.write_json("plan.json", planned.schedule.model_dump(mode="json"))
        journal = Journal(run.evidence)
        try:
            with client_of(engine.spec, engine.base_url) as client:
                probe = ProbeRun(RemoteSubject(client), served_model(client), journal, planned.schedule.nonce,
                                 self.watcher, self.effects)
                run_steps(planned.steps, probe)
                probe.finish()
        finally:
            journal.close()
        verdict = evaluate(planned.summary, Thresholds(), evidence_of(journal))
        run.write_json("verdict.json", {"signed": False, **verdict.to_json()})
        if verdict.result is not Result.PASSED:
            first = verdict.not_passed[0]
            raise QuickCheckError(f"{first.title} is {first.result}: {first.reason}",
                                  f"its evidence is in {directory}; qualify the profile again on this machine")


def quick_section(probes: ProbeSection) -> ProbeSection:
    """The profile's probes, cut down to a quick look at a running engine."""
    return probes.model_copy(update={"plan": "quick", "sizes": (min(probes.sizes),), "parts": (), "restarts": 0,
                                     "repeats": 1, "baseline": None})


def prove(lane: LaneState, release: Release, key_file: Path, answered: Callable[[], int]) -> None:
    """One routed request: the lane answers as `release`, generates, and its router says that this very release did.

    answered: how many requests of this release the router has answered so far. Raises EngineError.
    """
    before = answered()
    with EngineClient(lane.url, read_key(key_file)) as client:
        document = client.status(PROVE_S)
        expected = release.engine.spec.expected if release.engine else None
        if expected is None or (difference := identity_difference(document, expected)):
            raise EngineError(f"lane {lane.name} answers as another engine: {difference if expected else 'none'}",
                              "look at what listens at the lane's address (ss -ltnp)")
        reply = client.create_response({"model": release.model, "input": "Say one word.", "max_output_tokens": 1,
                                        "temperature": 0, "store": False}, timeout_s=PROVE_S)
    if reply.status not in {"completed", "incomplete"} or reply.usage is None:
        raise EngineError(f"a request through lane {lane.name} ended as {reply.status}", "read the engine's log")
    if answered() < before + 2:
        raise EngineError(f"what answered at {lane.url} is not the router of lane {lane.name}",
                          "look at what listens at the lane's address (ss -ltnp)")
