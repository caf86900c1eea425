"""The profile: what a person writes down of an engine, its model, its host, its probes and its gates.

Keys are camelCase in YAML. `flags` takes the names of `contract.flags.EngineFlags`, in snake or kebab spelling, and
holds only what the profile sets; everything else keeps the engine's default.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic.alias_generators import to_camel

from ninfer_engine.contract.base import Sha256Hex
from ninfer_engine.contract.flags import EngineFlags
from ninfer_lifecycle.gates.thresholds import Thresholds
from ninfer_lifecycle.profiles.units import parse_bytes, parse_milli_cpus

HOST_SET_FLAGS: dict[str, str] = {
    "model": "set model.source and model.path",
    "model_id": "set model.id",
    "model_sha256": "set model.sha256",
    "host": "the host decides where the engine listens",
    "port": "give the port when starting: ninfer up --port N",
    "api_key_file": "the tool makes a key for each run",
    "session_checkpoint_dir": "the host decides where the store lies",
    "request_log_jsonl": "the host decides where the log lies",
    "deployment_profile": "this is the profile's own name",
    "config_sha256": "the tool computes it",
}
"""Flags that a profile cannot set, and what to do instead."""


class Section(BaseModel):
    """Base of a profile's parts: immutable, camelCase in YAML, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, protected_namespaces=())


class ModelSection(Section):
    """Which model. tiny: made on the spot from `seed`; path: a directory in HF layout or a GGUF file."""

    source: Literal["tiny", "path"]
    path: str | None = None
    seed: Annotated[int, Field(ge=0)] = 0
    id: str | None = None
    sha256: Sha256Hex | None = None

    @model_validator(mode="after")
    def _path_goes_with_source(self) -> Self:
        if self.source == "path" and not self.path:
            raise ValueError("source: path needs a path")
        if self.source == "tiny" and self.path:
            raise ValueError("source: tiny has no path; use source: path")
        return self


class ImageSection(Section):
    """The container image; the process host does not use it. digest: sha256:<64 hex> of a repository digest."""

    repository: Annotated[str, Field(pattern=r"^[a-z0-9]+([._/:-]+[a-z0-9]+)*$")] = "ninfer-engine"
    tag: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$")] = "latest"
    digest: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")] | None = None

    @property
    def reference(self) -> str:
        """What to ask the container engine for."""
        return f"{self.repository}@{self.digest}" if self.digest else f"{self.repository}:{self.tag}"


class HostSection(Section):
    """Host defaults. memory, shm and tmpfs (of /tmp) as 8g or 512m, cpus as 2 or 1.5, gpus: none, all, or a list of
    device UUIDs. runtime: a container runtime that the daemon knows, such as nvidia. ulimits: by name, as
    nofile: 65536; -1 is unlimited. seccomp: file with a profile in Docker's JSON form. nodeLabels: labels that a node
    of a swarm must have; gpuResource: what its nodes call a GPU among their generic resources.
    """

    kind: Literal["process", "docker", "swarm"] = "process"
    memory: int | None = None
    cpus: Annotated[int | None, Field(description="thousandths of a CPU")] = None
    shm: int | None = None
    tmpfs: int | None = None
    gpus: Literal["none", "all"] | tuple[str, ...] = "none"
    runtime: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")] | None = None
    ulimits: dict[Annotated[str, Field(pattern=r"^[a-z]+$")], Annotated[int, Field(ge=-1)]] = Field(
        default_factory=dict)
    seccomp: str | None = None
    node_labels: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")],
                      Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$")]] = Field(default_factory=dict)
    gpu_resource: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = "NVIDIA-GPU"
    ready_seconds: Annotated[int, Field(ge=1, le=3600)] = 120
    stop_seconds: Annotated[int, Field(ge=1, le=3600)] = 60

    @field_validator("memory", "shm", "tmpfs", mode="before")
    @classmethod
    def _bytes(cls, value: str | int | None) -> int | None:
        return None if value is None else parse_bytes(value)

    @field_validator("cpus", mode="before")
    @classmethod
    def _milli_cpus(cls, value: str | int | float | None) -> int | None:
        return None if value is None else parse_milli_cpus(value)


PlanName = Literal["fanout", "quick", "release", "sibling-continue", "pressure", "pressure-reduced",
                   "multi-session", "concurrency", "equivalence", "isolation", "protocol", "leaks", "throughput",
                   "recall", "soak", "durability"]
"""The plans that `gates.plans` defines."""

PartName = Literal["sibling-continue", "pressure", "pressure-reduced", "multi-session", "concurrency", "equivalence",
                   "isolation", "protocol", "leaks", "throughput", "recall", "soak", "durability"]


class ProbeSection(Section):
    """The probe plan. sizes: template tokens, each exact, run in an order shuffled by `seed`.

    forks: stored siblings of each base, before and after each restart. forkInputTokens: what a fork adds to its
    template's tokens; the *Output* keys are reply lengths. repeats: rounds over all sizes in one process.

    parts: what runs beside the plan's own, so that a profile composes a plan of its own. planVersion: 1 or 2 claims
    what that version of the plans did. baseline: another profile to compare throughput with, side by side on the same
    host; maxBaselineRatioPpm: how much longer this one may take. topLogprobs: compare so many at each token.
    soakSeconds: how long a soak lasts. budgetTokens, budgetSeconds: to be spent on narrowing gates.maxMissBoundPpm.
    """

    plan: PlanName = "fanout"
    plan_version: Literal[1, 2, 3] = 3
    parts: tuple[PartName, ...] = ()
    baseline: str | None = None
    max_baseline_ratio_ppm: Annotated[int, Field(ge=1)] = 1_100_000
    top_logprobs: Annotated[int, Field(ge=0, le=20)] = 0
    soak_seconds: Annotated[int, Field(ge=1, le=7 * 86_400)] = 60
    budget_tokens: Annotated[int, Field(ge=0)] = 200_000
    budget_seconds: Annotated[int, Field(ge=0)] = 900
    sizes: Annotated[tuple[Annotated[int, Field(ge=64)], ...], Field(min_length=1)]
    forks: Annotated[int, Field(ge=1, le=64)] = 4
    repeats: Annotated[int, Field(ge=1, le=100)] = 1
    fork_input_tokens: Annotated[int, Field(ge=1)] = 40
    fork_output_tokens: Annotated[int, Field(ge=1)] = 8
    edit_output_tokens: Annotated[int, Field(ge=1)] = 8
    base_output_tokens: Annotated[int, Field(ge=1)] = 8
    restarts: Annotated[int, Field(ge=0, le=16)] = 1
    seed: int = 0

    @field_validator("sizes")
    @classmethod
    def _sizes_differ(cls, sizes: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(sizes)) != len(sizes):
            raise ValueError("each size once; use repeats for more rounds")
        return sizes


class Profile(Section):
    """A resolved profile: every parent merged in, every value checked. `flags.model_fields_set` is what it sets."""

    schema_version: Literal[1]
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
    description: str = ""
    lane: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")] = "default"
    model: ModelSection
    image: ImageSection = ImageSection()
    flags: EngineFlags = EngineFlags()
    host: HostSection = HostSection()
    probes: ProbeSection
    gates: Thresholds = Thresholds()

    @model_validator(mode="after")
    def _templates_fit(self) -> Self:
        longest = max(self.probes.sizes) + self.probes.base_output_tokens + self.probes.fork_input_tokens + max(
            self.probes.fork_output_tokens, self.probes.edit_output_tokens)
        if longest > self.flags.max_context:
            raise ValueError(f"the largest template needs {longest} tokens of context and flags.max_context is "
                             f"{self.flags.max_context}: raise it, or drop that size")
        return self

    def flags_set(self) -> dict[str, Any]:
        """The flags that this profile sets, by snake name, sorted."""
        values = self.flags.model_dump(mode="json")
        return {name: values[name] for name in sorted(self.flags.model_fields_set)}
