# SPDX-License-Identifier: Apache-2.0
"""Instructions and floating-point operations of resource profiles, from blocks that Valgrind's tracer counted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from assembly import assembled
from click.testing import CliRunner
from made_usage import made_usage

import probe
from checkpoint.errors import ProbeError, ProbeFileDamaged
from probe.cli.main import cli
from probe.emulation.counted import with_counted_blocks
from probe.emulation.counting.blocks import CountedBlocks, counted_blocks
from probe.emulation.usage import AMOUNT, Column, load_usage
from probe.formats.profile import NO_FILE, load_profile, save_profile

ROUNDS = 3_000_000
HALVES = f"""
 mov ${ROUNDS}, %ecx
plain:
 add $1, %rax
 xor $0x12345678, %ebx
 dec %ecx
 jnz plain
 mov ${ROUNDS}, %ecx
floating:
 addsd %xmm1, %xmm0
 mulpd %xmm1, %xmm2
 dec %ecx
 jnz floating"""
"""As many instructions in each half; three operations a round in the second alone."""

OPERATIONS = {
    "f20f58c1": 1,  # addsd xmm0, xmm1
    "0f58c1": 4,  # addps xmm0, xmm1
    "660f59c1": 2,  # mulpd xmm0, xmm1
    "0f5907": 4,  # mulps xmm0, [rdi]
    "c5f458c2": 8,  # vaddps ymm0, ymm1, ymm2
    "62f17c4858c1": 16,  # vaddps zmm0, zmm0, zmm1
    "62f17c5958c1": 16,  # vaddps zmm0 {k1}, zmm0, zmm1, rounding: masked lanes count
    "c4e2f5b8c2": 8,  # vfmadd231pd ymm0, ymm1, ymm2: each lane twice
    "c4e2f1b9c2": 2,  # vfmadd231sd xmm0, xmm1, xmm2
    "660f3a41c131": 4,  # dppd xmm0, xmm1
    "660f7cc1": 2,  # haddpd xmm0, xmm1
    "f20f51c1": 1,  # sqrtsd xmm0, xmm1
    "d8c1": 1,  # fadd st, st(1)
    "def9": 1,  # fdivp
    "d9fa": 1,  # fsqrt
    "660f2ec1": 0,  # ucomisd xmm0, xmm1
    "660f57c1": 0,  # xorpd xmm0, xmm1
    "660ffec1": 0,  # paddd xmm0, xmm1
    "f20f2ac0": 0,  # cvtsi2sd xmm0, eax
    "4801c8": 0,  # add rax, rcx
    "d9c0": 0,  # fld st(0)
}


def said(*arguments: str | Path) -> str:
    done = CliRunner().invoke(cli, list(map(str, arguments)), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A program and what the tracer counted of it."""
    folder = tmp_path_factory.mktemp("halves")
    program = assembled(folder, "halves", HALVES)
    probe.trace([str(program)], folder / "halves.profile", tracer="valgrind", interval=100_000)
    return program, folder / "halves.profile"


@pytest.mark.parametrize(("code", "operations"), OPERATIONS.items())
def test_operations_of_instructions(code: str, operations: int) -> None:
    from iced_x86 import Decoder

    from probe.emulation.counting.blocks import _operations_of

    (one,) = Decoder(64, bytes.fromhex(code))
    assert _operations_of(one) == operations


def test_totals_are_those_of_the_program_and_come_when_they_are_used(traced: tuple[Path, Path], tmp_path: Path) -> None:
    program, counted = traced
    printed = said(
        "profile", "--quiet", "--no-kernels", "--json", "-o", tmp_path / "u", "--blocks", counted, "--", program
    )
    usage = load_usage(tmp_path / "u")
    assert usage.header.columns["flops"].source == "blocks counted by valgrind in a run by itself, placed by CPU time"
    assert usage.total("flops") == pytest.approx(3 * ROUNDS, rel=1e-9)
    if usage.header.columns["instructions"].source.startswith("blocks"):
        assert usage.total("instructions") == pytest.approx(8 * ROUNDS, rel=1e-4)
    (shown,) = json.loads(printed)["profiles"]
    (rate,) = [one for one in shown["metrics"] if one["name"] == "flops_per_second"]
    assert rate["total"] == pytest.approx(3 * ROUNDS / usage.seconds)


def test_operations_are_placed_by_cpu_time(traced: tuple[Path, Path]) -> None:
    """A command which sleeps for a while in its middle; hardly anything comes before its second half."""
    program, file = traced
    counted = counted_blocks(file, [str(program)])
    seconds = np.ones(len(counted.seconds))
    # The traced run waited, once and for longer than it computed.
    seconds[len(seconds) // 4] = 10.0 * len(seconds)
    counted = replace(counted, seconds=seconds)
    usage = made_usage(100)
    usage.values["cpu_user"][40:60] = 0.0
    made = with_counted_blocks(usage, counted)
    operations = made.column("flops")
    assert operations.sum() == pytest.approx(3 * ROUNDS)
    assert not operations[40:60].any() and operations[:40].sum() < 0.02 * 3 * ROUNDS
    assert made.column("instructions")[:40].sum() == pytest.approx(4 * ROUNDS, rel=0.02)
    assert operations[61:].std() < 0.1 * operations[61:].mean()


def test_counters_of_the_processor_are_kept(traced: tuple[Path, Path]) -> None:
    program, file = traced
    usage = made_usage(10)
    usage.header.columns["instructions"] = Column(AMOUNT, "instructions", "perf_event_open")
    usage = replace(usage, values={**usage.values, "instructions": np.full(10, 7.0)})
    assert with_counted_blocks(usage, counted_blocks(file, [str(program)])).total("instructions") == 70.0


def test_several_processes_are_not_known(traced: tuple[Path, Path], tmp_path: Path) -> None:
    program, file = traced
    counted = counted_blocks(file, [str(program)])
    for made in (
        with_counted_blocks(made_usage(10), replace(counted, processes=1)),
        with_counted_blocks(probe.profile_usage(["sh", "-c", "sleep 0.3; :"]), counted),
    ):
        assert made.total("flops") is None
        assert made.header.columns["flops"].missing == "the command has several processes, and a tracer counts one"


@pytest.mark.parametrize(("column", "value"), [("image", 7), ("start", 1 << 40), ("size", -5), ("size", (1 << 31) - 1)])
def test_blocks_that_cannot_be_decoded_are_not_known(
    traced: tuple[Path, Path], tmp_path: Path, column: str, value: int
) -> None:
    program, file = traced
    profile = load_profile(file)
    odd = np.full_like(getattr(profile.blocks, column), value)
    save_profile(replace(profile, blocks=replace(profile.blocks, **{column: odd})), tmp_path / "odd.profile")
    try:
        counted = counted_blocks(tmp_path / "odd.profile", [str(program)])
    except ProbeFileDamaged:
        return
    assert counted.missing.startswith("100.0% of the instructions")


@pytest.mark.parametrize("number", [np.inf, np.nan, 1e300, 0.0])
def test_counts_that_nothing_can_use_are_refused(traced: tuple[Path, Path], tmp_path: Path, number: float) -> None:
    program, file = traced
    profile = load_profile(file)
    counts = profile.counts.astype(np.float64)
    counts.data[:] = number
    save_profile(replace(profile, counts=counts), tmp_path / "odd.profile")
    with pytest.raises(ProbeFileDamaged):
        counted_blocks(tmp_path / "odd.profile", [str(program)])


def test_a_command_that_executes_another_is_refused(tmp_path: Path) -> None:
    """The tracer counts the last program of a chain alone."""
    command = ["sh", "-c", "for n in 1 2 3; do :; done; exec seq 20000"]
    probe.trace(command, tmp_path / "x.profile", tracer="valgrind", interval=100_000)
    with pytest.raises(ProbeError, match="sh executes another program in its place, and that alone was counted"):
        counted_blocks(tmp_path / "x.profile", command)


def test_code_in_no_file_is_not_known(traced: tuple[Path, Path], tmp_path: Path) -> None:
    program, file = traced
    profile = load_profile(file)
    blocks = replace(profile.blocks, image=np.full_like(profile.blocks.image, NO_FILE))
    save_profile(replace(profile, blocks=blocks), tmp_path / "x.profile")
    made = with_counted_blocks(made_usage(10), counted_blocks(tmp_path / "x.profile", [str(program)]))
    assert made.header.columns["flops"].missing.startswith("100.0% of the instructions are in no file")
    assert made.total("instructions") == pytest.approx(8 * ROUNDS, rel=1e-4) and np.isnan(made.column("flops")).all()


def test_what_is_refused(traced: tuple[Path, Path], tmp_path: Path) -> None:
    program, file = traced
    with pytest.raises(ProbeError, match=r"counts another command .*halves in .*; trace this one"):
        counted_blocks(file, [str(program), "more"])
    save_profile(replace(load_profile(file), unit="seconds", tracer="native"), tmp_path / "n.profile")
    with pytest.raises(ProbeError, match=r"native leaves libraries and hot blocks out.*--tracer valgrind"):
        counted_blocks(tmp_path / "n.profile", [str(program)])
    changed = replace(load_profile(file), images=tuple((path, "0" * 64) for path, _ in load_profile(file).images))
    save_profile(changed, tmp_path / "c.profile")
    with pytest.raises(ProbeError, match="halves is not the file that was traced"):
        counted_blocks(tmp_path / "c.profile", [str(program)])
    for odd in ("/dev/zero", "a\0b", str(tmp_path)):
        images = tuple((path, digest) for path, digest in load_profile(file).images)
        save_profile(replace(load_profile(file), images=(*images, (odd, "0" * 64))), tmp_path / "o.profile")
        assert counted_blocks(tmp_path / "o.profile", [str(program)]).operations.sum() == pytest.approx(3 * ROUNDS)
    elsewhere = replace(load_profile(file).program, cwd="/")
    save_profile(replace(load_profile(file), program=elsewhere), tmp_path / "e.profile")
    with pytest.raises(ProbeError, match="counts another command"):
        counted_blocks(tmp_path / "e.profile", [str(program)])
    done = CliRunner().invoke(cli, ["profile", "-o", str(tmp_path / "u"), "--blocks", str(file), "--", "touch", "made"])
    assert isinstance(done.exception, ProbeError) and not Path("made").exists() and not (tmp_path / "u").exists()
    assert isinstance(counted_blocks(file, [str(program)]), CountedBlocks)
