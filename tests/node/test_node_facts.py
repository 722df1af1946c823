# SPDX-License-Identifier: Apache-2.0
"""Reasons why a node cannot run a probe: found out before anything is restored, each by its name."""

from __future__ import annotations

import builtins
import hashlib
import io
import math
import mmap
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from control_group import group_with_processors
from small_probe import small_probe

from checkpoint.errors import NodeUnfit
from probe.formats.manifest import ExternalFile, Manifest
from probe.node import facts
from probe.node.facts import available_memory, check_node
from probe.node.files import check_external
from probe.node.measuring import check_processors
from reducer.unpack import open_probe


@pytest.fixture(scope="module")
def manifest(builds: Path) -> Manifest:
    with open_probe(small_probe(builds).path) as archive:
        return Manifest.from_json(archive.manifest)


def test_this_node_will_do(manifest: Manifest) -> None:
    check_node(manifest)


@pytest.mark.parametrize("release", ["3.17.99", "2.6.32-754.el6.x86_64", "3.2"])
def test_a_kernel_that_is_too_old(manifest: Manifest, monkeypatch: pytest.MonkeyPatch, release: str) -> None:
    monkeypatch.setattr(platform, "release", lambda: release)
    with pytest.raises(NodeUnfit, match=rf"Linux {release} is too old to restore a phase: 3.18 or newer"):
        check_node(manifest)


@pytest.mark.parametrize("release", ["3.18.0", "4.4.0-210-generic", "10.0", "6.12.30-WSL2"])
def test_a_kernel_that_is_new_enough(manifest: Manifest, monkeypatch: pytest.MonkeyPatch, release: str) -> None:
    monkeypatch.setattr(platform, "release", lambda: release)
    check_node(manifest)


def test_another_machine(manifest: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(NodeUnfit, match="this is a aarch64 machine; the probe's phases are x86-64 code"):
        check_node(manifest)


def test_pages_of_another_size(manifest: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmap, "PAGESIZE", 65536)
    with pytest.raises(NodeUnfit, match="pages have 65536 bytes here, the probe's have 4096"):
        check_node(manifest)


def test_features_that_are_missing_are_all_named(manifest: Manifest) -> None:
    known = manifest.program.cpu_features
    needs = replace(manifest, program=replace(manifest.program, cpu_features=(*known, "zzz_later", "aaa_never")))
    with pytest.raises(NodeUnfit, match="this processor lacks aaa_never, zzz_later, which the probe's phases execute"):
        check_node(needs)


def with_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, contents: dict[str, str]) -> None:
    """This process sees these files below / in place of what is there; others below /sys/fs/cgroup do not exist."""
    real = builtins.open
    for name, text in contents.items():
        path = tmp_path / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def opened(path: Any, *more: Any, **options: Any) -> Any:
        name = str(path)
        elsewhere = name in contents or name.startswith("/sys/fs/cgroup")
        return real(tmp_path / name.lstrip("/") if elsewhere else path, *more, **options)

    monkeypatch.setattr(builtins, "open", opened)
    monkeypatch.setattr(io, "open", opened)


_MEMINFO = "MemTotal:       16000000 kB\nMemFree:  100 kB\nMemAvailable:    8000000 kB\n"
_AVAILABLE = 8000000 << 10
_V2 = "/sys/fs/cgroup"
_V1 = "/sys/fs/cgroup/memory"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        # No control groups that say anything: what the machine has.
        ({"/proc/self/cgroup": "0::/\n"}, _AVAILABLE),
        ({"/proc/self/cgroup": ""}, _AVAILABLE),
        # Version 2: page cache that nobody uses is given back; the tightest group above counts.
        (
            {
                "/proc/self/cgroup": "0::/user.slice/job\n",
                f"{_V2}/user.slice/job/memory.max": "max\n",
                f"{_V2}/user.slice/job/memory.current": "500\n",
                f"{_V2}/user.slice/job/memory.stat": "anon 1\ninactive_file 0\n",
                f"{_V2}/user.slice/memory.max": "1000000\n",
                f"{_V2}/user.slice/memory.current": "600000\n",
                f"{_V2}/user.slice/memory.stat": "anon 500000\nfile 100000\ninactive_file 100000\nactive_file 7\n",
            },
            500_000,
        ),
        # Used up, and more.
        (
            {
                "/proc/self/cgroup": "0::/job\n",
                f"{_V2}/job/memory.max": "1000\n",
                f"{_V2}/job/memory.current": "2000\n",
                f"{_V2}/job/memory.stat": "inactive_file 0\n",
            },
            0,
        ),
        # Version 1, beside other controllers; of the two counts the one with its children.
        (
            {
                "/proc/self/cgroup": "5:cpu,cpuacct:/other\n4:memory:/job/step\n1:name=systemd:/x\n",
                f"{_V1}/job/step/memory.limit_in_bytes": "9223372036854771712\n",
                f"{_V1}/job/step/memory.usage_in_bytes": "1\n",
                f"{_V1}/job/step/memory.stat": "inactive_file 0\ntotal_inactive_file 0\n",
                f"{_V1}/job/memory.limit_in_bytes": "3000000\n",
                f"{_V1}/job/memory.usage_in_bytes": "2000000\n",
                f"{_V1}/job/memory.stat": "inactive_file 1\ntotal_cache 9\ntotal_inactive_file 500000\n",
            },
            1_500_000,
        ),
        # Nonsense is passed over.
        ({"/proc/self/cgroup": "what\n0::/\n", f"{_V2}/memory.max": "many\n"}, _AVAILABLE),
    ],
)  # fmt: skip
def test_memory_is_what_machine_and_groups_leave(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: dict[str, str], expected: int
) -> None:
    with_files(monkeypatch, tmp_path, {"/proc/meminfo": _MEMINFO, **files})
    assert available_memory() == expected


def test_too_little_memory(manifest: Manifest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    largest = max(phase.checkpoint.kept_pages for phase in manifest.phases) * 4096
    limits = {f"{_V2}/memory.current": "0\n", f"{_V2}/memory.stat": "", "/proc/self/cgroup": "0::/\n"}
    with_files(monkeypatch, tmp_path, {**limits, f"{_V2}/memory.max": f"{largest}\n"})
    with pytest.raises(NodeUnfit, match=f"{largest >> 20} MB of memory are available, the largest phase needs"):
        check_node(manifest)
    (tmp_path / f"{_V2}/memory.max".lstrip("/")).write_text(f"{largest + (65 << 20)}\n")
    check_node(manifest)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"/proc/self/cgroup": "0::/\n"}, math.inf),
        # Version 2: the tightest group counts.
        (
            {
                "/proc/self/cgroup": "0::/user.slice/job\n",
                f"{_V2}/user.slice/job/cpu.max": "max 100000\n",
                f"{_V2}/user.slice/cpu.max": "150000 100000\n",
                f"{_V2}/cpu.max": "400000 100000\n",
            },
            1.5,
        ),
        # Version 1.
        (
            {
                "/proc/self/cgroup": "5:cpu,cpuacct:/job/step\n4:memory:/x\n",
                f"{_V2}/cpu/job/step/cpu.cfs_quota_us": "-1\n",
                f"{_V2}/cpu/job/step/cpu.cfs_period_us": "100000\n",
                f"{_V2}/cpu/job/cpu.cfs_quota_us": "60000\n",
                f"{_V2}/cpu/job/cpu.cfs_period_us": "20000\n",
                f"{_V2}/memory/x/cpu.max": "1 1\n",
            },
            3.0,
        ),
        # Nonsense is passed over.
        ({"/proc/self/cgroup": "0::/a/b\n", f"{_V2}/a/b/cpu.max": "many\n", f"{_V2}/a/cpu.max": "5 0\n"}, math.inf),
    ],
)
def test_processors_are_those_that_groups_grant(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: dict[str, str], expected: float
) -> None:
    with_files(monkeypatch, tmp_path, files)
    assert facts.granted_processors() == expected
    said = {"granted": round(expected, 3)} if expected < (os.cpu_count() or 1) else {}
    monkeypatch.setattr(facts, "this_node", dict)
    assert facts.where_measured() == said


@pytest.mark.parametrize(("granted", "said"), [(1.5, "2 threads, but 1 processors allowed here (taskset, cgroup"),
                                               (0.5, "2 threads, but 1 processors"), (2.0, "")])  # fmt: skip
def test_a_group_with_the_time_of_fewer_processors(granted: float, said: str) -> None:
    """The mask has two; a program of one thread has no need of a whole one."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("two threads need two processors")
    code = (
        "import os, pathlib, sys\n"
        "(pathlib.Path(sys.argv[1]) / 'cgroup.procs').write_text(str(os.getpid()))\n"
        "from probe.node.measuring import check_processors\n"
        "check_processors('one', 1, None)\n"
        "check_processors('two', 2, None)\n"
    )
    with group_with_processors(granted) as group:
        done = subprocess.run([sys.executable, "-c", code, str(group)], capture_output=True, text=True, timeout=60)
    assert done.returncode == (1 if said else 0) and said in done.stderr, done.stderr
    assert "one: " not in done.stderr


@pytest.mark.parametrize(
    ("name", "advice"),
    [("/opt/solver", "OMP_NUM_THREADS"), ("/usr/bin/node", "node --v8-pool-size=0 --single-threaded")],
)
def test_fewer_threads_are_asked_for_in_the_programs_own_words(name: str, advice: str) -> None:
    with pytest.raises(NodeUnfit, match=re.escape(f"fewer threads ({advice})")):
        check_processors(name, 1 << 20, None)


def test_memory_that_nobody_tells_is_no_reason(manifest: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "available_memory", lambda: None)
    check_node(manifest)


def changed_mode(path: Path) -> None:
    path.chmod(0o600)


def changed_size(path: Path) -> None:
    path.write_bytes(b"longer than it was")


def changed(path: Path) -> None:
    path.write_bytes(b"tnetnoc")


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (Path.unlink, "is missing here"),
        (folder, "is not a regular file here"),
        (changed_size, "has 18 bytes here, 7 at capture"),
        (changed_mode, "has permissions 0600 here, 0640 at capture"),
        (changed, "has other contents here than at capture"),
    ],
)
def test_an_external_file_must_be_as_it_was(tmp_path: Path, change: Callable[[Path], None], reason: str) -> None:
    path = tmp_path / "left-out"
    path.write_bytes(b"content")
    path.chmod(0o640)
    file = ExternalFile(str(path), 7, hashlib.sha256(b"content").hexdigest(), 0o640)
    check_external([file])
    change(path)
    with pytest.raises(NodeUnfit, match=rf"{path}: {reason}.*--external.*copy it from the reference node"):
        check_external([file])
