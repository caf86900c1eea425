"""From an observation to a signed receipt on disk that has been verified from disk."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from ninfer_lifecycle import __version__
from ninfer_lifecycle.gates.thresholds import QualificationPolicy
from ninfer_lifecycle.gates.verdict import Result
from ninfer_lifecycle.qualify.identity import tool_tree_sha256
from ninfer_lifecycle.qualify.observe import Observation
from ninfer_lifecycle.qualify.prepare import Prepared
from ninfer_lifecycle.receipts.attachments import DirectoryFiles
from ninfer_lifecycle.receipts.build import ReceiptInputs, build_receipt
from ninfer_lifecycle.receipts.keys import Signer, load_signer, new_key
from ninfer_lifecycle.receipts.statement import ConfigurationPart, Digest, Environment, Qualifier
from ninfer_lifecycle.receipts.store import ReceiptStore
from ninfer_lifecycle.receipts.trust import Role, trust_keys
from ninfer_lifecycle.receipts.verification import Expectations, VerifiedReceipt
from ninfer_lifecycle.receipts.verify import verify

QUALIFIER_ID = "https://ninfer.dev/qualifier/cli"


@dataclass(frozen=True, slots=True)
class Issued:
    """A receipt that is on disk and verifies."""

    path: Path
    receipt: VerifiedReceipt


def qualifier_key(given: Path | None, state_dir: Path, say: Callable[[str], None],
                  open_key: Callable[[Path], Signer] = load_signer) -> Signer:
    """The signing key: the given one, or this machine's own, made on first use with mode 0600."""
    if given is not None:
        return open_key(given)
    path = state_dir / "keys" / "qualifier.pem"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        public = new_key(path)
        say(f"made a qualifier key for this machine; its public key is {path.with_suffix('.pub')} (id {public.keyid})")
    return open_key(path)


def policy_of(prepared: Prepared) -> QualificationPolicy:
    """What the run is held to: its plan, and the profile's gates."""
    return QualificationPolicy(plan=prepared.planned.summary, thresholds=prepared.profile.gates)


def issue(prepared: Prepared, observed: Observation, signer: Signer, receipts_dir: Path, validity: timedelta) -> Issued:
    """Build, sign, write, and verify what lies on disk with the verifier that everyone else uses.

    Raises RefusedError when it does not verify: then the receipt must not be used, and this tool has a fault.
    """
    store = ReceiptStore(receipts_dir)
    name, lane, lock = prepared.profile.name, prepared.profile.lane, prepared.lock.canonical()
    head = store.head(name, lane)
    files = build_receipt(ReceiptInputs(
        profile=name, lane=lane, lock=lock,
        qualifier=Qualifier(id=QUALIFIER_ID, version=__version__, source_digest=Digest(sha256=tool_tree_sha256())),
        policy=policy_of(prepared), configuration=parts_of(prepared),
        environment=environment_of(prepared.host_kind, observed.environment), evidence=observed.evidence,
        started_on=observed.started, finished_on=observed.finished, valid_until=observed.finished + validity,
        head=head, limitations=limitations_of(prepared),
    ), signer)
    path = store.write(files)
    receipt = verify(path.read_bytes(), DirectoryFiles(path.parent), Expectations(
        trust=trust_keys(Role.QUALIFIER, signer.public_key), now=_later(observed.finished), lock=lock,
        results=frozenset(Result), previous=head)).require()
    return Issued(path, receipt)


def parts_of(prepared: Prepared) -> tuple[ConfigurationPart, ...]:
    """The configuration by digest."""
    configuration = prepared.configuration
    digests = {
        "configuration": prepared.lock.configuration_sha256, "model": configuration.model_sha256,
        "image": configuration.image and configuration.image.removeprefix("sha256:"),
        "engine": configuration.engine_tree_sha256, "probes": prepared.lock.probes_sha256,
        "gates": prepared.lock.gates_sha256, "lock": prepared.lock.sha256,
        "baseline": prepared.baseline and prepared.baseline.configuration_sha256,
    }
    return tuple(ConfigurationPart(name=name, digest=Digest(sha256=sha256))
                 for name, sha256 in digests.items() if sha256)


def environment_of(host: str, facts: Mapping[str, str]) -> Environment:
    """The host's facts under their published names; what it did not say is absent."""
    cpus, memory = facts.get("cpus"), facts.get("memoryBytes")
    return Environment(
        host=host, architecture=facts.get("architecture", "unknown"), kernel=facts.get("kernel"),
        cpu=facts.get("cpuModel"), cpu_count=int(cpus) if cpus else None,
        memory_bytes=int(memory) if memory else None, container_engine=facts.get("containerEngine"))


def limitations_of(prepared: Prepared) -> tuple[str, ...]:
    """What a reader should not conclude."""
    notes = []
    if prepared.host_kind == "process":
        notes.append("the engine ran as a child process: memory and cpu limits of the profile were not enforced, and "
                     "an out-of-memory kill would show by its exit code only")
    if prepared.profile.model.source == "tiny":
        notes.append("the model is the tiny one with random weights: this receipt says nothing of answer quality")
    if prepared.kept.steps:
        notes.append("the run was interrupted and taken up again: what was interrupted was done anew in another life "
                     "of the engine")
    return tuple(notes)


def _later(finished: datetime) -> datetime:
    """The reference time of the verification: the end of the run, not another reading of the clock."""
    return finished + timedelta(seconds=1)
