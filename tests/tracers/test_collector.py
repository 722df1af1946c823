# SPDX-License-Identifier: Apache-2.0
"""The collector of the instruction-exact tracers, fed by itself, and the reader of its stream."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoint.errors import ProbeFileDamaged, StorageError
from probe.tracers.stream import Ending, Recorded, read_stream

ROOT = Path(__file__).parents[2]
COLLECTOR = ROOT / "pintools" / "collector"
SANITIZED = (
    "-std=c11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined", "-fno-sanitize-recover=all",
)  # fmt: skip
HEAD_BYTES, BLOCK_BYTES = 28, 24


def compiled(folder: Path, name: str, *options: str) -> Path:
    """A C program of tests/collector with the collector in it."""
    source = ROOT / "tests" / "programs" / "collector" / f"{name}.c"
    command = ["cc", *SANITIZED, *options, f"-I{COLLECTOR}", "-o", str(folder / name), str(source)]
    subprocess.run([*command, str(COLLECTOR / "collector.c")], check=True)
    return folder / name


@pytest.fixture(scope="module")
def feed(builds: Path) -> Path:
    return compiled(builds, "feed")


@dataclass(frozen=True)
class Fed:
    """What the collector wrote, and how it fared: `enum failure` and bytes allocated."""

    recorded: Recorded
    failed: int
    allocated: int


def fed(feed: Path, folder: Path, script: str, *limits: int) -> Fed:
    stream = folder / "stream"
    done = subprocess.run([feed, stream, *map(str, limits)], input=script, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    said = dict(line.split() for line in done.stdout.splitlines()[-2:])
    return Fed(read_stream(stream), int(said["failed"]), int(said["allocated"]))


def script(interval: int, slack: int, most: int, blocks: Sequence[int], events: Sequence[int], ending: int = 0) -> str:
    """Blocks 0.. of so many instructions, all in one image and markable, executed in the order of `events`."""
    lines = [f"start {interval} {slack} {most}", "image 0 /bin/program"]
    lines += [f"block 1 {64 * i} 40 {n} 1" for i, n in enumerate(blocks)]
    lines += [f"run {event} 1" for event in events]
    return "\n".join([*lines, f"finish {ending}"]) + "\n"


def rows(recorded: Recorded) -> list[list[int]]:
    found: list[list[int]] = recorded.counts.toarray().tolist()
    return found


def candidates_of(recorded: Recorded, boundary: int) -> list[tuple[int, int]]:
    """(block, distance) behind a boundary."""
    c = recorded.candidates
    chosen = c.boundary == boundary
    return list(zip(c.block[chosen].tolist(), c.distance[chosen].tolist(), strict=True))


def test_instructions_are_told_apart(builds: Path) -> None:
    done = subprocess.run([compiled(builds, "code")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_compiles_without_a_c_library_and_as_cpp(tmp_path: Path) -> None:
    strict = ["-Wall", "-Wextra", "-Werror"]
    freestanding = ["cc", "-std=c11", "-O2", "-ffreestanding", "-Wconversion", *strict, "-c", "-o", tmp_path / "c.o"]
    subprocess.run([*freestanding, COLLECTOR / "collector.c"], check=True)
    undefined = subprocess.run(["nm", "-u", tmp_path / "c.o"], capture_output=True, text=True, check=True).stdout
    assert undefined.split() == []
    (tmp_path / "glue.cpp").write_text(
        '#include "collector.h"\nvoid f(collector *c, block *b) { collector_execute(c, b); }\n'
    )
    subprocess.run(["g++", *strict, f"-I{COLLECTOR}", "-c", "-o", tmp_path / "g.o", tmp_path / "glue.cpp"], check=True)


# -- intervals


def test_a_block_belongs_to_the_interval_it_begins_in(feed: Path, tmp_path: Path) -> None:
    recorded = fed(feed, tmp_path, script(10, 0, 0, [4, 3], [0, 0, 0, 1, 1, 1, 0])).recorded
    # Instructions 0-3, 4-7, 8-11 | 12-14, 15-17, 18-20 | 21-24.
    assert rows(recorded) == [[3, 0], [0, 3], [1, 0]]
    assert recorded.lengths.tolist() == [12, 9, 4] and recorded.ending is Ending.PROGRAM_ENDED
    assert recorded.interval == 10 and recorded.instructions.tolist() == [4, 3]
    assert np.allclose(recorded.seconds, 1e-6)


def test_boundaries_do_not_drift(feed: Path, tmp_path: Path) -> None:
    """Seven does not divide a thousand: with a reset at each boundary 14 of 100 intervals would be lost."""
    recorded = fed(feed, tmp_path, script(1000, 0, 0, [7], [0] * 14_290)).recorded
    assert len(recorded.lengths) == 101
    begins = np.concatenate([[0], np.cumsum(recorded.lengths)[:-1]])
    assert ((begins >= 1000 * np.arange(101)) & (begins < 1000 * np.arange(101) + 7)).all()


def test_a_run_that_ends_at_a_boundary_has_no_empty_interval(feed: Path, tmp_path: Path) -> None:
    assert rows(fed(feed, tmp_path, script(10, 0, 0, [5], [0, 0, 0, 0])).recorded) == [[2], [2]]
    assert rows(fed(feed, tmp_path, script(10, 0, 0, [5], [])).recorded) == []


def test_a_block_longer_than_an_interval_leaves_empty_ones_behind(feed: Path, tmp_path: Path) -> None:
    recorded = fed(feed, tmp_path, script(10, 3, 0, [35, 1], [1, 0, 1, 1, 1, 1, 1])).recorded
    # Block 0 is instructions 1 to 35, past the boundaries at 10, 20 and 30.
    assert rows(recorded) == [[1, 1], [0, 0], [0, 0], [0, 4], [0, 1]]
    assert candidates_of(recorded, 3) == [], "its window was over before it began"
    assert candidates_of(recorded, 4) == [(1, 0)]


def test_counts_have_64_bits(feed: Path, tmp_path: Path) -> None:
    billions = 2_000_000_000
    text = f"start {1 << 61} 0 0\nimage 0 /x\nblock 1 0 9 {billions} 0\nrun 0 3\nfinish 0\n"
    recorded = fed(feed, tmp_path, text).recorded
    assert recorded.lengths.tolist() == [3 * billions]
    assert recorded.offset.tolist() == [0]


def test_equal_blocks_are_one(feed: Path, tmp_path: Path) -> None:
    text = (
        "start 100 0 0\nimage 0 /a\nimage 1 /b\nimage 0 /a\nblock 1 8 9 2 1\nblock 1 8 9 2 1\nblock 2 8 9 2 1\n"
        "block 1 8 9 3 1\nblock 1 8 10 2 1\nblock 0 8 9 2 1\nrun 0 1\nrun 1 1\nrun 2 1\nrun 3 1\nrun 4 1\nfinish 1\n"
    )
    recorded = fed(feed, tmp_path, text).recorded
    assert [(p, int(o)) for p, o in recorded.images] == [("/a", 0), ("/b", 1)]
    assert recorded.image.tolist() == [0, 1, 0, 0, -1] and recorded.size.tolist() == [9, 9, 9, 10, 9]
    assert recorded.ending is Ending.THREAD_STARTED


# -- markers


def test_candidates_have_their_exact_distance(feed: Path, tmp_path: Path) -> None:
    recorded = fed(feed, tmp_path, script(20, 9, 0, [4, 3, 2], [0] * 6 + [1, 0, 1, 2, 0, 0, 0])).recorded
    # 20 lies behind the fifth block 0; the window is 20 to 28 and holds the blocks that begin at 20, 24, 27.
    assert candidates_of(recorded, 1) == [(0, 0), (1, 4), (0, 7)][:2]
    # Instructions: block 2 begins at 34, the last blocks 0 at 36, 40, 44.
    assert candidates_of(recorded, 2) == [(0, 0)]


def test_candidates_begin_behind_the_overshoot(feed: Path, tmp_path: Path) -> None:
    recorded = fed(feed, tmp_path, script(20, 9, 0, [7, 3], [0, 0, 0, 1, 1, 1])).recorded
    assert candidates_of(recorded, 1) == [(1, 1)], "a block of seven ends one behind the boundary"


def test_the_rarest_is_the_last_and_the_number_is_bounded(feed: Path, tmp_path: Path) -> None:
    often = [i for i in range(200) for _ in range(400 - 2 * i)]
    recorded = fed(feed, tmp_path, script(len(often), 500, 0, [1] * 200, [*often, *range(200), *often])).recorded
    found = [block for block, _ in candidates_of(recorded, 1)]
    assert found[:8] == list(range(8)), "the first few, whatever they are"
    executions = [400 - 2 * block for block in found]
    assert 9 < len(found) <= 32
    assert all(b < 0.76 * a for a, b in pairwise(executions[8:]))
    assert executions[-1] < 1.4 * 2 and executions[-1] == min(executions)


def test_only_code_that_can_be_marked_is_a_candidate(feed: Path, tmp_path: Path) -> None:
    text = (
        "start 4 3 0\nimage 0 /x\nblock 1 0 9 1 0\nblock 0 0 9 1 1\nblock 1 9 9 1 1\n"
        + "run 0 1\nrun 1 1\nrun 2 1\n" * 3
    )
    recorded = fed(feed, tmp_path, f"{text}finish 0\n").recorded
    assert set(recorded.candidates.block.tolist()) == {2}


def test_a_window_cut_short_by_the_end_is_written(feed: Path, tmp_path: Path) -> None:
    assert candidates_of(fed(feed, tmp_path, script(10, 9, 0, [5], [0, 0, 0])).recorded, 1) == [(0, 0)]


@dataclass(frozen=True)
class Model:
    """What the collector must find, computed with whole lists."""

    rows: list[list[int]]
    first: list[dict[int, int]]

    @staticmethod
    def of(interval: int, blocks: Sequence[int], events: Sequence[int]) -> Model:
        begins = np.concatenate([[0], np.cumsum([blocks[e] for e in events])]).astype(int)
        count = max(int(begins[-2]) // interval + 1, int(begins[-1]) // interval) if events else 0
        table = [[0] * len(blocks) for _ in range(count)]
        first: list[dict[int, int]] = [{} for _ in range(count)]
        for event, begin in zip(events, begins.tolist(), strict=False):
            table[begin // interval][event] += 1
            first[begin // interval].setdefault(event, begin % interval)
        return Model(table, first)


def filled(table: list[list[int]]) -> list[list[int]]:
    """Without the empty intervals that a long block leaves at the end: how many of them depends on the doubling."""
    while table and not any(table[-1]):
        table = table[:-1]
    return table


@given(
    interval=st.integers(1, 60),
    slack=st.integers(0, 59),
    blocks=st.lists(st.integers(1, 70), min_size=1, max_size=6),
    data=st.data(),
)
@settings(deadline=None, max_examples=60)
def test_the_collector_agrees_with_its_model(
    feed: Path,
    tmp_path_factory: pytest.TempPathFactory,
    interval: int,
    slack: int,
    blocks: list[int],
    data: st.DataObject,
) -> None:
    slack = min(slack, interval - 1)
    events = data.draw(st.lists(st.integers(0, len(blocks) - 1), max_size=80))
    most = data.draw(st.sampled_from([0, 0, 2, 4, 8]))
    recorded = fed(feed, tmp_path_factory.mktemp("model"), script(interval, slack, most, blocks, events)).recorded
    assert recorded.interval in ([interval] if not most else [interval << k for k in range(30)])
    model = Model.of(recorded.interval, blocks, events)
    assert filled(rows(recorded)) == filled(model.rows)
    assert not most or len(rows(recorded)) <= most
    assert recorded.lengths.tolist() == [sum(n * b for n, b in zip(row, blocks, strict=True)) for row in rows(recorded)]
    c = recorded.candidates
    for boundary, block, distance in zip(c.boundary.tolist(), c.block.tolist(), c.distance.tolist(), strict=True):
        assert distance < slack * recorded.interval // interval or distance == 0
        if boundary < len(model.rows):
            assert model.first[boundary][block] == distance


def test_the_window_grows_with_the_interval(feed: Path, tmp_path: Path) -> None:
    """After eight intervals of ten the ninth ends at 100, and three more instructions are watched than before."""
    blocks = [1] * 12
    recorded = fed(feed, tmp_path, script(10, 3, 8, blocks, [*[0] * 100, *range(1, 12), *[0] * 40])).recorded
    assert recorded.interval == 20 and len(recorded.lengths) == 8
    assert candidates_of(recorded, 5) == [(1, 0), (2, 1), (3, 2), (4, 3), (5, 4), (6, 5)]


# -- memory and failures


def test_memory_does_not_grow_with_the_run(feed: Path, tmp_path: Path) -> None:
    """Ten million million instructions: recorded blocks stand for whole interval's worth of them."""
    blocks = [100_000_000 // 50 - i for i in range(50)]
    start = "start 100000000 1000000 1000\nimage 0 /x\n" + "".join(
        f"block 1 {9 * i} 9 {n} 1\n" for i, n in enumerate(blocks)
    )
    turn = "".join(f"run {i} 1\n" for i in range(50))
    once = fed(feed, tmp_path, start + turn + "finish 0\n")
    often = fed(feed, tmp_path, start + turn * 20_000 + "finish 0\n")
    assert often.allocated == once.allocated
    assert int(often.recorded.lengths.sum()) > 1.9e12 and len(often.recorded.lengths) <= 1000
    assert (tmp_path / "stream").stat().st_size < 6000 * (28 + 50 * 12 + 32 * 12)


def test_what_is_fed_from_a_recording_is_what_single_executions_write(feed: Path, tmp_path: Path) -> None:
    """scripts/benchmarks/exact/feed_collector.c executes a block many times at once where no boundary is near."""
    sizes = [40_000, 1, 2_999_999, 123_457]
    intervals = [[(0, 700), (1, 5), (3, 300)], [(2, 11), (1, 7), (0, 1700)], [(3, 150), (2, 30)]]
    recording = struct.pack("<II", len(sizes), len(intervals))
    recording += b"".join(struct.pack("<IQII", 1, 64 * i, 40, size) for i, size in enumerate(sizes))
    for entries in intervals:
        recording += struct.pack("<I", len(entries)) + b"".join(struct.pack("<IQ", *entry) for entry in entries)
    (tmp_path / "recording").write_bytes(recording)
    source = ROOT / "scripts" / "benchmarks" / "exact" / "feed_collector.c"
    command = ["cc", *SANITIZED[1:], "-std=gnu11", f"-I{COLLECTOR}", "-o", str(tmp_path / "feeder"), str(source)]
    subprocess.run([*command, str(COLLECTOR / "collector.c")], check=True)
    wanted = 20 * sum(sizes[block] * times for entries in intervals for block, times in entries) - 10**8
    done = subprocess.run(
        [tmp_path / "feeder", tmp_path / "recording", str(wanted)], check=True, capture_output=True, text=True,
        env={"ASAN_OPTIONS": "detect_leaks=0"},
    )  # fmt: skip
    *_, instructions, written, passes = map(int, done.stdout.split())
    singly = "start 100000000 1000000 20000\nimage 0 /image-1\n"
    singly += "".join(f"block 1 {64 * i} 40 {size} 1\n" for i, size in enumerate(sizes))
    turn = "".join(f"run {block} {times}\n" for entries in intervals for block, times in entries)
    single = fed(feed, tmp_path, singly + turn * passes + "finish 0\n")
    assert passes == 20 and int(single.recorded.lengths.sum()) == instructions
    assert (tmp_path / "stream").stat().st_size == written
    assert len(single.recorded.candidates.block) > 20


@pytest.mark.parametrize("room", [0, 100, 70_000, 140_000])
def test_a_full_disk_ends_the_stream_not_the_run(feed: Path, tmp_path: Path, room: int) -> None:
    whole = fed(feed, tmp_path, script(10, 3, 0, [1] * 9, list(range(9)) * 3000))
    assert whole.failed == 0
    cut = fed(feed, tmp_path, script(10, 3, 0, [1] * 9, list(range(9)) * 3000), room)
    assert cut.failed == 2 and cut.recorded.ending is None
    assert rows(cut.recorded) == rows(whole.recorded)[: len(cut.recorded.lengths)]


@pytest.mark.parametrize("allocations", [0, 1])
def test_no_memory_is_noticed(feed: Path, tmp_path: Path, allocations: int) -> None:
    assert fed(feed, tmp_path, script(10, 3, 0, [1], [0]), 1 << 30, allocations).failed == 1


def test_every_truncation_is_noticed(feed: Path, tmp_path: Path) -> None:
    fed(feed, tmp_path, script(10, 9, 4, [3, 4], [0, 1] * 12))
    stream = tmp_path / "stream"
    data = stream.read_bytes()
    assert read_stream(stream).ending is Ending.PROGRAM_ENDED
    for size in range(len(data)):
        stream.write_bytes(data[:size])
        assert read_stream(stream).ending is None, size


@given(data=st.data())
@settings(deadline=None, max_examples=200)
def test_any_bytes_are_read_or_refused(
    feed: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.getbasetemp() / "damaged"
    folder.mkdir(exist_ok=True)
    sound = folder / "sound"
    if not sound.exists():
        fed(feed, folder, script(10, 9, 4, [3, 4], [0, 1] * 12))
        (folder / "stream").rename(sound)
    content = bytearray(sound.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    (folder / "broken").write_bytes(content)
    try:
        read = read_stream(folder / "broken")
    except ProbeFileDamaged:
        return
    read.counts.check_format(full_check=True)


def test_another_version_and_no_stream_are_refused(feed: Path, tmp_path: Path) -> None:
    fed(feed, tmp_path, script(10, 3, 0, [1], [0]))
    stream = tmp_path / "stream"
    data = bytearray(stream.read_bytes())
    data[8] = 2
    stream.write_bytes(data)
    with pytest.raises(ProbeFileDamaged, match="trace of version 2"):
        read_stream(stream)
    stream.write_bytes(b"something else, and long enough")
    with pytest.raises(ProbeFileDamaged, match="not a readable trace"):
        read_stream(stream)
    with pytest.raises(StorageError):
        read_stream(tmp_path / "none")
