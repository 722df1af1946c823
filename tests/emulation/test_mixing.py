# SPDX-License-Identifier: Apache-2.0
"""Kernels are mixed as the profiled command executes: by samples of its instructions, on the profiled node."""

from __future__ import annotations

import platform
import random
import subprocess
from pathlib import Path

import numpy as np
import pytest
from made_usage import made_usage

import probe
from checkpoint.errors import ProbeError
from probe.emulation import instruction_samples, mixing
from probe.emulation.counting import perf_event
from probe.emulation.instruction_samples import CLASSES, InstructionSamples, NoSamples, _class_at, _piece
from probe.emulation.kernels import AUTO, COMPUTING, MIX, MOVING, emulator
from probe.emulation.mixing import MIXED, MixWatcher, kernel_classes, mixed, spread_mix
from probe.emulation.plan import SECONDS, EmulateOptions, make_plan
from probe.emulation.usage import AMOUNT, Column, Usage

RATES = dict.fromkeys([*COMPUTING, *MOVING], 1e5)

INSTRUCTIONS = {
    "f20f58c1": "scalar",  # addsd xmm0, xmm1
    "f20f5907": "scalar_memory",  # mulsd xmm0, [rdi]
    "c5f158c2": "vector",  # vaddpd xmm0, xmm1, xmm2
    "c4e2f1b8c2": "vector",  # vfmadd231pd xmm0, xmm1, xmm2
    "0f5907": "vector_memory",  # mulps xmm0, [rdi]
    "d8c1": "scalar",  # fadd st, st(1)
    "7405": "branch",  # je
    "e800000000": "branch",  # call
    "488b07": "load",  # mov rax, [rdi]
    "48890f": "store",  # mov [rdi], rcx
    "c5fd2807": "load",  # vmovapd ymm0, [rdi]
    "50": "store",  # push rax
    "488d0437": "sum",  # lea rax, [rdi + rsi]
    "4801c8": "sum",  # add rax, rcx
    "480fafc1": "product",  # imul rax, rcx
    "4831c8": "logic",  # xor rax, rcx
    "48c1e005": "logic",  # shl rax, 5
    "0f1f4000": "other",  # nop [rax]
    "06": "",  # not in 64-bit code
}


@pytest.mark.parametrize(("code", "kind"), INSTRUCTIONS.items())
def test_classes_of_instructions(tmp_path: Path, code: str, kind: str) -> None:
    """Nothing is before the first: it is itself what is sampled."""
    path = tmp_path / code
    path.write_bytes(bytes.fromhex(code) + b"\x90" * 20)
    assert _class_at(str(path), 0) == kind
    assert _class_at(str(tmp_path / "none"), 7) == "" == _class_at("//anon\0", 7)


def test_the_instruction_before_a_sample_is_what_took_the_time(tmp_path: Path) -> None:
    """A load, and the sum that waits for it; behind a jump nothing has fallen through."""
    path = tmp_path / "code"
    path.write_bytes(b"\x90" * 120 + bytes.fromhex("488b07 4801c8 eb10 4831c8 90"))
    assert [_class_at(str(path), place) for place in (123, 126, 128, 131)] == ["load", "sum", "logic", "logic"]


@pytest.mark.timed
@pytest.mark.parametrize("name", MIXED)
def test_a_kernel_is_recognised(tmp_path: Path, name: str) -> None:
    samples = InstructionSamples()
    # Two levels down, and beside another one: whatever is started is followed.
    command = f"echo | {emulator()} repeat {name} {tmp_path} 1 > /dev/null & wait"
    subprocess.run(["sh", "-c", command], check=True)
    found = mixed(samples.close(), kernel_classes())
    assert sum(found.values()) == pytest.approx(1.0)
    assert max(found, key=lambda one: found[one]) == name


def test_no_descriptor_stays(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    InstructionSamples().close()
    MixWatcher()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_mix_is_found_again() -> None:
    kernels = {
        "scalar": {**dict.fromkeys(CLASSES, 0.0), "scalar": 0.8, "sum": 0.2},
        "stream": {**dict.fromkeys(CLASSES, 0.0), "vector": 0.3, "load": 0.7},
        "branches": {**dict.fromkeys(CLASSES, 0.0), "branch": 0.1, "logic": 0.9},
    }
    chosen = random.Random(3)
    for _ in range(20):
        shares = np.array([chosen.random() for _ in kernels])
        shares /= shares.sum()
        program = {kind: sum(s * k[kind] for s, k in zip(shares, kernels.values(), strict=True)) for kind in CLASSES}
        assert list(mixed(program, kernels).values()) == pytest.approx(shares.tolist(), abs=1e-9)
    with pytest.raises(ProbeError, match="no mix of kernels is like the command"):
        mixed(dict.fromkeys(CLASSES, 0.0), kernels)


def test_a_ring_goes_round() -> None:
    """A record may begin at the end of the ring and go on at its beginning, behind the first page."""
    import mmap

    ring = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    ring[mmap.PAGESIZE : 2 * mmap.PAGESIZE] = bytes(n % 251 for n in range(mmap.PAGESIZE))
    whole = bytes(n % 251 for n in range(mmap.PAGESIZE)) * 2
    for at in (0, 100, mmap.PAGESIZE - 4, 5 * mmap.PAGESIZE - 7):
        begin = at % mmap.PAGESIZE
        assert _piece(ring, at, 16, mmap.PAGESIZE) == whole[begin : begin + 16]


def test_a_profile_has_a_mix(tmp_path: Path) -> None:
    command = ["sh", "-c", f"echo | {emulator()} repeat scalar {tmp_path} 0.5 > /dev/null"]
    usage = probe.profile_usage(command, kernels=True)
    found = {name: usage.total(f"{MIX}{name}") or 0.0 for name in MIXED}
    assert max(found, key=lambda one: found[one]) == "scalar"
    assert sum(found.values()) == pytest.approx(usage.total("cpu_user"))
    plan = make_plan(usage, EmulateOptions(kernel=AUTO, threads=1, folder=tmp_path), usage.header.kernels)
    (tmp_path / "a.usage").touch()
    assert "kernel scalar\n" in plan.text(EmulateOptions(kernel=AUTO, folder=tmp_path))
    scalar = plan.computed["scalar"].sum()
    assert scalar == pytest.approx(found["scalar"] * usage.header.kernels["scalar"], rel=0.01, abs=usage.samples)


def with_mix(**shares: float) -> Usage:
    """A profile of ten samples, each with these CPU seconds of the kernels."""
    usage = made_usage(10, read=0.0, written=0.0)
    usage.header.columns.update({f"{MIX}{name}": Column(AMOUNT, "s", "made") for name in shares})
    return Usage(usage.header, usage.end, {**usage.values, **{f"{MIX}{n}": np.full(10, s) for n, s in shares.items()}})


def test_all_kernels_of_a_mix_run(tmp_path: Path) -> None:
    options = EmulateOptions(kernel=AUTO, threads=2, folder=tmp_path)
    plan = make_plan(with_mix(scalar=0.02, chase=0.01, stream=0.0), options, {**RATES, "chase": 2e4})
    assert {name: values[0] for name, values in plan.computed.items()} == {"scalar": 2000.0, "chase": 200.0}
    done = subprocess.run([str(emulator()), "run"], input=plan.text(options), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].startswith("done ")


def test_every_sample_has_its_part() -> None:
    values = {"cpu_user": np.array([1.0, 3.0]), f"{MIX}scalar": np.array([0.0, 2.0]), "other": np.array([5.0, 5.0])}
    spread_mix(values)
    assert values[f"{MIX}scalar"].tolist() == [0.5, 1.5] and values["other"].tolist() == [5.0, 5.0]


@pytest.mark.parametrize(
    ("usage", "options", "said"),
    [
        (made_usage(3), EmulateOptions(kernel=AUTO), "which kernels are like the command: it was made without"),
        (with_mix(scalar=0.1), EmulateOptions(kernel=AUTO, equal=SECONDS), "name a kernel with --equal seconds"),
        (with_mix(other=0.1), EmulateOptions(kernel=AUTO), "name a kernel"),
    ],
)
def test_what_is_refused(usage: Usage, options: EmulateOptions, said: str) -> None:
    with pytest.raises(ProbeError, match=said):
        make_plan(usage, options, RATES)


def test_a_kernel_that_refuses_is_named_and_nothing_is_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(perf_event._CALL, platform.machine(), 100000)
    with pytest.raises(NoSamples, match=r"lets nobody sample instructions .perf_event_open: Function not implemented"):
        InstructionSamples()
    usage = probe.profile_usage(["true"], kernels=True)
    assert "lets nobody sample" in usage.header.columns[f"{MIX}scalar"].missing
    assert np.isnan(usage.column(f"{MIX}scalar")).all()
    with pytest.raises(ProbeError, match="lets nobody sample"):
        make_plan(usage, EmulateOptions(kernel=AUTO), RATES)


def test_another_machine_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instruction_samples.platform, "machine", lambda: "aarch64")
    assert "aarch64 are not decoded" in next(iter(MixWatcher().columns.values())).missing


def test_a_command_without_samples_has_no_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixing.InstructionSamples, "close", lambda *_: {})
    usage = probe.profile_usage(["true"], kernels=True)
    assert "no sample was taken of the command" in usage.header.columns[f"{MIX}chase"].missing


def test_next_to_nothing_is_nothing() -> None:
    """Whatever is in a profile can be read again."""
    kinds = list(CLASSES)
    kernels = {"scalar": {kind: float(kind == kinds[0]) for kind in kinds}}
    kernels["chase"] = {kind: float(kind == kinds[1]) for kind in kinds}
    program = {kind: 0.0 for kind in kinds} | {kinds[0]: 1.0, kinds[1]: 1e-17}
    assert mixed(program, kernels) == {"scalar": 1.0, "chase": 0.0}
