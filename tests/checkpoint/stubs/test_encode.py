# SPDX-License-Identifier: Apache-2.0
"""The stubs' machine code: interrupted at every instruction, relocated as a real encoder would, apart from data."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from iced_x86 import BlockEncoder, Code, Decoder, Register
from programs import build, run, symbols
from tracing import SECONDS, compile_small, marked, program_of, single_step, streams_of

from checkpoint.binary.elf import ElfImage, read_image
from checkpoint.binary.sites import DISPLACED, REDIRECTED, SiteTable, find_sites
from checkpoint.event import EVENT_BYTES, STAMP
from checkpoint.linux import PAGE_SIZE
from checkpoint.process.loader import LoadWatch
from checkpoint.process.maps import read_maps
from checkpoint.process.program import Streams
from checkpoint.process.tracee import Registers, Tracee, What
from checkpoint.stubs.counters import SiteCounters
from checkpoint.stubs.encode import (
    NEVER,
    Event,
    counter_code_size,
    encode_counters,
    encode_events,
    encode_markers,
    marker_sizes,
    patched_text,
)
from checkpoint.stubs.markers import Marker

_ARITHMETIC, _DIRECTION = 0x8D5, 0x400

# Two functions with breakpoints of their own around one displaced instruction: `alive` keeps the flags over it and
# live data in the red zone, `dead` overwrites them right after it. The handler runs through both.
STEPPED = r"""
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
uint32_t cell;
uint64_t alive(uint64_t flags), dead(uint64_t flags);
static volatile uint64_t wrong;
__asm__(".text\n"
        ".type alive, @function\n.globl alive, site_alive, end_alive\nalive:\n.cfi_startproc\n"
        "movabs $0x1122334455667788, %rax\nmov %rax, -8(%rsp)\nmov %rax, -128(%rsp)\n"
        "mov $0x33, %ecx\nmov $0x44, %edx\nmov $0x55, %esi\nmov $0x66, %r11d\n"
        "push %rdi\npopfq\nmov %rax, -8(%rsp)\nint3\n"
        "site_alive: movl $0x51735173, cell(%rip)\n"
        "end_alive: int3\ncld\npushfq\npop %r8\ncmp -128(%rsp), %rax\njne 1f\ncmp -8(%rsp), %rax\n"
        "1: setne %al\nmovzbl %al, %eax\nret\n.cfi_endproc\n.size alive, .-alive\n"
        ".type dead, @function\n.globl dead, site_dead, end_dead\ndead:\n.cfi_startproc\n"
        "int3\nsite_dead: movl $0x51735173, cell(%rip)\nxor %eax, %eax\n"
        "end_dead: int3\nret\n.cfi_endproc\n.size dead, .-dead\n");
static uint64_t pass(uint64_t flags) { return FUNCTION(flags); }
static void on_signal(int number) { (void)number; wrong += pass(0x202); }
int main(void)
{
    signal(SIGUSR1, on_signal);
    for (;;)
        wrong += pass(0xed7);
}
"""


@pytest.fixture(scope="module")
def stepped(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("stepped")
    return {
        name: compile_small(folder, name, STEPPED.replace("FUNCTION", name), "-fno-stack-protector", "-Wno-unused")
        for name in ("alive", "dead")
    }


def kept(registers: Registers) -> dict[str, int]:
    """Everything a stub must leave as it was."""
    found = {name: getattr(registers, name) for name, _ in Registers._fields_ if name not in ("rip", "orig_rax")}
    found["eflags"] &= _ARITHMETIC | _DIRECTION
    return found


def interrupt_everywhere(tracee: Tracee, end: int, *, flags_matter: bool) -> int:
    """Send a signal after 0, 1, 2... instructions of the stub, until it is over. Returns the rounds made.

    The handler goes through the same stub: each round makes two executions of the site.
    """
    for steps in range(200):
        tracee.resume()
        assert tracee.wait(SECONDS).what is What.BREAKPOINT
        before = kept(tracee.registers())
        for _ in range(steps):
            single_step(tracee)
        over = tracee.registers().rip == end
        tracee.resume(deliver=signal.SIGUSR1)
        for passed in range(3):  # the handler's begin and end, then the interrupted one's end
            if passed:
                tracee.resume()
            assert tracee.wait(SECONDS).what is What.BREAKPOINT
        after = kept(tracee.registers())
        if not flags_matter:
            before["eflags"] = after["eflags"] = 0
            before["rax"] = after["rax"] = 0
        assert after == before, f"after {steps} instructions"
        assert tracee.registers().rip == end + 1
        if over:
            return steps + 1
    raise AssertionError("the stub never ends")


@contextmanager
def counted(path: Path) -> Iterator[tuple[Tracee, SiteCounters, LoadWatch]]:
    with streams_of() as streams, Tracee.start(program_of(path), streams) as tracee:
        watch, counters = LoadWatch(tracee), SiteCounters(tracee)
        (loaded,) = watch.new_images()
        counters.install(loaded)
        yield tracee, counters, watch


@pytest.mark.parametrize("name", ["alive", "dead"])
def test_a_signal_at_every_instruction_of_a_counter(name: str, stepped: dict[str, Path]) -> None:
    path, places = stepped[name], symbols(stepped[name])
    with counted(path) as (tracee, counters, watch):
        sites, bias = counters.images[0].sites, watch.known()[0].bias
        row = int(np.flatnonzero(sites.offset == places[f"site_{name}"])[0])
        assert bool(sites.flags_dead[row]) == (name == "dead")
        rounds = interrupt_everywhere(tracee, places[f"end_{name}"] + bias, flags_matter=name == "alive")
        assert rounds >= (12 if name == "alive" else 4)
        assert counters.read()[row] == 2 * rounds


@pytest.mark.parametrize("every", [2, 1000])
def test_a_signal_at_every_instruction_of_a_marker(every: int, stepped: dict[str, Path]) -> None:
    """With an event at every second execution each round fires one, in the handler or around it."""
    path, places = stepped["alive"], symbols(stepped["alive"])
    marker = Marker(str(path), places["site_alive"])
    with marked(program_of(path), {marker: [Event(n, STAMP) for n in range(1, 400, every)]}) as process:
        process.watch.disarm()
        end = places["end_alive"] + process.watch.known()[0].bias
        rounds = interrupt_everywhere(process.tracee, end, flags_matter=True)
        assert rounds >= (50 if every == 2 else 12)
        assert process.markers.executions(marker) == 2 * rounds
        stamps = process.markers.stamps(marker)
        due = len(range(1, 2 * rounds + 1, every))
        assert None not in stamps[:due] and not any(stamps[due:])


def test_counters_and_code_share_no_page(builds: Path) -> None:
    path = build("flags", builds)
    marker = Marker(str(path), symbols(path)["site_flags_add"])
    with counted(path) as (tracee, counters, _):
        area = counters._areas[0]
        by_address = {(e.start, e.end): e.permissions for e in read_maps(tracee.pid)}
        held = [p for (start, end), p in by_address.items() if start <= area.counters < end]
        assert held == ["rw-p"] and area.counters % PAGE_SIZE == 0
        assert not [p for p in by_address.values() if "w" in p and "x" in p]
    with marked(program_of(path), {marker: [Event(1, STAMP)]}) as process:
        record = process.markers._installed[marker].record
        held = [e.permissions for e in read_maps(process.tracee.pid) if e.start <= record < e.end]
        assert held == ["rw-p"]


# -- layout, without a process


@pytest.fixture(scope="module")
def perl() -> tuple[ElfImage, SiteTable]:
    image = read_image("/usr/bin/perl")
    return image, find_sites(image)


BIAS, BASE = 0x5555_5555_4000, 0x5555_1000_0000


def test_relocation_agrees_with_a_real_encoder(perl: tuple[ElfImage, SiteTable]) -> None:
    """Every site of a real binary: its stub decodes to a count, the instruction as iced moves it, and a jump back."""
    _, sites = perl
    size = counter_code_size(sites)
    made = encode_counters(sites, BIAS, BASE, BASE + size)
    relative = 0
    for i in range(len(sites)):
        at = int(made.entry[i]) - BASE
        address, length = int(sites.offset[i]) + BIAS, int(sites.length[i])
        head = 7 if sites.flags_dead[i] else 29
        tail = made.code[at + head : at + head + 20].tobytes()
        count = Decoder(64, made.code[at : at + head].tobytes(), ip=BASE + at)
        memory = [j.ip_rel_memory_address for j in count if j.memory_base == Register.RIP]
        assert memory == [BASE + size + 8 * i]
        moved = BASE + at + head
        if sites.kind[i] == DISPLACED:
            expected = sites.code[i, :length].tobytes()
            original = Decoder(64, expected, ip=address).decode()
            if original.memory_base == Register.RIP:
                relative += 1
                encoder = BlockEncoder(64, fix_branches=False)
                encoder.add(original)
                expected = encoder.encode(moved)
            assert tail[:length] == expected, f"{original} at {address:#x}"
            tail, moved, goal = tail[length:], moved + length, address + length
        else:
            goal = int(sites.target[i]) + BIAS
        back = Decoder(64, tail[:5], ip=moved).decode()
        assert back.code == Code.JMP_REL32_64 and back.near_branch_target == goal
    assert relative > 1000 and (sites.kind == REDIRECTED).sum() > 100


def test_patched_sites_are_jumps_and_nothing_else_changes(perl: tuple[ElfImage, SiteTable]) -> None:
    image, sites = perl
    low, high = int(sites.offset[0]), int(sites.offset[-1]) + int(sites.length[-1])
    before = np.frombuffer(image.bytes_at(low, high - low), dtype=np.uint8)
    text = before.copy()
    made = encode_counters(sites, 0, 0x1000_0000, 0x2000_0000)
    patched_text(text, low, sites, 0, made.entry)
    covered = np.zeros(len(text), dtype=bool)
    for i in range(len(sites)):
        at, length = int(sites.offset[i]) - low, int(sites.length[i])
        covered[at : at + length] = True
        jump = Decoder(64, text[at : at + 5].tobytes(), ip=low + at).decode()
        was_call = before[at] == 0xE8
        assert jump.code == (Code.CALL_REL32_64 if was_call else Code.JMP_REL32_64)
        assert jump.near_branch_target == made.entry[i]
    assert (text[~covered] == before[~covered]).all()


def test_two_gigabytes_are_the_limit(perl: tuple[ElfImage, SiteTable]) -> None:
    sites = perl[1].take(np.arange(10))
    with pytest.raises(OverflowError, match="2 GB"):
        encode_counters(sites, BIAS, BIAS + (3 << 30), BIAS + (3 << 30) + PAGE_SIZE)
    with pytest.raises(OverflowError, match="2 GB"):
        encode_counters(sites, BIAS, BASE, BASE + (3 << 30))
    with pytest.raises(OverflowError, match="2 GB"):
        encode_markers(sites, BIAS, [[]] * 10, BIAS + (3 << 30), BIAS + (3 << 30) + PAGE_SIZE)


@given(st.lists(st.integers(1, 1 << 40), unique=True, max_size=20).map(sorted), st.integers(0, 7))
def test_events_hold_the_gaps_between_counts(counts: list[int], action: int) -> None:
    raw = encode_events([Event(n, action) for n in counts])
    assert len(raw) == EVENT_BYTES * (len(counts) + 1)
    gaps = [int.from_bytes(raw[k : k + 8], "little") for k in range(0, len(raw), EVENT_BYTES)]
    assert gaps[-1] == NEVER
    assert [a + b for a, b in zip(counts, gaps, strict=False)] == [*counts[1:], *[n + NEVER for n in counts[-1:]]]
    assert all(raw[k + 8] == action for k in range(0, len(raw) - EVENT_BYTES, EVENT_BYTES))


def test_marker_sizes_are_those_of_the_code(perl: tuple[ElfImage, SiteTable]) -> None:
    for number in (1, 10, 400):
        events = [[Event(1 + k, STAMP) for k in range(n % 5)] for n in range(number)]
        sites = perl[1].take(np.arange(number))
        code, data = marker_sizes([len(e) + 3 for e in events])
        made = encode_markers(sites, BIAS, events, BASE, BASE + code, spare_events=3)
        assert (len(made.code), len(made.data)) == (code, data)
        assert all(b - a >= EVENT_BYTES * 4 for a, b in zip(made.record, made.record[1:], strict=False))


def test_output_is_unchanged_where_all_streams_are_one(builds: Path, tmp_path: Path) -> None:
    """Both streams in one file, as a user may ask for: appended, nothing overwritten."""
    path = build("fail", builds)
    both = Streams(tmp_path / "both", tmp_path / "both")
    with Tracee.start(program_of(path, "1"), both) as tracee:
        tracee.resume()
        while tracee.wait(SECONDS).what is not What.ENDED:
            tracee.resume()
    plain = run(path, "1")
    assert sorted(both.stdout.read_text().splitlines()) == sorted((plain.stdout + plain.stderr).splitlines())
