# SPDX-License-Identifier: Apache-2.0
"""Table of MPI's calls: what each takes, what it returns, and how the simulation sees it (MPI 3.1).

A line is `Name(kind name, ...)`. Kinds, with their C types:

- `in`, `out`: a buffer that is read, or written; `int`, `aint`, `ints`, `aints`, `types`: values, and arrays of them;
- `comm`, `type`, `group`, `op`, `info`, `errhandler`, `message`: a handle; `+comm` and so on: a new handle;
  `-group` and so on: a handle that is freed; `+request`: a new request;
- `+int`, `+aint`, `+count`: a value that is returned; `+ints:N`: an array of N of them; `+text`: text with its length;
- `flags`: an array of truth values; `status`: a status that is filled; `ranges`: triples of numbers;
- `function`, `handler`: an address of the program's; `each`: a type for each rank. Fortran's have wrappers by hand, or
  none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Final

LOCAL = """
Comm_rank(comm c, +int rank)
Comm_size(comm c, +int size)
Comm_compare(comm a, comm b, +int found)
Comm_group(comm c, +group g)
Comm_test_inter(comm c, +int flag)
Comm_set_errhandler(comm c, errhandler e)
Comm_get_errhandler(comm c, +errhandler e)
Comm_create_errhandler(handler f, +errhandler e)
Comm_set_name(comm c, text name)
Comm_get_name(comm c, +text name, +length n)
Comm_set_info(comm c, info i)
Comm_get_info(comm c, +info i)
Errhandler_free(-errhandler e)
Group_size(group g, +int size)
Group_rank(group g, +int rank)
Group_compare(group a, group b, +int found)
Group_translate_ranks(group a, int n, ints given, group b, +ints:n found)
Group_incl(group g, int n, ints ranks, +group made)
Group_excl(group g, int n, ints ranks, +group made)
Group_range_incl(group g, int n, ranges ranks, +group made)
Group_range_excl(group g, int n, ranges ranks, +group made)
Group_union(group a, group b, +group made)
Group_intersection(group a, group b, +group made)
Group_difference(group a, group b, +group made)
Group_free(-group g)
Cart_coords(comm c, int rank, int n, +ints:n coords)
Cart_rank(comm c, ints coords, +int rank)
Cart_shift(comm c, int direction, int distance, +int source, +int dest)
Cartdim_get(comm c, +int n)
Cart_get(comm c, int n, +ints:n dims, +ints:n periods, +ints:n coords)
Dims_create(int ranks, int n, +ints:n dims)
Topo_test(comm c, +int status)
Type_contiguous(int n, type t, +type made)
Type_vector(int n, int length, int stride, type t, +type made)
Type_create_hvector(int n, int length, aint stride, type t, +type made)
Type_indexed(int n, ints lengths, ints places, type t, +type made)
Type_create_hindexed(int n, ints lengths, aints places, type t, +type made)
Type_create_indexed_block(int n, int length, ints places, type t, +type made)
Type_create_hindexed_block(int n, int length, aints places, type t, +type made)
Type_create_struct(int n, ints lengths, aints places, types t, +type made)
Type_create_subarray(int n, ints sizes, ints parts, ints starts, int order, type t, +type made)
Type_create_darray(int size, int rank, int n, ints g, ints how, ints arguments, ints p, int order, type t, +type made)
Type_create_resized(type t, aint lower, aint extent, +type made)
Type_dup(type t, +type made)
Type_match_size(int kind, int size, +type made)
Type_set_name(type t, text name)
Type_get_name(type t, +text name, +length n)
Type_get_envelope(type t, +int integers, +int addresses, +int types, +int how)
Type_commit(=type t)
Type_size(type t, +int size)
Type_size_x(type t, +count size)
Type_get_extent(type t, +aint lower, +aint extent)
Type_get_true_extent(type t, +aint lower, +aint extent)
Type_get_extent_x(type t, +count lower, +count extent)
Type_get_true_extent_x(type t, +count lower, +count extent)
Pack_size(int n, type t, comm c, +int size)
Op_create(function f, int commute, +op made)
Op_commutative(op o, +int flag)
Op_free(-op o)
Info_create(+info made)
Info_dup(info i, +info made)
Info_set(info i, text key, text value)
Info_delete(info i, text key)
Info_get_nkeys(info i, +int n)
Info_get_valuelen(info i, text key, +int n, +int flag)
Info_free(-info i)
Get_processor_name(+text name, +length n)
Get_library_version(+text name, +length n)
Get_version(+int version, +int subversion)
Add_error_class(+int made)
Add_error_code(int class_, +int made)
Add_error_string(int code, text said)
Error_class(int code, +int class_)
Error_string(int code, +text name, +length n)
Query_thread(+int level)
Is_thread_main(+int flag)
Get_count(const_status s, type t, +int count)
Get_elements(const_status s, type t, +int count)
Get_elements_x(const_status s, type t, +count count)
Test_cancelled(const_status s, +int flag)
Cancel(=request r)
"""
"""Calls that send nothing: what they return is kept, and the simulation does not see them."""

SENDS = """
Send(in b, int n, type t, int dest, int tag, comm c)
Ssend(in b, int n, type t, int dest, int tag, comm c)
Bsend(in b, int n, type t, int dest, int tag, comm c)
Rsend(in b, int n, type t, int dest, int tag, comm c)
Isend(in b, int n, type t, int dest, int tag, comm c, +request r)
Issend(in b, int n, type t, int dest, int tag, comm c, +request r)
Ibsend(in b, int n, type t, int dest, int tag, comm c, +request r)
Irsend(in b, int n, type t, int dest, int tag, comm c, +request r)
"""

PERSISTENT_SENDS = """
Send_init(in b, int n, type t, int dest, int tag, comm c, +request r)
Ssend_init(in b, int n, type t, int dest, int tag, comm c, +request r)
Bsend_init(in b, int n, type t, int dest, int tag, comm c, +request r)
Rsend_init(in b, int n, type t, int dest, int tag, comm c, +request r)
"""

PROBES = """
Probe(int source, int tag, comm c, status s)
Iprobe(int source, int tag, comm c, +int flag, status s)
"""

NEW_COMMUNICATORS = """
Comm_dup(comm c, +comm made)
Comm_dup_with_info(comm c, info i, +comm made)
Comm_split(comm c, int color, int key, +comm made)
Comm_split_type(comm c, int kind, int key, info i, +comm made)
Comm_create(comm c, group g, +comm made)
Cart_create(comm c, int n, ints dims, flags periods, int reorder, +comm made)
Cart_sub(comm c, flags kept, +comm made)
"""

BY_HAND = """
Recv(out b, int n, type t, int source, int tag, comm c, status s)
Sendrecv(in b, int n, type t, int d, int g, out rb, int rn, type rt, int source, int rg, comm c, status s)
Sendrecv_replace(out b, int n, type t, int d, int g, int source, int rg, comm c, status s)
Mprobe(int source, int tag, comm c, +message m, status s)
Improbe(int source, int tag, comm c, +int flag, +message m, status s)
Mrecv(out b, int n, type t, =message m, status s)
Irecv(out b, int n, type t, int source, int tag, comm c, +request r)
Imrecv(out b, int n, type t, =message m, +request r)
Recv_init(out b, int n, type t, int source, int tag, comm c, +request r)
Start(=request r)
Startall(int n, =requests:n r)
Request_free(=request r)
Request_get_status(request r, +int flag, status s)
Wait(=request r, status s)
Test(=request r, +int flag, status s)
Waitall(int n, =requests:n r, statuses:n s)
Testall(int n, =requests:n r, +int flag, statuses:n s)
Waitany(int n, =requests:n r, +index i, status s)
Testany(int n, =requests:n r, +index i, +int flag, status s)
Waitsome(int n, =requests:n r, +int done, +indices:n i, statuses:n s)
Testsome(int n, =requests:n r, +int done, +indices:n i, statuses:n s)
Comm_free(-comm c)
Type_free(-type t)
Pack(in b, int n, type t, out into, int room, =int at, comm c)
Unpack(in b, int room, =int at, out into, int n, type t, comm c)
Reduce_local(in b, out into, int n, type t, op o)
Finalize()
"""
"""Calls whose wrappers are written in pintools/mpi; for Fortran alone they are in this table."""

WITHOUT_FORTRAN = "Wtime() Wtick() Init() Init_thread() Abort() Comm_get_attr() Info_get() Info_get_nthkey()"
"""Likewise, and Fortran's are written by hand, or are refused."""


@dataclass(frozen=True)
class Argument:
    """One argument: its kind (see above), its name, and the length of an array where the kind has one."""

    kind: str
    name: str
    length: str = ""


@dataclass(frozen=True)
class Collective:
    """How a collective call is seen. `got`, `sent`, `noted` are C, with `me` and `ranks` of its communicator.

    got: adds the pieces that come to `base`. sent: condition, buffer, count, type; "" where no one buffer is sent.
    noted: count, type, root; `extra`: further notes.
    """

    call: Call
    base: str = ""
    got: str = ""
    sent: str = ""
    noted: str = "0, MPI_BYTE, -1"
    extra: str = ""


@dataclass(frozen=True)
class Call:
    """A call of MPI without its prefix, and its arguments."""

    name: str
    arguments: tuple[Argument, ...]


def calls(table: str) -> list[Call]:
    """The calls of one of the tables above."""
    return [_call(line) for line in table.splitlines() if line.strip()]


def _call(line: str) -> Call:
    found = re.fullmatch(r"(\w+)\((.*)\)", line.strip())
    assert found, line
    arguments = [word.strip().rpartition(" ") for word in found[2].split(",") if word.strip()]
    split = [(*kind.partition(":"), name) for kind, _, name in arguments]
    return Call(found[1], tuple(Argument(kind, name, length) for kind, _, length, name in split))


_COLLECTIVES: Final = (
    ("Barrier(comm c)", "", "", "", "0, MPI_BYTE, -1", ""),
    ("Bcast(out b, int n, type t, int root, comm c)", "b", "if (me != root) add(0, n, t);", "me == root, b, n, t",
     "n, t, root", ""),
    ("Reduce(in b, out rb, int n, type t, op o, int root, comm c)", "rb", "if (me == root) add(0, n, t);",
     "1, b, n, t", "n, t, root", ""),
    ("Allreduce(in b, out rb, int n, type t, op o, comm c)", "rb", "add(0, n, t);", "1, b, n, t", "n, t, -1", ""),
    ("Scan(in b, out rb, int n, type t, op o, comm c)", "rb", "add(0, n, t);", "1, b, n, t", "n, t, -1", ""),
    ("Exscan(in b, out rb, int n, type t, op o, comm c)", "rb", "if (me > 0) add(0, n, t);", "1, b, n, t",
     "n, t, -1", ""),
    ("Reduce_scatter(in b, out rb, ints rn, type t, op o, comm c)", "rb", "add(0, rn[me], t);", "",
     "rn[me], t, -1", "note_bytes(rn, c, t);"),
    ("Reduce_scatter_block(in b, out rb, int n, type t, op o, comm c)", "rb", "add(0, n, t);",
     "1, b, (int64_t)n * ranks, t", "n, t, -1", ""),
    ("Gather(in b, int n, type t, out rb, int rn, type rt, int root, comm c)", "rb",
     "if (me == root) add(0, (int64_t)rn * ranks, rt);", "1, b, n, t",
     "b == MPI_IN_PLACE ? rn : n, b == MPI_IN_PLACE ? rt : t, root", ""),
    ("Gatherv(in b, int n, type t, out rb, ints rn, ints rd, type rt, int root, comm c)", "rb",
     "if (me == root) add_all(rn, rd, rt, ranks);", "1, b, n, t",
     "b == MPI_IN_PLACE ? rn[me] : n, b == MPI_IN_PLACE ? rt : t, root",
     "if (me == root) note_bytes(rn, c, rt);"),
    ("Scatter(in b, int n, type t, out rb, int rn, type rt, int root, comm c)", "rb",
     "if (rb != MPI_IN_PLACE) add(0, rn, rt);", "me == root, b, (int64_t)n * ranks, t",
     "me == root ? n : rn, me == root ? t : rt, root", ""),
    ("Scatterv(in b, ints n, ints d, type t, out rb, int rn, type rt, int root, comm c)", "rb",
     "if (rb != MPI_IN_PLACE) add(0, rn, rt);", "", "me == root ? n[me] : rn, me == root ? t : rt, root",
     "if (me == root) note_bytes(n, c, t);"),
    ("Allgather(in b, int n, type t, out rb, int rn, type rt, comm c)", "rb", "add(0, (int64_t)rn * ranks, rt);",
     "1, b, n, t", "rn, rt, -1", ""),
    ("Allgatherv(in b, int n, type t, out rb, ints rn, ints rd, type rt, comm c)", "rb",
     "add_all(rn, rd, rt, ranks);", "1, b, n, t", "rn[me], rt, -1", "note_bytes(rn, c, rt);"),
    ("Alltoall(in b, int n, type t, out rb, int rn, type rt, comm c)", "rb", "add(0, (int64_t)rn * ranks, rt);",
     "1, b, (int64_t)n * ranks, t", "rn, rt, -1", ""),
    ("Alltoallv(in b, ints n, ints d, type t, out rb, ints rn, ints rd, type rt, comm c)", "rb",
     "add_all(rn, rd, rt, ranks);", "", "0, MPI_BYTE, -1",
     "note_bytes(b == MPI_IN_PLACE ? rn : n, c, b == MPI_IN_PLACE ? rt : t); note_bytes(rn, c, rt);"),
    ("Alltoallw(in b, ints n, ints d, each t, out rb, ints rn, ints rd, each rt, comm c)", "rb",
     "for (int k = 0; k < ranks; k++) add(rd[k], rn[k], rt[k]);", "", "0, MPI_BYTE, -1",
     "note_each(b == MPI_IN_PLACE ? rn : n, c, b == MPI_IN_PLACE ? rt : t); note_each(rn, c, rt);"),
)  # fmt: skip


def collectives() -> list[Collective]:
    """The collective calls, each with the call that returns at once and gives a request."""
    found = []
    for line, base, got, sent, noted, extra in _COLLECTIVES:
        call = _call(line)
        later = Call(f"I{call.name.lower()}", (*call.arguments, Argument("+request", "request")))
        found += [Collective(one, base, got, sent, noted, extra) for one in (call, later)]
    return found


@cache
def names() -> tuple[str, ...]:
    """All calls that are recorded, without their prefix. The number of a call in a recording is its place here."""
    by_hand = [name.removesuffix("()") for name in WITHOUT_FORTRAN.split()]
    tables = (LOCAL, SENDS, PERSISTENT_SENDS, PROBES, NEW_COMMUNICATORS, BY_HAND)
    named = [call.name for table in tables for call in calls(table)]
    return (*by_hand, *named, *(one.call.name for one in collectives()))
