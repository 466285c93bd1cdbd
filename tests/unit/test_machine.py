from __future__ import annotations

from pathlib import Path

import pytest
from fixtures.gguf_bytes import write
from localllm.runtime.models.machine import CpuLimits, cpu_limits, memory_limits

GIB_KB = 1 << 20


def machine(root: Path, files: dict[str, str], cores: int = 8) -> str:
    """Lay out `/proc` and `/sys` with 16 CPUs, two a core."""
    topology = {
        f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": f"{cpu % cores},{cpu % cores + cores}"
        for cpu in range(16)
    }
    meminfo = {"proc/meminfo": f"MemTotal: {16 * GIB_KB} kB\nMemFree: 1 kB\nMemAvailable: {8 * GIB_KB} kB\n"}
    write(root, {name: text.encode() for name, text in (topology | meminfo | files).items()})
    return str(root)


def test_without_limits_there_is_a_thread_for_each_core(tmp_path: Path) -> None:
    limits = cpu_limits(machine(tmp_path, {}), range(16))

    assert (limits.allowed, limits.cores, limits.quota) == (16, 8, None)
    assert (limits.threads, limits.limited_by) == (8, "cores")


def test_a_few_cpus_are_all_used(tmp_path: Path) -> None:
    limits = cpu_limits(machine(tmp_path, {}), (0, 8))

    assert (limits.threads, limits.limited_by) == (2, "affinity")


@pytest.mark.parametrize(
    ("quota", "threads"), [("400000 100000", 4), ("150000 100000", 1), ("20000 100000", 1), ("max 100000", 8)]
)
def test_a_version_2_quota_limits_threads(tmp_path: Path, quota: str, threads: int) -> None:
    files = {"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": quota}

    assert cpu_limits(machine(tmp_path, files), range(16)).threads == threads


def test_the_tightest_quota_above_counts(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/a/b\n",
        "sys/fs/cgroup/a/b/cpu.max": "max 100000",
        "sys/fs/cgroup/a/cpu.max": "200000 100000",
    }
    limits = cpu_limits(machine(tmp_path, files), range(16))

    assert (limits.threads, limits.limited_by) == (2, "cgroup quota")


def test_a_version_1_quota_limits_threads_also_where_the_path_is_the_hosts(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "3:cpu,cpuacct:/docker/abc\n1:name=systemd:/\n",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "300000",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
    }

    assert cpu_limits(machine(tmp_path, files), range(16)).quota == 3


def test_a_quota_of_minus_one_is_none(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "1:cpu:/\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
    }

    assert cpu_limits(machine(tmp_path, files), range(16)).quota is None


def test_memory_is_the_machines_without_a_limit(tmp_path: Path) -> None:
    limits = memory_limits(machine(tmp_path, {}))

    assert (limits.total_bytes, limits.available_bytes, limits.limited_by) == (16 << 30, 8 << 30, "machine")


def test_a_memory_limit_counts_and_page_cache_is_available(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/box\n",
        "sys/fs/cgroup/box/memory.max": str(4 << 30),
        "sys/fs/cgroup/box/memory.current": str(3 << 30),
        "sys/fs/cgroup/box/memory.stat": f"anon 1\ninactive_file {1 << 30}\n",
    }
    limits = memory_limits(machine(tmp_path, files))

    assert (limits.total_bytes, limits.available_bytes, limits.limited_by) == (4 << 30, 2 << 30, "cgroup")


def test_a_path_that_climbs_out_of_the_mount_is_not_followed(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/../../..\n", "sys/fs/cgroup/cpu.max": "100000 100000"}

    assert cpu_limits(machine(tmp_path, files), range(16)).quota == 1


def test_this_machine_has_at_least_one_thread_and_some_memory() -> None:
    assert cpu_limits().threads >= 1
    assert 0 < memory_limits().available_bytes <= memory_limits().total_bytes


def test_no_cpu_at_all_is_still_one_thread() -> None:
    assert CpuLimits(allowed=0, cores=0).threads == 1
