# SPDX-License-Identifier: Apache-2.0
"""Broadcasts and sums that the player makes by itself: SimGrid's messages and times, without those of its set-up."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from benchmarks.mpi_scale import make_recording

from checkpoint.compiled import built
from probe.mpi.library.generate import SOURCES
from probe.mpi.play import NUMBERS
from probe.mpi.simulate import Watched, Where, simulate, watch
from probe.mpi.trace import read_calls
from probe.simulation.networks import network_of
from probe.simulation.platform import Links, write_platform
from probe.simulation.smpirun import installed, simulated

SIZES = (3, 7, 12, 20, 50, 100, 130, 260)
"""A communicator in each row of Open MPI's table, as far as SimGrid's set-up takes no minutes."""

EDGES = (8, 64, 512, 1024, 2048, 4096, 16384, 32768, 65536, 131072)
BYTES = sorted({near for edge in EDGES for near in (edge - 1, edge)})
LATENCY = 1e-6

COMPARED = f"""
#define _GNU_SOURCE
#include <math.h>
enum {{ F_Bcast, F_Ibcast, F_Scatter, F_Iscatter, F_Scatterv, F_Reduce, F_Ireduce, F_Gather, F_Igather, F_Gatherv,
	F_Igatherv, F_Iscatterv, F_Alltoall, F_Ialltoall, F_Alltoallv, F_Ialltoallv, F_Alltoallw, F_Ialltoallw, F_Scan,
	F_Exscan, F_Iscan, F_Iexscan }};
#include "{SOURCES}/costs.c"
#include "{SOURCES}/trees.c"

// Of more than SHORT ranks the other algorithms send many pieces, and take a minute.
enum {{ MOST = 1 << 17, SHORT = 50 }};
static const int sizes[] = {{{", ".join(map(str, SIZES))}}}, lengths[] = {{{", ".join(map(str, BYTES))}}};

// Of all ranks, which are threads of one process.
static double last;
static char room[4][MOST];

// Until the next whole second, when all ranks begin together.
static double begin(void)
{{
	const double next = floor(simgrid_get_clock()) + 1;
	compute(next - simgrid_get_clock());
	last = 0;
	return next;
}}

static void end(double begun)
{{
	last = fmax(last, simgrid_get_clock() - begun);
	compute(0.5);
}}

int main(int argc, char **argv)
{{
	int all, me;
	MPI_Op op;
	MPI_Init(&argc, &argv);
	MPI_Comm_size(MPI_COMM_WORLD, &all);
	MPI_Comm_rank(MPI_COMM_WORLD, &me);
	MPI_Op_create(reduce, 1, &op);
	for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {{
		MPI_Comm comm;
		MPI_Comm_split(MPI_COMM_WORLD, me < sizes[s] ? 0 : MPI_UNDEFINED, me, &comm);
		if (comm == MPI_COMM_NULL)
			continue;
		// SimGrid's set-up of the communicator, wherever it broadcasts over the tree.
		for (size_t n = 0; n < sizeof lengths / sizeof *lengths; n++)
			if (is_over_tree(sizes[s], lengths[n]))
				MPI_Bcast(room[0], lengths[n], MPI_BYTE, 0, comm);
		for (size_t n = 0; n < sizeof lengths / sizeof *lengths; n++) {{
			if (sizes[s] > SHORT && !is_over_tree(sizes[s], lengths[n]))
				continue;
			double found[4], begun = begin();
			MPI_Bcast(room[0], lengths[n], MPI_BYTE, sizes[s] / 3, comm);
			end(begun);
			found[0] = last;
			begun = begin();
			broadcast(room[1], lengths[n], MPI_BYTE, lengths[n], sizes[s] / 3, comm);
			end(begun);
			found[1] = last;
			begun = begin();
			MPI_Allreduce(room[2], room[3], lengths[n], MPI_BYTE, op, comm);
			end(begun);
			found[2] = last;
			begun = begin();
			sum_for_all(room[2], room[3], lengths[n], MPI_BYTE, lengths[n], op, comm);
			end(begun);
			found[3] = last;
			if (me == 0)
				printf("took %d %d %d %d %.12f %.12f %.12f %.12f\\n", sizes[s], lengths[n],
					is_over_tree(sizes[s], lengths[n]), is_sum_sent(sizes[s], lengths[n]), found[0],
					found[1], found[2], found[3]);
			fflush(stdout);
		}}
	}}
	MPI_Finalize();
	(void)argc, (void)receives_of, (void)begin_receives, (void)read_costs;
	return 0;
}}
"""

DELIVERED = f"""
#define _GNU_SOURCE
#include <stdio.h>
#include "{SOURCES}/trees.c"

// Every root's number comes to all ranks, whose variables are their own here.
int main(int argc, char **argv)
{{
	int all, me, wrong = 0;
	MPI_Init(&argc, &argv);
	MPI_Comm_size(MPI_COMM_WORLD, &all);
	MPI_Comm_rank(MPI_COMM_WORLD, &me);
	for (int size = 1; size <= all; size++) {{
		MPI_Comm comm;
		MPI_Comm_split(MPI_COMM_WORLD, me < size ? 0 : MPI_UNDEFINED, me, &comm);
		for (int root = 0; comm != MPI_COMM_NULL && root < size; root++) {{
			int number = me == root ? 1000 + root : -1;
			over_tree(&number, 1, MPI_INT, root, comm);
			wrong += number != 1000 + root;
		}}
	}}
	printf("rank %d: %d wrong\\n", me, wrong);
	fflush(stdout);
	MPI_Finalize();
	(void)broadcast, (void)sum_for_all;
	return 0;
}}
"""


def run(text: str, ranks: int, network: str, folder: Path, *options: str) -> str:
    """What a program prints, which is simulated with Open MPI's algorithms."""
    source = folder / "program.c"
    source.write_text(text)
    program = built(
        "program", [source], ("-O2", "-std=gnu11", "-Wall", "-Wextra", "-DPROBE_SIMULATED"),
        compiler=installed("smpicc"), place=folder,
    )  # fmt: skip
    platform = write_platform(network_of(network), ranks, Links(2e9, LATENCY), folder, cores=1)
    quietly = ("--cfg=smpi/simulate-computation:no", *options)
    return simulated(
        ranks, platform, [*quietly, str(program)], folder, 100.0, collectives=("--cfg=smpi/coll-selector:ompi",)
    ).printed  # fmt: skip


def test_times_are_those_of_simgrid_where_a_communicator_is_set_up(tmp_path: Path) -> None:
    """At both sides of each edge of the table of algorithms, and with a root that is not the first rank."""
    printed = run(COMPARED, max(SIZES), "torus:20x13", tmp_path, "--cfg=smpi/privatization:no")
    rows = np.array([line.split()[1:] for line in printed.splitlines() if line.startswith("took ")], dtype=float)
    trees = rows[:, 2] == 1
    sums = trees & (rows[:, 3] == 1)
    assert (len(rows), trees.sum(), sums.sum()) == (141, 74, 13)
    assert (rows[:, 4:] > LATENCY).all()
    assert np.abs(rows[:, 5] / rows[:, 4] - 1).max() < 1e-6
    # What the same call takes twice differs by some percent where ranks come in another order, and long messages meet.
    assert np.abs(rows[sums, 7] / rows[sums, 6] - 1).max() < 0.01


def test_what_the_root_has_comes_to_all_ranks(tmp_path: Path) -> None:
    printed = run(DELIVERED, 37, "torus:37", tmp_path)
    assert printed.count(": 0 wrong\n") == 37


def sums_of(found: Watched, folder: Path) -> Iterator[float]:
    """Seconds of each sum, from the last rank that came to the last that left."""
    numbers = np.flatnonzero(read_calls(folder, 0).calls["function"] == NUMBERS["Allreduce"])
    for number in numbers:
        yield max(one[number, 1] for one in found.calls) - max(one[number, 0] for one in found.calls)


def cpu_of(folder: Path, sums: bool) -> float:
    folder.mkdir()
    recording = make_recording(folder, (16, 16), 60, sums=sums)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    simulate(recording, Where(network="torus:16x16"))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_the_first_sum_takes_no_longer_than_the_next_ones(tmp_path: Path) -> None:
    """SimGrid's set-up sent 131,000 messages in it: 4.4 ms beside 0.05 ms."""
    found = watch(make_recording(tmp_path, (16, 16), 40), Where(network="torus:16x16"))
    took = list(sums_of(found, tmp_path))
    assert len(took) == 3 and max(took) < 1.5 * min(took) and max(took) < 1e-4


def test_sums_of_many_ranks_cost_little_more_than_exchanges(tmp_path: Path) -> None:
    """256 ranks have 3 messages in a sum for 4 of an exchange. With SimGrid's set-up it was ten times as much."""
    cpu_of(tmp_path / "compiled", False)
    alone = min(cpu_of(tmp_path / f"alone{n}", False) for n in range(2))
    with_sums = min(cpu_of(tmp_path / f"sums{n}", True) for n in range(2))
    assert with_sums < 4 * alone, (alone, with_sums)
