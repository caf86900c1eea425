"""CPUs and memory under control groups: files as both versions write them, and this process without any."""

from pathlib import Path

import pytest
import torch
from engine_cases import flags_for
from hypothesis import given
from hypothesis import strategies as st
from model_cases import tiny

from ninfer_engine.kernels.cache_layout import PAGE_TOKENS
from ninfer_engine.runtime.capacity import CapacityError, Placement, free_bytes, free_ram, kv_pages
from ninfer_engine.runtime.quota import CgroupFiles, cpu_quota, memory_room, usable_cpus

GIB = 1 << 30
CPU = Placement(torch.device("cpu"), "fp32", "fp32")


def written(directory: Path, files: dict[str, str], membership: str) -> CgroupFiles:
    for name, text in files.items():
        file = directory / "fs" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (directory / "cgroup").write_text(membership)
    return CgroupFiles(directory / "cgroup", directory / "fs")


def test_version_two_inside_a_container(tmp_path: Path) -> None:
    files = written(tmp_path, {"cpu.max": "250000 100000\n", "memory.max": f"{4 * GIB}\n",
                               "memory.current": f"{3 * GIB}\n", "memory.stat": f"anon 5\ninactive_file {2 * GIB}\n"},
                    "0::/\n")
    assert (cpu_quota(files), memory_room(files), usable_cpus(8, files, {})) == (2.5, 3 * GIB, 2)


def test_the_tightest_group_on_the_way_to_the_root_counts(tmp_path: Path) -> None:
    files = written(tmp_path, {
        "a.slice/cpu.max": "100000 100000", "a.slice/b.scope/cpu.max": "max 100000",
        "a.slice/memory.max": "max", "a.slice/b.scope/memory.max": str(GIB), "a.slice/b.scope/memory.current": "0",
    }, "0::/a.slice/b.scope\n")
    assert (cpu_quota(files), memory_room(files)) == (1.0, GIB)


def test_version_one_with_controllers_apart_and_a_path_that_exists_outside_only(tmp_path: Path) -> None:
    files = written(tmp_path, {
        "cpu,cpuacct/cpu.cfs_quota_us": "150000", "cpu,cpuacct/cpu.cfs_period_us": "100000",
        "memory/memory.limit_in_bytes": str(2 * GIB), "memory/memory.usage_in_bytes": str(GIB),
        "memory/memory.stat": f"cache 1\ntotal_inactive_file {GIB // 2}",
    }, "5:cpu,cpuacct:/docker/0123\n4:memory:/docker/0123\n1:name=systemd:/x\n")
    assert (cpu_quota(files), memory_room(files), usable_cpus(4, files, {})) == (1.5, GIB + GIB // 2, 1)


@pytest.mark.parametrize("files", [
    {"cpu.max": "max 100000", "memory.max": "max", "memory.current": "1"},
    {"cpu.max": "", "memory.max": "many", "memory.current": "1"},
    {"memory/memory.limit_in_bytes": str((1 << 63) - 4096), "memory/memory.usage_in_bytes": "1",
     "cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"},
    {},
])
def test_no_limit_is_no_limit(tmp_path: Path, files: dict[str, str]) -> None:
    found = written(tmp_path, files, "0::/\n3:memory:/\n2:cpu:/\n")
    assert (cpu_quota(found), memory_room(found), usable_cpus(6, found, {})) == (None, None, 6)


def test_a_process_without_control_groups_has_no_limit_but_its_machine(tmp_path: Path) -> None:
    files = CgroupFiles(tmp_path / "absent", tmp_path / "nowhere")
    assert (cpu_quota(files), memory_room(files)) == (None, None)
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    2048 kB\n")
    assert free_ram(tmp_path / "meminfo", files) == 2 << 20


@given(st.integers(0, 64), st.integers(1, 64), st.sampled_from(["", "1", "3", "nonsense"]))
def test_threads_are_between_one_and_what_every_limit_allows(cpus: int, affinity: int, asked: str) -> None:
    found = usable_cpus(affinity, CgroupFiles(Path("/nonexistent"), Path("/nonexistent")),
                        {"OMP_NUM_THREADS": asked} if cpus else {})
    assert 1 <= found <= affinity
    if asked.isdigit() and cpus:
        assert found == min(affinity, int(asked))


def test_free_memory_is_the_smaller_of_machine_and_limit(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text(f"MemAvailable: {8 * GIB // 1024} kB\n")
    files = written(tmp_path, {"memory.max": str(3 * GIB), "memory.current": str(GIB)}, "0::/\n")
    assert free_ram(tmp_path / "meminfo", files) == 2 * GIB


def test_auto_takes_half_of_what_is_free_and_at_most_four_contexts() -> None:
    shapes = tiny().decoder.cache_shapes
    page = shapes.page_bytes("fp32")
    flags = flags_for(None, kv_capacity="auto", max_context=4096)
    assert kv_pages(flags, shapes, CPU, lambda _: 200 * page) == 100
    assert kv_pages(flags, shapes, CPU, lambda _: 1 << 50) == 4 * 4096 // PAGE_TOKENS
    with pytest.raises(CapacityError, match="lower --max-context"):
        kv_pages(flags, shapes, CPU, lambda _: 2 * page)


def test_int8_pages_fit_more_of_them_into_the_same_memory() -> None:
    shapes = tiny().decoder.cache_shapes
    flags = flags_for(None, kv_capacity="auto", max_context=4096)
    free = 200 * shapes.page_bytes("fp32")
    small = kv_pages(flags, shapes, Placement(CPU.device, "fp32", "int8"), lambda _: free)
    assert small > 3 * kv_pages(flags, shapes, CPU, lambda _: free) / 2


def test_here_free_memory_is_what_the_system_says() -> None:
    found = free_bytes(torch.device("cpu"))
    total = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    assert 0 < found <= total
