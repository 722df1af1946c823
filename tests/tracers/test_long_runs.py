# SPDX-License-Identifier: Apache-2.0
"""A run of ten hours as the native tracer records it, with clock and counters made up, and one as a collector writes
it: intervals are joined, so that their number and what is in them is bounded, and nothing that was counted is lost."""

from __future__ import annotations

import io
import itertools
import struct
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import probe.tracers.native as native
import probe.tracers.stream as stream
from checkpoint.process.program import Program, Streams
from checkpoint.process.tracee import Occurrence, What
from checkpoint.stubs.counts import Counts
from probe.formats.arrays import FloatArray, IntArray
from probe.tracers import outside_looks
from probe.tracers.joining import join_neighbours, matrix_of, sum_of_vectors
from probe.tracers.native import DEFAULT_INTERVAL, _Recording
from probe.tracers.stream import Recorded, read_stream

HOURS = 10
MOST = 400
"""Intervals kept, in place of 20,000: the run doubles its intervals some times more often then."""

FEW = 200_000
"""Entries kept, in place of 40 million."""

COPIES = 40
"""Of the recorded blocks beside each other where entries are bounded: then they are most of the memory."""

BYTES_PER_ENTRY = 16
SPARE = 1 << 20
"""Bytes of everything but the entries: arrays' heads, the counters, what NumPy needs to join two rows."""

RECORDED = Path(__file__).parents[1] / "recorded" / "perl.npz"


class Counters:
    """What `SiteCounters` tells the tracer: totals of every block so far. The run repeats a recorded one."""

    def __init__(self, per_second: FloatArray, clock: Clock) -> None:
        self._per_second, self._clock = per_second, clock
        self.columns = per_second.shape[1]
        self.removed = np.zeros(self.columns, dtype=bool)
        self.block_instructions = np.ones(self.columns)
        self.images: list[Any] = []
        self.without_room: list[Any] = []
        self.total = np.zeros(self.columns)
        self._at = 0.0

    def read(self) -> IntArray:
        # Stretches of ten minutes, so that intervals keep to one kind of code however long they grow.
        rate = self._per_second[int(self._clock.now / 600) % len(self._per_second)]
        self.total = self.total + rate * (self._clock.now - self._at)
        self._at = self._clock.now
        return self.total.astype(np.int64)

    def read_both(self) -> tuple[Counts, Counts]:
        whole = self.read()
        ran = np.flatnonzero(whole)
        return (found := Counts(ran, whole[ran])), found

    def in_loops(self, columns: IntArray) -> IntArray:
        return columns[:0]

    def ways_out(self) -> Counts:
        return Counts()


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture(params=[1])
def recording(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[_Recording, Counters, Clock]:
    with np.load(RECORDED, allow_pickle=False) as stored:
        vectors, seconds = stored["vectors"].astype(float), stored["seconds"].astype(float)
    vectors = np.tile(vectors, (1, request.param))
    clock = Clock()
    # Cool enough that no site is removed: that is another matter.
    counters = Counters(vectors / seconds[:, None] / 1e3, clock)
    monkeypatch.setattr(native, "time", clock)
    monkeypatch.setattr(native, "run_delay", lambda pid: 0.0)
    monkeypatch.setattr(native, "running_time", lambda pid: clock.now)
    monkeypatch.setattr(native, "written_files", lambda pid: set())
    monkeypatch.setattr(outside_looks, "outside", lambda pid: [])
    monkeypatch.setattr(native, "MOST_INTERVALS", MOST)
    monkeypatch.setattr(_Recording, "cost", lambda self, columns: np.zeros(counters.columns)[columns])
    program = SimpleNamespace(argv=("program",), name="program", threads=1)
    monkeypatch.setattr(native, "repeat_answers", lambda tracee: SimpleNamespace())
    monkeypatch.setattr(_Recording, "install_new", lambda self: None)
    watch, tracee = SimpleNamespace(arm=lambda: True), SimpleNamespace(pid=1, program=program, team=None, marking=1)
    made = _Recording(tracee, watch, counters, DEFAULT_INTERVAL)  # type: ignore[arg-type]
    made.begin()
    return made, counters, clock


def test_ten_hours_are_a_bounded_number_of_intervals(recording: tuple[_Recording, Counters, Clock]) -> None:
    made, counters, clock = recording
    entries = []
    for _ in itertools.takewhile(lambda _: clock.now < HOURS * 3600, itertools.count()):
        clock.now += made.interval
        assert made.look(end_row=True)
        assert len(made.rows) == len(made.seconds) <= MOST
        entries.append(sum(len(row.columns) for row in made.rows) if len(made.rows) % 50 == 0 else 0)
    assert made.interval / DEFAULT_INTERVAL == 2 ** round(np.log2(made.interval / DEFAULT_INTERVAL)) >= 1024
    assert len(made.rows) >= MOST // 2
    # Memory is that of the rows: no more after hours than when they were first full.
    assert max(entries) <= MOST * counters.columns
    assert max(entries[len(entries) // 2 :]) <= 1.2 * max(entries[: MOST + 1])
    assert sum(made.seconds) == pytest.approx(clock.now)
    assert sum(row.seconds for row in made.rows) == pytest.approx(clock.now)
    assert np.array_equal(totals(made), counters.total.astype(np.int64))


def totals(made: _Recording) -> IntArray:
    """Executions of every block in all rows."""
    found = np.zeros(made.counters.columns, dtype=np.int64)
    for row in made.rows:
        found[row.columns] += row.executions
    return found


@pytest.mark.parametrize("recording", [COPIES], indirect=True)
def test_memory_is_bounded_by_entries_too(
    recording: tuple[_Recording, Counters, Clock], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many intervals as before would hold several times as much."""
    made, counters, clock = recording
    monkeypatch.setattr(native, "MOST_INTERVALS", 1 << 40)
    monkeypatch.setattr(native, "MOST_ENTRIES", FEW)
    made.look(end_row=False)
    tracemalloc.start()
    try:
        for _ in itertools.takewhile(lambda _: clock.now < HOURS * 3600, itertools.count()):
            clock.now += made.interval
            assert made.look(end_row=True)
            assert made.entries == sum(len(row.columns) for row in made.rows) <= FEW
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # All kept, and the two rows being joined; not a second copy of all.
    assert peak < BYTES_PER_ENTRY * FEW + SPARE
    unbounded = clock.now / DEFAULT_INTERVAL * len(made.rows[-1].columns)
    assert BYTES_PER_ENTRY * unbounded > 10 * peak
    assert len(made.rows) == len(made.seconds) > 20
    assert sum(made.seconds) == pytest.approx(clock.now)
    assert np.array_equal(totals(made), counters.total.astype(np.int64))


def test_one_row_is_kept_whatever_is_in_it(
    recording: tuple[_Recording, Counters, Clock], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, counters, clock = recording
    monkeypatch.setattr(native, "MOST_ENTRIES", 1)
    for _ in range(10):
        clock.now += made.interval
        assert made.look(end_row=True)
    assert len(made.rows) == 1 and np.array_equal(totals(made), counters.total.astype(np.int64))


def test_what_was_joined_is_a_profile(recording: tuple[_Recording, Counters, Clock], tmp_path: Path) -> None:
    made, counters, clock = recording
    for _ in range(3 * MOST):
        clock.now += made.interval
        made.look(end_row=True)
    streams = Streams(tmp_path / "out", tmp_path / "err")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counters, "installed", 0, raising=False)
        patch.setattr(native, "blocks_of", lambda counters, columns: SimpleNamespace(site=columns))
        profile = native._profile(Program(("made",), "/made", "/"), made, clock.now, streams)
    assert profile.intervals <= MOST and profile.interval == made.interval > DEFAULT_INTERVAL
    assert profile.seconds.sum() == pytest.approx(clock.now)
    assert profile.counts.sum() == counters.total.astype(np.int64).sum()


# -- the instruction-exact tracers


def written(vectors: IntArray, doubled_at: int, length: int = 1000) -> bytes:
    """The stream of a collector: an interval for each vector, with the boundary's number as its candidate's distance.

    Lengths double after so many intervals, as the collector's do: two vectors make an interval then.
    """
    out = io.BytesIO()
    out.write(stream._HEAD.pack(stream._MAGIC, stream.VERSION, length, 0))
    for number in range(vectors.shape[1]):
        out.write(stream._KIND.pack(stream._BLOCK) + stream._BLOCK_RECORD.pack(0, 64 * number, 8, 2))
    parts = [(length, v) for v in vectors[:doubled_at]]
    parts += [(2 * length, v) for v in vectors[doubled_at:].reshape(-1, 2, vectors.shape[1]).sum(axis=1)]
    done = 0
    for nominal, vector in parts:
        blocks = np.flatnonzero(vector)
        entries = np.zeros(len(blocks), dtype=stream._ENTRY)
        entries["block"], entries["value"] = blocks, vector[blocks]
        head = stream._INTERVAL_RECORD.pack(len(blocks), nominal, nominal, nominal)
        out.write(stream._KIND.pack(stream._INTERVAL) + head + entries.tobytes())
        done += nominal
        out.write(stream._KIND.pack(stream._CANDIDATES) + stream._CANDIDATES_RECORD.pack(1))
        out.write(struct.pack("<IQ", int(blocks[0]), done))
    out.write(stream._KIND.pack(stream._END) + stream._END_RECORD.pack(0, done))
    return out.getvalue()


def repeated(times: int) -> IntArray:
    """A real run's vectors, over and over, and beside each other."""
    with np.load(RECORDED, allow_pickle=False) as stored:
        vectors = stored["vectors"].astype(np.int64)
    even = vectors[: len(vectors) // 2 * 2]
    return np.tile(even, (times, COPIES))


def read(path: Path, most: int, monkeypatch: pytest.MonkeyPatch) -> Recorded:
    monkeypatch.setattr(stream, "MOST_ENTRIES", most)
    return read_stream(path)


@pytest.mark.parametrize("share", [1.0, 0.5, 0.25])
def test_a_long_stream_is_bounded_by_entries(share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the collector doubled its intervals before or after the reader did, they are the same in the end."""
    vectors = repeated(8)
    path = tmp_path / "stream"
    path.write_bytes(written(vectors, int(share * len(vectors)) // 2 * 2))
    whole = read(path, 1 << 40, monkeypatch)
    tracemalloc.start()
    try:
        found = read(path, FEW, monkeypatch)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # The rows, and the array of them all that is made in the end.
    assert peak < 2 * BYTES_PER_ENTRY * FEW + SPARE
    assert found.counts.nnz <= FEW < whole.counts.nnz / 4
    factor = found.interval // whole.interval
    assert found.interval == factor * whole.interval and factor.bit_count() == 1 < factor
    rows = -(-whole.counts.shape[0] // factor)
    assert len(found.lengths) == len(found.seconds) == rows
    starts = np.arange(0, whole.counts.shape[0], factor)
    assert np.array_equal(found.lengths, np.add.reduceat(whole.lengths, starts))
    assert found.seconds == pytest.approx(np.add.reduceat(whole.seconds, starts))
    assert np.array_equal(found.counts.toarray(), np.add.reduceat(whole.counts.toarray(), starts, axis=0))
    # Of the boundaries those are left at which a joined interval begins.
    assert np.array_equal(found.candidates.distance, found.candidates.boundary * found.interval)
    assert len(found.candidates.boundary) == whole.counts.shape[0] // factor


def test_intervals_are_as_long_as_asked_for(
    recording: tuple[_Recording, Counters, Clock], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though a look begins a moment before it notes the time, and that is when its interval ends."""
    made, _, clock = recording

    def wait(seconds: float) -> Occurrence:
        clock.now += seconds
        return Occurrence(What.TIMEOUT if clock.now < 100 * DEFAULT_INTERVAL else What.ENDED)

    def monotonic() -> float:
        clock.now += 1e-5
        return clock.now

    monkeypatch.setattr(made.tracee, "wait", wait, raising=False)
    monkeypatch.setattr(clock, "monotonic", monotonic)
    monkeypatch.setattr(native, "judge_early", lambda *_, soon: None)
    assert native._record(made, None, False) == 0
    assert 90 < len(made.seconds) <= 100
    assert made.seconds == pytest.approx([DEFAULT_INTERVAL] * len(made.seconds), rel=0.01)


# -- joining


@settings(deadline=None)
@given(st.lists(st.dictionaries(st.integers(0, 30), st.integers(1, 1 << 40), max_size=12), max_size=9))
def test_neighbours_are_summed_and_an_odd_one_stays(rows: list[dict[int, int]]) -> None:
    vectors = [(np.array(sorted(r), dtype=np.int64), np.array([r[c] for c in sorted(r)], dtype=np.int64)) for r in rows]
    lengths = [len(columns) for columns, _ in vectors]
    before = matrix_of(lengths, vectors, 31).toarray()
    join_neighbours(vectors, sum_of_vectors)
    after = matrix_of([len(columns) for columns, _ in vectors], vectors, 31)
    assert after.has_canonical_format
    padded = np.vstack([before, np.zeros((len(rows) % 2, 31), dtype=np.int64)])
    assert np.array_equal(after.toarray(), padded.reshape(-1, 2, 31).sum(axis=1))
