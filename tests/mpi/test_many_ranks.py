# SPDX-License-Identifier: Apache-2.0
"""Many ranks and long recordings: what is held in memory of them, and that this changes no simulated time."""

from __future__ import annotations

import gc
import resource
import struct
import subprocess
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from benchmarks.mpi_scale import make_recording
from mpi_parts import call, part

from checkpoint.compiled import built
from checkpoint.errors import ProgramUnsupported
from probe.mpi.library.generate import SOURCES
from probe.mpi.parts import END
from probe.mpi.play import ENDS, NUMBERS, STEP, write_play
from probe.mpi.probes import building
from probe.mpi.recording import RankRun, Recording
from probe.mpi.simulate import Prepared, Where, prepared, simulate, watch
from probe.mpi.trace import RankCalls, read_calls

OPTIONS = ("-O1", "-g", "-std=gnu11", "-Wall", "-Wextra", "-Werror")
SANITIZED = (*OPTIONS, "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
WINDOW = 1 << 14

READER = f"""
#define _GNU_SOURCE
#include "{SOURCES}/recording.h"
enum {{ PATH_SIZE = 4096 }};
#include "{SOURCES}/steps.c"

// Reads the steps of rank 0 as the player does, prints a sum of each, and writes two times for each.
int main(int argc, char **argv)
{{
	Window *window = begin_window(argv[1], 0);
	Times *times = begin_times(argv[1], 0);
	const char *found;
	int quiet = argc > 2;
	for (uint64_t at = 0, number = 0; (found = seen(window, at, 48)) != NULL; number++) {{
		int32_t extras, sum = 0;
		memcpy(&extras, found + 36, sizeof extras);
		const uint64_t whole = 48 + padded((uint64_t)extras * 4);
		const char *behind = seen(window, at, whole) + 48;
		for (int32_t n = 0; n < extras; n++) {{
			int32_t one;
			memcpy(&one, behind + n * 4, sizeof one);
			sum += one;
		}}
		if (!quiet)
			printf("%d\\n", sum);
		add_times(times, (double)number, (double)number + 0.5);
		at += whole;
	}}
	flush_times(times);
	free(times->seconds);
	free(times);
	end_window(window);
	return 0;
}}
"""


def step(extras: list[int]) -> bytes:
    one = np.zeros((), dtype=STEP)
    one["extras"] = len(extras)
    return one.tobytes() + struct.pack(f"<{len(extras)}i", *extras) + bytes(len(extras) % 2 * 4)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "reader.c"
    path.write_text(READER)
    return path


def test_steps_at_every_place_of_the_window(source: Path, tmp_path: Path) -> None:
    """Steps and their numbers that end before, at and behind the window's end, and such as are larger than it."""
    reader = built("reader", [source], SANITIZED, place=tmp_path)
    words = WINDOW // 4
    lengths = [0, 1, words - 24, words - 23, words - 12, words - 13, words, 3 * words + 1, 0, 0, 5]
    lengths += [n % 61 for n in range(3000)]
    steps = [list(range(n, n + length)) for n, length in enumerate(lengths)]
    (tmp_path / "play.0").write_bytes(b"".join(map(step, steps)))
    done = subprocess.run([reader, tmp_path], capture_output=True, text=True, check=True)
    assert [int(line) for line in done.stdout.split()] == [sum(one) for one in steps]
    times = np.fromfile(tmp_path / "times.0").reshape(-1, 2)
    assert times[:, 0].tolist() == list(range(len(steps))) and (times[:, 1] - times[:, 0] == 0.5).all()


@pytest.mark.parametrize("cut", [4, 8, 48, 60])
def test_steps_that_are_cut_short(source: Path, tmp_path: Path, cut: int) -> None:
    reader = built("reader", [source], SANITIZED, place=tmp_path)
    (tmp_path / "play.0").write_bytes((step([1]) * 400 + step(list(range(40))))[:-cut])
    done = subprocess.run([reader, tmp_path], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, f"probe: {tmp_path}/play.0 is cut short\n")


def test_no_steps_at_all(source: Path, tmp_path: Path) -> None:
    reader = built("reader", [source], SANITIZED, place=tmp_path)
    done = subprocess.run([reader, tmp_path], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, f"probe: {tmp_path}/play.0 cannot be read\n")


def test_a_long_recording_is_read_and_timed_in_little_memory(source: Path, tmp_path: Path) -> None:
    reader = built("reader", [source], OPTIONS, place=tmp_path)
    with (tmp_path / "play.0").open("wb") as file:
        file.truncate(96_000_000)

    def bounded() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (16_000_000, 16_000_000))

    subprocess.run([reader, tmp_path, "quiet"], check=True, preexec_fn=bounded)
    assert (tmp_path / "times.0").stat().st_size == 2_000_000 * 16


# -- requests


def steps_of(path: Path) -> list[tuple[np.ndarray, np.ndarray]]:
    """Views of the steps of a file of the player, and of the numbers behind each."""
    data = np.fromfile(path, dtype="<i4")
    found, at = [], 0
    while at < len(data):
        one = data[at : at + 12].view(STEP)
        count = int(one["extras"][0])
        found.append((one, data[at + 12 : at + 12 + count]))
        at += 12 + count + count % 2
    return found


def as_numbered_by_the_recorder(recording: Recording, plays: Path, folder: Path) -> None:
    """The same files with the requests' own numbers, of which no two are equal."""
    for rank in range(len(recording.ranks)):
        calls = read_calls(recording.folder, rank)
        made = []
        for number, (one, extras) in enumerate(steps_of(plays / f"play.{rank}")):
            changed = one.copy()
            changed["request"] = calls.calls["request"][number] + 1
            if int(one["function"][0]) in ENDS:
                extras = calls.extras_of(number)[::3] + 1
            made.append(changed.tobytes() + extras.tobytes() + bytes(len(extras) % 2 * 4))
        (folder / f"play.{rank}").write_bytes(b"".join(made))


def test_requests_take_places_that_are_free_and_times_are_the_same_to_the_last_digit(tmp_path: Path) -> None:
    recording = make_recording(tmp_path, (3, 3), 400)
    where = Where(network="torus:3x3")
    with prepared(recording) as plays:
        places = {int(one["request"][0]) for one, _ in steps_of(plays.folder / "play.4")}
        # Of 312 requests eight are open at once; calls without a request have none.
        assert places == set(range(9))
        (tmp_path / "plain").mkdir()
        as_numbered_by_the_recorder(recording, plays.folder, tmp_path / "plain")
        plain = Prepared(tmp_path / "plain", plays.played)
        assert (tmp_path / "plain" / "play.4").read_bytes() != (plays.folder / "play.4").read_bytes()
        ours, theirs = (watch(recording, where, plays=one) for one in (plays, plain))
    assert [one.tobytes() for one in ours.calls] == [one.tobytes() for one in theirs.calls]
    assert ours.simulated.ranks == theirs.simulated.ranks


def one_rank(folder: Path, made: list[bytes], ranks: int = 2) -> RankCalls:
    body = b"".join([*made, call(END)])
    (folder / "calls.0.000").write_bytes(part("calls", 0, ranks, 0, body))
    return read_calls(folder, 0)


def test_a_request_that_is_not_open_has_no_place(tmp_path: Path) -> None:
    """One that was completed already, that was never begun, or that stands twice in a wait."""
    begin = call(NUMBERS["Isend"], peer=1, request=7, count=1, element=8)
    write_play(one_rank(tmp_path, [
        call(NUMBERS["Wait"], comm=-1, extras=[7, -1, 0]), begin,
        call(NUMBERS["Waitall"], comm=-1, extras=[7, -1, 0, 7, -1, 0]), begin, begin,
        call(NUMBERS["Ibarrier"], request=9), call(NUMBERS["Waitall"], comm=-1, extras=[9, -1, 0, 7, -1, 0]),
    ]), tmp_path)  # fmt: skip
    found = steps_of(tmp_path / "play.0")
    assert [int(one["request"][0]) for one, _ in found] == [0, 1, 0, 1, 1, 2, 0]
    assert [extras.tolist() for _, extras in found] == [[0], [], [1, 0], [], [], [], [2, 1]]


# -- room


def test_room_is_that_of_the_messages(tmp_path: Path) -> None:
    """Neither tags nor numbers of requests are bytes, and a sum over all ranks is as long as that of one."""
    sizes = [
        (call(NUMBERS["Waitall"], comm=-1, extras=[1, 2, 2**31 - 1]), 0),
        (call(NUMBERS["Allreduce"], count=2**26, element=8), 2**29),
        (call(NUMBERS["Allgather"], count=2**10, element=8), 2**13 * 6),
        (call(NUMBERS["Sendrecv"], peer=-1, count=2**27, element=8, extras=[2**31 - 1, 24]), 2**30),
        (call(NUMBERS["Sendrecv"], peer=1, count=1, element=8, extras=[3, 4096]), 4096),
        (call(NUMBERS["Gatherv"], other=0, count=1, element=8, extras=[1, 2, 3, 4, 5, 600]), 615),
    ]
    for made, wanted in sizes:
        assert write_play(one_rank(tmp_path, [made], ranks=6), tmp_path).largest == wanted


def test_ranks_share_their_buffers(tmp_path: Path) -> None:
    """A pair of 600 MB for each of 64 ranks is 76,800 mappings, more than a process may have."""
    send = call(NUMBERS["Send"], peer=-1, count=600 << 20, element=1)
    for rank in range(64):
        body = send + call(NUMBERS["Finalize"]) + call(END)
        (tmp_path / f"calls.{rank}.000").write_bytes(part("calls", rank, 64, 0, body))
    runs = tuple(RankRun(rank, "/bin/true", "/", ("true",), kept=False) for rank in range(64))
    recording = Recording(tmp_path, ("mpirun",), "Open MPI", "mpicc", 1.0, {"/bin/true": "0"}, runs)
    assert simulate(recording, Where(network="torus:8x8")).calls == 128


def test_calls_of_one_rank_at_a_time_are_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = make_recording(tmp_path, (4, 4), 60)
    read: list[weakref.ref[RankCalls]] = []
    most = []

    def watched(folder: Path, rank: int) -> RankCalls:
        gc.collect()
        most.append(sum(one() is not None for one in read))
        found = read_calls(folder, rank)
        read.append(weakref.ref(found))
        return found

    monkeypatch.setattr(building, "read_calls", watched)
    runs = tuple(replace(run, kept=False) for run in recording.ranks)
    with pytest.raises(ProgramUnsupported, match="none of the ranks"):
        building.build_mpi(replace(recording, ranks=runs), tmp_path / "made")
    assert len(most) == 16 and max(most) <= 1
