"""What this process may use of the machine: CPUs and memory, by affinity and cgroup, not by what the host has.

Every reader takes `root`, under which `/proc` and `/sys` lie, so that tests can lay out a machine of files.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Literal

from attrs import frozen

FEW_CPUS: Final = 4
"""Up to so many CPUs all are used, also two of one core: a small share of a machine has nothing to spare."""


@frozen(kw_only=True)
class CpuLimits:
    """CPUs of the affinity mask, how many different cores they are, and the cgroup's quota in CPUs."""

    allowed: int
    cores: int
    quota: float | None = None

    @property
    def threads(self) -> int:
        """Threads that compute without stepping on each other: a core each, and no more than the quota pays for."""
        usable = self.allowed if self.allowed <= FEW_CPUS else self.cores
        if self.quota is not None:
            usable = min(usable, int(self.quota))
        return max(1, usable)

    @property
    def limited_by(self) -> str:
        """What decides `threads`, for people: `cgroup quota`, `cores` or `affinity`."""
        usable = self.allowed if self.allowed <= FEW_CPUS else self.cores
        if self.quota is not None and int(self.quota) < usable:
            return "cgroup quota"
        return "cores" if usable < self.allowed else "affinity"


@frozen(kw_only=True)
class MemoryLimits:
    """Bytes of main memory: what there is, and what is left, for this process."""

    total_bytes: int
    available_bytes: int
    limited_by: Literal["machine", "cgroup"] = "machine"


def cpu_limits(root: str = "/", cpus: Iterable[int] | None = None) -> CpuLimits:
    """The CPU limits of this process; `cpus` replaces the affinity mask."""
    if sys.platform == "darwin" and cpus is None:
        fast = _sysctl("hw.perflevel0.physicalcpu") or os.cpu_count() or 1
        return CpuLimits(allowed=os.cpu_count() or fast, cores=fast)
    allowed = sorted(os.sched_getaffinity(0) if cpus is None else cpus)
    return CpuLimits(allowed=len(allowed), cores=_cores(root, allowed), quota=_quota(root))


def memory_limits(root: str = "/") -> MemoryLimits:
    """The memory limits of this process; page cache counts as available, as the kernel gives it back."""
    if sys.platform == "darwin" and root == "/":
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return MemoryLimits(total_bytes=total, available_bytes=total * 3 // 4)  # the rest is the system's
    meminfo = _fields(Path(root, "proc/meminfo"))
    total = meminfo.get("MemTotal:", 0) * 1024
    available = meminfo.get("MemAvailable:", 0) * 1024
    limited_by: Literal["machine", "cgroup"] = "machine"
    for limit, used in _cgroup_memory(root):
        if 0 <= limit < total:
            total = limit
        if 0 <= limit - used < available:
            available, limited_by = limit - used, "cgroup"
    return MemoryLimits(total_bytes=total, available_bytes=available, limited_by=limited_by)


def _cores(root: str, cpus: list[int]) -> int:
    siblings = set()
    for cpu in cpus:
        path = Path(root, f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        siblings.add(_text(path) or str(cpu))
    return len(siblings)


def _quota(root: str) -> float | None:
    """The tightest CPU quota of this process's cgroup and all above it, either version."""
    quotas = []
    for folder in _cgroup_folders(root, "cpu"):
        if len(pair := (_text(folder / "cpu.max") or "").split()) == 2:
            limit, period = pair
        else:
            limit, period = _text(folder / "cpu.cfs_quota_us") or "", _text(folder / "cpu.cfs_period_us") or ""
        if limit.isdigit() and period.isdigit() and int(period) > 0:
            quotas.append(int(limit) / int(period))
    return min(quotas, default=None)


def _cgroup_memory(root: str) -> list[tuple[int, int]]:
    """Limit and use, without reclaimable page cache, of this process's cgroup and all above it."""
    found = []
    for folder in _cgroup_folders(root, "memory"):
        limit = _text(folder / "memory.max") or _text(folder / "memory.limit_in_bytes") or ""
        used = _text(folder / "memory.current") or _text(folder / "memory.usage_in_bytes") or ""
        if limit.isdigit() and used.isdigit():
            statistics = _fields(folder / "memory.stat")
            cached = statistics.get("total_inactive_file", statistics.get("inactive_file", 0))
            found.append((int(limit), max(0, int(used) - cached)))
    return found


def _cgroup_folders(root: str, controller: str) -> list[Path]:
    """Folders of this process's cgroup for a controller, innermost first, up to the mount's root."""
    folders: list[Path] = []
    for line in (_text(Path(root, "proc/self/cgroup")) or "").splitlines():
        _number, controllers, path = ([*line.split(":", 2), "", ""])[:3]
        if controllers and controller not in controllers.split(","):
            continue
        mounts = [f"sys/fs/cgroup/{controllers}", f"sys/fs/cgroup/{controller}"] if controllers else ["sys/fs/cgroup"]
        for mount in mounts:
            here = Path(root, mount)
            if not here.is_dir():
                continue
            inner = here if ".." in path.split("/") else here / path.lstrip("/")
            # In a container the path may be the host's: then only the mount's root is there to be read.
            while inner != here and here in inner.parents:
                folders.append(inner)
                inner = inner.parent
            folders.append(here)
            break
    return folders


def _fields(path: Path) -> dict[str, int]:
    found = {}
    for line in (_text(path) or "").splitlines():
        pieces = line.split()
        if len(pieces) >= 2 and pieces[1].isdigit():
            found[pieces[0]] = int(pieces[1])
    return found


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except (OSError, ValueError):
        return None


def _sysctl(name: str) -> int | None:
    import ctypes

    value, size = ctypes.c_int64(0), ctypes.c_size_t(8)
    failed = ctypes.CDLL(None).sysctlbyname(name.encode(), ctypes.byref(value), ctypes.byref(size), None, 0)
    return None if failed else value.value
