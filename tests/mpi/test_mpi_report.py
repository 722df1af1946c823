# SPDX-License-Identifier: Apache-2.0
"""Reports on MPI programs: calls matched, critical paths, links, changed networks; simulated by SimGrid."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from mpi_programs import allow_root, recorded
from mpi_recordings import made_call, made_recording
from published import schema_errors
from report_pages import pixels

from checkpoint.errors import ModelInvalid, ProgramUnsupported
from probe.cli.main import cli
from probe.mpi.platforms import with_other_links
from probe.mpi.recording import Recording
from probe.mpi.report.analysis import EAGER, Analysis, analyse
from probe.mpi.report.matching import Matched, matched
from probe.mpi.report.paths import critical_path, without_network
from probe.mpi.simulate import Where, _links, link_loads, prepared, simulate, watch
from probe.mpi.trace import RankCalls, read_calls
from probe.report.drawing import COLOURS
from probe.simulation.platform import Links

DOUBLE = {"element": 8}


def on(ranks: int, latency: float = 1e-3, bandwidth: float = 1e9) -> Where:
    return Where(network=f"torus:{ranks}", links=Links(bandwidth, latency))


def read(made: Recording) -> list[RankCalls]:
    return [read_calls(made.folder, run.rank) for run in made.ranks]


def free(made: Recording) -> tuple[list[list[float]], Matched]:
    """When each call of each rank ends where messages take no time."""
    ranks = read(made)
    found = matched(ranks, EAGER)
    times = without_network([one.calls["computing"] * 1e-9 for one in ranks], found)
    return [[round(float(end), 9) for end in one[:, 1]] for one in times], found


@pytest.fixture
def late(tmp_path: Path) -> Recording:
    """Rank 1 waits for a message of rank 0, which computes for a second before it sends."""
    send = made_call("Send", 1.0, peer=1, tag=3, count=1000, **DOUBLE)
    receive = made_call("Recv", 0.1, peer=0, tag=3, count=1000, **DOUBLE)
    return made_recording(
        tmp_path / "late", [[send], [receive, made_call("Send", 0.5, peer=-1, count=0, **DOUBLE)]]
    )  # fmt: skip


def test_what_was_prepared_once_is_played_with_any_computing(late: Recording) -> None:
    where = on(2, latency=1e-6)
    with prepared(late) as plays:
        shutil.rmtree(late.folder)
        found = [simulate(late, where, scale=scale, plays=plays) for scale in (1.0, 0.5)]
        ranks = simulate(late, where, scales={0: 2.0, 1: 3.0}, plays=plays)
    assert [one.computing for one in found] == [(1.0, 0.6), (0.5, 0.3)]
    assert [one.seconds for one in found] == pytest.approx([1.5, 0.75], rel=1e-3)
    assert ranks.computing == pytest.approx((2.0, 1.8)) and ranks.seconds == pytest.approx(3.5, rel=1e-3)
    assert not plays.folder.exists()


# -- matching


def test_a_receiver_waits_for_its_sender(late: Recording) -> None:
    assert free(late)[0] == [[1.0, 1.0], [1.0, 1.5, 1.5]]


def test_a_large_send_waits_for_its_receiver(tmp_path: Path) -> None:
    for number, (name, count, end) in enumerate((("Send", 8191, 0.0), ("Send", 8192, 2.0), ("Ssend", 1, 2.0))):
        send = made_call(name, peer=1, count=count, **DOUBLE)
        receive = made_call("Recv", 2.0, peer=0, count=count, **DOUBLE)
        made = made_recording(tmp_path / f"large{number}", [[send], [receive]])
        assert free(made)[0][0] == [end, end]


def test_requests_are_awaited_where_they_are_completed(tmp_path: Path) -> None:
    """The same request twice, as a persistent one has; with who answered it each time."""
    start = made_call("Irecv", 0.25, peer=-1, count=1, request=7, **DOUBLE)
    end = made_call("Wait", 0.25, extras=[7, 1, 5])
    sends = [made_call("Send", 1.0, peer=0, tag=5, count=1, **DOUBLE)] * 2
    made = made_recording(tmp_path / "requests", [[start, end, start, end], sends])
    assert free(made)[0][0] == [0.25, 1.0, 1.25, 2.0, 2.0]


def test_communicators_are_kept_apart(tmp_path: Path) -> None:
    """Two of the same ranks, with the same tag: the later message of the first goes to the earlier receive."""
    new = [made_call("Comm_dup", other=number, extras=[0, 1]) for number in (2, 3)]
    sends = [made_call("Send", 1.0, peer=1, comm=comm, count=1, **DOUBLE) for comm in (3, 2)]
    receives = [made_call("Recv", peer=0, comm=comm, count=1, **DOUBLE) for comm in (2, 3)]
    made = made_recording(tmp_path / "comms", [[*new, *sends], [*new, *receives]])
    assert free(made)[0][1] == [0.0, 0.0, 2.0, 2.0, 2.0]


def test_communicators_are_made_of_each_other_without_end(tmp_path: Path) -> None:
    chain = [made_call("Comm_dup", comm=number - 1 if number > 2 else 0, other=number, extras=[0, 1])
             for number in range(2, 1300)]  # fmt: skip
    ends = [made_call("Barrier", 1.0 + rank, comm=1299) for rank in range(2)]
    made = made_recording(tmp_path / "chain", [[*chain, ends[0]], [*chain, ends[1]]])
    assert [one[-1] for one in free(made)[0]] == [2.0, 2.0]


def scanned(folder: Path, order: list[int], name: str = "Scan") -> Recording:
    """Each rank computes as many seconds as its number and one, then scans in a communicator of that order."""
    new = made_call("Comm_split", other=2, extras=order)
    return made_recording(
        folder, [[new, made_call(name, 1.0 + rank, comm=2, count=1, **DOUBLE)] for rank in sorted(order)]
    )


def test_scans_wait_in_the_order_of_their_communicator(tmp_path: Path) -> None:
    made = scanned(tmp_path / "scan", [2, 0, 1])
    ends, found = free(made)
    assert [one[1] for one in ends] == [3.0, 3.0, 3.0]
    watched = watch(made, on(3, latency=1e-6))
    path = critical_path(watched.calls, found)
    assert {one.rank for one in path.segments if one.is_computing} == {2}
    with pytest.raises(ModelInvalid, match="call 1 of rank 1, MPI_Scan, waits for ranks before it"):
        new = made_call("Comm_split", other=2, extras=[0, 1])
        lone = made_recording(tmp_path / "lone", [[new], [new, made_call("Scan", comm=2, count=1, **DOUBLE)]])
        free(lone)


def test_scans_of_many_ranks_take_no_room_for_each_pair(tmp_path: Path) -> None:
    ends, found = free(scanned(tmp_path / "many", list(range(150)), "Exscan"))
    assert [one[1] for one in ends] == [1.0 + rank for rank in range(150)]
    assert sum(len(calls) for one in found.waits for calls in one.calls.values()) == 0


@pytest.mark.parametrize("name", ["b\u00fcro".encode("latin-1"), "a\x85b\u2028c d".encode(), b"plain"])
def test_links_have_any_name(name: bytes, tmp_path: Path) -> None:
    (tmp_path / "links").write_bytes(b"1e9 0 unused\n1e9 5 " + name + b"\n")
    assert [(one.name, one.carried) for one in _links(tmp_path / "links")] == [(name.decode("utf-8", "replace"), 5.0)]


def test_both_directions_of_a_sendrecv(tmp_path: Path) -> None:
    swap = [
        made_call("Sendrecv", seconds, peer=1 - rank, other=1 - rank, tag=4, count=1, extras=[4, 8], **DOUBLE)
        for rank, seconds in ((0, 1.0), (1, 3.0))
    ]  # fmt: skip
    assert free(made_recording(tmp_path / "both", [[swap[0]], [swap[1]]]))[0] == [[3.0, 3.0], [3.0, 3.0]]


@pytest.mark.parametrize(
    ("name", "root", "ends"),
    [
        ("Barrier", -1, [3.0, 3.0, 3.0]), ("Allreduce", -1, [3.0, 3.0, 3.0]), ("Bcast", 1, [2.0, 2.0, 3.0]),
        ("Reduce", 0, [3.0, 2.0, 3.0]), ("Scan", -1, [1.0, 2.0, 3.0]),
    ],
)  # fmt: skip
def test_collective_calls_wait_as_mpi_says(tmp_path: Path, name: str, root: int, ends: list[float]) -> None:
    each = [[made_call(name, 1.0 + rank, other=root, count=1, **DOUBLE)] for rank in range(3)]
    assert [one[0] for one in free(made_recording(tmp_path / "together", each))[0]] == ends


def test_a_collective_call_that_a_wait_completes(tmp_path: Path) -> None:
    each = [
        [
            made_call("Iallreduce", 1.0 + rank, count=1, request=4, **DOUBLE),
            made_call("Wait", 0.5, extras=[4, -1, 0]),
        ]
        for rank in range(2)
    ]
    assert free(made_recording(tmp_path / "later", each))[0] == [[1.0, 2.0, 2.0], [2.0, 2.5, 2.5]]


def test_calls_that_do_not_fit(tmp_path: Path) -> None:
    receive = made_call("Recv", peer=1, count=1, **DOUBLE)
    with pytest.raises(ModelInvalid, match="call 0 of rank 0, MPI_Recv, waits for a message that nobody sends"):
        free(made_recording(tmp_path / "alone", [[receive], []]))
    send = made_call("Ssend", peer=1, count=1, **DOUBLE)
    with pytest.raises(ModelInvalid, match="MPI_Ssend, waits for a receive that nobody begins"):
        free(made_recording(tmp_path / "sent", [[send], []]))
    gather = [made_call("Bcast", other=1, count=1, **DOUBLE)]
    with pytest.raises(ModelInvalid, match="MPI_Bcast, waits for its root"):
        free(made_recording(tmp_path / "rootless", [gather, []]))
    both = [[made_call(n, peer=1 - rank, count=1, **DOUBLE) for n in ("Ssend", "Recv")] for rank in range(2)]
    with pytest.raises(ModelInvalid, match="rank 0 waits in its call 0 for ranks that wait for it"):
        free(made_recording(tmp_path / "circle", both))


# -- paths


def test_the_path_goes_over_to_the_sender(late: Recording) -> None:
    seen = watch(late, on(2))
    path = critical_path(seen.calls, free(late)[1])
    kinds = [(one.rank, one.last_rank, one.is_computing) for one in path.segments]
    assert kinds == [(0, 0, True), (0, 1, False), (1, 1, True)]
    assert path.seconds == pytest.approx(seen.simulated.seconds, abs=1e-8)
    assert path.computing == pytest.approx(1.5)
    # Two halves of a link's latency, and 8 KB of one GB a second.
    assert path.segments[1].seconds == pytest.approx(1e-3 + 8e-6, rel=0.01)


@pytest.mark.parametrize(
    ("name", "ranks"), [("halo", 4), ("fft", 4), ("cg", 3), ("pipeline", 3), ("workers", 3), ("ocean", 3)]
)
def test_a_path_is_as_long_as_its_program_and_without_gaps(
    name: str, ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow_root(monkeypatch)
    monkeypatch.chdir(tmp_path)
    made = recorded(name, "openmpi", ranks, tmp_path)
    found = analyse(made, Where(network="torus:2x2"))
    ends = [0.0, *(one.end for one in found.path.segments)]
    assert [one.begin for one in found.path.segments] == pytest.approx(ends[:-1])
    assert found.path.seconds == pytest.approx(found.seconds, abs=1e-8)
    # What the matched calls say alone, and what SimGrid says of a network that takes no time.
    assert found.changes[-1].seconds == pytest.approx(found.without_network, rel=0.01)
    assert found.without_network < found.seconds
    faster = {one.name: one.seconds for one in found.changes}
    assert faster["latency halved"] < found.seconds
    assert faster["cores twice as fast"] < faster["cores 10 % faster"] < found.seconds
    # More latency is never faster.
    later = [simulate(made, Where(network="torus:2x2", links=Links(2e9, one))).seconds for one in (0, 1e-6, 1e-5, 1e-4)]
    assert later == sorted(later)


# -- what is simulated


def test_links_carry_what_was_sent(late: Recording) -> None:
    (link,) = link_loads(late, on(2))
    assert link.carried == pytest.approx(8000, rel=0.01)
    assert link.bandwidth == 1e9
    # Two at a time share the way; each hop carries both.
    sends = [made_call("Isend", peer=2, count=100_000, request=n, **DOUBLE) for n in range(2)]
    receives = [made_call("Irecv", peer=0, count=100_000, request=n, **DOUBLE) for n in range(2)]
    ends = [made_call("Waitall", extras=[0, peer, 0, 1, peer, 0]) for peer in (-1, 0)]
    made = made_recording(late.folder.parent / "shared", [[*sends, ends[0]], [], [*receives, ends[1]], []])
    carried = [one.carried for one in link_loads(made, Where(network="torus:4"))]
    assert carried == pytest.approx([1.6e6, 1.6e6], rel=0.01)


def test_watching_changes_nothing(late: Recording) -> None:
    seen, plain = watch(late, on(2)).simulated, simulate(late, on(2))
    assert (seen.seconds, seen.ranks, seen.computing) == (plain.seconds, plain.ranks, plain.computing)


def test_changes_of_a_platform_file(late: Recording, tmp_path: Path) -> None:
    text = """<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1"><cluster id="c" prefix="n" suffix="" radical="0-1" speed="1Gf" bw="1e2MBps" lat='500us'
 loopback_bw="5GBps" loopback_lat="1us"/></platform>
"""
    other = with_other_links(text, 0.5, 2.0)
    assert "bw=\"200MBps\" lat='250us'" in other
    assert 'loopback_bw="5GBps" loopback_lat="1us"' in other
    assert with_other_links(text, 1.0, 1.0) == text
    (tmp_path / "two.xml").write_text(text)
    seconds = {
        latency: simulate(late, Where(tmp_path / "two.xml", times_latency=latency)).seconds for latency in (1.0, 0.5)
    }
    assert seconds[1.0] - seconds[0.5] == pytest.approx(500e-6, rel=0.01)
    # Its sends wait for receivers where the file says so.
    (tmp_path / "eager.xml").write_text(
        text.replace("<cluster", '<config><prop id="smpi/send-is-detached-thresh" value="50"/></config><cluster')
    )
    assert late_receiver(tmp_path, Where(tmp_path / "two.xml")) == pytest.approx(2.0, rel=0.01)
    assert late_receiver(tmp_path, Where(tmp_path / "eager.xml")) == pytest.approx(3.0, rel=0.01)


def late_receiver(folder: Path, where: Where) -> float:
    """Seconds without a network of 80 bytes for a rank that computes for two seconds, and then one second more."""
    send = made_call("Send", peer=1, count=10, **DOUBLE)
    more = made_call("Send", 1.0, peer=-1, **DOUBLE)
    receive = made_call("Recv", 2.0, peer=0, count=10, **DOUBLE)
    assert where.platform is not None
    return analyse(made_recording(folder / where.platform.stem, [[send, more], [receive]]), where).without_network


def test_a_program_that_takes_no_time(late: Recording) -> None:
    made = made_recording(late.folder.parent / "empty", [[], []])
    with pytest.raises(ProgramUnsupported, match="takes no time on torus:2: there is nothing to draw"):
        analyse(made, on(2))


# -- page and figures


def rows(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


def test_what_is_drawn(late: Recording, tmp_path: Path) -> None:
    page, folder = tmp_path / "page.html", tmp_path / "figures"
    words = ["mpi", "report", "--network", "torus:2", "--latency", "1e-3", "-q", "--json", str(late.folder)]
    done = CliRunner().invoke(cli, [*words, "-o", str(page), "--figures", str(folder)])
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert schema_errors("probe-mpi-report", said) == []
    assert said["without_network"] == pytest.approx(1.5)
    assert said["path"]["computing"] == pytest.approx(1.5)
    assert {Path(one).stem for one in said["files"]} == {"mpi-timeline", "mpi-path", "mpi-links", "mpi-changes"}
    receive = rows(folder, "mpi-timeline")[2]
    assert (receive["rank"], receive["name"]) == ("1", "MPI_Recv")
    assert [float(receive[key]) for key in ("entered", "waited_until")] == pytest.approx([0.1, 1.0])
    changes = {row["change"]: float(row["seconds"]) for row in rows(folder, "mpi-changes")}
    assert changes["cores twice as fast"] == pytest.approx(0.75, rel=0.01)
    assert changes["no latency, transfers at once"] == pytest.approx(1.5)
    # Nine tenths of one rank's second are waiting: more than a tenth of the picture.
    assert pixels(folder / "mpi-timeline.png", COLOURS[1]) > 5000
    assert pixels(folder / "mpi-timeline.png", COLOURS[0]) > pixels(folder / "mpi-timeline.png", COLOURS[1])
    text = page.read_text()
    assert "&lt;app&gt;" in text and "<app>" not in text and page.stat().st_mode & 0o777 == 0o600


def test_a_page_or_figures_are_wanted(late: Recording) -> None:
    done = CliRunner().invoke(cli, ["mpi", "report", "--network", "torus:2", str(late.folder)])
    assert done.exit_code == 2 and "give -o for a page, or --figures for a folder, or both" in done.output


def test_some_of_many_ranks_are_drawn(tmp_path: Path) -> None:
    from probe.mpi.report.figures import figures_of

    ranks = 80
    each = [[made_call("Barrier", 0.01 + 0.001 * rank)] for rank in range(ranks)]
    found: Analysis = analyse(made_recording(tmp_path / "many", each), on(ranks))
    timeline, path, *_ = figures_of(found)
    assert "64 of 80 ranks are drawn" in timeline.caption
    assert "16 ranks with less of it are not drawn" in path.caption
    assert len(timeline.rows) == 2 * ranks
