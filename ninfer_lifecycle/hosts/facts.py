"""What is worth knowing of the machine beneath an engine, as text, for receipts. Reads /proc; needs no privilege."""

import os
import platform
from datetime import UTC, datetime
from pathlib import Path


def machine_facts() -> dict[str, str]:
    """kernel, architecture, cpu model and count, memory in bytes. What cannot be read is absent."""
    facts = {"kernel": platform.release(), "architecture": platform.machine(),
             "cpus": str(len(os.sched_getaffinity(0)))}
    cpu = next((line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), "")
    memory = next((line.split()[1] for line in _lines("/proc/meminfo") if line.startswith("MemTotal:")), "")
    if cpu:
        facts["cpuModel"] = cpu
    if memory:
        facts["memoryBytes"] = str(int(memory) * 1024)
    return facts


def available_memory() -> int | None:
    """Bytes that could be taken now without swapping; None where the kernel does not say."""
    line = next((line for line in _lines("/proc/meminfo") if line.startswith("MemAvailable:")), None)
    return None if line is None else int(line.split()[1]) * 1024


def boot_id() -> str:
    """Changes with each boot; with a process id and its start time it names one process for good."""
    return next(iter(_lines("/proc/sys/kernel/random/boot_id")), "unknown").strip()


def process_start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None when there is none, or only its zombie."""
    lines = _lines(f"/proc/{pid}/stat")
    if not lines:
        return None
    fields = lines[0].rpartition(")")[2].split()  # the name before it may hold spaces and brackets
    return None if fields[0] in {"Z", "X"} else int(fields[19])


def utc_now() -> str:
    """This moment, RFC 3339 in UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
