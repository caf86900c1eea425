"""How long a graceful stop may take: what the engine has yet to save decides, not a constant.

A stop saves every live session. At tens of gigabytes a fixed limit would kill the engine in the middle of the save that
it was stopped for.
"""

from ninfer_engine.contract.status import StatusDocument
from ninfer_lifecycle.client import Deadlines
from ninfer_lifecycle.errors import NinferError, UsageError
from ninfer_lifecycle.hosts.base import RunningEngine
from ninfer_lifecycle.hosts.placing import client_of
from ninfer_lifecycle.simulate.shapes import KV_BYTES, ModelShapes, shapes_of

SAVE_BYTES_PER_S = 64 * 2**20
"""What the slowest disk that is worth a store takes. Only a limit follows from it: a faster stop ends sooner."""
LONGEST_S = 3600.0
_ASK_S = 2.0


def enough_grace(engine: RunningEngine, grace_s: float) -> float:
    """`grace_s`, or longer when the engine holds more than can be saved in that time. 0 stays 0: a kill.

    Asks the engine for its status; one that does not answer gets `grace_s`.
    """
    if grace_s <= 0 or engine.spec.store_dir is None:
        return grace_s
    try:
        with client_of(engine.spec, engine.base_url, Deadlines(connect_s=_ASK_S, quick_s=_ASK_S)) as client:
            status = client.status()
    except NinferError:
        return grace_s
    return stop_limit(grace_s, unsaved_bytes(status, _shapes(engine), engine.spec.flags.session_checkpoint_quota_mib))


def stop_limit(grace_s: float, to_save: int) -> float:
    """Seconds: the grace that was asked for, and beside it the time that saving takes."""
    return min(max(LONGEST_S, grace_s), grace_s + to_save / SAVE_BYTES_PER_S)


def unsaved_bytes(status: StatusDocument, shapes: ModelShapes | None, quota_mib: int) -> int:
    """The most that a stop may have to write: everything that is held, as if nothing were saved yet; never more than
    the store takes. shapes None: nobody knows what a page takes, so whoever holds any may fill the store.
    """
    cache, quota = status.cache, quota_mib << 20
    images = cache.device_state.occupied + cache.host_state.occupied
    if shapes is None:
        return quota if images or cache.device_kv.occupied or cache.host_kv.occupied_bytes else 0
    kv_dtype = status.runtime.kv_cache if status.runtime.kv_cache in KV_BYTES else "fp32"
    held = (cache.device_kv.occupied * shapes.page_bytes(kv_dtype) + cache.host_kv.occupied_bytes
            + images * shapes.image_bytes)
    return min(quota, held)


def _shapes(engine: RunningEngine) -> ModelShapes | None:
    try:
        return shapes_of(str(engine.spec.model_dir))
    except UsageError:
        return None
