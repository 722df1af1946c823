# SPDX-License-Identifier: Apache-2.0
"""Kernels from elsewhere: a library of the node, a user's C, assembly and Python; what calibration notices of them."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from made_usage import made_usage

import probe
from checkpoint.errors import ProbeError, StorageError, ToolMissing
from probe.emulation import kernels, running
from probe.emulation.elsewhere import node_part
from probe.emulation.kernels import (
    BLAS,
    COMPUTING,
    MOVING,
    SOURCES,
    USER,
    all_rates,
    calibrate,
    emulator,
    forget,
    has_blas,
    program_for,
)
from probe.emulation.plan import SECONDS, EmulateOptions, make_plan
from probe.emulation.usage import AMOUNT, Column, Usage, save_usage

RATES = dict.fromkeys([*COMPUTING, *MOVING], 1e5)
PYTHON = """
import os, time
def kernel(iterations):
    print("never in the way of the answers" * 10000)
    for _ in range(iterations):
        sum(range(1000))
    with open({place!r}, "a") as file:
        file.write(f"{{iterations}}\\n")
"""
ASSEMBLY = """
.globl kernel
kernel:
    imul $1000, %rdi, %rdi
1:  dec %rdi
    jnz 1b
    ret
.section .note.GNU-stack,"",@progbits
"""


@pytest.fixture
def python_kernel(tmp_path: Path) -> Path:
    source = tmp_path / "sums.py"
    source.write_text(PYTHON.format(place=str(tmp_path / "counted")))
    return source


# -- OpenBLAS


def test_openblas_is_calibrated_where_it_is() -> None:
    """scripts/test installs it."""
    assert has_blas(emulator())
    (rate,) = calibrate([BLAS])
    # A product of 128 x 128 numbers is four million operations.
    assert 100 < rate.rate < 1e6


@pytest.fixture
def without_blas(tmp_path: Path) -> Iterator[Path]:
    """The emulator that is sent to nodes without a compiler: it needs no library, and so has none."""
    program = tmp_path / "emulator"
    program.write_bytes(program_for(platform.machine()))
    program.chmod(0o755)
    yield program


def test_without_openblas_its_kernel_is_refused(
    without_blas: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not has_blas(without_blas)
    save_usage(made_usage(3, RATES), tmp_path / "a.usage")
    monkeypatch.setattr(running, "emulator", lambda own: without_blas)
    with pytest.raises(ToolMissing, match="this node has no OpenBLAS for kernel dgemm: install libopenblas0"):
        probe.emulate(tmp_path / "a.usage", EmulateOptions(kernel=BLAS, folder=tmp_path))


def test_a_mix_does_without_openblas() -> None:
    usage = made_usage(3)
    columns = {**usage.header.columns, **{f"mix_{name}": Column(AMOUNT, "s", "made") for name in ("dgemm", "chase")}}
    values = {**usage.values, "mix_dgemm": usage.column("cpu_user") * 0.6, "mix_chase": usage.column("cpu_user") * 0.4}
    header = type(usage.header)(**{**vars(usage.header), "columns": columns})
    mixed = Usage(header, usage.end, values)
    with_it = make_plan(mixed, EmulateOptions(kernel="auto"), RATES)
    assert with_it.computed.keys() == {"dgemm", "chase"} and with_it.warnings == ()
    without = make_plan(mixed, EmulateOptions(kernel="auto"), RATES, blas=False)
    assert without.computed["matrix"] == pytest.approx(with_it.computed["dgemm"])
    assert without.computed.keys() == {"matrix", "chase"}
    assert without.warnings == ("the node has no OpenBLAS, which is part of the mix; kernel matrix is in its place",)


def test_openblas_that_does_not_load_in_time_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = tmp_path / "emulator"
    hanging.write_text("#!/bin/sh\nexec sleep 60\n")
    hanging.chmod(0o755)
    monkeypatch.setattr(kernels, "_SECONDS", 0.2)
    assert not has_blas(hanging)
    monkeypatch.setattr(node_part, "_TRY_SECONDS", 0.2)
    program = os.open(hanging, os.O_RDONLY)
    try:
        assert not node_part._has_blas(program)
    finally:
        os.close(program)


# -- a user's own


def test_a_kernel_in_python_is_calibrated_and_emulates(python_kernel: Path, tmp_path: Path) -> None:
    program = emulator(python_kernel)
    try:
        (rate,) = calibrate([USER], program)
    finally:
        forget(program, python_kernel)
    assert 1e2 < rate.rate < 1e7
    place = tmp_path / "counted"
    place.unlink()
    rates = {**RATES, USER: 1e4}
    save_usage(made_usage(5, rates, cpu_user=0.01, cpu_kernel=0.0), tmp_path / "a.usage")
    result = probe.emulate(tmp_path / "a.usage", EmulateOptions(own_kernel=python_kernel, folder=tmp_path, threads=2))
    # 100 iterations a sample, half of them by the interpreter of each thread.
    assert place.read_text().split() == ["50"] * 10
    assert result.outcome.user > 0.02


def test_equal_seconds_count_those_of_the_interpreter(python_kernel: Path, tmp_path: Path) -> None:
    save_usage(made_usage(10, RATES), tmp_path / "a.usage")
    options = EmulateOptions(own_kernel=python_kernel, equal=SECONDS, folder=tmp_path, threads=1)
    result = probe.emulate(tmp_path / "a.usage", options)
    assert result.outcome.user + result.outcome.kernel == pytest.approx(0.5, rel=0.1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def kernel(:", "no kernel in Python: invalid syntax"),
        ("def other(iterations): pass", "it defines no function kernel"),
        (f"def kernel(n): pass\n#{'x' * 100_000}", "more than 100000 bytes"),
    ],
)
def test_what_is_no_kernel_in_python(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "a.py").write_text(text)
    with pytest.raises(StorageError, match=said):
        emulator(tmp_path / "a.py")
    save_usage(made_usage(3, RATES), tmp_path / "a.usage")
    with pytest.raises(StorageError, match=said):
        probe.emulate(tmp_path / "a.usage", EmulateOptions(own_kernel=tmp_path / "a.py", folder=tmp_path))


def test_a_kernel_in_python_that_fails_is_named(tmp_path: Path) -> None:
    source = tmp_path / "a.py"
    source.write_text("def kernel(iterations):\n    raise ValueError('mine')\n")
    program = emulator(source)
    try:
        with pytest.raises(ToolMissing, match="mine"):
            calibrate([USER], program)
    finally:
        forget(program, source)
    save_usage(made_usage(3, {**RATES, USER: 1e4}), tmp_path / "a.usage")
    with pytest.raises(StorageError, match="ended early: the kernel in Python: ValueError"):
        probe.emulate(tmp_path / "a.usage", EmulateOptions(own_kernel=source, folder=tmp_path))


@pytest.mark.parametrize(
    ("path", "text", "said"),
    [
        (
            "/nowhere",
            "def kernel(iterations): pass\n",
            "ended early: python3 does not start: install it, or put it into",
        ),
        (None, "import sys\ndef kernel(iterations):\n    sys.exit(0)\n", "the kernel in Python: SystemExit"),
    ],
)
def test_an_interpreter_that_ends_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str | None, text: str, said: str
) -> None:
    source = tmp_path / "a.py"
    source.write_text(text)
    program = emulator(source)
    monkeypatch.setattr(running, "emulator", lambda own: program)
    monkeypatch.setattr(running, "forget", lambda *_: None)
    if path is not None:
        monkeypatch.setenv("PATH", path)
    save_usage(made_usage(3, {**RATES, USER: 1e4}), tmp_path / "a.usage")
    try:
        with pytest.raises(StorageError, match=said):
            probe.emulate(tmp_path / "a.usage", EmulateOptions(own_kernel=source, folder=tmp_path))
    finally:
        forget(program, source)


def test_a_kernel_in_c_may_have_names_of_its_own(tmp_path: Path) -> None:
    """All words that the emulator's sources have in common, as variables and functions of somebody else."""
    words = {w for h in SOURCES if h.suffix == ".h" for w in re.findall(r"\bemulator_(\w+)", h.read_text())}
    assert {"plan", "fail", "calibrate"} <= words
    taken = "\n".join(f"double {word};" for word in sorted(words))
    source = tmp_path / "mine.c"
    source.write_text(f"{taken}\nvoid kernel(unsigned long n)\n{{\n    while (n--)\n        plan += 1.0;\n}}\n")
    forget(emulator(source), source)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the assembly is that of x86-64")
def test_a_kernel_in_assembly(tmp_path: Path) -> None:
    source = tmp_path / "count.s"
    source.write_text(ASSEMBLY)
    program = emulator(source)
    try:
        (rate,) = calibrate([USER], program)
    finally:
        forget(program, source)
    assert 1e5 < rate.rate < 1e8
    assert subprocess.run(["ls", str(tmp_path)], capture_output=True, text=True).stdout == "count.s\n"


def test_rates_of_all_kernels_are_those_of_this_node() -> None:
    assert all_rates().keys() == {*COMPUTING, *MOVING}


def test_a_kernel_that_a_compiler_deletes_is_noticed_with_python_too(tmp_path: Path) -> None:
    """A loop of nothing takes its time in Python: only what cannot be is refused."""
    source = tmp_path / "a.py"
    source.write_text("def kernel(iterations): pass\n")
    program = emulator(source)
    try:
        with pytest.raises(ProbeError, match="has left out what it does"):
            calibrate([USER], program)
    finally:
        forget(program, source)


# -- what calibration notices


def test_a_kernel_that_does_nothing_is_noticed(tmp_path: Path) -> None:
    source = tmp_path / "empty.c"
    source.write_text("void kernel(unsigned long iterations) { for (unsigned long i = 0; i < iterations; i++) ; }\n")
    program = emulator(source)
    try:
        with pytest.raises(ProbeError, match="the compiler has left out what it does"):
            calibrate([USER], program)
    finally:
        forget(program, source)


DENORMAL = """
static volatile double kept = 1.0;
void kernel(unsigned long iterations)
{
    double x = kept;
    while (iterations--)
        for (int step = 0; step < 1000; step++)
            x *= 0.999;
    kept = x > 0 ? x : 1.0;
}
"""


def test_a_kernel_that_makes_denormals_is_noticed(tmp_path: Path) -> None:
    """By what the processor says of them, however fast it is with them."""
    source = tmp_path / "small.c"
    for factor, refused in (("0.999", True), ("0.999 + 0.001", False)):
        source.write_text(DENORMAL.replace("x *= 0.999", f"x = x * {factor}"))
        program = emulator(source)
        try:
            if refused:
                with pytest.raises(ProbeError, match="it computes with denormal numbers"):
                    calibrate([USER], program)
            else:
                assert calibrate([USER], program)[0].rate > 0
        finally:
            forget(program, source)
