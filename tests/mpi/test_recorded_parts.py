# SPDX-License-Identifier: Apache-2.0
"""Recordings of MPI programs as bytes: written as the recorder does, damaged, cut short, foreign."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpi_parts import CALL_BYTES, call, inbox_of, part, record_of

from checkpoint.errors import ModelInvalid, ProbeFileDamaged, ProgramUnsupported, StorageError
from probe.mpi.library.calls import names
from probe.mpi.library.generate import player_source, recorder_source, replayer_source
from probe.mpi.parts import BEGIN, END, LAYOUT, check_inbox, sums
from probe.mpi.platforms import hosts_of, placed
from probe.mpi.play import STEP, write_play
from probe.mpi.probes.building import read_mpi_probe
from probe.mpi.probes.clusters import clusters_of, summary_of
from probe.mpi.recording import RankRun, Recording, read_recording, write_recording
from probe.mpi.trace import CALL, read_calls

NUMBER = {name: number for number, name in enumerate(names())}
FINALIZE, WTIME = NUMBER["Finalize"], NUMBER["Wtime"]


def layout(number: int, runs: Sequence[tuple[int, int]], extent: int = 64) -> bytes:
    head = struct.pack("<QqQ", number, extent, len(runs))
    return record_of(LAYOUT, head + b"".join(struct.pack("<qQ", *run) for run in runs))


def test_names_are_unique_and_few() -> None:
    assert len(names()) == len(set(names())) < LAYOUT
    assert CALL.itemsize == CALL_BYTES == STEP.itemsize + 16


def test_sources_have_every_call_once() -> None:
    for source in (recorder_source(), replayer_source()):
        for name in names():
            kind = "double" if name.startswith("Wti") else "int"
            assert source.count(f"\n{kind} MPI_{name}(") == 1, name
    # The player has a case for each call that communicates.
    assert "case F_Allreduce:" in player_source()


@given(st.binary(max_size=4096))
def test_sums_are_those_of_the_recorder(data: bytes) -> None:
    data = data[: len(data) // 8 * 8]
    words = struct.unpack(f"<{len(data) // 8}Q", data)
    assert sums(data) == (sum(words) % 2**64, sum(word * (n + 1) for n, word in enumerate(words)) % 2**64)


@given(st.lists(st.tuples(st.integers(0, len(names()) - 1), st.integers(0, 40), st.integers(0, 1000))))
def test_answers_are_counted(tmp_path_factory: pytest.TempPathFactory, answers: list[tuple[int, int, int]]) -> None:
    folder = tmp_path_factory.mktemp("inbox")
    body = [record_of(function, bytes(8 + words * 8), repeats) for function, words, repeats in answers]
    half = len(body) // 2
    inbox_of(folder, 1, 3, [[record_of(BEGIN, bytes(64)), *body[:half]], [*body[half:], record_of(END, b"")]])
    found = check_inbox(folder, 1)
    assert (found.ranks, found.answers) == (3, sum(1 + repeats for _, _, repeats in answers))


def whole(folder: Path) -> Path:
    """An inbox of one part, and its path."""
    records = [
        record_of(BEGIN, bytes(64)), record_of(WTIME, bytes(8), 3), layout(1, [(0, 8), (32, 16)]),
        record_of(NUMBER["Recv"], bytes(64)), record_of(FINALIZE, bytes(8)), record_of(END, b""),
    ]  # fmt: skip
    inbox_of(folder, 0, 2, [records])
    return folder / "inbox.0.000"


@settings(max_examples=300)
@given(st.data())
def test_a_changed_byte_is_seen(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("inbox")
    path = whole(folder)
    made = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(made) - 1))
    made[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(made)
    # Of the header the number of ranks alone says nothing of the bytes behind; its reader compares it.
    if not 16 <= place < 20:
        with pytest.raises(ProbeFileDamaged):
            check_inbox(folder, 0)


@given(st.data())
def test_a_part_cut_short_is_seen(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("inbox")
    path = whole(folder)
    made = path.read_bytes()
    path.write_bytes(made[: data.draw(st.integers(0, len(made) - 1))])
    with pytest.raises(ProbeFileDamaged):
        check_inbox(folder, 0)


FOREIGN: dict[str, tuple[list[bytes], str]] = {
    "nothing": ([], "has no end"),
    "no beginning": ([record_of(WTIME, bytes(8)), record_of(END, b"")], "does not begin with MPI_Init"),
    "two beginnings": ([record_of(BEGIN, bytes(64)), record_of(BEGIN, bytes(64))], "does not begin with MPI_Init"),
    "no end": ([record_of(BEGIN, bytes(64)), record_of(WTIME, bytes(8))], "ended before MPI_Finalize"),
    "more": ([record_of(BEGIN, b""), record_of(END, b""), record_of(END, b"")], "goes on after its end"),
    "unknown call": ([record_of(BEGIN, b""), record_of(len(names()), bytes(8))], "which is none"),
    "no result": ([record_of(BEGIN, b""), record_of(WTIME, b"")], "a call without its result"),
    "long record": ([record_of(BEGIN, b"")[:4] + struct.pack("<IQ", 800, 0)], "longer than its part"),
    "odd record": ([record_of(BEGIN, b""), struct.pack("<HHIQ", WTIME, 0, 12, 0) + bytes(16)], "longer than its part"),
    "reserved": ([record_of(BEGIN, b""), struct.pack("<HHIQ", WTIME, 1, 8, 0) + bytes(8)], "longer than its part"),
    "half a record": ([record_of(BEGIN, b""), bytes(8)], "half of a record"),
    "repeated end": ([record_of(BEGIN, b""), record_of(END, b"", 2)], "a repeated record of another kind"),
    "second layout first": ([record_of(BEGIN, b""), layout(2, [(0, 8)])], "a layout of"),
    "layout without runs": ([record_of(BEGIN, b""), layout(1, [])], "a layout of 0 runs"),
    "half a layout": ([record_of(BEGIN, b""), record_of(LAYOUT, bytes(16))], "half of a layout"),
    "more runs than bytes": (
        [record_of(BEGIN, b""), record_of(LAYOUT, struct.pack("<QqQ", 1, 8, 2**60))], "a layout of",
    ),
    "an empty run": ([record_of(BEGIN, b""), layout(1, [(0, 8), (8, 0)])], "a run of no length"),
}  # fmt: skip


@pytest.mark.parametrize("case", FOREIGN)
def test_an_inbox_that_no_recorder_wrote(case: str, tmp_path: Path) -> None:
    records, message = FOREIGN[case]
    inbox_of(tmp_path, 0, 1, [records])
    with pytest.raises(ProbeFileDamaged, match=message):
        check_inbox(tmp_path, 0)


HEADERS: dict[str, tuple[Callable[[], bytes], str]] = {
    "other file": (lambda: b"not one of ours" * 20, "is no inbox of a recorded rank"),
    "calls": (lambda: part("calls", 0, 1, 0, b""), "is no inbox of a recorded rank"),
    "version": (lambda: part("inbox", 0, 1, 0, b"", version=1), "has version 1"),
    "other rank": (lambda: part("inbox", 1, 2, 0, b""), "part 0 of rank 1, under another's name"),
    "other part": (lambda: part("inbox", 0, 1, 1, b""), "part 1 of rank 0, under another's name"),
    "no such rank": (lambda: part("inbox", 0, 0, 0, b""), "under another's name"),
    "empty": (lambda: b"", "is cut short"),
}


@pytest.mark.parametrize("case", HEADERS)
def test_a_header_that_is_not_of_this_part(case: str, tmp_path: Path) -> None:
    made, message = HEADERS[case]
    (tmp_path / "inbox.0.000").write_bytes(made())
    with pytest.raises(ProbeFileDamaged, match=message):
        check_inbox(tmp_path, 0)


# -- calls


def calls_of(folder: Path, rank: int, ranks: int, made: Sequence[bytes], *, end: bool = True) -> None:
    body = b"".join([*made, *([call(END)] if end else [])])
    (folder / f"calls.{rank}.000").write_bytes(part("calls", rank, ranks, 0, body))


@given(st.lists(st.tuples(st.integers(0, len(names()) - 1), st.lists(st.integers(0, 2**31 - 1), max_size=5))))
def test_calls_are_read_as_they_are(
    tmp_path_factory: pytest.TempPathFactory, made: list[tuple[int, list[int]]]
) -> None:
    folder = tmp_path_factory.mktemp("calls")
    calls_of(folder, 0, 2, [call(function, extras=extras, computing=7) for function, extras in made])
    found = read_calls(folder, 0)
    assert found.calls["function"].tolist() == [function for function, _ in made]
    assert [found.extras_of(n).tolist() for n in range(len(made))] == [extras for _, extras in made]
    assert found.computing == pytest.approx(7e-9 * len(made))


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ([call(len(names()))], "which is none"),
        ([call(0, peer=2)], "a call to rank 2 of 2"),
        ([call(0, peer=-2)], "a call to rank -2 of 2"),
        ([call(0, computing=2**63)], "lasts for decades"),
        ([call(0, extras=[1, 2])[:-8]], "a call to rank|half of a call|cut short|is none"),
        ([call(0, count=2**41)], "a call larger than any"),
        ([call(0, element=2**31)], "a call larger than any"),
        ([call(0, request=2**31)], "a call larger than any"),
        ([call(END), call(0)], "goes on after its end"),
        ([call(0)[:32]], "half of a call"),
    ],
)
def test_calls_that_no_recorder_wrote(made: list[bytes], message: str, tmp_path: Path) -> None:
    calls_of(tmp_path, 0, 2, made, end=False)
    with pytest.raises(ProbeFileDamaged, match=message):
        read_calls(tmp_path, 0)


def test_calls_without_an_end(tmp_path: Path) -> None:
    calls_of(tmp_path, 0, 1, [call(0)], end=False)
    with pytest.raises(ProbeFileDamaged, match="have no end"):
        read_calls(tmp_path, 0)


BAD_PLAYS: dict[str, tuple[bytes, str]] = {
    "communicator": (call(NUMBER["Barrier"], comm=5), "uses communicator 5, which it does not have"),
    "root": (call(NUMBER["Bcast"], other=2), "has the root 2 of 2 ranks"),
    "counts": (call(NUMBER["Alltoallv"], other=-1, extras=[1, 2, 3]), "has 3 counts for 2 ranks"),
    "negative counts": (call(NUMBER["Alltoallv"], other=-1, extras=[1, -2]), "has 2 counts for 2 ranks"),
    "request": (call(NUMBER["Wait"], comm=-1, extras=[1, 2]), "waits for half of a request"),
    "members": (call(NUMBER["Comm_dup"], other=2, extras=[1]), "makes a communicator without itself"),
    "member": (call(NUMBER["Comm_dup"], other=2, extras=[0, 2]), "makes a communicator without itself"),
    "far communicator": (call(NUMBER["Comm_dup"], other=2**30, extras=[0, 1]), "makes a communicator without itself"),
    "no counts": (call(NUMBER["Allgatherv"], other=-1), "has 0 counts for 2 ranks"),
    "half of the counts": (call(NUMBER["Alltoallv"], other=-1, extras=[1, 2]), "has 2 counts for 2 ranks"),
    "wait for none": (call(NUMBER["Wait"], comm=-1, extras=[2**30, 0, 0]), "names a request that nobody made"),
    "sendrecv": (call(NUMBER["Sendrecv"], peer=1), "does not say what it receives"),
    "rank outside": (call(NUMBER["Send"], comm=1, peer=1), "names rank 1, which its communicator does not have"),
}


@pytest.mark.parametrize("case", BAD_PLAYS)
def test_calls_that_cannot_be_played(case: str, tmp_path: Path) -> None:
    made, message = BAD_PLAYS[case]
    calls_of(tmp_path, 0, 2, [made])
    with pytest.raises(ProbeFileDamaged, match=message):
        write_play(read_calls(tmp_path, 0), tmp_path)


def test_nothing_comes_behind_the_end(tmp_path: Path) -> None:
    """Nor behind a part with nothing in it."""
    end = [call(FINALIZE), call(END)]
    for number, calls in enumerate((end, [], end)):
        (tmp_path / f"calls.0.{number:03}").write_bytes(part("calls", 0, 1, number, b"".join(calls)))
    with pytest.raises(ProbeFileDamaged, match="goes on after its end"):
        read_calls(tmp_path, 0)


def test_messages_too_large_to_play(tmp_path: Path) -> None:
    calls_of(tmp_path, 0, 2, [call(NUMBER["Send"], peer=1, count=2**30, element=2)])
    with pytest.raises(ProgramUnsupported, match="a simulation takes 2 GB at most"):
        write_play(read_calls(tmp_path, 0), tmp_path)


def test_a_wildcard_is_played_with_its_answer(tmp_path: Path) -> None:
    calls_of(tmp_path, 0, 3, [
        call(NUMBER["Irecv"], peer=-1, tag=-1, other=-2, request=4, count=1, element=8),
        call(NUMBER["Irecv"], peer=-1, tag=-1, other=-2, request=5, count=1, element=8),
        call(NUMBER["Waitall"], comm=-1, extras=[5, 2, 70, 4, 1, 60]),
    ])  # fmt: skip
    write_play(read_calls(tmp_path, 0), tmp_path)
    step = np.dtype(STEP)
    data = (tmp_path / "play.0").read_bytes()
    first, second, ended = np.frombuffer(data[: 3 * step.itemsize], dtype=step)
    assert (first["peer"], first["tag"], second["peer"], second["tag"]) == (1, 60, 2, 70)
    assert ended["extras"] == 2


# -- clusters


def recording(folder: Path, ranks: int, kept: Callable[[int], bool] = lambda rank: True) -> Recording:
    runs = tuple(RankRun(rank, "/bin/true", "/", ("true",), kept(rank)) for rank in range(ranks))
    return Recording(folder, ("mpirun",), "Open MPI", "mpicc", 1.0, {"/bin/true": "0"}, runs, 2)


def test_ranks_with_other_calls_or_computing_are_told_apart(tmp_path: Path) -> None:
    computing = [1000, 1030, 1000, 1200, 1210]
    for rank, each in enumerate(computing):
        count = 2 if rank == 2 else 1
        calls_of(tmp_path, rank, 5, [call(NUMBER["Bcast"], other=0, count=count, element=8, computing=each * 10**6)])
    ranks = [read_calls(tmp_path, rank) for rank in range(5)]
    summaries = [summary_of(one) for one in ranks]
    found = clusters_of(recording(tmp_path, 5), summaries)
    assert [one.ranks for one in found] == [(0, 1), (2,), (3, 4)]
    assert found[0].spread == pytest.approx(0.03)
    threads = [summary_of(replace(one, own_threads=one.rank)) for one in ranks]
    assert [one.ranks for one in clusters_of(recording(tmp_path, 5), threads)] == [(n,) for n in range(5)]
    only = clusters_of(recording(tmp_path, 5, lambda rank: rank in (0, 2, 4)), summaries)
    assert [one.representative for one in only] == [0, 2, 4]
    with pytest.raises(ProgramUnsupported, match="none of the ranks 3, 4 was recorded with its answers"):
        clusters_of(recording(tmp_path, 5, lambda rank: rank < 3), summaries)


@pytest.mark.parametrize("name", ["Alltoallv", "Ialltoallw"])
def test_ranks_that_send_other_amounts_to_all_are_told_apart(name: str, tmp_path: Path) -> None:
    """Amounts to each rank may stand in another order."""
    for rank, extras in enumerate([[1, 2, 3, 1, 1, 1], [3, 2, 1, 1, 1, 1], [1, 2, 4, 1, 1, 1]]):
        calls_of(tmp_path, rank, 3, [call(NUMBER[name], extras=extras, computing=10**9)])
    found = clusters_of(recording(tmp_path, 3), [summary_of(read_calls(tmp_path, rank)) for rank in range(3)])
    assert [one.ranks for one in found] == [(0, 1), (2,)]


# -- descriptions


def test_a_description_is_read_as_written(tmp_path: Path) -> None:
    write_recording(recording(tmp_path, 3))
    assert read_recording(tmp_path) == recording(tmp_path, 3)


def test_more_ranks_than_processors_are_said(tmp_path: Path) -> None:
    assert recording(tmp_path, 2).warnings == ()
    (said,) = recording(tmp_path, 3).warnings
    assert said.startswith("3 ranks shared 2 processors when they were recorded")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"format_version": 2', '"format_version": 9', "has version 9"),
        ('"rank": 1', '"rank": 7', "describes no recording"),
        ('"kept": true', '"kept": 1', "describes no recording"),
        ('"seconds": 1.0', '"seconds": -1', "describes no recording"),
        ('"seconds": 1.0', '"seconds": NaN', "is not JSON"),
        ('"seconds": 1.0', f'"seconds": {"9" * 400}', "describes no recording"),
        ('"digests": {', '"digests": [], "more": {', "describes no recording"),
        ('"digests": {', '"digests": null, "more": {', "describes no recording"),
        ('"library": "Open MPI"', '"library": 3', "describes no recording"),
        ('"/bin/true": "0"', '"/bin/false": "0"', "describes no recording"),
        ('"ranks": [', '"ranks": 3, "more": [', "describes no recording"),
        ('"processors": 2', '"processors": -2', "describes no recording"),
        ("{", "", "is not JSON"),
    ],
)
def test_a_description_that_was_changed(old: str, new: str, message: str, tmp_path: Path) -> None:
    write_recording(recording(tmp_path, 2))
    path = tmp_path / "recording.json"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(ProbeFileDamaged, match=message):
        read_recording(tmp_path)


CLUSTER = '{"representative": 0, "ranks": [0, 1], "computing": 1.0, "spread": 0.0, "verified": 1, "error": 0.1}'
OUTSIDE = CLUSTER.replace('"verified": 1', '"verified": 2')


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "describes no clusters"),
        ('{"format_version": 2, "clusters": []}', "version 2"),
        ('{"format_version": 1, "clusters": []}', "are not those of 2 ranks"),
        (f'{{"format_version": 1, "clusters": [{CLUSTER.replace("[0, 1]", "[1]")}]}}', "without its representative"),
        (f'{{"format_version": 1, "clusters": [{CLUSTER.replace("1]", "true]")}]}}', "without its representative"),
        (f'{{"format_version": 1, "clusters": [{CLUSTER.replace("0.1", "null")}]}}', "verified by another's rank"),
        (f'{{"format_version": 1, "clusters": [{CLUSTER.replace("1.0", "9" * 400)}]}}', "is no number"),
        (f'{{"format_version": 1, "clusters": [{CLUSTER.replace("0.1", "true")}]}}', "is no number"),
        (f'{{"format_version": 1, "clusters": [{OUTSIDE}]}}', "verified by another's rank"),
        (f'{{"format_version": 1, "clusters": [{CLUSTER}]}}', "is missing"),
    ],
)
def test_clusters_that_were_changed(text: str, message: str, tmp_path: Path) -> None:
    write_recording(recording(tmp_path, 2))
    with pytest.raises(ProbeFileDamaged, match="a recording without probes"):
        read_mpi_probe(tmp_path)
    (tmp_path / "clusters.json").write_text(text)
    with pytest.raises(ProbeFileDamaged, match=message):
        read_mpi_probe(tmp_path)
    with (tmp_path / "clusters.json").open("ab") as file:
        file.truncate(1 << 33)
    with pytest.raises(StorageError, match="larger than"):
        read_mpi_probe(tmp_path)


# -- platforms

HEAD = "<?xml version='1.0'?><!DOCTYPE platform SYSTEM \"https://simgrid.org/simgrid.dtd\">"


def test_hosts_of_platforms(tmp_path: Path) -> None:
    path = tmp_path / "p.xml"
    path.write_text(
        f'{HEAD}<platform version="4.1"><zone id="z" routing="Full"><host id="a" speed="1Gf"/>'
        '<cluster id="c" prefix="n" suffix=".x" radical="0-2,7" speed="1Gf" bw="1GBps" lat="1us"/></zone></platform>'
    )
    hosts = hosts_of(path)
    assert hosts == ["a", "n0.x", "n1.x", "n2.x", "n7.x"]
    assert placed(hosts, 4, 2, "block") == ["a", "a", "n0.x", "n0.x"]
    assert placed(hosts, 4, 2, "cyclic") == ["a", "n0.x", "a", "n0.x"]
    assert placed(hosts, 5, 2, "cyclic") == ["a", "n0.x", "n1.x", "a", "n0.x"]
    with pytest.raises(ModelInvalid, match="has 5 hosts, too few for 6 ranks at 1 a node"):
        placed(hosts, 6, 1, "block")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<platform", "is not XML"),
        ("<html/>", "is <html>, not a <platform>"),
        ('<!DOCTYPE a [<!ENTITY a "b">]><platform/>', "defines XML entities"),
        ("<platform/>", "has no hosts"),
        ('<platform><host id="a" speed="1Gf"/><link id="l" bandwidth="0MBps"/></platform>', "would ever arrive"),
        ('<platform><host id="a" speed="0"/></platform>', "would ever arrive"),
        ('<platform><cluster prefix="n" radical="0-99999999"/></platform>', "more than 4000000 hosts"),
        ('<platform><cluster prefix="n" radical="a-b"/></platform>', "a cluster with radical"),
    ],
)
def test_platforms_that_are_none(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "p.xml").write_text(text)
    with pytest.raises(ModelInvalid, match=message):
        hosts_of(tmp_path / "p.xml")
