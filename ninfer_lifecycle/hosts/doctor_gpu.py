"""The preflight's look at GPUs: whether the ones asked for are there, and whether the daemon can hand them on."""

from collections.abc import Iterator

from ninfer_lifecycle.hosts.base import HostKind
from ninfer_lifecycle.hosts.daemon import DaemonFacts
from ninfer_lifecycle.hosts.findings import Finding, ok, problem, size_text, unknown, warning
from ninfer_lifecycle.hosts.machine import Gpu, Machine
from ninfer_lifecycle.profiles.schema import Profile


def wants_gpu(profile: Profile) -> bool:
    """Whether the engine is meant to run on a GPU."""
    return profile.flags.device == "cuda" or (profile.flags.device == "auto" and profile.host.gpus != "none")


def gpu_findings(profile: Profile, kind: HostKind, facts: DaemonFacts | None, machine: Machine) -> Iterator[Finding]:
    """What there is to say of GPUs; one line where none is asked for."""
    if kind != "process" and profile.flags.device == "cuda" and profile.host.gpus == "none":
        yield problem("gpu", "the engine is to run on cuda and its container gets no GPU",
                      "set host.gpus: all, or list device UUIDs")
        return
    if not wants_gpu(profile):
        yield ok("gpu", "none is asked for")
        return
    if kind != "process" and facts is not None and profile.host.runtime is None:
        yield _default_runtime(facts)
    if facts is not None and not facts.local:
        yield unknown("gpu", "the daemon's machine is not this one", "run `ninfer doctor` there")
        return
    yield _devices(profile, machine.gpus())


def _default_runtime(facts: DaemonFacts) -> Finding:
    if "nvidia" not in facts.runtimes:
        return warning("gpu runtime", "the daemon names no nvidia runtime; it may still hand GPUs on by a hook",
                       "if the start fails with 'could not select device driver', install the NVIDIA container toolkit")
    return ok("gpu runtime", "the daemon has the nvidia runtime")


def _devices(profile: Profile, found: tuple[Gpu, ...] | None) -> Finding:
    if not found:
        return problem("gpu", "nvidia-smi lists no GPU here", "install the driver, or use device: cpu")
    by_uuid = {gpu.uuid: gpu for gpu in found}
    asked = [] if isinstance(profile.host.gpus, str) else list(profile.host.gpus)
    if missing := [uuid for uuid in asked if uuid not in by_uuid]:
        return problem("gpu", f"{', '.join(missing)} is not among this machine's GPUs ({', '.join(by_uuid)})",
                       "correct host.gpus in the profile (nvidia-smi -L lists them)")
    used = [by_uuid[uuid] for uuid in asked] or list(found)
    return ok("gpu", f"{len(used)} of this machine's {len(found)}, {size_text(used[0].memory_bytes)} each")


def gpu_memory(profile: Profile, found: tuple[Gpu, ...] | None) -> int | None:
    """Bytes of the smallest GPU that the engine may get; None where that is not known."""
    wanted = set(profile.host.gpus) if not isinstance(profile.host.gpus, str) else None
    sizes = [gpu.memory_bytes for gpu in found or () if wanted is None or gpu.uuid in wanted]
    return min(sizes, default=None)
