"""From flags to an engine that is ready to start: model, pools, costs, brain, durable store."""

import uuid
from dataclasses import dataclass
from pathlib import Path

import torch

from ninfer_engine import __version__
from ninfer_engine.context.cache import ContextCache
from ninfer_engine.context.types import Capacities, Policy
from ninfer_engine.contract.flags import EngineFlags
from ninfer_engine.contract.status import Identity, Runtime
from ninfer_engine.kernels.cache_layout import (
    KV_DTYPES,
    PAGE_TOKENS,
    SCALE_DTYPE,
    CacheShapes,
    KVTensors,
    StateTensors,
)
from ninfer_engine.memory.images import StateImages
from ninfer_engine.memory.packing import zeros
from ninfer_engine.memory.pages import DevicePages
from ninfer_engine.model.loader import LoadedModel, load_model
from ninfer_engine.runtime.api import FinishReason
from ninfer_engine.runtime.calibration import cost_model
from ninfer_engine.runtime.capacity import Placement, derived_sizes, kv_pages, place
from ninfer_engine.runtime.driver import CacheDriver
from ninfer_engine.runtime.engine import Engine, tell
from ninfer_engine.runtime.executor import Executor
from ninfer_engine.runtime.identity import engine_tree_sha256
from ninfer_engine.runtime.loop import EngineLoop
from ninfer_engine.runtime.opened import open_store
from ninfer_engine.runtime.responses import ResponseStore
from ninfer_engine.runtime.scheduler import Scheduler
from ninfer_engine.runtime.sequence import Sequence
from ninfer_engine.runtime.sessions import Limits, Sessions, sessions_named
from ninfer_engine.runtime.statistics import StatusBoard


class StartError(Exception):
    """The engine cannot start as asked; the message says what to change."""


@dataclass(frozen=True, slots=True)
class Built:
    """A ready engine and the model that it serves."""

    engine: Engine
    model: LoadedModel
    identity: Identity


def build_engine(flags: EngineFlags, api_key: str | None = None) -> Built:
    """Load, allocate, measure. Raises StartError, ModelError, CapacityError, PresetError, StoreError."""
    _check_session_flags(flags, api_key)
    placement = place(flags)
    model = load_model(Path(flags.model), placement.device.type, placement.dtype)
    if flags.model_sha256 is not None and flags.model_sha256 != model.artifact_sha256:
        raise StartError(f"--model-sha256 is {flags.model_sha256}, the model in {flags.model} has "
                         f"{model.artifact_sha256}: mount the right model, or make a new configuration")
    shapes = model.config.cache_shapes
    capacities = _capacities(flags, shapes, placement)
    pages, images = _pools(capacities, shapes, placement)
    costs = cost_model(flags.context_cost_presets, model.decoder, pages, images, flags.prefill_chunk)
    policy = Policy(reuse=not flags.no_prefix_reuse, prefill_chunk=flags.prefill_chunk)
    driver = CacheDriver(ContextCache(capacities, costs, policy), pages, images, flags.max_concurrency)
    identity = _identity(flags, model, placement)
    return Built(_wire(flags, model, driver, identity, placement, api_key), model, identity)


def _check_session_flags(flags: EngineFlags, api_key: str | None) -> None:
    if flags.session_checkpoint_require_origin_auth and api_key is None:
        raise StartError("--session-checkpoint-require-origin-auth needs an API key to check against: "
                         "set --api-key-file")
    if flags.restore_on_start is not None and flags.session_checkpoint_dir is None:
        raise StartError("--restore-on-start needs a store: set --session-checkpoint-dir")
    try:
        sessions_named(flags.restore_on_start)
    except ValueError as error:
        raise StartError(str(error)) from error


def _wire(flags: EngineFlags, model: LoadedModel, driver: CacheDriver, identity: Identity, placement: Placement,
          api_key: str | None) -> Engine:
    responses = ResponseStore(flags.response_store_max_records)

    def on_done(sequence: Sequence, reason: FinishReason) -> None:
        tell(board, sequence, reason)

    executor = Executor(model.decoder, driver.pages.tensors, driver.images.tensors, flags.max_concurrency)
    _warm_up(executor, driver, min(flags.max_concurrency, 2))
    scheduler = Scheduler(executor, driver, flags.max_concurrency, flags.prefill_chunk,
                          flags.pending_timeout_ms / 1000, on_done)
    board = StatusBoard(identity, _runtime(flags, model, driver, placement), scheduler, driver,
                        flags.max_pending_requests)
    check = driver.check if flags.check_invariants else None

    def after_step() -> None:
        board.refresh_if_changed()
        if check is not None and not sessions.holding:
            check()

    loop = EngineLoop(scheduler, after_step)
    sessions = Sessions(open_store(flags, identity, placement, api_key), driver, responses, loop, board.tell_restore,
                        Limits(flags.session_checkpoint_min_tokens, flags.response_store_max_records))
    responses.on_stored = sessions.stored
    return Engine(flags, scheduler, driver, board, sessions, responses, loop)


def _warm_up(executor: Executor, driver: CacheDriver, rows: int) -> None:
    """Decode steps before anybody waits for one, on pages and slots that are given back."""
    pages = driver.pages.allocate(min(rows, driver.pages.free_device))
    slots = [driver.images.acquire_slot() for _ in pages]
    executor.warm_up(driver.pages.device_indices(pages), slots)
    for slot in slots:
        driver.images.release_slot(slot)
    driver.pages.release(pages)


def _capacities(flags: EngineFlags, shapes: CacheShapes, placement: Placement) -> Capacities:
    sizes = derived_sizes(flags)
    return Capacities(
        device_state_extra=sizes.device_state_extra, host_state_slots=sizes.host_state_slots,
        device_pages=kv_pages(flags, shapes, placement), host_kv_bytes=flags.host_kv_mib << 20,
        page_bytes=shapes.page_bytes(KV_DTYPES[placement.kv_dtype]), image_bytes=shapes.image_bytes,
        private_catalog=sizes.private_catalog, shared_catalog=flags.max_shared_prefixes,
        anchors_per_continuation=flags.max_long_anchors_per_continuation, max_concurrency=flags.max_concurrency,
    )


def _pools(capacities: Capacities, shapes: CacheShapes, placement: Placement) -> tuple[DevicePages, StateImages]:
    rows = capacities.device_pages * PAGE_TOKENS
    kv_dtype = KV_DTYPES[placement.kv_dtype]
    device = placement.device

    def kv(dim: int, dtype: torch.dtype) -> list[torch.Tensor]:
        return [zeros((shapes.kv_heads, rows, dim), dtype, device) for _ in range(shapes.full_layers)]

    tensors = KVTensors(kv(shapes.head_dim, kv_dtype), kv(shapes.head_dim, kv_dtype))
    if kv_dtype is torch.int8:
        tensors = KVTensors(tensors.keys, tensors.values, kv(1, SCALE_DTYPE), kv(1, SCALE_DTYPE))
    slots = capacities.max_concurrency + capacities.device_state_extra

    def states(shape: tuple[int, ...]) -> list[torch.Tensor]:
        return [zeros((slots, *shape), torch.float32, device) for _ in range(shapes.linear_layers)]

    pages = DevicePages(tensors, capacities.host_kv_bytes)
    images = StateImages(StateTensors(states(shapes.recurrent_shape), states(shapes.conv_shape)),
                         capacities.host_state_slots)
    return pages, images


def _identity(flags: EngineFlags, model: LoadedModel, placement: Placement) -> Identity:
    return Identity(
        deployment_profile=flags.deployment_profile, model_id=flags.model_id or Path(flags.model).resolve().name,
        model_artifact_sha256=model.artifact_sha256, binary_sha256=engine_tree_sha256(),
        config_sha256=flags.config_sha256, build_profile=f"torch-{torch.__version__}-{placement.dtype}",
        engine_version=__version__, device=_device_name(placement.device), server_instance_id=uuid.uuid4().hex,
    )


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def _runtime(flags: EngineFlags, model: LoadedModel, driver: CacheDriver, placement: Placement) -> Runtime:
    return Runtime(
        public_model_id=flags.model_id or Path(flags.model).resolve().name, max_context=flags.max_context,
        kv_capacity_mode="auto" if flags.kv_capacity == "auto" else "explicit",
        kv_capacity_tokens=driver.pages.total_device * PAGE_TOKENS, kv_cache=placement.kv_dtype,
        speculative_backend="none",
    )
