# SPDX-License-Identifier: Apache-2.0
"""The emulator for AArch64, compiled here and run under user-mode emulation: it uses what it should."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from made_usage import made_usage

import probe
from probe.emulation.kernels import BLAS, COMPUTING, MOVING, OPTIONS, SOURCES
from probe.emulation.metrics import cpu_seconds
from probe.emulation.plan import SECONDS, EmulateOptions, make_plan


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("aarch64") / "emulator"
    sources = [str(source) for source in SOURCES if source.suffix == ".c"]
    static = ("-static", "-DWITHOUT_LIBRARIES")
    subprocess.run(["aarch64-linux-gnu-gcc", *OPTIONS, *static, "-o", str(program), *sources], check=True)
    # e_machine of its ELF header: EM_AARCH64.
    assert program.read_bytes()[18:20] == b"\xb7\x00"
    return program


@pytest.mark.timed
def test_it_uses_what_was_profiled(emulator: Path, tmp_path: Path) -> None:
    usage = made_usage(40, read=4e6, written=2e6, resident=8e7)
    options = EmulateOptions(equal=SECONDS, folder=tmp_path, threads=1)
    (tmp_path / "plan").write_text(make_plan(usage, options, {}).text(options))
    command = f"exec qemu-aarch64 {emulator} run < {tmp_path / 'plan'} > {tmp_path / 'said'}"
    found = probe.profile_usage(["sh", "-c", command])
    assert found.header.exit_status == 0
    assert (tmp_path / "said").read_text().startswith("begin\n")
    assert cpu_seconds(found) == pytest.approx(cpu_seconds(usage), rel=0.05)
    for name in ("read", "written"):
        assert found.total(name) == pytest.approx(usage.total(name), rel=0.05), name


def test_every_kernel_runs(emulator: Path, tmp_path: Path) -> None:
    for name in (*(one for one in COMPUTING if one != BLAS), *MOVING):
        command = ["qemu-aarch64", str(emulator), "calibrate", name, str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert (done.returncode, done.stderr, done.stdout.count("round ")) == (0, "", 8), name
