"""The signed statement: in-toto Statement v1 with one subject, the lock file, and the qualification predicate v1.

lowerCamelCase, integers only, what was not measured is an absent key. A PASSED over anything that did not pass, and a
"pending" anywhere, are errors of the schema: there is no way to write such a receipt.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ninfer_engine.contract.base import Sha256Hex
from ninfer_lifecycle.gates.base import Count, SignedDocument
from ninfer_lifecycle.gates.verdict import Check, Result, Verdict, overall
from ninfer_lifecycle.receipts.errors import MalformedError
from ninfer_lifecycle.receipts.times import Timestamp, parse_time

StatementType = Literal["https://in-toto.io/Statement/v1"]
PredicateType = Literal["https://ninfer.dev/attestations/qualification/v1"]
STATEMENT_TYPE: StatementType = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE: PredicateType = "https://ninfer.dev/attestations/qualification/v1"
"""An identifier with our major version; nothing is ever fetched from it."""

NAME_PATTERN = r"^[a-z0-9][a-z0-9._-]{0,127}$"
Name = Annotated[str, Field(pattern=NAME_PATTERN)]
"""A file name or an identifier: no separator, no leading dot; `..` cannot be a name."""


class Digest(SignedDocument):
    """SHA-256 in lowercase hex."""

    sha256: Sha256Hex


class Subject(BaseModel):
    """in-toto ResourceDescriptor of the lock file; fields that it does not know are ignored, as in-toto wants."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    name: Name
    digest: Digest


class Qualifier(SignedDocument):
    """Who ran the qualification: a URI, the tool's version, the digest of its installed source."""

    id: str
    version: str
    source_digest: Digest


class PolicyReference(SignedDocument):
    """The plan and thresholds of the run; the URI is the name of the file beside the receipt."""

    uri: Name
    digest: Digest


class ConfigurationPart(SignedDocument):
    """A part of the configuration by digest: image, model, corpus, lock."""

    name: str
    uri: str | None = None
    digest: Digest


class Gpu(SignedDocument):
    """One GPU."""

    name: str
    uuid: str
    driver: str | None = None
    memory_bytes: Count | None = None


class Environment(SignedDocument):
    """Where the engine ran. host: process, docker or swarm."""

    host: str
    architecture: str
    kernel: str | None = None
    cpu: str | None = None
    cpu_count: Count | None = None
    memory_bytes: Count | None = None
    container_engine: str | None = None
    gpus: tuple[Gpu, ...] = ()

    @property
    def hardware_class(self) -> str:
        """What must be equal before timings of two receipts are compared."""
        cards = ",".join(sorted(gpu.name for gpu in self.gpus)) or "no GPU"
        return f"{self.architecture}/{self.cpu or 'unknown CPU'} x{self.cpu_count or '?'}/{cards}"


class EpochSummary(SignedDocument):
    """One life of the engine, from its evidence."""

    epoch: Count
    server_instance_id: str
    started_at: str
    container_id: str | None = None
    image_id: str | None = None
    exit_code: int | None = None
    oom_killed: bool | None = None
    stop_reason: str | None = None
    prefill_counter_before: int | None = None
    prefill_counter_after: int | None = None
    identity_sha256: str


class StepSummary(SignedDocument):
    """How many requests of one kind an epoch had, and how many of them have no answer."""

    step: str
    epoch: Count
    requests: Count
    failed: Count


class EvidenceFile(SignedDocument):
    """A file of evidence beside the receipt, by digest."""

    kind: Literal["requests", "saves", "epochs", "steps", "facts", "pools"]
    name: Name
    digest: Digest
    bytes: Count
    records: Count


class Qualification(SignedDocument):
    """The predicate. Every figure in it can be derived again from the evidence that it names."""

    result: Result
    profile: Name
    lane: Name
    started_on: Timestamp
    finished_on: Timestamp
    valid_until: Timestamp
    qualifier: Qualifier
    policy: PolicyReference
    configuration: tuple[ConfigurationPart, ...]
    environment: Environment
    epochs: tuple[EpochSummary, ...]
    checks: tuple[Check, ...] = Field(min_length=1)
    controls: tuple[Check, ...]
    steps: tuple[StepSummary, ...]
    evidence: tuple[EvidenceFile, ...] = Field(min_length=1)
    sequence: int = Field(ge=1)
    previous_receipt: Digest | None = None
    limitations: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _holds_together(self) -> Self:
        if self.result is not overall((*self.checks, *self.controls)):
            raise ValueError(f"result {self.result} does not follow from the results of the checks and controls")
        if (self.sequence == 1) != (self.previous_receipt is None):
            raise ValueError("sequence 1 has no previousReceipt, every later one names it")
        if not parse_time(self.started_on) <= parse_time(self.finished_on) < parse_time(self.valid_until):
            raise ValueError("startedOn, finishedOn and validUntil are not in that order")
        return self

    @property
    def verdict(self) -> Verdict:
        """The stated verdict."""
        return Verdict(checks=self.checks, controls=self.controls, result=self.result)


class Statement(BaseModel):
    """in-toto Statement v1 of a qualification. Exactly one subject: nothing can hide behind the first."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, populate_by_name=True)

    type: StatementType = Field(default=STATEMENT_TYPE, alias="_type")
    subject: tuple[Subject, ...] = Field(min_length=1, max_length=1)
    predicate_type: PredicateType = Field(default=PREDICATE_TYPE, alias="predicateType")
    predicate: Qualification

    def to_json(self) -> dict[str, Any]:
        """JSON value with absent keys for what is not there. Raises MalformedError for a "pending" or a null."""
        value: dict[str, Any] = self.model_dump(mode="json", by_alias=True, exclude_none=True)
        refuse_unsettled(value)
        return value


def refuse_unsettled(value: Any) -> None:
    """Raise MalformedError where a value is null, or a value or a key says that it is not settled yet."""
    found = _unsettled(value)
    if found is not None:
        raise MalformedError(f"{found.path or 'the document'} {found.what}", found.advice)


@dataclass(frozen=True)
class _Unsettled:
    path: str
    what: str
    advice: str

    def below(self, key: str) -> "_Unsettled":
        return _Unsettled(f"{key}.{self.path}" if self.path else key, self.what, self.advice)


def _unsettled(value: Any) -> _Unsettled | None:
    """The first such value. Its path is put together on the way back, so that settled documents pay nothing for it."""
    match value:
        case str():
            if len(value) < 16 and value.strip().casefold() in _UNSETTLED:
                return _Unsettled("", f"says {value!r}", "A receipt is written when everything is settled.")
        case None:
            return _Unsettled("", "is null", "What was not measured is an absent key.")
        case dict():
            for key, item in value.items():
                found = _unsettled(item) or _unsettled(key)
                if found is not None:
                    return found.below(key)
        case list():
            for number, item in enumerate(value):
                found = _unsettled(item)
                if found is not None:
                    return found.below(str(number))
    return None


_UNSETTLED = {"pending", "tbd", "todo"}
