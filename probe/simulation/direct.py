# SPDX-License-Identifier: Apache-2.0
"""Direct mode: rounds in which every node sends pings to a partner and then computes (Durango, section 2.7).

A round's time on the network is the latest end minus the earliest start of all nodes; its computing is added.
"""

from __future__ import annotations

import random
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from checkpoint.errors import ModelInvalid
from checkpoint.run_command import run_group
from probe.simulation.networks import Network
from probe.simulation.platform import Links, seconds_between, write_platform
from probe.simulation.smpirun import COMMAND, installed, simulated

NEAREST, RANDOM = "nearest", "random"
PATTERNS = (NEAREST, RANDOM)

COMPILER = "smpicc"
_COMPILE_LIMIT = 300.0
_QUICK = ("--cfg=smpi/simulate-computation:no", "--cfg=smpi/wtime:0", "--cfg=smpi/send-is-detached-thresh:0")
"""Messages that a rank hands over are searched in a list of all, so that time would go with the square of the nodes."""

MOST_NUMBERS = 4_000_000
"""In the tables of partners: compilers need much memory for more."""

MOST_PAYLOAD = 1 << 30


@dataclass(frozen=True)
class Pings:
    """What every node sends in a round: `requests` pings of `payload` bytes, each acknowledged with as many.

    pattern: `nearest`, the next node; `random`, any other node, drawn from `seed` anew for each round.
    """

    pattern: str = NEAREST
    requests: int = 128
    payload: int = 1024
    seed: int = 1

    def __post_init__(self) -> None:
        if self.pattern not in PATTERNS:
            raise ModelInvalid(f"{self.pattern}: traffic is one of {', '.join(PATTERNS)}")
        if self.requests < 1 or not 0 <= self.payload <= MOST_PAYLOAD:
            raise ModelInvalid(f"pings: 1 or more, of 0 to {MOST_PAYLOAD} bytes")


@dataclass(frozen=True)
class Rounds:
    """Seconds on the network of each round, messages in all, and the seconds that simulating took."""

    seconds: tuple[float, ...]
    messages: int
    wall: float


def partners(pings: Pings, nodes: int, number: int) -> list[int]:
    """To whom each node sends its pings in the round of that number."""
    if nodes < 2:
        raise ModelInvalid("pings need a network of two nodes at least")
    if pings.pattern == NEAREST:
        return [(node + 1) % nodes for node in range(nodes)]
    drawn = random.Random(f"{pings.seed} {number}")
    others = (drawn.randrange(nodes - 1) for _ in range(nodes))
    return [other + (other >= node) for node, other in enumerate(others)]


def sent(pings: Pings, nodes: int, rounds: int) -> Counter[tuple[int, int, int]]:
    """Messages of all rounds: how many by (sender, receiver, bytes)."""
    found: Counter[tuple[int, int, int]] = Counter()
    for number in range(rounds):
        for node, partner in enumerate(partners(pings, nodes, number)):
            found[(node, partner, pings.payload)] += pings.requests
            found[(partner, node, pings.payload)] += pings.requests
    return found


def uncontended(pings: Pings, network: Network, links: Links, number: int) -> float:
    """Seconds of a round if no message shared a link with another: pings and answers of the slowest pair."""
    return pings.requests * max(
        seconds_between(network, links, node, other, pings.payload)
        + seconds_between(network, links, other, node, pings.payload)
        for node, other in enumerate(partners(pings, network.nodes, number))
    )


def simulate_rounds(
    pings: Pings, rounds: int, network: Network, links: Links, *, limit: float = 3600.0,
    report: Callable[[float], None] = lambda share: None,
) -> Rounds:  # fmt: skip
    """Simulate the rounds' traffic, a rank on each node. report: gets the share that is done.

    Raises ToolMissing without SimGrid, ModelInvalid where it fails or takes longer than `limit` seconds.
    """
    installed(COMMAND)

    def heard(line: str) -> None:
        found = re.fullmatch(r"progress (\d+) (\d+)\n", line)
        if found:
            report((int(found[1]) + int(found[2]) / pings.requests) / rounds)

    with tempfile.TemporaryDirectory(prefix="probe-simulate-") as made:
        folder = Path(made)
        program = _compiled(source(pings, rounds, network.nodes), folder)
        platform = write_platform(network, network.nodes, links, folder)
        what = ["-no-privatize", *_QUICK, str(program)]
        done = simulated(network.nodes, platform, what, folder, limit, heard)
    seconds = [float(value) for value in re.findall(r"^round \d+ (\S+)$", done.printed, re.M)]
    if len(seconds) != rounds:
        raise ModelInvalid(f"{COMMAND} simulated {len(seconds)} of {rounds} rounds: {done.printed[-400:].strip()}")
    return Rounds(tuple(seconds), 2 * rounds * network.nodes * pings.requests, done.wall)


def _compiled(text: str, folder: Path) -> Path:
    written, program = folder / "rounds.c", folder / "rounds"
    written.write_text(text)
    command = [installed(COMPILER), "-O1", "-std=gnu11", str(written), "-o", str(program)]
    try:
        status, printed = run_group(command, _COMPILE_LIMIT)
    except subprocess.TimeoutExpired as error:
        raise ModelInvalid(f"{COMPILER} was not done after {_COMPILE_LIMIT:.0f} s: fewer nodes or rounds") from error
    if status:
        raise ModelInvalid(f"{COMPILER} failed: {printed[-400:].strip()}")
    return program


def source(pings: Pings, rounds: int, nodes: int) -> str:
    """The C program of the rounds, for SimGrid's SMPI. Raises ModelInvalid where its tables would be too long."""
    tables = list(dict.fromkeys(tuple(partners(pings, nodes, number)) for number in range(_different(pings, rounds))))
    if 3 * len(tables) * nodes > MOST_NUMBERS:
        raise ModelInvalid(f"{rounds} rounds of random traffic between {nodes} nodes are too many: fewer rounds")
    askers = [sorted(range(nodes), key=table.__getitem__) for table in tables]
    counts = [Counter(table) for table in tables]
    first = [tuple(accumulate((count[node] for node in range(nodes)), initial=0)) for count in counts]
    return _PROGRAM.format(
        rounds=rounds, tables=len(tables), nodes=nodes, requests=pings.requests, payload=pings.payload,
        partners=_rows(tables), first=_rows(first), askers=_rows(askers),
    )  # fmt: skip


def _different(pings: Pings, rounds: int) -> int:
    """The next node is the same in every round."""
    return 1 if pings.pattern == NEAREST else rounds


def _rows(tables: Sequence[Sequence[int]]) -> str:
    return ",\n".join("{" + ",".join(map(str, table)) + "}" for table in tables)


_PROGRAM = """\
// Rounds of pings: each node asks its partner, and answers whoever asks it, as messages come.
#include <mpi.h>
#include <stdio.h>
#include <time.h>

enum {{ ROUNDS = {rounds}, TABLES = {tables}, NODES = {nodes}, REQUESTS = {requests}, PAYLOAD = {payload} }};
enum {{ PING, ANSWER, REPORTS = 32 }};
// What nobody reads is one buffer of all nodes.
static char bytes[PAYLOAD + 1];
static const int partners[TABLES][NODES] = {{
{partners}
}};
static const int first[TABLES][NODES + 1] = {{
{first}
}};
static const int askers[TABLES][NODES] = {{
{askers}
}};

// Node n is asked by askers[first[n]] to askers[first[n + 1] - 1].
static const int *askers_of(int table, int rank, int *count)
{{
    *count = first[table][rank + 1] - first[table][rank];
    return askers[table] + first[table][rank];
}}

static void receive(int from, int kind, MPI_Request *request)
{{
    MPI_Irecv(bytes, PAYLOAD, MPI_BYTE, from, kind, MPI_COMM_WORLD, request);
}}

// The message before it through the same request has come: its answer, or the next ping after it, has.
static void send(int to, int kind, MPI_Request *request)
{{
    MPI_Wait(request, MPI_STATUS_IGNORE);
    MPI_Isend(bytes, PAYLOAD, MPI_BYTE, to, kind, MPI_COMM_WORLD, request);
}}

// The time at which the last answer came. in[0], out[0]: with the partner; in[1 + i], out[1 + i]: with asker i.
static double talk(int round, int rank)
{{
    int count, answered = 0, partner = partners[round % TABLES][rank];
    const int *asking = askers_of(round % TABLES, rank, &count);
    MPI_Request in[count + 1], out[count + 1];
    int asked[count + 1];
    for (int i = 1; i <= count; i++) {{
        asked[i] = 0;
        out[i] = MPI_REQUEST_NULL;
        receive(asking[i - 1], PING, &in[i]);
    }}
    out[0] = MPI_REQUEST_NULL;
    receive(partner, ANSWER, &in[0]);
    send(partner, PING, &out[0]);
    double end = 0;
    for (long left = (1L + count) * REQUESTS; left > 0; left--) {{
        int i;
        MPI_Waitany(count + 1, in, &i, MPI_STATUS_IGNORE);
        if (i > 0) {{
            if (++asked[i] < REQUESTS)
                receive(asking[i - 1], PING, &in[i]);
            send(asking[i - 1], ANSWER, &out[i]);
            continue;
        }}
        end = MPI_Wtime();
        if (++answered < REQUESTS) {{
            receive(partner, ANSWER, &in[0]);
            send(partner, PING, &out[0]);
        }}
        if (rank == 0 && answered * REPORTS / REQUESTS > (answered - 1) * REPORTS / REQUESTS) {{
            printf("progress %d %d\\n", round, answered);
            fflush(stdout);
        }}
    }}
    MPI_Waitall(count + 1, out, MPI_STATUSES_IGNORE);
    return end;
}}

int main(int argc, char **argv)
{{
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int round = 0; round < ROUNDS; round++) {{
        double now = MPI_Wtime(), common, first, last;
        MPI_Allreduce(&now, &common, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        // All begin at the same time: long after the last one has left the call above.
        double left = common + 1 - MPI_Wtime();
        struct timespec sleep = {{(time_t)left, (long)((left - (time_t)left) * 1e9)}};
        nanosleep(&sleep, NULL);
        double start = MPI_Wtime(), end = talk(round, rank);
        MPI_Reduce(&start, &first, 1, MPI_DOUBLE, MPI_MIN, 0, MPI_COMM_WORLD);
        MPI_Reduce(&end, &last, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
        if (rank == 0) {{
            printf("round %d %.17g\\n", round, last - first);
            fflush(stdout);
        }}
    }}
    MPI_Finalize();
    return 0;
}}
"""
