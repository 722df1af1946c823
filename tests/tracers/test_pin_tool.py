# SPDX-License-Identifier: Apache-2.0
"""The Pin tool, its whole source, on a stand-in for Pin (tests/programs/pin_kit); and how a kit is found.

No kit of Pin can be had on the machines that run this. What is tested is the tool with a Pin as it is documented.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
from assembly import LOOP, SPLIT, assembled, blocks_of_loop, blocks_of_split
from iced_x86 import Decoder
from programs import symbols
from tracing import program_of, recorded_run, streams_of

from checkpoint.binary.elf import read_image
from checkpoint.errors import PrivilegeMissing, ProgramUnsupported, StorageError, ToolMissing
from checkpoint.process.program import Program
from probe.formats.choices import INSTRUCTIONS
from probe.tracers import trace_program
from probe.tracers.pin import build_tool, find_pin, record
from probe.tracers.stream import Origin, Recorded

KIT = Path(__file__).parents[1] / "programs" / "pin_kit"
INTERVAL = 100_000
FAR = 0x7F12_3456_7000


@pytest.fixture(autouse=True)
def kit(monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PIN_ROOT", str(KIT))
    return KIT


@dataclass
class Replay:
    """A recorded run for the stand-in. Addresses are link-time ones; images lie `bias` away from them."""

    bias: int = 0
    lines: list[str] = field(default_factory=list)
    blocks: dict[tuple[str, int, int], int] = field(default_factory=dict)

    def image(self, path: str, low: int, high: int) -> None:
        self.lines.append(f"image {self.bias:x} {self.bias + low:x} {self.bias + high:x} {path}")

    def block(self, address: int, code: Sequence[bytes], *, transfers: bool = True, image: str = "") -> int:
        key = (image, address, len(code))
        if key not in self.blocks:
            self.blocks[key] = len(self.blocks)
            self.lines.append(f"block {self.bias + address:x} {transfers:x} {' '.join(c.hex() for c in code)}")
        return self.blocks[key]

    def run(self, block: int, times: int = 1, *, what: str = "run") -> None:
        self.lines.append(f"{what} {block:x} {times:x}")

    def written(self, folder: Path, last: str = "exit 0") -> Path:
        path = folder / "replay"
        path.write_text("\n".join([*self.lines, last]) + "\n")
        return path


def decoded(path: Path, address: int, instructions: int) -> list[bytes]:
    image = read_image(str(path))
    decoder = Decoder(64, image.bytes_at(address, 15 * instructions), ip=address)
    return [image.bytes_at(i.ip, i.len) for i, _ in zip(decoder, range(instructions), strict=False)]


def replay_of(path: Path, run: Sequence[tuple[str, int]], odd: int = 0, bias: int = 0) -> Replay:
    """The run of an assembled program, block by block as its model says."""
    labels, made = symbols(path), Replay(bias)
    labels["odd"] = labels["again"] + odd
    code = next(s for s in read_image(str(path)).segments if s.executable)
    made.image(str(path), code.vaddr, code.vaddr + code.size)
    blocks = {
        (name, n): made.block(labels[name], decoded(path, labels[name], n), transfers=name != "the_end")
        for name, n in dict.fromkeys(run)
    }
    for block, same in groupby(run):
        made.run(blocks[block], len(list(same)))
    return made


def replayed(program: Program, replay: Path, interval: int = INTERVAL, **more: str) -> Recorded:
    with streams_of() as streams:
        under = replace(program, env={**program.env, "STANDIN_REPLAY": str(replay), **more})
        recorded, _ = record(under, interval=interval, streams=streams)
        assert "AddressSanitizer" not in streams.stderr.read_text()
    return recorded


# -- what the tool counts


@pytest.mark.parametrize("bias", [0, FAR])
def test_pin_and_valgrind_record_the_same(bias: int, tmp_path: Path) -> None:
    """Blocks, every count of every interval, and marker candidates, wherever the image lies."""
    path = assembled(tmp_path, "split", SPLIT.replace("{rounds}", "150001"))
    replay = replay_of(path, blocks_of_split(150_001), 5, bias).written(tmp_path)
    pin, valgrind = replayed(program_of(path), replay), recorded_run(program_of(path)).recorded
    code = next(s for s in read_image(str(path)).segments if s.executable)
    assert pin.images == ((str(path), Origin.LINK_ADDRESS),)
    assert pin.offset.tolist() == (valgrind.offset - code.offset + code.vaddr).tolist()
    for name in ("image", "size", "instructions", "lengths"):
        assert getattr(pin, name).tolist() == getattr(valgrind, name).tolist(), name
    assert pin.counts.toarray().tolist() == valgrind.counts.toarray().tolist()
    for name in ("boundary", "block", "distance"):
        assert getattr(pin.candidates, name).tolist() == getattr(valgrind.candidates, name).tolist(), name
    assert len(pin.candidates.boundary) > 3


def test_further_turns_of_a_string_instruction_do_not_count(tmp_path: Path) -> None:
    """Nor do they look like blocks in the window behind a boundary, where every block is looked at."""
    rep, path = [bytes.fromhex("f3a4")], tmp_path / "program"
    made = Replay()
    made.image(str(path), 0, 0x1000)
    move, lone, long = (
        made.block(0x100, [bytes(5), *rep], transfers=False), made.block(0x105, rep, transfers=False),
        made.block(0x200, [bytes(7)] * 50),
    )  # fmt: skip
    for _ in range(4000):
        made.run(long, 2)
        made.run(move)
        made.run(lone, 700, what="turns")
        made.run(lone)
        made.run(lone, 3, what="turns")
    recorded = replayed(program_of(Path("/bin/true")), made.written(tmp_path), 1000)
    totals = np.asarray(recorded.counts.sum(axis=0)).ravel()
    assert dict(zip(recorded.offset.tolist(), totals.tolist(), strict=True)) == {0x100: 4000, 0x105: 4000, 0x200: 8000}
    assert recorded.lengths.sum() == 4000 * (100 + 2 + 1)
    late = np.cumsum(recorded.lengths)[:-1] - 1000 * np.arange(1, len(recorded.lengths))
    assert (late >= 0).all() and (late < 50).all(), "turns in a window moved the boundary behind it"


def test_images_are_told_apart_and_foreign_ones_hold_no_marker(tmp_path: Path) -> None:
    made = Replay()
    for number, name in enumerate(("/opt/own", "/lib/libc.so.6", "[vdso]")):
        made.image(name, 0x10000 * (number + 1), 0x10000 * (number + 1) + 0x1000)
    places = [0x10100, 0x20100, 0x30100, 0x90100]
    blocks = [made.block(place, [bytes.fromhex("b800000000"), b"\xc3"]) for place in places]
    for _ in range(4000):
        for block in blocks:
            made.run(block)
    recorded = replayed(program_of(Path("/bin/true")), made.written(tmp_path), 1000)
    assert [name for name, _ in recorded.images] == ["/opt/own", "/lib/libc.so.6"]
    assert recorded.image.tolist() == [0, 1, -1, -1] and recorded.offset.tolist() == places
    assert np.asarray(recorded.counts.sum(axis=0)).ravel().tolist() == [4000] * 4
    assert set(recorded.candidates.block.tolist()) == {0}


@pytest.mark.parametrize(("last", "what"), [("thread", "started a thread"), ("fork", "started a child")])
def test_threads_and_children_are_refused(last: str, what: str, tmp_path: Path) -> None:
    path = assembled(tmp_path, "loop", LOOP.replace("{rounds}", "100"))
    with pytest.raises(ProgramUnsupported, match=what):
        replayed(program_of(path), replay_of(path, blocks_of_loop(100)).written(tmp_path, last))


def test_a_profile_through_pin(tmp_path: Path) -> None:
    path = assembled(tmp_path, "loop", LOOP.replace("{rounds}", "300000"))
    replay = replay_of(path, blocks_of_loop(300_000)).written(tmp_path)
    program = program_of(path)
    program = replace(program, env={**program.env, "STANDIN_REPLAY": str(replay)})
    with streams_of() as streams:
        profile = trace_program(program, tracer="pin", interval=INTERVAL, streams=streams)
    assert (profile.tracer, profile.unit, profile.intervals) == ("pin", INSTRUCTIONS, 13)
    assert profile.images[0][0] == str(path) and profile.blocks.start.min() == symbols(path)["_start"]


def test_a_full_disk_is_a_storage_error(tmp_path: Path) -> None:
    path = assembled(tmp_path, "loop", LOOP.replace("{rounds}", "3000"))
    replay = replay_of(path, blocks_of_loop(3000)).written(tmp_path)
    done = subprocess.run(
        [build_tool(find_pin()), "-stream", "/dev/full", "-interval", "1000", "--"],
        env={"STANDIN_REPLAY": str(replay)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 125 and "the stream /dev/full cannot be written" in done.stderr
    folder = tmp_path / "full"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "probe-test", folder], check=True)
    program = program_of(path)
    program = replace(program, env={**program.env, "STANDIN_REPLAY": str(replay)})
    try:
        with streams_of(folder) as streams, pytest.raises(StorageError, match="could not be written"):
            record(program, interval=10, streams=streams)
    finally:
        subprocess.run(["umount", folder], check=True)


# -- kits


def test_a_wrong_root_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIN_ROOT", str(tmp_path))
    with pytest.raises(ToolMissing, match=r"not a kit of Pin, pin, source/include/pin/pin\.H"):
        find_pin()
    monkeypatch.delenv("PIN_ROOT")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolMissing, match="set PIN_ROOT to its folder"):
        find_pin()


def test_a_kit_is_found_through_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIN_ROOT")
    monkeypatch.setenv("PATH", f"{KIT}:{os.environ['PATH']}")
    assert find_pin().root == KIT and find_pin().version == "3.30-98830-1d7b601b3"


def test_old_versions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDIN_VERSION", "2.14-71313")
    with pytest.raises(ToolMissing, match=r"Pin 2\.14-71313 is of another kind"):
        find_pin()
    monkeypatch.setenv("STANDIN_VERSION", "4.0-99633")
    assert find_pin().version == "4.0-99633"
    monkeypatch.setenv("STANDIN_VERSION", "of unknown make")
    with pytest.raises(ToolMissing, match="does not tell its version"):
        find_pin()


def test_every_kit_gets_a_tool_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build_tool(find_pin())
    assert build_tool(find_pin()) == first
    monkeypatch.setenv("STANDIN_VERSION", "3.31-98869")
    second = build_tool(find_pin())
    assert second != first and second.is_file()
    broken = tmp_path / "kit"
    shutil.copytree(KIT, broken)
    (broken / "source/include/pin/pin.H").write_text("#error another Pin\n")
    monkeypatch.setenv("PIN_ROOT", str(broken))
    with pytest.raises(ToolMissing, match="another Pin"):
        build_tool(find_pin())


@pytest.mark.parametrize(
    ("said", "error"),
    [("verify /proc/sys/kernel/yama/ptrace_scope", PrivilegeMissing), ("no such program", ToolMissing)],
)
def test_what_pin_refuses_is_quoted(said: str, error: type[Exception], tmp_path: Path) -> None:
    program = program_of(Path("/bin/true"))
    with pytest.raises(error, match=said):
        replayed(program, tmp_path / "none", STANDIN_REFUSES=said)
