# SPDX-License-Identifier: Apache-2.0
"""A whole probe built and run by an ordinary user, without CRIU, with and without user namespaces."""

from __future__ import annotations

import json
import os
import resource
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from direct_runs import mount
from ordinary_user import as_ordinary_user, home_for_anybody
from programs import build
from small_probe import command

pytestmark = pytest.mark.slow(minutes=3)


def version_of(path: Path) -> int:
    """Format version of a probe file."""
    return int.from_bytes(path.read_bytes()[8:12], "little")


@pytest.fixture
def home(builds: Path) -> Iterator[Path]:
    """Holds a program, `sorter`, and its input."""
    with home_for_anybody() as folder:
        (folder / "input.dat").write_bytes(os.urandom(300_000))
        shutil.copy(build("sorter", builds), folder / "sorter")
        (folder / "sorter").chmod(0o755)
        yield folder


@pytest.mark.parametrize("namespaces", [True, False])
def test_an_ordinary_user_builds_and_runs_a_probe(namespaces: bool, home: Path) -> None:
    made = as_ordinary_user(
        "build", "-q", "-o", "small.probe", "--interval", "10ms", "--max-phases", "3", "--stdin", "input.dat", "--json",
        "--", "./sorter", "1", home=home, namespaces=namespaces,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    shown = json.loads(made.stdout)
    assert version_of(home / "small.probe") == 2 and shown["coverage"] > 0.9
    assert not any(phase["only_criu"] for phase in shown["phases"])
    assert any(phase["pages"]["kept"] < phase["pages"]["raw"] for phase in shown["phases"])
    ran = as_ordinary_user("run", "small.probe", "--json", home=home, namespaces=namespaces)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["phases"]
    if namespaces:
        refused = command("run", "small.probe", "--restorer", "criu", status=14, cwd=home)
        assert "was captured without CRIU" in refused.stderr
        command("trim", "small.probe", "-o", "less.probe", "--phases", "1", cwd=home)
        assert version_of(home / "less.probe") == 2


def narrow_login_node() -> None:
    """What login nodes do to their users: few files, processes and bytes, and nobody sees the processes of others."""
    mount("proc", "/proc", "proc", 0, "hidepid=2")
    limits = {
        resource.RLIMIT_NOFILE: 256, resource.RLIMIT_NPROC: 64, resource.RLIMIT_AS: 2 << 30,
        resource.RLIMIT_DATA: 1 << 30, resource.RLIMIT_FSIZE: 200 << 20, resource.RLIMIT_STACK: 1 << 20,
        resource.RLIMIT_MEMLOCK: 0,
    }  # fmt: skip
    for what, most in limits.items():
        resource.setrlimit(what, (most, most))


def test_a_narrow_login_node_is_enough(home: Path) -> None:
    made = as_ordinary_user(
        "build", "-q", "-o", "small.probe", "--interval", "10ms", "--max-phases", "2", "--stdin", "input.dat", "--json",
        "--", "./sorter", "1", home=home, before=narrow_login_node,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    assert all(phase["pages"]["kept"] < phase["pages"]["raw"] for phase in json.loads(made.stdout)["phases"])
    ran = as_ordinary_user("run", "small.probe", "--json", home=home, before=narrow_login_node)
    assert ran.returncode == 0 and json.loads(ran.stdout)["phases"], ran.stderr


def wrapped(home: Path, program: Path, arguments: str) -> None:
    """Put `helpers` and `job.sh`, which starts it, into the folder."""
    shutil.copy(program, home / "helpers")
    (home / "job.sh").write_text(f"#!/bin/sh\nuname -s\n./helpers {arguments}\nuname -s\n")
    for name in ("helpers", "job.sh"):
        (home / name).chmod(0o755)


def test_a_wrapper_and_children_are_no_matter_of_root(home: Path, builds: Path) -> None:
    """The worker is captured inside of its wrapper, and between its own children."""
    wrapped(home, build("helpers", builds), "800 system 200")
    made = as_ordinary_user(
        "build", "-q", "-o", "job.probe", "--interval", "20ms", "--max-phases", "3", "--json", "--", "./job.sh",
        home=home,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    shown = json.loads(made.stdout)
    assert shown["outside"]["processes"] >= 6 and 0.0 < shown["outside"]["share"] < 0.3
    assert version_of(home / "job.probe") == 2 and not any(phase["only_criu"] for phase in shown["phases"])
    ran = as_ordinary_user("run", "job.probe", "--json", home=home)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["variances"]["outside"] > 0.0


def test_a_worker_with_capabilities_is_refused(home: Path, builds: Path) -> None:
    wrapped(home, build("helpers", builds), "400 start")
    # struct vfs_cap_data, version 2: CAP_NET_RAW permitted
    os.setxattr(home / "helpers", "security.capability", struct.pack("<5I", 0x02000000, 1 << 13, 0, 0, 0))
    refused = as_ordinary_user("build", "-q", "-o", "x.probe", "--", "./job.sh", home=home)
    assert refused.returncode == 4 and "has file capabilities, which it loses when traced" in refused.stderr


def test_what_needs_criu_is_refused_at_once(home: Path) -> None:
    rest = ("-o", "x.probe", "--", "./sorter", "1")
    by_criu = as_ordinary_user("build", "--capture", "criu", *rest, home=home)
    assert by_criu.returncode == 8 and "--capture criu needs root" in by_criu.stderr
    carried = as_ordinary_user("build", "--with-criu", *rest, home=home)
    assert carried.returncode == 1 and "--with-criu: checkpoints that are captured directly" in carried.stderr
