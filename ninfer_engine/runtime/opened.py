"""The durable store of a running engine, bound to whatever the numbers of a saved session depend on."""

from dataclasses import dataclass
from pathlib import Path

from ninfer_engine.contract.flags import EngineFlags
from ninfer_engine.contract.status import Identity
from ninfer_engine.memory.store.digests import ObjectNames
from ninfer_engine.memory.store.durable import DurableStore
from ninfer_engine.memory.store.envelope import FORMAT
from ninfer_engine.memory.store.origin import OriginKey
from ninfer_engine.runtime.capacity import Placement

STORE_FORMAT = str(FORMAT)


@dataclass(frozen=True, slots=True)
class OpenedStore:
    """A durable store and what its object names are keyed by."""

    store: DurableStore
    fingerprint: dict[str, str]

    def names(self, salt: str) -> ObjectNames:
        """The names of objects under a cache salt."""
        return ObjectNames(self.fingerprint, salt)


def open_store(flags: EngineFlags, identity: Identity, placement: Placement, api_key: str | None) -> OpenedStore | None:
    """The store of --session-checkpoint-dir; None without. Raises StoreIncompatibleError when origin is required and
    there is no API key."""
    if flags.session_checkpoint_dir is None:
        return None
    fingerprint = {
        "model": identity.model_artifact_sha256, "dtype": placement.dtype, "kv_dtype": placement.kv_dtype,
        "device": placement.device.type, "format": STORE_FORMAT,
    }
    store = DurableStore.open(
        Path(flags.session_checkpoint_dir), fingerprint, flags.session_checkpoint_quota_mib << 20,
        OriginKey.from_api_key(api_key), flags.session_checkpoint_require_origin_auth)
    return OpenedStore(store, fingerprint)
