# SPDX-License-Identifier: Apache-2.0
"""The store, in SQLite and in a real PostgreSQL."""

from __future__ import annotations

import json
import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from results import result
from stores import server, store, url

from checkpoint.errors import NotInStore, ProbeError, StoreUnusable, ToolMissing
from probe.store.describing import describe_cluster, describe_node
from probe.store.importing import import_results
from probe.store.observing import Observation, calibration, observe, observe_all, observed
from probe.store.opening import Store, open_store
from probe.store.reading import (
    all_clusters,
    all_nodes,
    all_probes,
    candidates,
    compare,
    find_node,
    find_prediction,
    find_probe,
    history,
)
from probe.store.records import probe_key

__all__ = ["server", "store", "url"]

DAY = 86400.0
NOON = 1_700_000_000.0


# -- what goes in comes out


def test_a_result_comes_out_as_it_went_in(store: Store) -> None:
    given = result(12.5, features=["avx2"], memory=64_000_000_000)
    done = import_results(store, [given], made_at=NOON, cluster="north", tags=["nightly"])
    (found,) = history(store)
    assert done.stored == (found.id,) and done.known == 0
    said = given["prediction"]
    assert (found.seconds, found.low, found.high, found.coverage) == tuple(said.values())
    assert (found.probe, found.node, found.made_at, found.clock) == ("solver", "n1", NOON, "cpu")
    assert found.estimators == given["estimators"]
    assert [p["t_cand"] for p in found.phases] == [0.05, 0.04] and "repeats" not in found.phases[0]
    assert found.stale == ""
    node = find_node(store, "n1")
    assert (node.cluster, node.cpu, node.cores, node.kernel) == ("north", "Example CPU 1", 8, "6.1.0")
    assert (node.features, node.memory, node.workers, node.last_seen) == (("avx2",), 64_000_000_000, 1, NOON)
    probe = find_probe(store, "solver")
    assert (probe.program, probe.tags) == (("./solver", "--steps", "200"), ("nightly",))
    assert find_probe(store, probe.key[:6]) == probe
    assert find_prediction(store, found.id) == found


def test_the_same_result_is_stored_once(store: Store) -> None:
    given = [result(1.0), result(2.0), result(1.0)]
    assert len(import_results(store, given).stored) == 2
    again = import_results(store, [*given, result(3.0)])
    assert (len(again.stored), again.known) == (1, 3)
    assert sorted(p.seconds for p in history(store)) == [1.0, 2.0, 3.0]


def test_arguments_and_inputs_tell_probes_apart(store: Store) -> None:
    import_results(store, [result(1.0), result(2.0, arguments=["--steps", "9"])])
    import_results(store, [result(3.0)], inputs="f" * 64)
    import_results(store, [result(4.0)], tags=["b", "a"])
    import_results(store, [result(5.0)], tags=["c"])
    assert len(all_probes(store)) == 3
    assert [p.tags for p in all_probes(store, "b")] == [("a", "b", "c")]
    with pytest.raises(NotInStore, match="3 probes are called 'solver'"):
        find_probe(store, "solver")
    keys = {p.key for p in all_probes(store)}
    assert {find_probe(store, key[:12]).key for key in keys} == keys


def test_numbers_of_threads_tell_probes_apart(store: Store) -> None:
    """Of one command built with two numbers of threads; an older result, without a number, has one thread."""
    older = result(1.0)
    del older["threads"]
    import_results(store, [older, result(2.0), {**result(3.0), "threads": 2}, {**result(4.0), "threads": 4}])
    assert sorted(p.seconds for p in history(store)) == [1.0, 2.0, 3.0, 4.0]
    found = {p.key for p in all_probes(store)}
    program = tuple(result()["program"])
    assert found == {probe_key(program, ""), probe_key(program, "", 2), probe_key(program, "", 4)} and len(found) == 3
    assert sorted(probe.threads for probe in all_probes(store)) == [1, 2, 4], "keys tell the number"


def test_candidates_are_the_newest_predictions_soonest_first(store: Store) -> None:
    import_results(store, [result(5.0, node="n1"), result(4.0, node="n2"), result(6.0, node="n3")], made_at=NOON)
    import_results(store, [result(3.0, node="n3")], made_at=NOON + DAY)
    import_results(store, [result(1.0, node="n1")], made_at=NOON - DAY)
    import_results(store, [result(0.1, node="n1", probe="other")], made_at=NOON)
    found = candidates(store, find_probe(store, "solver"))
    assert [(c.node, c.seconds) for c in found] == [("n3", 3.0), ("n2", 4.0), ("n1", 5.0)]
    assert [c.node for c in candidates(store, find_probe(store, "solver"), limit=2)] == ["n3", "n2"]


def test_within_one_import_the_last_of_equal_age_counts(store: Store) -> None:
    import_results(store, [result(5.0), result(4.0)], made_at=NOON)
    assert [c.seconds for c in candidates(store, find_probe(store, "solver"))] == [4.0]


@pytest.mark.parametrize("change", [{"cpu": "Example CPU 2"}, {"kernel": "6.18.1"}])
def test_a_changed_node_makes_its_predictions_stale(store: Store, change: dict[str, str]) -> None:
    import_results(store, [result(5.0), result(6.0, node="n2"), result(1.0, probe="other")], made_at=NOON)
    import_results(store, [result(2.0, probe="other", **change)], made_at=NOON + DAY)  # type: ignore[arg-type]
    by_node = {c.node: c.stale for c in candidates(store, find_probe(store, "solver"))}
    assert "changed" in by_node["n1"] and by_node["n2"] == ""
    assert [c.stale for c in candidates(store, find_probe(store, "other"))] == [""]
    # A result from before the change, imported late, is stale itself and does not change the node back.
    import_results(store, [result(7.0)], made_at=NOON + DAY / 2)
    assert all(c.stale for c in candidates(store, find_probe(store, "solver")) if c.node == "n1")
    import_results(store, [result(8.0, **change)], made_at=NOON + 2 * DAY)  # type: ignore[arg-type]
    assert {c.stale for c in candidates(store, find_probe(store, "solver"))} == {""}


def test_saying_that_a_node_has_changed(store: Store) -> None:
    import_results(store, [result(5.0)], made_at=NOON)
    assert not describe_node(store, "n1", cluster="south", features=["fast"], workers=4, kernel="6.1.0")
    assert candidates(store, find_probe(store, "solver"))[0].stale == ""
    assert describe_node(store, "n1", kernel="6.2.0")
    (found,) = candidates(store, find_probe(store, "solver"))
    assert found.stale and (found.cluster, found.features, found.workers) == ("south", ("fast",), 4)
    with pytest.raises(NotInStore, match="no node 'n9'"):
        describe_node(store, "n9", kernel="1")
    with pytest.raises(ProbeError, match="0 workers"):
        describe_node(store, "n1", workers=0)


def test_clusters(store: Store) -> None:
    describe_cluster(store, "north", home=True, local_network=1e8)
    describe_cluster(store, "south", local_network=1e9, inbound=1e7, outbound=2e7, latency=0.02)
    describe_cluster(store, "south", home=True, inbound=0.0)
    north, south = all_clusters(store)
    assert not north.home and south.home and (south.inbound, south.outbound, south.latency) == (0.0, 2e7, 0.02)
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ProbeError, match="no measured value"):
            describe_cluster(store, "north", inbound=wrong)


# -- comparing


def test_compare_nodes_probes_and_predictions(store: Store) -> None:
    given = [result(10.0), result(20.0, node="n2"), result(4.0, probe="other"), result(2.0, probe="other", node="n2")]
    import_results(store, given, made_at=NOON)
    import_results(store, [result(11.0, phases=(0.1, 0.04))], made_at=NOON + DAY)
    by_node = compare(store, "n1", "n2")
    assert sorted(row.ratio for row in by_node) == [0.5, pytest.approx(20 / 11)]
    assert [(row.what, row.ratio) for row in compare(store, "solver", "other") if row.what == "n2"] == [("n2", 0.1)]
    newer, older = history(store, probe=find_probe(store, "solver"), node=find_node(store, "n1"))
    rows = compare(store, f"#{older.id}", f"#{newer.id}")
    assert [(r.what, r.ratio) for r in rows] == [("whole run", 1.1), ("phase 0", 2.0), ("phase 1", 1.0)]


def test_compare_refuses_what_has_nothing_in_common(store: Store) -> None:
    import_results(store, [result(1.0), result(1.0, probe="other", node="n2")])
    for a, b in (("n1", "n2"), ("solver", "other")):
        with pytest.raises(ProbeError, match="nothing in common"):
            compare(store, a, b)
    with pytest.raises(NotInStore, match="no node 'solver'"):
        compare(store, "n1", "solver")
    with pytest.raises(NotInStore, match="no probe 'who'"):
        compare(store, "who", "solver")
    with pytest.raises(NotInStore, match="no prediction 99"):
        compare(store, "#99", "#1")
    with pytest.raises(NotInStore, match="not the number"):
        compare(store, "#x", "#1")


# -- observing


def test_observations_meet_the_prediction_made_before_them(store: Store) -> None:
    import_results(store, [result(10.0)], made_at=NOON)
    import_results(store, [result(20.0)], made_at=NOON + 10 * DAY)
    probe, node = find_probe(store, "solver"), find_node(store, "n1")
    first = observe(store, probe, node, 10.5, observed_at=NOON + DAY)
    later = observe(store, probe, node, 30.0, observed_at=NOON + 11 * DAY)
    before = observe(store, probe, node, 10.0, observed_at=NOON - DAY)
    assert (first.predicted, first.held, first.ratio) == (10.0, True, 1.05)
    assert (later.predicted, later.held, later.ratio) == (20.0, False, 1.5)
    assert (before.prediction, before.held, before.ratio) == (None, None, None)
    for wrong in (0.0, -1.0, float("nan")):
        with pytest.raises(ProbeError, match="is no run time"):
            observe(store, probe, node, wrong)


def test_a_store_that_does_not_keep_what_is_written_is_named(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with open_store(path) as made:
        import_results(made, [result(10.0)], made_at=NOON)
    with sqlite3.connect(path) as connection:
        connection.execute(
            "CREATE TRIGGER other AFTER INSERT ON observations BEGIN UPDATE observations SET source = 'other'; END"
        )
    connection.close()
    with open_store(path) as opened:
        probe, node = find_probe(opened, "solver"), find_node(opened, "n1")
        with pytest.raises(StoreUnusable, match="is damaged: what was written is not there"):
            observe(opened, probe, node, 10.5)


def test_calibration_by_month(store: Store) -> None:
    import_results(store, [result(10.0)], made_at=NOON)
    probe, node = find_probe(store, "solver"), find_node(store, "n1")
    seen = [(10.5, 1), (9.5, 2), (12.0, 3), (15.0, 40)]
    given = [Observation(probe, node, s, NOON + day * DAY, f"slurm:c:{day}") for s, day in seen]
    assert observe_all(store, given) == 4
    assert observe_all(store, [*given, Observation(probe, node, 1.0, NOON - DAY, "slurm:c:0")]) == 1
    november, december, everything = calibration(observed(store))
    assert (november.period, november.count, november.held) == ("2023-11", 3, pytest.approx(2 / 3))
    assert (november.bias, november.error, november.worst) == pytest.approx((0.05, 0.05, 0.2))
    assert (december.period, december.held, december.bias) == ("2023-12", 0.0, 0.5)
    assert (everything.period, everything.count, everything.held) == ("all", 4, 0.5)
    assert calibration([]) == []


# -- what must not go in


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda r: r.update(format_version=2), "format_version: 2"),
        (lambda r: r.pop("format_version"), "format_version: None"),
        (lambda r: r.pop("prediction"), "not a whole result"),
        (lambda r: r["node"].pop("kernel"), "not a whole result"),
        (lambda r: r.update(threads="many"), "not a whole result"),
        *((lambda r, n=n: r.update(threads=n), "is no number of threads") for n in (-1, 0, 2.7, "2", True, 1 << 31)),
        (lambda r: r["node"].update(cores="8"), "8 is no number of cores"),
        (lambda r: r["prediction"].update(seconds="soon"), "not a whole result"),
        (lambda r: r["prediction"].update(seconds=0.0, low=0.0), "is none|is no number"),
        (lambda r: r["prediction"].update(low=11.0), "is none|is no number"),
        (lambda r: r["prediction"].update(high=float("inf")), "is none|is no number"),
        (lambda r: r["prediction"].update(seconds=float("nan")), "is none|is no number"),
        (lambda r: r.update(phases=[1]), "not a whole result"),
    ],
)
def test_a_spoiled_result_is_refused_and_nothing_of_the_import_stored(
    tmp_path: Path, spoil: Callable[[dict[str, Any]], Any], message: str
) -> None:
    spoiled = result(10.0)
    spoil(spoiled)
    with open_store(tmp_path / "store.db") as store:
        with pytest.raises(ProbeError, match=message):
            import_results(store, [result(1.0), spoiled])
        assert history(store) == [] and all_nodes(store) == []


def test_no_store_is_made_by_looking(tmp_path: Path) -> None:
    with pytest.raises(StoreUnusable, match="there is no store"):
        open_store(tmp_path / "store.db", create=False)
    assert list(tmp_path.iterdir()) == []


def test_another_schema_version_is_refused(url: str) -> None:
    with open_store(url) as store, store.writing() as connection:
        connection.exec_driver_sql("UPDATE probe_store_info SET value = '4'")
    with pytest.raises(StoreUnusable, match="schema version 4, this program reads and writes 3"):
        open_store(url)


def test_other_files_are_not_stores(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.db"
    with sqlite3.connect(foreign) as connection:
        connection.execute("CREATE TABLE wine (year)")
    connection.close()
    with pytest.raises(StoreUnusable, match="not a probe store"):
        open_store(foreign)
    text = tmp_path / "text.db"
    text.write_text("no database at all, but long enough to be read as the head of one" * 10)
    with pytest.raises(StoreUnusable, match="not a database"):
        open_store(text)
    with pytest.raises(StoreUnusable, match="choose another place"):
        open_store(text / "below")
    with pytest.raises(StoreUnusable, match="unable to open"):
        open_store(tmp_path)


def test_a_damaged_store_is_named(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with open_store(path) as store:
        import_results(store, [result(float(n)) for n in range(1, 400)])
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    connection.close()
    content = bytearray(path.read_bytes())
    content[8192:-8192] = random.Random(1).randbytes(len(content) - 16384)
    path.write_bytes(content)
    with pytest.raises(StoreUnusable, match=r"malformed|damaged|not a database|corrupt"), open_store(path) as store:
        history(store)


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("probes", "program", "[1"), ("probes", "tags", "7"), ("nodes", "features", '[["a"]]'), ("nodes", "cores", "x"),
        ("nodes", "last_seen", 1e17), ("predictions", "seconds", -1), ("predictions", "made_at", b"x"),
        ("predictions", "phases", "[" * 3000), ("predictions", "phases", "[[1, 2]]"), ("predictions", "seconds", 1e308),
        ("predictions", "estimators", '{"direct": "x"}'), ("predictions", "low", "NaN"),
    ],
)  # fmt: skip
def test_a_row_that_nothing_here_wrote_is_named(table: str, column: str, value: Any, tmp_path: Path) -> None:
    """SQLite keeps any value in any column, and a file may be damaged, or somebody else's."""
    path = tmp_path / "store.db"
    with open_store(path) as store:
        import_results(store, [result(1.0), result(2.0)])
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE {table} SET {column} = ?", (value,))
    connection.close()
    with open_store(path) as store, pytest.raises(StoreUnusable, match="is damaged, or not of this program"):
        all_probes(store)
        all_nodes(store)
        history(store)


def test_two_writers_of_a_damaged_store_end_with_its_name(tmp_path: Path) -> None:
    """Neither hangs, neither makes it worse for the other."""
    path = tmp_path / "store.db"
    with open_store(path) as store:
        import_results(store, [result(float(n)) for n in range(1, 400)])
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    connection.close()
    content = bytearray(path.read_bytes())
    content[8192:-8192] = random.Random(1).randbytes(len(content) - 16384)
    path.write_bytes(content)
    given = tmp_path / "result.json"
    given.write_text(json.dumps(result(3.0)))
    command = [sys.executable, "-m", "probe", "store", "import", str(given), "--store", str(path)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    writers = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) for _ in range(2)]
    for writer in writers:
        _, said = writer.communicate(timeout=100)
        assert writer.returncode == StoreUnusable.exit_code and said.startswith(f"probe: {path}: "), said
        assert "malformed" in said and "Traceback" not in said


def test_unreachable_and_unknown_servers(tmp_path: Path) -> None:
    with pytest.raises(StoreUnusable) as raised:
        open_store(f"postgresql://me:secret@/nothing?host={tmp_path}")
    assert "secret" not in str(raised.value)
    with pytest.raises(ToolMissing, match="driver"):
        open_store("firebird://host/name")
    with pytest.raises(StoreUnusable, match="not a database URL"):
        open_store("://")
