"""What a configuration needs of a machine: memory on each tier, and room for its store. Pure; from flags and shapes.

The engine settles the same sizes at its start (docs/sizing.md); here they are known before anything is started.
"""

from dataclasses import dataclass

from ninfer_engine.context.sizing import DEFAULT_TEMPLATE, Intent, Sizes, derive
from ninfer_engine.context.types import PAGE_TOKENS, Policy
from ninfer_engine.contract.flags import EngineFlags
from ninfer_lifecycle.simulate.shapes import KV_BYTES, ModelShapes

OVERHEAD_BYTES = 2**30
"""Interpreter, torch, a CUDA context, and activations of one prefill chunk; with a GPU so much on either side. An
estimate: a container of the tiny model at the published sizes was seen at 0.9 GiB beside its pools."""
GENERATIONS = 2
"""A save is written whole beside the one that it replaces."""
_DEFAULT_FORKS = 4
_IMAGES_OF_A_SESSION = 3


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes. device: where the model runs. host: the host tier, pinned where there is a GPU. kv_is_least: the device's
    KV capacity is `auto` and counted as one context for each sequence.
    """

    weights: int
    device_kv: int
    device_images: int
    host_kv: int
    host_images: int
    kv_is_least: bool

    @property
    def device(self) -> int:
        """Everything on the device, with what torch itself takes."""
        return self.weights + self.device_kv + self.device_images + OVERHEAD_BYTES

    @property
    def host(self) -> int:
        """The host tier when it is full."""
        return self.host_kv + self.host_images

    @property
    def state(self) -> int:
        """Everything that a graceful stop could have to save."""
        return self.device_kv + self.device_images + self.host


def need_of(flags: EngineFlags, shapes: ModelShapes, weight_numbers: int, on_gpu: bool) -> Need:
    """What these flags take with a model of these shapes. weight_numbers: how many numbers its weights are."""
    dtype = flags.dtype if flags.dtype != "auto" else ("bf16" if on_gpu else "fp32")
    page = shapes.page_bytes(flags.kv_dtype if flags.kv_dtype != "auto" else dtype)
    least = flags.max_concurrency * flags.max_context
    tokens = flags.kv_capacity if isinstance(flags.kv_capacity, int) else least
    sizes = sizes_of(flags)
    return Need(
        weights=weight_numbers * KV_BYTES[dtype],
        device_kv=-(-tokens // PAGE_TOKENS) * page,
        device_images=(flags.max_concurrency + sizes.device_state_extra) * shapes.image_bytes,
        host_kv=flags.host_kv_mib << 20,
        host_images=sizes.host_state_slots * shapes.image_bytes,
        kv_is_least=flags.kv_capacity == "auto")


def sizes_of(flags: EngineFlags) -> Sizes:
    """Catalog and slots as the engine derives them, but for what is given outright."""
    forks = _DEFAULT_FORKS if flags.expected_forks is None else flags.expected_forks
    derived = derive(Intent(flags.max_concurrency, forks, (min(DEFAULT_TEMPLATE, flags.max_context),)),
                     Policy(prefill_chunk=flags.prefill_chunk))
    given = flags.max_private_continuations, flags.device_state_slots, flags.host_state_slots
    ruled = derived.private_catalog, derived.device_state_extra, derived.host_state_slots
    return Sizes(*(rule if one is None else one for one, rule in zip(given, ruled, strict=True)))


def session_bytes(flags: EngineFlags, shapes: ModelShapes, on_gpu: bool) -> int:
    """One session at the longest context, as the store holds it: its pages and a few images."""
    dtype = flags.kv_dtype if flags.kv_dtype != "auto" else flags.dtype
    page = shapes.page_bytes(dtype if dtype != "auto" else ("bf16" if on_gpu else "fp32"))
    return -(-flags.max_context // PAGE_TOKENS) * page + _IMAGES_OF_A_SESSION * shapes.image_bytes


def store_bytes(flags: EngineFlags, shapes: ModelShapes, need: Need, on_gpu: bool) -> int:
    """Room that the durable store may take: two generations of all that is held, and never more than its quota."""
    most = max(need.state, session_bytes(flags, shapes, on_gpu))
    return min(flags.session_checkpoint_quota_mib << 20, GENERATIONS * most)
