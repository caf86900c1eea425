"""What a container leaves this process: cpus and memory under the limits of its control groups, version 1 or 2.

Every group on the way from the process's own to the root counts, since each may have a limit. Inside a container the
own group often is the root of what is mounted, though /proc names it by its path outside: paths that do not exist here
are passed over.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_UNLIMITED_V1 = 1 << 60  # version 1 writes the largest multiple of a page where there is no limit


@dataclass(frozen=True, slots=True)
class CgroupFiles:
    """Where the kernel tells of control groups; other places in tests."""

    membership: Path = Path("/proc/self/cgroup")
    mount: Path = Path("/sys/fs/cgroup")


HERE = CgroupFiles()


def cpu_quota(files: CgroupFiles = HERE) -> float | None:
    """CPUs' worth of time that the tightest group allows; None: no limit, or none that can be read."""
    quotas = [_ratio(*_words(group / "cpu.max", 2)) for group in _groups(files, "")]
    quotas += [_ratio(_word(group / "cpu.cfs_quota_us"), _word(group / "cpu.cfs_period_us"))
               for group in _groups(files, "cpu")]
    return min((quota for quota in quotas if quota is not None), default=None)


def memory_room(files: CgroupFiles = HERE) -> int | None:
    """Bytes that the tightest group still allows; None: no limit, or none that can be read.

    Cached file pages that nobody has used lately do not count as taken: the kernel gives them back first.
    """
    rooms = [_room(group, "memory.max", "memory.current", "inactive_file") for group in _groups(files, "")]
    rooms += [_room(group, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
              for group in _groups(files, "memory")]
    return min((room for room in rooms if room is not None), default=None)


def usable_cpus(
    affinity: int | None = None, files: CgroupFiles = HERE, environment: Mapping[str, str] = os.environ
) -> int:
    """Threads that compute at once without being throttled: whole CPUs of the quota, at most those that the process may
    run on (affinity; None: as the system says) and those of OMP_NUM_THREADS, one at least.

    A part of a CPU beyond the whole ones gets no thread: it would hold all others up at the end of every operator.
    """
    allowed = len(os.sched_getaffinity(0)) if affinity is None else affinity
    asked, quota = environment.get("OMP_NUM_THREADS", ""), cpu_quota(files)
    if asked.isdigit():
        allowed = min(allowed, int(asked))
    return max(1, allowed if quota is None else min(allowed, int(quota)))


def _groups(files: CgroupFiles, controller: str) -> Iterator[Path]:
    """Directories of this process's group and those above it. controller: "" for version 2, else one of version 1."""
    for line in _read(files.membership).splitlines():
        names, _, path = line.partition(":")[2].partition(":")
        if controller not in names.split(","):
            continue
        for name in (names, controller) if controller else ("",):
            root = files.mount / name
            own = root / path.strip().lstrip("/")
            yield from (group for group in (own, *own.parents) if group.is_relative_to(root) and group.is_dir())


def _room(group: Path, limit_file: str, usage_file: str, cached: str) -> int | None:
    limit, usage = _word(group / limit_file), _word(group / usage_file)
    if limit is None or usage is None or limit >= _UNLIMITED_V1:
        return None
    stat = dict(line.split(maxsplit=1) for line in _read(group / "memory.stat").splitlines() if " " in line)
    reclaimable = int(stat.get(cached, "0")) if stat.get(cached, "0").strip().isdigit() else 0
    return max(0, limit - max(0, usage - reclaimable))


def _ratio(quota: int | None, period: int | None) -> float | None:
    return quota / period if quota is not None and period and quota > 0 else None


def _words(path: Path, count: int) -> list[int | None]:
    """The first words of a file as numbers; None for what is no number, or is not there."""
    words = [*_read(path).split(), *[""] * count][:count]
    return [int(word) if word.lstrip("-").isdigit() else None for word in words]


def _word(path: Path) -> int | None:
    return _words(path, 1)[0]


def _read(path: Path) -> str:
    """A file's text; nothing where there is no such file, or it may not be read."""
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
