# SPDX-License-Identifier: Apache-2.0
"""Time decisions: the store with a million predictions, the model with 10,000 nodes, the hook in slurmctld."""

from __future__ import annotations

import os
import random
import re
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from results import result
from slurm_cluster import SlurmCluster, cluster

from probe.ranking import Cluster, Node, Pool, Workload, decide
from probe.slurm.installing import install
from probe.store.importing import import_results
from probe.store.opening import open_store
from probe.store.reading import candidates, find_probe

BATCH = 2_000
PROBES, NODES = 100, 10_000
SUBMISSIONS = 200
ENTRIES = 10_000


@contextmanager
def _folder(here: Path) -> Iterator[Path]:
    here.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=here, prefix="decisions-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def store(here: Path, predictions: int = 1_000_000) -> dict[str, Any]:
    """Importing so many predictions of 12 phases in batches of 2,000, and rank queries on what is there then."""
    chance = random.Random(1)
    importing = 0.0
    with _folder(here) as folder, open_store(folder / "store.db") as opened:
        for start in range(0, predictions, BATCH):
            given = [
                result(
                    chance.uniform(1, 1000),
                    probe=f"probe{number % PROBES}",
                    node=f"node{chance.randrange(NODES)}",
                    phases=[chance.uniform(0.01, 0.1) for _ in range(12)],
                )
                for number in range(start, min(start + BATCH, predictions))
            ]
            begun = time.perf_counter()
            import_results(opened, given)
            importing += time.perf_counter() - begun
        asked, found = [], 0
        for number in range(20):
            begun = time.perf_counter()
            found = len(candidates(opened, find_probe(opened, f"probe{number}"), limit=100))
            asked.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        everything = len(candidates(opened, find_probe(opened, "probe50")))
        whole = time.perf_counter() - begun
        size = (folder / "store.db").stat().st_size
    return {
        "predictions": predictions,
        "insert_per_second": predictions / importing,
        "rank_seconds": statistics.median(asked),
        "rank_worst_seconds": max(asked),
        "rank_rows": found,
        "rank_all_seconds": whole,
        "rank_all_rows": everything,
        "bytes": size,
    }


def model() -> dict[str, Any]:
    """Deciding about 10,000 nodes in 100 clusters: tasks enough for all, and so few that sizes are compared."""
    chance = random.Random(1)
    clusters = []
    for number in range(100):
        times = [chance.uniform(5, 60) for _ in range(100)]
        compute = sum(1 / t for t in times)
        clusters.append(
            Cluster(
                f"c{number}",
                tuple(Node(f"c{number}-{i}", t, 0.95 * t, 1.05 * t) for i, t in enumerate(times)),
                home=number == 0,
                local_network=3e6 * compute * chance.uniform(0.7, 3),
                inbound=2e6 * compute * chance.uniform(0.5, 3),
                outbound=1e6 * compute * chance.uniform(0.5, 3),
                latency=0.02,
            )
        )
    # The home cluster's lines are shared by all others: none here.
    clusters[0] = Cluster("c0", clusters[0].nodes, home=True, local_network=clusters[0].local_network)
    pool = Pool(tuple(clusters))
    found = {}
    for name, tasks in (("many_tasks_seconds", 1_000_000), ("few_tasks_seconds", 12_000)):
        taken = []
        for _ in range(3):
            begun = time.perf_counter()
            decide(pool, Workload(tasks, 2e6, 1e6))
            taken.append(time.perf_counter() - begun)
        found[name] = statistics.median(taken)
    return found


_BARE = "function slurm_job_submit(d, p, u) return slurm.SUCCESS end\n"
_BARE += "function slurm_job_modify(d, r, p, u) return slurm.SUCCESS end\nreturn slurm.SUCCESS\n"


def hook(here: Path) -> dict[str, Any]:
    """Microseconds that slurmctld takes for a submission (sdiag), with the hook and a table, and without."""
    table = "".join(
        f"{key}\t{number}\t100.000\t90.000\t110.000\tmain=5\tmain=fast:2:2000\n"
        for number, key in enumerate(sorted(f"n:probe-{n}" for n in range(ENTRIES)))
    )
    found = {}
    with _folder(here) as folder:
        hooks = folder / "hooks"
        hooks.mkdir()
        install(hooks, hooks / "probe.table")
        (hooks / "probe.table").write_text(f"probe-slurm-table 1 {int(time.time())} main\n{table}")
        scripts = {"without": _BARE, "with": (hooks / "job_submit.lua").read_text()}
        short = tempfile.TemporaryDirectory(prefix="probe-bench-")
        with short as name, cluster(Path(name), "JobSubmitPlugins=lua", {"job_submit.lua": _BARE}) as slurm:
            for turn in range(4):
                which = ("without", "with")[turn % 2]
                script = slurm.conf / "job_submit.lua"
                script.write_text(scripts[which])
                # Slurm reads it again when its time has changed, which it knows to a second.
                os.utime(script, (time.time() + turn, time.time() + turn))
                found.setdefault(which, []).append(_submissions(slurm, which == "with"))
    without, with_hook = (statistics.mean(found[name]) for name in ("without", "with"))
    return {"entries": ENTRIES, "without_us": without, "with_us": with_hook, "added_us": with_hook - without}


def _submissions(slurm: SlurmCluster, hooked: bool) -> float:
    first, _ = slurm.submit("--hold", "--comment=probe=probe-1")
    assert (slurm.job(first)["TimeLimit"] == "00:05:00") == hooked, "the hook is not what is measured"
    slurm.run("sdiag", "--reset")
    for number in range(SUBMISSIONS):
        slurm.submit("--hold", f"--comment=probe=probe-{number * 47 % ENTRIES}")
    said = slurm.run("sdiag").stdout
    row = re.search(r"REQUEST_SUBMIT_BATCH_JOB\s+\(\s*\d+\)\s+count:(\d+)\s+ave_time:(\d+)", said)
    assert row and int(row[1]) == SUBMISSIONS, said
    slurm.cancel_all()
    return float(row[2])


def report(records: dict[str, dict[str, Any]]) -> str:
    """The table of docs/figures.md."""
    s, m, h = records["store"], records["model"], records["hook"]
    worst = max(m["many_tasks_seconds"], m["few_tasks_seconds"])
    rows = {
        "job_submit hook, table of 10,000: under 2 ms more per submission": f"{h['added_us'] / 1e3:.2f} ms more "
        f"({h['without_us']:.0f} and {h['with_us']:.0f} us in slurmctld)",
        f"store of {s['predictions']:,} predictions, 12 phases each: insert >= 5,000/s": (
            f"{s['insert_per_second']:,.0f}/s"
        ),
        "rank query under 50 ms": f"{1e3 * s['rank_seconds']:.1f} ms for the first {s['rank_rows']} nodes, worst "
        f"{1e3 * s['rank_worst_seconds']:.1f} ms; all {s['rank_all_rows']:,}: {1e3 * s['rank_all_seconds']:.0f} ms",
        "10,000 nodes in 100 clusters decided in under 1 s": f"{worst:.2f} s at worst "
        f"({m['many_tasks_seconds']:.2f} s with a million tasks, {m['few_tasks_seconds']:.2f} s with 12,000)",
    }
    return "\n".join(["| bar | measured |", "|---|---|", *(f"| {bar} | {value} |" for bar, value in rows.items())])
