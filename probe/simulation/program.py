# SPDX-License-Identifier: Apache-2.0
"""MPI programs in C of an application's plan: its loops as they stand, or every turn written out."""

from __future__ import annotations

from collections.abc import Iterator

from checkpoint.errors import ModelInvalid
from probe.models.communication import Collective, Exchange, Grid, size_of
from probe.simulation.plan import Compute, Loop, Step, datatype, length, refuse_unfit, unrolled_once, values

MOST_STATEMENTS = 100_000
"""Of a program written out: compilers take minutes for more."""

_HEAD = """\
// Made by probe model generate from {source}: {ranks} ranks in a grid of {x} x {y} x {z}.
// Computing takes its time in a loop; under SimGrid's SMPI it is simulated instead.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum {{ X = {x}, Y = {y}, Z = {z}, LARGEST = {largest} }};
static int rank, ranks;
static char *sent, *received[27];

__attribute__((unused)) static void compute(double seconds)
{{
#ifdef SMPI_H
    smpi_execute(seconds);
#else
    for (double end = MPI_Wtime() + seconds; MPI_Wtime() < end;)
        ;
#endif
}}

// The rank so many steps away in the grid, or -1 where there is none.
__attribute__((unused)) static int neighbour(int dx, int dy, int dz, int periodic)
{{
    int x = rank % X + dx, y = rank / X % Y + dy, z = rank / (X * Y) + dz;
    if (periodic) {{
        x = (x % X + X) % X;
        y = (y % Y + Y) % Y;
        z = (z % Z + Z) % Z;
    }}
    if (x < 0 || x >= X || y < 0 || y >= Y || z < 0 || z >= Z)
        return -1;
    int other = x + X * (y + Y * z);
    return other == rank ? -1 : other;
}}

struct direction {{
    int x, y, z, values;
}};

// Receives first, then sends, then one wait for exactly the requests that there are.
__attribute__((unused)) static void exchange(const struct direction *to, int count, MPI_Datatype type,
                                             int up, int periodic)
{{
    MPI_Request requests[2 * 27];
    int active = 0;
    for (int i = 0; i < count; i++) {{
        int other = neighbour(-to[i].x, -to[i].y, -to[i].z, periodic);
        if (other >= 0 && !(up && other > rank))
            MPI_Irecv(received[i], to[i].values, type, other, i, MPI_COMM_WORLD, &requests[active++]);
    }}
    for (int i = 0; i < count; i++) {{
        int other = neighbour(to[i].x, to[i].y, to[i].z, periodic);
        if (other >= 0 && !(up && other < rank))
            MPI_Isend(sent, to[i].values, type, other, i, MPI_COMM_WORLD, &requests[active++]);
    }}
    if (active)
        MPI_Waitall(active, requests, MPI_STATUSES_IGNORE);
}}

int main(int argc, char **argv)
{{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (ranks != X * Y * Z) {{
        if (!rank)
            fprintf(stderr, "this program was made for %d ranks\\n", X * Y * Z);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }}
    sent = calloc(1, LARGEST);
    for (int i = 0; i < 27; i++)
        if (!(received[i] = calloc(1, LARGEST)) || !sent)
            MPI_Abort(MPI_COMM_WORLD, 3);
"""

_TAIL = """\
    for (int i = 0; i < 27; i++)
        free(received[i]);
    free(sent);
    MPI_Finalize();
    return 0;
}
"""

_REDUCTIONS = {"max": "MPI_MAX", "min": "MPI_MIN", "prod": "MPI_PROD", "sum": "MPI_SUM"}


def program(steps: tuple[Step, ...], grid: Grid, source: str) -> str:
    """The text of a C program. source: the model's name, for its head. Raises ModelInvalid."""
    refuse_unfit(steps, grid)
    loops = any(isinstance(step, Loop) for step in steps)
    if not loops and length(steps) > MOST_STATEMENTS:
        raise ModelInvalid(f"the program would have more than {MOST_STATEMENTS} calls: use --mode implicit")
    named = "".join(c if c.isalnum() or c in "._- " else "?" for c in source)
    head = _HEAD.format(
        source=named, ranks=size_of(grid), x=grid[0], y=grid[1], z=grid[2], largest=_largest(steps, size_of(grid))
    )
    return head + "".join(f"{line}\n" for line in _statements(steps, 1)) + _TAIL


def _largest(steps: tuple[Step, ...], ranks: int) -> int:
    """Bytes of the largest buffer."""
    sizes = [64]
    for step in unrolled_once(steps):
        if isinstance(step, Collective):
            sizes.append(step.bytes * (ranks if step.kind in ("alltoall", "allgather") else 1))
        elif isinstance(step, Exchange):
            sizes += [elements * step.size for elements in step.elements.values()]
    if max(sizes) >= 1 << 31:
        raise ModelInvalid(f"a message of {max(sizes)} bytes is more than MPI's counts can say")
    return max(sizes)


def _statements(steps: tuple[Step, ...], depth: int) -> Iterator[str]:
    indent = "    " * depth
    for step in steps:
        if isinstance(step, Loop):
            counter = f"turn_{depth}"
            yield f"{indent}for (long {counter} = 0; {counter} < {step.count}; {counter}++) {{"
            yield from _statements(step.body, depth + 1)
            yield f"{indent}}}"
        elif isinstance(step, Compute):
            yield f"{indent}compute({step.seconds!r});"
        elif isinstance(step, Collective):
            yield f"{indent}{_collective(step)}"
        else:
            yield from (f"{indent}{line}" for line in _exchange(step))


def _collective(step: Collective) -> str:
    count, kind = values(step.count, step), datatype(step).name
    if kind == "MPI_BYTE" and step.reduction:
        raise ModelInvalid(f"{step.kind} of elements of {step.size} bytes: only 4 and 8 can be reduced")
    operation = _REDUCTIONS.get(step.reduction, "")
    return {
        "barrier": "MPI_Barrier(MPI_COMM_WORLD);",
        "bcast": f"MPI_Bcast(sent, {count}, {kind}, 0, MPI_COMM_WORLD);",
        "reduce": f"MPI_Reduce(sent, received[0], {count}, {kind}, {operation}, 0, MPI_COMM_WORLD);",
        "allreduce": f"MPI_Allreduce(sent, received[0], {count}, {kind}, {operation}, MPI_COMM_WORLD);",
        "allgather": f"MPI_Allgather(sent, {count}, {kind}, received[0], {count}, {kind}, MPI_COMM_WORLD);",
        "alltoall": f"MPI_Alltoall(sent, {count}, {kind}, received[0], {count}, {kind}, MPI_COMM_WORLD);",
    }[step.kind]


def _exchange(step: Exchange) -> Iterator[str]:
    yield "{"
    yield "    static const struct direction to[] = {"
    for (x, y, z), elements in step.elements.items():
        yield f"        {{{x}, {y}, {z}, {values(elements, step)}}},"
    yield "    };"
    count, kind = len(step.elements), datatype(step).name
    yield f"    exchange(to, {count}, {kind}, {int(step.up)}, {int(step.periodic)});"
    yield "}"
