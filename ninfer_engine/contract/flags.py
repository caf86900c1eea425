"""Every flag of the engine, once: name, type, default, meaning, and whether it is part of a configuration's identity.

`ninfer-engine serve`, the profile schema and the configuration identity are derived from `EngineFlags`. A flag's role
says what it may change: `IDENTITY` flags decide answers, speed or capacity and are hashed; `PLACE` flags say where the
engine stands on a machine (paths, ports, log level) and are not.
"""

from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator
from pydantic.fields import FieldInfo

from ninfer_engine.contract.base import Document, Sha256Hex


class Role(StrEnum):
    """What a flag is to a configuration's identity."""

    IDENTITY = "identity"
    PLACE = "place"


def _flag(default: Any, text: str, role: Role = Role.IDENTITY, **constraints: Any) -> Any:
    return Field(default=default, description=text, json_schema_extra={"role": role.value}, **constraints)


class EngineFlags(Document):
    """The engine's flags. `--a-b-c` on the command line is field `a_b_c`; None means derived, as its text says."""

    model: str = _flag("", "model directory (HF layout) or GGUF file", Role.PLACE)
    model_id: str | None = _flag(None, "public model name; None: the directory's name")
    host: str = _flag("127.0.0.1", "address to listen on", Role.PLACE)
    port: Annotated[int, Field(ge=0, le=65535)] = _flag(8080, "port to listen on; 0: any free one", Role.PLACE)
    api_key_file: str | None = _flag(None, "file with the API key; None: no authentication", Role.PLACE)
    max_context: Annotated[int, Field(ge=64)] = _flag(131072, "longest prompt plus reply, in tokens")
    kv_capacity: int | Literal["auto"] = _flag("auto", "device KV capacity in tokens; auto: from free memory")
    max_concurrency: Annotated[int, Field(ge=1, le=256)] = _flag(1, "C: sequences that run at once")
    max_pending_requests: Annotated[int, Field(ge=0)] = _flag(16, "requests that may wait beyond those that run")
    pending_timeout_ms: Annotated[int, Field(ge=1)] = _flag(30000, "longest wait in the queue, in milliseconds")
    prefill_chunk: Annotated[int, Field(ge=64, multiple_of=64)] = _flag(1024, "tokens of one prefill step")
    kv_dtype: Literal["auto", "fp32", "bf16", "fp16", "int8"] = _flag(
        "auto", "dtype of keys and values; auto: as --dtype; int8: with a scale a token and head, on cpu")
    device: Literal["auto", "cpu", "cuda"] = _flag("auto", "where the model runs; auto: cuda when there is one")
    dtype: Literal["auto", "fp32", "bf16", "fp16"] = _flag("auto", "dtype of weights; auto: fp32 on cpu, bf16 on cuda")
    expected_forks: Annotated[int, Field(ge=0)] | None = _flag(
        None, "S: sibling forks of one template to plan for; derives catalog and slots that are not given"
    )
    max_private_continuations: Annotated[int, Field(ge=1)] | None = _flag(
        None, "private catalog: stored responses whose lineage is held; None: derived from S and C"
    )
    device_state_slots: Annotated[int, Field(ge=0)] | None = _flag(
        None, "device slots for state images beyond C; None: derived from S and C"
    )
    host_state_slots: Annotated[int, Field(ge=0)] | None = _flag(
        None, "host slots for state images; None: derived from S and C"
    )
    host_kv_mib: Annotated[int, Field(ge=0)] = _flag(8192, "host memory for KV pages, in MiB")
    max_shared_prefixes: Annotated[int, Field(ge=0)] = _flag(16, "shared catalog: prefixes of several sessions")
    max_long_anchors_per_continuation: Annotated[int, Field(ge=0)] = _flag(
        2, "anchors that one continuation may refer to beside its endpoint"
    )
    no_prefix_reuse: bool = _flag(False, "compute every request from root")
    session_checkpoint_dir: str | None = _flag(None, "directory of the durable store; None: none", Role.PLACE)
    session_checkpoint_quota_mib: Annotated[int, Field(ge=1)] = _flag(16384, "size limit of the durable store, in MiB")
    session_checkpoint_min_tokens: Annotated[int, Field(ge=0)] = _flag(
        4096, "a completed stored turn of at least so many tokens is saved by itself"
    )
    request_log_jsonl: str | None = _flag(None, "file for the request log, one JSON object a line", Role.PLACE)
    response_store_max_records: Annotated[int, Field(ge=1)] = _flag(4096, "stored responses held at once")
    context_cost_presets: str | None = _flag(None, "file with cost figures; None: measured at start", Role.PLACE)
    deployment_profile: str | None = _flag(None, "name of the profile that started this engine", Role.PLACE)
    config_sha256: Sha256Hex | None = _flag(None, "identity of the configuration, echoed in the status", Role.PLACE)
    model_sha256: Sha256Hex | None = _flag(None, "expected digest of the model; a different one refuses to start")
    default_max_tokens: Annotated[int, Field(ge=1)] = _flag(1024, "reply length when a request names none")
    log_level: Literal["debug", "info", "warning", "error"] = _flag("info", "how much to log", Role.PLACE)
    check_invariants: bool = _flag(False, "check after every step that no page or slot is lost", Role.PLACE)
    restore_on_start: str | None = _flag(
        None, "sessions to bring back at start, separated by commas, or a file with one a line", Role.PLACE)
    session_checkpoint_require_origin_auth: bool = _flag(
        False, "restore only what an engine with this API key has saved; needs --api-key-file")

    @model_validator(mode="after")
    def _capacity_makes_sense(self) -> Self:
        if isinstance(self.kv_capacity, int) and self.kv_capacity < 64:
            raise ValueError("kv_capacity is in tokens and at least one page of 64")
        return self


def field_role(info: FieldInfo) -> Role:
    """The role of a flag's field."""
    extra = info.json_schema_extra
    assert isinstance(extra, dict), "every flag is declared through _flag"  # noqa: S101
    return Role(str(extra["role"]))


def option_name(field: str) -> str:
    """The command-line spelling of a field: `max_context` -> `--max-context`."""
    return "--" + field.replace("_", "-")


def identity_flags(flags: EngineFlags) -> dict[str, Any]:
    """The flags that are part of a configuration's identity, defaults included, by field name, sorted."""
    values = flags.model_dump(mode="json")
    return {name: values[name] for name, info in sorted(EngineFlags.model_fields.items())
            if field_role(info) is Role.IDENTITY}


def to_argv(flags: EngineFlags) -> list[str]:
    """The command-line arguments that say `flags`: only what differs from the defaults, sorted by name."""
    argv: list[str] = []
    values = flags.model_dump(mode="json")
    for name, info in sorted(EngineFlags.model_fields.items()):
        value = values[name]
        if value == info.default:
            continue
        argv += [option_name(name)] if value is True else [option_name(name), str(value)]
    return argv


def markdown_table() -> str:
    """All flags as a Markdown table, in declaration order."""
    lines = ["| flag | default | identity | meaning |", "|---|---|---|---|"]
    for name, info in EngineFlags.model_fields.items():
        default = "" if info.default in (None, "") else f"`{info.default}`"
        identity = "yes" if field_role(info) is Role.IDENTITY else ""
        lines.append(f"| `{option_name(name)}` | {default} | {identity} | {info.description} |")
    return "\n".join(lines) + "\n"
