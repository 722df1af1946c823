# SPDX-License-Identifier: Apache-2.0
"""Clusters ranked by the predicted time of an MPI program: in order, each node's probes run once, failures named."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result
from mpi_packed import packed_probe
from mpi_programs import allow_root, built, launched
from mpi_recordings import made_call, made_recording
from published import schema_errors

from checkpoint.errors import ModelInvalid, NodesFailed, NodeUnreachable
from probe.cli.main import cli
from probe.mpi.probes import building, clusters, predicting
from probe.mpi.probes.building import MpiProbe
from probe.mpi.probes.predicting import Ratio, predict
from probe.mpi.probes.ranking import Cluster, rank
from probe.mpi.simulate import Where
from probe.simulation.platform import Links

SLOW = Where(network="torus:2", links=Links(2e9, 1e-3))
FAST = Where(network="torus:2", links=Links(2e9, 1e-6))


def program(folder: Path) -> MpiProbe:
    """A second of computing and 100 round trips, of two ranks of which one stands for both."""
    trip = [made_call("Send", peer=1, count=8, element=1), made_call("Recv", peer=1, count=8, element=1)]
    back = [made_call("Recv", peer=0, count=8, element=1), made_call("Send", peer=0, count=8, element=1)]
    begin = made_call("Barrier", computing=1.0)
    recording = made_recording(folder / "recording", [[begin, *trip * 100], [begin, *back * 100]])
    return MpiProbe(recording, (clusters.Cluster(0, (0, 1), 1.0, 0.0, None, None),))


def result(seconds: float) -> Any:
    """Of a probe whose reference time is a second."""
    prediction = SimpleNamespace(seconds=seconds, low=seconds * 0.9, high=seconds * 1.1, variances={"load": 0.0025})
    return SimpleNamespace(
        prediction=prediction, manifest=SimpleNamespace(reference=SimpleNamespace(seconds=1.0)), warnings=()
    )


SPEEDS = {"slow": 2.0, "fast": 0.5, "alike": 0.55}


def test_the_fastest_cluster_stands_first(tmp_path: Path) -> None:
    ran = []

    def run_on(node: str, probe: Path) -> Any:
        ran.append(node)
        return result(SPEEDS[node])

    asked = [Cluster("slow", FAST), Cluster("fast", SLOW), Cluster("fast", FAST), Cluster("alike", FAST)]
    found = rank(program(tmp_path), asked, run_on)
    assert [one.cluster for one in found] == [asked[n] for n in (2, 3, 1, 0)]
    # 200 messages of a millisecond, beside half a second of computing.
    times = [one.prediction.seconds for one in found if one.prediction]
    assert times == pytest.approx([0.5, 0.55, 0.7, 2.0], rel=0.02)
    assert [one.as_fast_as_best for one in found] == [True, True, False, False]
    assert ran == ["slow", "fast", "alike"]


def test_the_others_count_by_their_computing() -> None:
    small, large = clusters.Cluster(1, (1,), 1.0, 0.0), clusters.Cluster(2, (2, 3, 4), 1.0, 0.0)
    known = [Ratio(small, 1.0, 0.5, 1.2), Ratio(large, 2.0, 1.9, 2.1)]
    found = predicting._as_the_others(clusters.Cluster(0, (0,), 0.01, 0.0, probed=False), known)
    assert (found.ratio, found.low, found.high) == (1.75, 0.5, 2.1)


@pytest.mark.parametrize(("seconds", "share"), [(0.04, 0.04), (0.06, 0.06)])
def test_how_much_may_have_no_probe(seconds: float, share: float) -> None:
    parts = [clusters.Cluster(0, (0,), seconds, 0.0, probed=False), clusters.Cluster(1, (1, 2), 0.48, 0.0)]
    parts[1] = replace(parts[1], computing=(1 - seconds) / 2)
    assert building._unprobed(parts) == pytest.approx(share)
    assert (building._unprobed(parts) > building.MOST_UNPROBED) == (share > 0.05)
    assert building._unprobed(parts[:1]) == 1.0


def test_ranks_without_a_probe_are_scaled_as_the_others(tmp_path: Path) -> None:
    made = program(tmp_path)
    parts = [clusters.Cluster(0, (0,), 0.01, 0.0, probed=False), clusters.Cluster(1, (1,), 1.0, 0.0)]
    ran = []

    def run(path: Path) -> Any:
        ran.append(path.name)
        return result(2.0)

    found = predict(MpiProbe(made.recording, tuple(parts)), run, FAST)
    assert ran == ["rank-1.probe"]
    assert {one.cluster.representative: (one.ratio, one.low, one.high) for one in found.ratios} == {
        0: (2.0, 1.8, 2.2), 1: (2.0, 1.8, 2.2),
    }  # fmt: skip
    assert found.seconds == pytest.approx(2.0, rel=0.02)


def test_a_node_that_fails(tmp_path: Path) -> None:
    ran = []

    def run_on(node: str, probe: Path) -> Any:
        ran.append(node)
        if node == "gone":
            raise NodeUnreachable("gone: no route")
        return result(1.0)

    found = rank(program(tmp_path), [Cluster("gone", FAST), Cluster("gone", SLOW), Cluster("there", FAST)], run_on)
    assert [(one.cluster.node, str(one.error)) for one in found] == [
        ("there", "None"), ("gone", "gone: no route"), ("gone", "gone: no route"),
    ]  # fmt: skip
    assert ran == ["gone", "there"]


def test_a_network_that_cannot_have_the_ranks_is_told_before_any_probe_runs(tmp_path: Path) -> None:
    def run_on(node: str, probe: Path) -> Any:
        raise AssertionError(node)

    with pytest.raises(ModelInvalid, match="too few"):
        rank(program(tmp_path), [Cluster("a", FAST), Cluster("a", Where(network="torus:1"))], run_on)


# -- the command line


def ranked(*words: str | Path) -> Result:
    return CliRunner().invoke(cli, ["mpi", "rank", "--ssh-config", "/dev/null", *map(str, words)])


def test_probe_rank_says_who_orders_clusters(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["rank", str(packed_probe(tmp_path))])
    assert done.exit_code == 2 and "ordered by `probe mpi rank`" in done.output


def test_why_all_was_simulated_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, however many clusters there are."""
    probe = program(tmp_path)
    monkeypatch.setattr("probe.mpi.probes.packing.opened", lambda _: nullcontext(probe))
    monkeypatch.setattr("probe.cli.mpi_rank.runner", lambda *_: lambda _: result(1.0))
    asked = ["--cluster", "here,torus:2", "--cluster", "here,torus:1,2"]

    def told(*words: str) -> str:
        done = ranked(*asked, *words, "app.mpiprobe")
        assert done.exit_code == 0, done.output
        return done.stdout

    said = "the ranks meet 1 times, 1 of them without messages under way"
    assert told("--epochs").count(f"simulated whole, without epochs: {said}") == 1
    assert "epochs" not in told()
    for words, wanted in ((["--epochs"], True), ([], False)):
        answer = json.loads(told(*words, "--json"))
        assert schema_errors("probe-mpi-rank", answer) == []
        reasons = [one["whole"] for one in answer["clusters"]]
        assert all(one.startswith(said) for one in reasons) if wanted else reasons == [None, None]


@pytest.mark.slow
def test_real_probes_here_and_on_a_node_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    allow_root(monkeypatch)
    command = launched("openmpi", 2, built("halo", "openmpi", tmp_path), "1200", "1000")
    words = ["mpi", "build", "--capture", "direct", "--runs", "0", "-q", "-o", "app.mpiprobe", "--", *command]
    assert CliRunner().invoke(cli, words, catch_exceptions=False).exit_code == 0
    nowhere = "guest@127.0.0.1:1,torus:2"
    asked = ["-q", "--repeat", "3", "--latency", "0.001", "--cluster", "here,torus:2", "--cluster", "here,torus:1,2"]
    done = ranked(*asked, "--cluster", nowhere, "--json", "app.mpiprobe")
    assert isinstance(done.exception, NodesFailed)
    assert "1 of 3 clusters have no prediction: guest@127.0.0.1:1 with torus:2" in str(done.exception)
    answer = json.loads(done.stdout)
    assert schema_errors("probe-mpi-rank", answer) == []
    first, second, last = answer["clusters"]
    # Two ranks of one host do not see the latency of the links.
    assert [(one["network"], one["ranks_per_node"]) for one in (first, second)] == [("torus:1", 2), ("torus:2", 1)]
    assert all(one["low"] < one["seconds"] < one["high"] for one in (first, second))
    assert last["seconds"] is None and "127.0.0.1" in last["error"] and not last["as_fast_as_best"]
    done = ranked(*asked, "app.mpiprobe")
    assert done.exit_code == 0
    head, best, *_ = done.stdout.splitlines()
    assert head.split()[:2] == ["node", "network"]
    assert best.split()[:3] == ["here", "torus:1", "2"] and "may be the fastest" in best
    assert isinstance(ranked("--cluster", nowhere, "app.mpiprobe").exception, NodeUnreachable)


@pytest.mark.parametrize(
    "text",
    [
        "here", "here,", ",torus:2", "here,torus:2,0", "here,torus:2,x", "a,b,1,2", "", "here,torus:2,1000000000",
        pytest.param("here,torus:2," + "9" * 5000, id="more digits than int() takes"),
    ],
)  # fmt: skip
def test_what_is_no_cluster(text: str, tmp_path: Path) -> None:
    done = ranked("--cluster", text, packed_probe(tmp_path))
    assert done.exit_code == 2
    assert "is wanted" in done.output or "is no number of ranks" in done.output
