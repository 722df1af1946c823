# SPDX-License-Identifier: Apache-2.0
"""Find out what this node is, and whether a probe can run on it, before anything is restored."""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import platform
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from checkpoint.errors import NodeUnfit
from checkpoint.linux import PAGE_SIZE

if TYPE_CHECKING:
    from probe.formats.manifest import Manifest

OLDEST_KERNEL = (3, 18)
"""First Linux on which an ordinary user can set a process's heap and stack bounds (PR_SET_MM_MAP)."""

_MEMORY_SLACK = 64 << 20
"""Bytes that agent, restorer and page tables take besides a phase's pages."""


def this_node() -> dict[str, Any]:
    """What identifies this machine in results."""
    return {
        "name": platform.node(),
        "cpu": _cpuinfo("model name"),
        "cores": os.cpu_count() or 1,
        "kernel": platform.release(),
        "load": round(os.getloadavg()[0], 2),
    }


def where_measured() -> dict[str, Any]:
    """The same, and as `granted` the processors whose time our control groups grant, where that is not all of it."""
    granted = granted_processors()
    return {**this_node(), **({"granted": round(granted, 3)} if granted < (os.cpu_count() or 1) else {})}


def cpu_flags() -> set[str]:
    """Feature flags of this machine, by the names of /proc/cpuinfo."""
    return set(_cpuinfo("flags").split())


def _cpuinfo(key: str) -> str:
    with open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith(key):
                return line.split(":", 1)[1].strip()
    return ""


def check_node(manifest: Manifest) -> None:
    """Raise NodeUnfit, with the reason, where this machine cannot run the probe's phases."""
    if platform.machine() != "x86_64":
        raise NodeUnfit(f"this is a {platform.machine()} machine; the probe's phases are x86-64 code")
    if mmap.PAGESIZE != PAGE_SIZE:
        raise NodeUnfit(f"pages have {mmap.PAGESIZE} bytes here, the probe's have {PAGE_SIZE}")
    check_kernel(platform.release())
    check_features(manifest)
    check_memory(manifest)


def check_kernel(release: str) -> None:
    """Raise NodeUnfit for a kernel on which nothing can be restored."""
    numbers = tuple(int(n) for n in re.findall(r"\d+", release)[:2])
    if numbers < OLDEST_KERNEL:
        raise NodeUnfit(
            f"Linux {release} is too old to restore a phase: {'.'.join(map(str, OLDEST_KERNEL))} or newer is needed"
        )


def check_features(manifest: Manifest) -> None:
    """Raise NodeUnfit where this processor lacks what the phases execute: before restoring, never by SIGILL."""
    missing = sorted(set(manifest.program.cpu_features) - cpu_flags())
    if missing:
        raise NodeUnfit(
            f"this processor lacks {', '.join(missing)}, which the probe's phases execute; "
            "build the probe with a lower --isa, if the program itself can do without"
        )


def memory_needed(manifest: Manifest) -> int:
    """Bytes that the largest phase takes, and what restores it."""
    return max((p.checkpoint.kept_pages for p in manifest.phases if p.can_run), default=0) * PAGE_SIZE + _MEMORY_SLACK


def check_memory(manifest: Manifest) -> None:
    """Raise NodeUnfit where the largest phase does not fit in the memory that is to be had."""
    needed, available = memory_needed(manifest), available_memory()
    if available is not None and needed > available:
        raise NodeUnfit(
            f"{available >> 20} MB of memory are available, the largest phase needs {needed >> 20} MB; "
            "wait until there is more, or trim the probe (probe trim)"
        )


def available_memory() -> int | None:
    """Bytes that processes of ours can still take: of the machine, and of our control groups. None if unknown."""
    found = []
    with contextlib.suppress(OSError, ValueError), open("/proc/meminfo") as file:
        found += [int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable:")]
    for folder, most, used in _memory_groups():
        with contextlib.suppress(OSError, ValueError):
            # Page cache counts as used and is given back when memory is wanted.
            cache = re.findall(r"^(?:total_)?inactive_file (\d+)$", (folder / "memory.stat").read_text(), re.MULTILINE)
            taken = int((folder / used).read_text()) - int(cache[-1] if cache else 0)
            found.append(int((folder / most).read_text()) - taken)
    return max(0, min(found)) if found else None


def _memory_groups() -> list[tuple[Path, str, str]]:
    """(folder, file with the limit, file with what is used) of our control groups, both versions, up to the root."""
    names = {2: ("memory.max", "memory.current"), 1: ("memory.limit_in_bytes", "memory.usage_in_bytes")}
    return [(folder, *names[version]) for folder, version in _own_groups("memory")]


def granted_processors() -> float:
    """How many processors' time our control groups grant, both versions: the least on the way to the root; infinity
    where none limits it (admin-guide/cgroup-v2.rst and scheduler/sched-bwc.rst of Linux)."""
    found = [math.inf]
    for folder, version in _own_groups("cpu"):
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
            names = ("cpu.max",) if version == 2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            quota, period = " ".join((folder / name).read_text() for name in names).split()
            # Without a limit version 1 says -1, and version 2 max.
            if quota != "max" and int(quota) > 0:
                found.append(int(quota) / int(period))
    return min(found)


def _own_groups(controller: str) -> list[tuple[Path, int]]:
    """(folder, version) of our control groups that may have this controller, both versions, up to the root."""
    groups = []
    with contextlib.suppress(OSError, ValueError), open("/proc/self/cgroup") as file:
        for line in file:
            number, controllers, path = line.rstrip("\n").split(":", 2)
            if number == "0":
                top, version = Path("/sys/fs/cgroup"), 2
            elif controller in controllers.split(","):
                top, version = Path("/sys/fs/cgroup") / controller, 1
            else:
                continue
            inner = Path(path.lstrip("/"))
            groups += [(top / part, version) for part in (inner, *inner.parents)]
    return groups
