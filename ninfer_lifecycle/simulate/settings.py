"""From a profile, or from figures given outright, to the capacities and costs of a simulated cache."""

from dataclasses import dataclass
from pathlib import Path

from ninfer_engine.context.costs import PRESETS, CostModel, from_preset
from ninfer_engine.context.errors import PresetError
from ninfer_engine.context.sizing import DEFAULT_TEMPLATE, Intent, derive
from ninfer_engine.context.types import PAGE_TOKENS, Capacities, Policy
from ninfer_engine.contract.flags import EngineFlags
from ninfer_lifecycle.errors import UsageError
from ninfer_lifecycle.profiles.loader import load_profile
from ninfer_lifecycle.profiles.schema import Profile
from ninfer_lifecycle.simulate.shapes import KV_BYTES, ModelShapes, shapes_of
from ninfer_lifecycle.text import did_you_mean

_DEFAULT_FORKS = 4


@dataclass(frozen=True, slots=True)
class Setting:
    """What is simulated. notes: what was assumed, for whoever reads the figures."""

    capacities: Capacities
    costs: CostModel
    policy: Policy
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Overrides:
    """What a command line says instead of the profile; None: nothing. kv_capacity: tokens."""

    model: str | None = None
    costs: str | None = None
    kv_capacity: int | None = None
    host_kv_mib: int | None = None


def setting_of(profile_name: str, overrides: Overrides) -> Setting:
    """A profile's flags as capacities. Raises UsageError."""
    profile = load_profile(profile_name).profile
    flags, notes = profile.flags, list[str]()
    shapes = shapes_of(overrides.model or _model_of(profile, notes))
    tokens = overrides.kv_capacity or flags.kv_capacity
    if not isinstance(tokens, int):
        tokens = flags.max_concurrency * flags.max_context
        notes.append(f"kv-capacity is auto: taken as {tokens} tokens, one context a sequence; --kv-capacity changes it")
    mib = flags.host_kv_mib if overrides.host_kv_mib is None else overrides.host_kv_mib
    policy = Policy(reuse=not flags.no_prefix_reuse, prefill_chunk=flags.prefill_chunk)
    costs = costs_of(overrides.costs or _costs_of(profile))
    return Setting(_capacities(flags, policy, shapes, tokens, mib), costs, policy, tuple(notes))


def costs_of(name: str) -> CostModel:
    """A preset by name, or a presets file. Raises UsageError."""
    if name in PRESETS:
        return PRESETS[name]
    try:
        return from_preset(Path(name).expanduser().read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, PresetError) as error:
        raise UsageError(f"no cost figures in {name}: {error}{did_you_mean(name, PRESETS)}",
                         f"give a presets file, or one of: {', '.join(sorted(PRESETS))}") from None


def kv_dtype_of(flags: EngineFlags) -> str:
    """--kv-dtype with `auto` resolved from --dtype and --device."""
    if flags.kv_dtype != "auto":
        return flags.kv_dtype
    if flags.dtype != "auto":
        return flags.dtype
    return "fp32" if flags.device == "cpu" else "bf16"


def _model_of(profile: Profile, notes: list[str]) -> str:
    if profile.model.source == "tiny":
        return "tiny"
    path = Path(profile.model.path or "")
    if (path / "config.json").is_file():
        return str(path)
    notes.append(f"{path} is not on this machine: sizes are those of the built-in 27b; --model says otherwise")
    return "27b"


def _costs_of(profile: Profile) -> str:
    return "tiny-cpu" if profile.model.source == "tiny" else "hybrid-27b-5090"


def _capacities(flags: EngineFlags, policy: Policy, shapes: ModelShapes, tokens: int, host_kv_mib: int) -> Capacities:
    forks = _DEFAULT_FORKS if flags.expected_forks is None else flags.expected_forks
    sizes = derive(Intent(flags.max_concurrency, forks, (min(DEFAULT_TEMPLATE, flags.max_context),)), policy)
    given = (flags.max_private_continuations, flags.device_state_slots, flags.host_state_slots)
    derived = (sizes.private_catalog, sizes.device_state_extra, sizes.host_state_slots)
    private, device, host = (d if g is None else g for g, d in zip(given, derived, strict=True))
    kv_dtype = kv_dtype_of(flags)
    if kv_dtype not in KV_BYTES:
        raise UsageError(f"no kv-dtype {kv_dtype!r}", f"kinds: {', '.join(KV_BYTES)}")
    return Capacities(
        device_state_extra=device, host_state_slots=host, device_pages=-(-tokens // PAGE_TOKENS),
        host_kv_bytes=host_kv_mib << 20, page_bytes=shapes.page_bytes(kv_dtype), image_bytes=shapes.image_bytes,
        private_catalog=private, shared_catalog=flags.max_shared_prefixes,
        anchors_per_continuation=flags.max_long_anchors_per_continuation, max_concurrency=flags.max_concurrency)
