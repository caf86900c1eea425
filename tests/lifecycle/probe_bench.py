"""Runs a plan against the fault-injecting engine and judges what it left behind; shared by the tests of plans."""

from pathlib import Path

from fault_engine import FaultEngine
from fault_host import FaultHost, others_for, spec_for
from fault_model import Fault

from ninfer_lifecycle.client import Deadlines, EngineClient
from ninfer_lifecycle.evidence import RequestEvidence, StepEvidence
from ninfer_lifecycle.gates.evaluate import evaluate
from ninfer_lifecycle.gates.tally import Evidence
from ninfer_lifecycle.gates.thresholds import Thresholds
from ninfer_lifecycle.gates.verdict import Verdict
from ninfer_lifecycle.hosts.placing import client_of
from ninfer_lifecycle.probes.journal import Journal
from ninfer_lifecycle.probes.plans import Planned, make_plan
from ninfer_lifecycle.probes.run import Peer, ProbeRun
from ninfer_lifecycle.probes.stepping import run_steps
from ninfer_lifecycle.probes.subject import HostedSubject, Others
from ninfer_lifecycle.profiles.schema import ProbeSection

SIZES = ProbeSection.model_validate({"sizes": [200, 300], "topLogprobs": 2, "soakSeconds": 1})
DEADLINES = Deadlines()
NONCE = "a nonce of these tests"


class Onlooker:
    """Keeps what a display would be told."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def step_started(self, name: str, index: int, total: int, done_cost: int, total_cost: int) -> None:
        self.steps.append(name)

    def request_done(self, record: RequestEvidence) -> None:
        """Not needed."""

    def step_ended(self, record: StepEvidence) -> None:
        """Not needed."""

    def status_seen(self, status: object) -> None:
        """Not needed."""


def probe(directory: Path, *faults: Fault, plan: str = "fanout", section: ProbeSection = SIZES,
          deadlines: Deadlines = DEADLINES, catalog: int = 10_000) -> tuple[Planned, Journal]:
    """Run the plan; the journal is what it left behind, also when it raises."""
    name, beside, _ = plan.partition(" beside ")
    planned = make_plan(section.model_copy(update={"plan": name, "baseline": "healthy" if beside else None}), NONCE)
    journal = Journal(directory / "evidence")
    with FaultHost(*faults, catalog=catalog) as host, FaultEngine() as healthy:
        spec = spec_for(directory)

        def make_client(url: str) -> EngineClient:
            return client_of(spec, url, deadlines)

        subject = HostedSubject(host, host.start(spec), make_client, others=Others(others_for(spec), make_client))
        peer = EngineClient(healthy.base_url)
        run = ProbeRun(subject, "pretend", journal, NONCE, Onlooker(),
                       baseline=Peer(peer, "pretend", peer.status()) if beside else None)
        try:
            run_steps(planned.steps, run)
        finally:
            run.finish()
            subject.close()
            peer.close()
            journal.close()
    return planned, journal


def judge(planned: Planned, journal: Journal) -> Verdict:
    """What the gates make of it."""
    limits = Thresholds(max_hit_restore_us=2_000_000)
    return evaluate(planned.summary, limits, Evidence(
        tuple(journal.requests), tuple(journal.saves), tuple(journal.epochs), tuple(journal.steps),
        tuple(journal.facts)))


def not_passed(verdict: Verdict) -> set[str]:
    """Names of the checks and claims that did not pass."""
    return {check.subject or check.name.value for check in verdict.not_passed}
