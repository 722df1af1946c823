# SPDX-License-Identifier: Apache-2.0
"""Instructions that are chosen: safe whatever jumps where, and dead flags really dead, by other means of knowing."""

from __future__ import annotations

import re
import subprocess
import time
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from iced_x86 import Code, Decoder, FlowControl, Instruction, Mnemonic, OpKind, Register
from programs import VARIANTS, build, run, symbols
from tracing import compile_small, count_run, program_of

from checkpoint.binary import sites as sites_module
from checkpoint.binary.elf import ElfImage, read_image
from checkpoint.binary.sites import DISPLACED, JUMP_BYTES, REDIRECTED, SiteTable, find_sites
from checkpoint.paths import cache_dir
from checkpoint.process.maps import is_own

REAL = ("/usr/bin/perl", "/bin/bash")
_ALL_FLAGS = 0x3F  # iced: OF SF ZF AF CF PF


@pytest.fixture(scope="module", params=REAL)
def real(request: pytest.FixtureRequest) -> tuple[ElfImage, SiteTable]:
    image = read_image(request.param)
    return image, find_sites(image)


@pytest.fixture(scope="module")
def listing() -> dict[int, tuple[int, str]]:
    """bash as objdump reads it: address -> (bytes, text)."""
    return disassembly(Path("/bin/bash"))


def disassembly(path: Path) -> dict[int, tuple[int, str]]:
    command = ["objdump", "-d", "--insn-width=16", "--no-show-raw-insn", str(path)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    lines = [(int(m[1], 16), m[2]) for m in re.finditer(r"^ +([0-9a-f]+):\t(.*)$", text, re.MULTILINE)]
    after = [address for address, _ in lines[1:]] + [lines[-1][0] + 1]
    return {address: (end - address, what) for (address, what), end in zip(lines, after, strict=True)}


_STRAIGHT = """
__attribute__((noipa)) static void straight(void)
{
    __asm__ volatile(".rept 60000\\n movl $1, %%eax\\n .endr" : : : "eax");
}
int main(void) { straight(); return 0; }
"""


def test_generated_code_of_one_long_block_is_read_once(tmp_path: Path) -> None:
    """As libint's: looking from each instruction for the next that uses flags takes minutes."""
    path = compile_small(tmp_path, "straight", _STRAIGHT)
    begun = time.process_time()
    found = sites_module._analyse(read_image(path))
    assert time.process_time() - begun < 20
    assert (found.block_instructions > 60_000).any()


def test_sites_are_whole_apart_and_inside_functions(real: tuple[ElfImage, SiteTable]) -> None:
    image, sites = real
    assert len(sites) > 20_000
    assert (sites.length >= JUMP_BYTES).all()
    assert (sites.offset[1:] >= sites.offset[:-1] + sites.length[:-1]).all()
    row = np.searchsorted(image.functions[:, 0], sites.offset, side="right") - 1
    assert (sites.offset + sites.length <= image.functions[row, 1]).all()
    assert (sites.block_start <= sites.offset).all()
    assert (sites.offset + sites.length <= sites.block_start + sites.block_bytes).all()
    assert (sites.block_start[1:] >= (sites.block_start + sites.block_bytes)[:-1]).all(), "one site per block"
    raw = [image.bytes_at(int(at), int(n)) for at, n in zip(sites.offset, sites.length, strict=True)]
    assert all(sites.code[i, : len(code)].tobytes() == code for i, code in enumerate(raw))


def test_only_instructions_that_can_be_moved(real: tuple[ElfImage, SiteTable]) -> None:
    _, sites = real
    for i in range(len(sites)):
        *before, instruction = Decoder(64, sites.code[i, : sites.length[i]].tobytes(), ip=int(sites.offset[i]))
        assert instruction.next_ip == sites.offset[i] + sites.length[i]
        # Neighbours serve as one instruction in inner loops alone, and one of them has an address to be moved.
        assert not before or (sites.loop_end[i] and before[-1].next_ip - sites.offset[i] < JUMP_BYTES)
        assert all(b.flow_control == FlowControl.NEXT and b.memory_base != Register.RIP for b in before)
        if sites.kind[i] == REDIRECTED:
            assert instruction.code in (Code.CALL_REL32_64, Code.JMP_REL32_64) and instruction.len == JUMP_BYTES
            assert instruction.near_branch_target == sites.target[i]
        else:
            assert instruction.flow_control == FlowControl.NEXT and instruction.memory_base != Register.EIP
            assert (instruction.memory_base == Register.RIP) == bool(sites.displacement_at[i])


def test_another_disassembler_sees_the_same_instructions(listing: dict[int, tuple[int, str]]) -> None:
    sites = find_sites(read_image("/bin/bash"))
    for at, length in zip(sites.offset.tolist(), sites.length.tolist(), strict=True):
        end = at
        while end < at + length:
            end += listing[end][0]
        assert end == at + length


def test_no_direct_jump_reaches_the_inside_of_a_site(listing: dict[int, tuple[int, str]]) -> None:
    sites = find_sites(read_image("/bin/bash"))
    jumps = (
        re.match(r"(?:bnd |notrack )?(?:j\w+|call|loop\w*|xbegin)\b\s+(?:0x)?([0-9a-f]+) ", f"{w} ")
        for _, w in listing.values()
    )
    targets = np.array(sorted({int(m[1], 16) for m in jumps if m}))
    assert len(targets) > 10_000
    row = np.searchsorted(sites.offset, targets, side="right") - 1
    inside = (row >= 0) & (targets > sites.offset[row]) & (targets < sites.offset[row] + sites.length[row])
    assert not targets[inside].tolist()


# -- dead flags, by walking every path


def _sets(i: Instruction) -> int:
    """Flags the instruction overwrites whatever its operands: not after a shift by zero or a repeat of zero."""
    shift = i.op_count > 1 and i.op_kind(i.op_count - 1) == OpKind.REGISTER and i.mnemonic in _SHIFTS
    by_zero = i.op_count > 1 and i.op_kind(i.op_count - 1) == OpKind.IMMEDIATE8 and i.mnemonic in _SHIFTS
    if shift or (by_zero and not i.immediate8 & 0x1F) or i.has_rep_prefix or i.has_repne_prefix:
        return 0
    return i.rflags_modified


_SHIFTS = frozenset(
    (
        *(Mnemonic.SHL, Mnemonic.SHR, Mnemonic.SAR, Mnemonic.SAL, Mnemonic.ROL, Mnemonic.ROR, Mnemonic.RCL),
        *(Mnemonic.RCR, Mnemonic.SHLD, Mnemonic.SHRD),
    )
)


def live_after_all(image: ElfImage, start: int) -> list[str]:
    """Where, on any path from `start`, a flag is read (or the path is left) before all six were overwritten."""
    found: list[str] = []
    todo, seen = [(start, _ALL_FLAGS)], set()
    while todo:
        ip, live = todo.pop()
        while live:
            if (ip, live) in seen:
                break
            seen.add((ip, live))
            i = Decoder(64, image.bytes_at(ip, 15), ip=ip).decode()
            if i.rflags_read & live:
                found.append(f"{ip:#x} {i} reads")
                break
            live &= ~_sets(i)
            if i.flow_control == FlowControl.UNCONDITIONAL_BRANCH:
                ip = i.near_branch_target
                continue
            if i.flow_control == FlowControl.CONDITIONAL_BRANCH:
                todo.append((i.near_branch_target, live))
            elif i.flow_control != FlowControl.NEXT and live:
                found.append(f"{ip:#x} {i} leaves")
                break
            ip = i.next_ip
    return found


def test_dead_flags_are_overwritten_on_every_path(real: tuple[ElfImage, SiteTable]) -> None:
    image, sites = real
    dead = sites.offset[sites.flags_dead]
    assert len(dead) > 5000, "too few to be worth it"
    assert not [v for at in dead.tolist() for v in live_after_all(image, at)]


@pytest.mark.parametrize(
    ("between", "dead"),
    [
        ("add $1, %rax", True),
        ("xor %eax, %eax", True),
        ("test %eax, %eax", True),
        ("adc $1, %rax", False),
        ("cmovc %rcx, %rax\nadd $1, %rax", False),
        ("shl %cl, %rax\nsetc %al", False),
        ("shl %cl, %rax", False),
        ("inc %rax", False),  # keeps the carry
        ("repe cmpsb", False),  # a repeat of zero sets nothing
        ("pushfq\npop %rax\nadd $1, %rax", False),
        ("mov %rax, %rcx\ncmp $5, %rax", True),
        ("call flags_place\nadd $1, %rax", False),
        ("jmp 1f\n1: add $1, %rax", False),
    ],
)
def test_what_counts_as_dead(between: str, dead: bool, tmp_path: Path) -> None:
    body = between.replace("\n", r"\n")
    source = (
        r'__asm__(".text\n.globl flags_place, site_here\n.type flags_place, @function\nflags_place:\n.cfi_startproc\n"'
        rf'"site_here: movl $0x51735173, cell(%rip)\n{body}\nret\n.cfi_endproc\n.size flags_place, .-flags_place\n");'
        "\nint cell;\nint main(void) { return 0; }\n"
    )
    path = compile_small(tmp_path, "one", source)
    sites = find_sites(read_image(str(path)))
    assert sites.flags_dead[sites.offset == symbols(path)["site_here"]].tolist() == [dead]


# -- what is left alone


def in_function(path: Path, name: str) -> int:
    """How many sites the function `name` of an unstripped program has."""
    image = read_image(str(path))
    start = symbols(path)[name]
    (end,) = image.functions[image.functions[:, 0] == start, 1]
    sites = find_sites(image)
    return int(((sites.offset >= start) & (sites.offset < end)).sum())


@pytest.mark.parametrize("variant", [v for v in VARIANTS if v != "stripped"])
def test_overlapping_code_and_data_in_code_are_left_alone(variant: str, builds: Path) -> None:
    overlap, datacode = build("overlap", builds, variant), build("datacode", builds, variant)
    for name in ("overlap_lock", "overlap_short", "overlap_long"):
        assert (name, in_function(overlap, name)) == (name, 0)
    assert in_function(overlap, "overlap_loop") == 2, "shared tails are ordinary"
    assert in_function(datacode, "datacode_hash") == 0
    assert in_function(datacode, "datacode_jump") >= 4


def test_no_byte_of_data_in_code_is_changed(builds: Path) -> None:
    for variant in ("pie", "nopie"):
        path = build("datacode", builds, variant)
        sites, places = find_sites(read_image(str(path))), symbols(path)
        for low, high in (("datacode_begin", "datacode_end"), ("datacode_offsets", "datacode_jump")):
            touched = (sites.offset + sites.length > places[low]) & (sites.offset < places[high])
            assert not touched.any()


# A function with ten bytes of data in it that decode to instructions which could be displaced, and its body where
# they are jumped over and addressed, and where they lie behind the end with a byte that is no instruction.
MIXED = r"""
#include <stdint.h>
#include <stdio.h>
uint64_t mixed(void);
extern const uint8_t *const pointer;
__asm__(".text\n.globl mixed\n.type mixed, @function\nmixed:\n.cfi_startproc\nmov $0x1234567, %eax\n"
        "BODY\n.cfi_endproc\n.size mixed, .-mixed\n"
        ".section .data.rel.ro, \"aw\"\n.balign 8\n.globl pointer\npointer: .quad data_here\n.text\n");
int main(void)
{
    uint64_t sum = mixed();
    for (int i = 0; i < 10; i++)
        sum = sum * 31 + pointer[i];
    printf("%llx\n", (unsigned long long)sum);
    return 0;
}
"""
DATA = "data_here: .byte 0xb8, 1, 2, 3, 4, 0xb9, 5, 6, 7, 8"


@pytest.mark.parametrize(
    "body",
    [
        rf"jmp 1f\n{DATA}\n1: lea data_here(%rip), %rdx\nmovzbl 2(%rdx), %edx\nadd %rdx, %rax\nret",
        rf"mov pointer(%rip), %rdx\nmovzbl 2(%rdx), %edx\nadd %rdx, %rax\nret\n{DATA}, 0x06",
    ],
    ids=["used", "undecodable"],
)
def test_data_in_code_is_known_by_its_use_and_by_its_bytes(body: str, tmp_path: Path) -> None:
    path = compile_small(tmp_path, "mixed", MIXED.replace("BODY", body))
    assert in_function(path, "mixed") == 0 and in_function(path, "main") > 0
    assert count_run(program_of(path)).end.stdout == run(path).stdout


def test_padding_is_no_site(builds: Path) -> None:
    """What an indirect jump reaches behind padding is counted at its own instructions."""
    for variant in VARIANTS:
        if variant == "stripped":
            continue
        path = build("jumptable", builds, variant)
        sites, places = find_sites(read_image(str(path))), symbols(path)
        for n in range(6):
            held = (sites.block_start <= places[f"site_goto_{n}"]) & (
                places[f"site_goto_{n}"] < sites.block_start + sites.block_bytes
            )
            assert sites.block_start[held].tolist() == [places[f"site_goto_{n}"]] or variant == "cet"
            assert (sites.offset[held] >= places[f"site_goto_{n}"]).all() and held.sum() == 1


def test_code_chosen_by_cpu_is_not_the_programs_own(builds: Path) -> None:
    counted = count_run(program_of(build("ifunc", builds), "5"))
    assert [Path(image.path).name for image in counted.images] == ["ifunc"]


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("/lib/x86_64-linux-gnu/libc.so.6", False),
        ("/lib64/ld-linux-x86-64.so.2", False),
        ("/lib/x86_64-linux-gnu/libm.so.6", False),
        ("/usr/lib/libmvec.so.1", False),
        ("/usr/lib/libgomp.so.1", False),
        ("/usr/lib/libmpi.so.40", False),
        ("/usr/lib/libmpi_mpifh.so.40", False),
        ("/usr/lib/libmpich.so.12", False),
        ("/usr/lib/libopenblas.so.0", False),
        ("/usr/lib/ld-musl-x86_64.so.1", False),
        ("/usr/lib/libz.so.1", True),
        ("/usr/lib/libmagic.so.1", True),
        ("/usr/lib/libcurl.so.4", True),
        ("/opt/libc/tool", True),
    ],
)
def test_own_images(name: str, own: bool) -> None:
    assert is_own(name) == own


# -- the cache


@pytest.fixture
def cached(builds: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[ElfImage, SiteTable, Path]:
    """A program's sites and the only file of a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("PROBE_HOME", raising=False)
    image = read_image(str(build("flags", builds)))
    table = find_sites(image)
    (kept,) = (cache_dir() / "sites").iterdir()
    return image, table, kept


def same(a: SiteTable, b: SiteTable) -> bool:
    return all(np.array_equal(getattr(a, f.name), getattr(b, f.name)) for f in fields(SiteTable))


def test_the_cache_saves_the_analysis(
    cached: tuple[ElfImage, SiteTable, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    image, table, _ = cached
    monkeypatch.setattr(sites_module, "_analyse", lambda image: pytest.fail("analysed again"))
    assert same(find_sites(image), table)


def test_a_damaged_cache_is_made_again(cached: tuple[ElfImage, SiteTable, Path]) -> None:
    image, table, kept = cached
    whole = kept.read_bytes()
    chance = np.random.default_rng(1)
    places = chance.integers(0, len(whole), 60).tolist()
    damaged = [whole[:n] for n in (0, 1, 100, len(whole) // 2, len(whole) - 1)]
    places.append(whole.index(b"PK\x01\x02") + 8)  # a bit here says that the file is encrypted
    damaged += [whole[:n] + bytes([whole[n] ^ 0x41]) + whole[n + 1 :] for n in places]
    for content in damaged:
        kept.write_bytes(content)
        assert same(find_sites(image), table)
    kept.write_bytes(b"")
    find_sites(image)
    assert kept.stat().st_size == len(whole), "repaired"


def test_a_cache_that_cannot_be_written_costs_nothing_else(
    builds: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.delenv("PROBE_HOME", raising=False)
    table = find_sites(read_image(str(build("short", builds))))
    assert len(table) > 0 and (table.kind[table.kind != DISPLACED] == REDIRECTED).all()


def test_addresses_before_the_image_are_left_where_they_are(tmp_path: Path) -> None:
    """As in libmvec, which counts from tables' addresses less a constant. The rest of the function has its sites."""
    source = r"""
        #include <stdio.h>
        __attribute__((noinline)) long before(long n) {
            long a;
            __asm__ volatile("1: .byte 0x48, 0x8d, 0x05, 0, 0, 0, 0xc0\n"  /* lea rax, [rip - 1 GB] */
                             "lea 1b(%%rip), %%rcx\n sub %%rcx, %%rax" : "=a"(a) : : "rcx", "cc");
            return n ? a + n : a * 123456789;
        }
        int main(int argc, char **argv) { (void)argv; printf("%ld\n", before(argc)); return 0; }
    """
    path = compile_small(tmp_path, "before", source)
    image = read_image(str(path))
    sites = find_sites(image)
    start = symbols(path)["before"]
    mine = (sites.block_start >= start) & (sites.block_start < start + 40)
    assert mine.any() and start not in sites.offset[mine].tolist() and (sites.target >= 0).all()
    assert run(path).stdout == "-1073741816\n"
    assert count_run(program_of(path)).end.stdout == run(path).stdout
