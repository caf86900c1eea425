"""The preflight's look at memory and disk: what a configuration needs on each tier against what there is."""

from collections.abc import Iterator
from pathlib import Path

from ninfer_lifecycle.errors import UsageError
from ninfer_lifecycle.hosts.daemon import DaemonFacts
from ninfer_lifecycle.hosts.doctor_gpu import gpu_memory, wants_gpu
from ninfer_lifecycle.hosts.findings import Finding, ok, problem, size_text, unknown, warning
from ninfer_lifecycle.hosts.machine import Machine
from ninfer_lifecycle.hosts.model_digest import weight_numbers
from ninfer_lifecycle.hosts.needs import GENERATIONS, OVERHEAD_BYTES, Need, need_of, session_bytes, store_bytes
from ninfer_lifecycle.profiles.schema import Profile
from ninfer_lifecycle.simulate.shapes import TINY, ModelShapes, shapes_of

LOG_BYTES = 2**28
TINY_WEIGHTS = 4_000_000
_LOWER = "lower host-kv-mib, host-state-slots and kv-capacity (`ninfer size` says what they serve), or give it more"


def room_findings(profile: Profile, run_dir: Path, facts: DaemonFacts | None, machine: Machine, image_bytes: int = 0
                  ) -> Iterator[Finding]:
    """Memory of the machine and of its GPUs, the store's quota, and the disks. facts: of the daemon, if one is used.
    image_bytes: what the image will take that the daemon does not hold yet.
    """
    try:
        shapes, numbers = model_facts(profile)
    except (UsageError, OSError) as error:
        yield unknown("memory", f"the model's shapes are not known: {getattr(error, 'message', error)}",
                      "give a model in HF layout, whose config.json tells them")
        return
    on_gpu = wants_gpu(profile)
    need = need_of(profile.flags, shapes, numbers, on_gpu)
    yield _memory(profile, need, on_gpu, facts, machine)
    if on_gpu and (facts is None or facts.local):
        yield _gpu_memory(need, gpu_memory(profile, machine.gpus()))
    yield _quota(profile, shapes, on_gpu)
    if not machine.can_write(run_dir):
        yield problem("disk", f"{run_dir} cannot be written", "give another --runs-dir")
        return
    least = GENERATIONS * session_bytes(profile.flags, shapes, on_gpu) + LOG_BYTES
    full = store_bytes(profile.flags, shapes, need, on_gpu) + LOG_BYTES
    if facts is not None and facts.local and facts.data_root.exists():
        image = LOG_BYTES + image_bytes
        if machine.same_disk(run_dir, facts.data_root):
            least, full = least + image, full + image
        else:
            yield _disk("daemon disk", facts.data_root, machine.free_disk(facts.data_root), image, image)
    yield _disk("disk", run_dir, machine.free_disk(run_dir), full, least)


def _memory(profile: Profile, need: Need, on_gpu: bool, facts: DaemonFacts | None, machine: Machine) -> Finding:
    whole = _whole(need, on_gpu)
    tier = f"host tier {size_text(need.host)}{', pinned' if on_gpu else ''}"
    told = f"{size_text(whole)} are needed ({tier}, everything else {size_text(whole - need.host)})"
    limit = profile.host.memory
    if limit is not None and limit < whole:
        return problem("memory limit", f"{told} and host.memory is {size_text(limit)}", _LOWER)
    remote = None if facts is None or facts.local else facts
    room = remote.memory_bytes if remote else machine.available_memory()
    if room is None:
        return unknown("memory", f"{told}; this machine does not say how much is free", "look at it by hand (free)")
    told += f" and the daemon's machine has {size_text(room)} in all" if remote else f" and {size_text(room)} are free"
    return ok("memory", told) if room >= whole else problem("memory", told, _LOWER)


def computed_need(profile: Profile) -> int | None:
    """Bytes of the machine's memory that the profile's engine may take; None where the model's shapes are not known."""
    try:
        shapes, numbers = model_facts(profile)
    except (UsageError, OSError):
        return None
    on_gpu = wants_gpu(profile)
    need = need_of(profile.flags, shapes, numbers, on_gpu)
    return _whole(need, on_gpu)


def _whole(need: Need, on_gpu: bool) -> int:
    """On a GPU the pinned host tier and what the process itself takes, else everything."""
    return need.host + (OVERHEAD_BYTES if on_gpu else need.device)


def _gpu_memory(need: Need, size: int | None) -> Finding:
    told = (f"{size_text(need.device)} are needed (weights {size_text(need.weights)}, KV {size_text(need.device_kv)}"
            f"{' at least' if need.kv_is_least else ''}, images {size_text(need.device_images)})")
    if size is None:
        return unknown("gpu memory", f"{told}; no GPU says how much it has", "see that nvidia-smi works")
    if size < need.device:
        return problem("gpu memory", f"{told} and the GPU has {size_text(size)}",
                       "lower max-context, kv-capacity or device-state-slots, or use a larger GPU")
    return ok("gpu memory", f"{told} of {size_text(size)}")


def _quota(profile: Profile, shapes: ModelShapes, on_gpu: bool) -> Finding:
    """A quota with room for one generation would refuse the second save of a long session, hours later."""
    quota = profile.flags.session_checkpoint_quota_mib << 20
    session = session_bytes(profile.flags, shapes, on_gpu)
    if quota < GENERATIONS * session:
        tokens = profile.flags.max_context
        return problem("store quota", f"the store may hold {size_text(quota)}; a session of {tokens} tokens takes "
                       f"{size_text(session)}, and a save needs that {GENERATIONS} times",
                       f"set session-checkpoint-quota-mib to {-(-GENERATIONS * session >> 20)} or more")
    return ok("store quota", f"{size_text(quota)} hold {GENERATIONS} generations of the longest session")


def _disk(check: str, where: Path, free: int, full: int, least: int) -> Finding:
    told = f"{size_text(free)} are free at {where}"
    if free < least:
        return problem(check, f"{told} and {size_text(least)} are the least", "free some, or choose another place")
    if free < full:
        return warning(check, f"{told}; a full store and its logs take {size_text(full)}",
                       "free some, or lower session-checkpoint-quota-mib")
    return ok(check, f"{told}, {size_text(full)} may be needed")


def model_facts(profile: Profile) -> tuple[ModelShapes, int]:
    """Shapes and count of weights. Raises UsageError when they are not known."""
    if profile.model.source == "tiny":
        return TINY, TINY_WEIGHTS
    return shapes_of(str(profile.model.path)), weight_numbers(Path(str(profile.model.path)))
