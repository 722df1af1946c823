# SPDX-License-Identifier: Apache-2.0
"""Predictions in a real Slurm's submissions: hooks, table, wrapper, accounting, and probes as jobs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from results import result
from slurm_cluster import SlurmCluster, cluster
from small_probe import small_probe
from test_docs import check_keys

from checkpoint.errors import NoPrediction, NotInStore, ProbeError, SlurmError, StorageError
from probe.cli import cli
from probe.slurm.facts import slurm_facts
from probe.slurm.installing import install
from probe.store.importing import import_results
from probe.store.observing import observed
from probe.store.opening import open_store
from probe.store.reading import all_nodes, candidates, find_probe, history

KERNEL = os.uname().release
UNTOUCHED = {"TimeLimit": "00:30:00", "Prefer": None, "AdminComment": None}


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    folder = tmp_path_factory.mktemp("slurm")
    conf = folder / "conf"
    (folder / "prepared").mkdir()
    install(folder / "prepared", conf / "probe.table")
    hook = (folder / "prepared" / "probe_hook.lua").read_text()
    script = (folder / "prepared" / "job_submit.lua").read_text().replace(str(folder / "prepared"), str(conf))
    files = {"probe_hook.lua": hook, "job_submit.lua": script}
    with cluster(folder, "JobSubmitPlugins=lua", files) as running:
        yield running


@pytest.fixture(autouse=True)
def here(slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """This Slurm for our commands, a store of the test's own, and no jobs or table afterwards."""
    monkeypatch.setenv("SLURM_CONF", slurm.environment["SLURM_CONF"])
    monkeypatch.setenv("PATH", slurm.environment["PATH"])
    monkeypatch.setenv("PROBE_STORE", str(tmp_path / "store.db"))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    if slurm.run("squeue", "-h").stdout.strip():
        slurm.cancel_all()
    table = slurm.conf / "probe.table"
    table.rmdir() if table.is_dir() else table.unlink(missing_ok=True)


def run(*arguments: str, given: str = "") -> str:
    done = CliRunner().invoke(cli, list(arguments), input=given)
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def store_times(times: dict[str, float], probe: str = "solver", **more: Any) -> None:
    with open_store() as store:
        given = [result(seconds, node=node, probe=probe, kernel=KERNEL, **more) for node, seconds in times.items()]
        import_results(store, given)


FAST_AND_SLOW = {"n1": 500.0, "n2": 510.0, "n3": 1000.0, "n4": 1100.0}


def asked(slurm: SlurmCluster, *options: str, script: str = "true\n") -> dict[str, str | None]:
    """What Slurm made of a submission: limit, preference, admin comment; and the message to the user."""
    number, said = slurm.submit("--hold", *options, script=script)
    job = slurm.job(number)
    comment = slurm.run("scontrol", "show", "job", str(number)).stdout
    admin = re.search(r"AdminComment=(.*)", comment)
    slurm.run("scancel", str(number))
    found = {"TimeLimit": job["TimeLimit"], "Prefer": job.get("Prefer")}
    return {**found, "AdminComment": admin[1].strip() if admin else None, "said": said}


def untouched(found: dict[str, str | None]) -> bool:
    return {key: found[key] for key in UNTOUCHED} == UNTOUCHED and "probe" not in str(found["said"])


# -- the hook in slurmctld


def test_a_job_gets_limit_preference_and_a_note(slurm: SlurmCluster) -> None:
    """Upper end 1100 s x 1.1, margin 1.2: 24.2 minutes, hence 25; n1 and n2, the fast ones, are `amd` and `fast`."""
    store_times(FAST_AND_SLOW)
    assert "1 probes" in run("slurm", "export")
    found = asked(slurm, "--comment=probe=solver")
    assert (found["TimeLimit"], found["Prefer"]) == ("00:25:00", "amd")
    assert re.fullmatch(
        r"probe prediction=1 name=solver seconds=500.000 low=450.000 high=550.000", found["AdminComment"]
    )
    assert "time limit 25 min, prefers nodes with amd. --comment=probe=off opts out" in str(found["said"])
    number, _ = slurm.submit("--comment=for the paper, probe=solver")
    slurm.wait_for(lambda: slurm.job(number)["JobState"] == "COMPLETED", "the job")
    assert slurm.job(number)["NodeList"] in ("n1", "n2")


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--comment=probe=other",),
        ("--comment=probe=off",),
        ("--comment=myprobe=solver",),
        ("--comment=probe=",),
        ("--comment=probe=sol%09ver",),
        ("--job-name=solver",),
    ],
)
def test_other_jobs_are_left_alone(slurm: SlurmCluster, options: tuple[str, ...]) -> None:
    store_times(FAST_AND_SLOW)
    store_times(FAST_AND_SLOW, probe="off")
    run("slurm", "export")
    assert untouched(asked(slurm, *options, script="./solver --steps 200\n"))


def test_what_the_user_asks_for_stays(slurm: SlurmCluster) -> None:
    store_times(FAST_AND_SLOW)
    run("slurm", "export")
    mine = "--comment=probe=solver"
    assert asked(slurm, mine, "--time=3")["TimeLimit"] == "00:03:00"
    assert asked(slurm, mine, "--time=5:00:00")["TimeLimit"] == "05:00:00"
    for option in ("--constraint=slow", "--prefer=slow", "--nodelist=n3", "--exclude=n1", "-N2", "-n2"):
        found = asked(slurm, mine, option)
        assert found["Prefer"] in (None, "slow") and found["TimeLimit"] == "00:25:00", option


def test_a_preference_never_ends_a_submission(slurm: SlurmCluster) -> None:
    """Slurm refuses jobs that prefer a feature which their partition lacks, or whose nodes are too small for them."""
    store_times(FAST_AND_SLOW)
    run("slurm", "export")
    mine = "--comment=probe=solver"
    short = asked(slurm, mine, "--partition=short")
    assert (short["TimeLimit"], short["Prefer"]) == ("00:05:00", None), "its own limit is shorter than the prediction"
    both = asked(slurm, mine, "--partition=main,short")
    assert both["Prefer"] is None and str(both["AdminComment"]).startswith("probe prediction=1")
    assert asked(slurm, mine, "-c2")["Prefer"] == "amd"
    assert asked(slurm, mine, "--mem=1500")["Prefer"] == "amd"
    for line in (slurm.conf / "probe.table").read_text().splitlines():
        assert "main=amd:2:2000" in line or line.startswith("probe-slurm-table")
    table = (slurm.conf / "probe.table").read_text()
    (slurm.conf / "probe.table").write_text(table.replace("amd:2:2000", "amd:1:1000"))
    assert asked(slurm, mine, "-c2")["Prefer"] is None
    assert asked(slurm, mine, "--mem=1500")["Prefer"] is None
    assert asked(slurm, mine, "--mem-per-cpu=600", "-c2")["Prefer"] is None


def test_jobs_known_by_their_one_command(slurm: SlurmCluster) -> None:
    store_times(FAST_AND_SLOW)
    run("slurm", "export")
    assert untouched(asked(slurm, script="./solver --steps 200\n")), "only where the site wants it"
    run("slurm", "export", "--commands")
    for script in (
        "./solver --steps 200\n",
        "#SBATCH --quiet\n\nmodule load x\ncd /tmp\nexec  ./solver   --steps 200",
        "srun ./solver --steps 200\n",
    ):
        assert asked(slurm, script=script)["TimeLimit"] == "00:25:00", script
    for script in (
        "./solver --steps 200\n./solver --steps 200\n",
        "./solver --steps 200 --more\n",
        "for i in 1 2; do ./solver --steps 200; done\n",
        "./solver --steps 200 && ./other\n",
        "",
    ):
        assert untouched(asked(slurm, script=script)), script
    assert untouched(asked(slurm, "--comment=probe=off", script="./solver --steps 200\n"))


def spoiled(kind: str, table: Path) -> None:
    text = table.read_bytes()
    table.unlink()
    if kind == "folder":
        table.mkdir()
    elif kind != "missing":
        lines = text.splitlines(keepends=True)
        table.write_bytes(
            {
                "empty": b"",
                "head alone": lines[0],
                "noise": os.urandom(5000),
                "no end": b"x" * 3_000_000,
                "cut off": text[:-30],
                "other version": text.replace(b"table 1", b"table 2"),
                "old": re.sub(rb"(table 1) \d+", rb"\1 1000000", text),
                "fields missing": lines[0] + b"n:solver\t12\n",
                "no numbers": lines[0] + b"n:solver\ta\tb\tc\td\te\tf\n",
                "wrong limit": lines[0] + b"n:solver\t1\t1.0\t1.0\t1.0\tmain=soon\tmain=amd\n",
                "blank lines": lines[0] + b"\n" * 1000,
            }[kind]
        )


KINDS = "missing,folder,empty,head alone,noise,no end,cut off,other version,old,fields missing,no numbers,blank lines"


@pytest.mark.parametrize("kind", KINDS.split(","))
def test_a_broken_table_leaves_every_job_as_it_is(slurm: SlurmCluster, kind: str) -> None:
    store_times(FAST_AND_SLOW)
    run("slurm", "export")
    spoiled(kind, slurm.conf / "probe.table")
    assert untouched(asked(slurm, "--comment=probe=solver"))


def test_a_broken_entry_only_adds_a_note(slurm: SlurmCluster) -> None:
    store_times(FAST_AND_SLOW)
    run("slurm", "export")
    spoiled("wrong limit", slurm.conf / "probe.table")
    found = asked(slurm, "--comment=probe=solver")
    assert (found["TimeLimit"], found["Prefer"]) == ("00:30:00", None)


def test_a_broken_hook_ends_no_submission(slurm: SlurmCluster) -> None:
    store_times(FAST_AND_SLOW)
    run("slurm", "export")
    hook, script = slurm.conf / "probe_hook.lua", slurm.conf / "job_submit.lua"
    kept = hook.read_text()
    try:
        for text in ("this is no Lua", "return nil", "return { job_submit = function() error('no') end }"):
            hook.write_text(text)
            # slurmctld reads its script again when that has changed, and with it the hook.
            time.sleep(1.01)
            script.touch()
            assert untouched(asked(slurm, "--comment=probe=solver")), text
    finally:
        hook.write_text(kept)
        time.sleep(1.01)
        script.touch()
    assert asked(slurm, "--comment=probe=solver")["TimeLimit"] == "00:25:00"


def test_any_entry_of_a_large_table_is_found(slurm: SlurmCluster) -> None:
    """10,000 probes; the first, the last, and some between, with names that sort differently by locale."""
    names = sorted([f"probe-{n}" for n in range(9_990)] + ["Ä", "a", "B", "_", "~z", "0", "a.b", "a-b", "aB", "ab"])
    head = f"probe-slurm-table 1 {int(time.time())} main\n"
    keys = sorted(f"n:{name}".encode() for name in names)
    lines = [k.decode() + f"\t{i}\t1.000\t1.000\t1.000\tmain={1 + i % 500}\t\n" for i, k in enumerate(keys)]
    (slurm.conf / "probe.table").write_text(head + "".join(lines))
    for position in (
        0,
        1,
        17,
        5_000,
        9_998,
        9_999,
        *(keys.index(f"n:{n}".encode()) for n in ("Ä", "a", "B", "aB", "ab")),
    ):
        name = keys[position].decode()[2:]
        limit = 1 + position % 500
        found = asked(slurm, f"--comment=probe={name}")
        assert found["TimeLimit"] == f"{limit // 60:02}:{limit % 60:02}:00", name
    for name in ("a ", "probe-", "probe-99999", "!", "zzzz"):
        assert untouched(asked(slurm, f"--comment=probe={name.strip()}x"))


def test_the_hook_reads_a_few_kilobytes_only(slurm: SlurmCluster, tmp_path: Path) -> None:
    """Outside Slurm: the hook in an interpreter, with a file that counts what is read of it."""
    table = tmp_path / "t"
    lines = [f"n:{n:07}\t1\t1.0\t1.0\t1.0\tmain=5\t\n" for n in range(200_000)]
    table.write_text(f"probe-slurm-table 1 {int(time.time())} main\n" + "".join(lines))
    install(tmp_path, table)
    script = """
        local real, total = io.open, 0
        io.open = function(...)
          local file = real(...)
          return setmetatable({}, { __index = function(_, name)
            return function(_, ...)
              local answer = { file[name](file, ...) }
              if name == "read" and answer[1] then total = total + #answer[1] end
              return unpack(answer)
            end
          end })
        end
        slurm = { NO_VAL = 4294967294, log_user = function() end }
        local hook = dofile(arg[1])
        for _, name in ipairs({ "0000000", "0123456", "0199999", "0200000", "nobody" }) do
          total = 0
          local job = { comment = "probe=" .. name, time_limit = slurm.NO_VAL }
          hook.job_submit(job)
          print(name, job.time_limit, total)
        end
    """
    (tmp_path / "count.lua").write_text(script)
    said = subprocess.run(
        ["lua5.1", str(tmp_path / "count.lua"), str(tmp_path / "probe_hook.lua")],
        capture_output=True, text=True, check=True, timeout=60,
    ).stdout  # fmt: skip
    rows = [line.split() for line in said.splitlines()]
    assert [float(row[1]) for row in rows] == [5, 5, 5, 4294967294, 4294967294]
    assert all(0 < int(row[2]) < 60_000 for row in rows), rows


# -- the hook in sbatch


def test_the_client_hook(slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, in cli_filter.lua: another slurm.conf for the client, and no table for slurmctld."""
    store_times(FAST_AND_SLOW)
    client = tmp_path / "client"
    client.mkdir()
    said = run("slurm", "install", "--client", "--conf", str(client))
    assert "CliFilterPlugins=lua" in said
    run("slurm", "export", "--commands", "--table", str(client / "probe.table"))
    (client / "slurm.conf").write_text((slurm.conf / "slurm.conf").read_text() + "\nCliFilterPlugins=lua\n")
    sbatch = SlurmCluster(slurm.folder, client, {**slurm.environment, "SLURM_CONF": str(client / "slurm.conf")})
    found = asked(sbatch, "--comment=probe=solver")
    assert (found["TimeLimit"], found["Prefer"]) == ("00:25:00", "amd")
    number, _ = sbatch.submit("--hold", "--comment=probe=solver")
    assert "Comment=probe=solver prediction=1 " in sbatch.run("scontrol", "show", "job", str(number)).stdout
    wrapped = sbatch.run("sbatch", "--parsable", "--hold", "-o/dev/null", "--wrap", "./solver --steps 200").stdout
    assert sbatch.job(int(wrapped))["TimeLimit"] == "00:25:00"
    assert asked(sbatch, "--comment=probe=solver", "--time=2")["TimeLimit"] == "00:02:00"
    for options in (("--constraint=slow",), ("-N2",), ("-n2",), ("--mem=100",), ("-p", "short"), ("-w", "n3")):
        assert asked(sbatch, "--comment=probe=solver", *options)["Prefer"] is None, options
    assert untouched(asked(sbatch, "--comment=probe=off"))
    assert sbatch.run("srun", "--comment=probe=solver", "hostname").stdout, "srun works as before"
    (client / "probe.table").write_bytes(os.urandom(3000))
    assert untouched(asked(sbatch, "--comment=probe=solver"))


# -- installing and exporting


def test_a_sites_own_script_stays(tmp_path: Path) -> None:
    own = tmp_path / "job_submit.lua"
    own.write_text("-- ours since 2009\n")
    said = run("slurm", "install", "--conf", str(tmp_path))
    assert own.read_text() == "-- ours since 2009\n" and (tmp_path / "probe_hook.lua").exists()
    assert "stays as it is; add to it" in said and "dofile" in said
    own.unlink()
    assert f"written: {own}" in run("slurm", "install", "--conf", str(tmp_path))
    before = own.read_text()
    assert f"written: {own}" in run("slurm", "install", "--conf", str(tmp_path)), "its own script is written again"
    assert own.read_text() == before
    with pytest.raises(StorageError, match="no such folder"):
        run("slurm", "install", "--conf", str(tmp_path / "nowhere"))


def test_no_limit_where_a_node_is_unknown(slurm: SlurmCluster) -> None:
    """n4 is of n3's kind, so n3's prediction counts for it; without both, nothing can be said of `main`."""
    store_times({name: FAST_AND_SLOW[name] for name in ("n1", "n3")})
    assert "no time limit" not in run("slurm", "export")
    assert asked(slurm, "--comment=probe=solver")["TimeLimit"] == "00:25:00"
    store_times({"n2": 100.0}, probe="short-one")
    said = run("slurm", "export", "short-one")
    assert "short-one: no time limit in main: no prediction for n3, n4" in said
    found = asked(slurm, "--comment=probe=short-one")
    assert (found["TimeLimit"], found["Prefer"]) == ("00:30:00", None)
    assert asked(slurm, "--comment=probe=short-one", "-p", "short")["TimeLimit"] == "00:05:00"


def test_another_kernel_in_slurm_makes_predictions_stale(slurm: SlurmCluster) -> None:
    with open_store() as store:
        import_results(store, [result(10.0, node="n1", kernel="5.10.0"), result(20.0, node="n2", kernel=KERNEL)])
    said = run("slurm", "export")
    assert "n1 has another kernel now" in said and "n2 has" not in said
    with open_store() as store:
        assert [c.node for c in candidates(store, find_probe(store, "solver")) if c.stale] == ["n1"]
        assert {n.name: n.features for n in all_nodes(store)} == {"n1": ("amd", "fast"), "n2": ("amd", "fast")}
    assert "seconds=20.000" in str(asked(slurm, "--comment=probe=solver")["AdminComment"])


# -- the wrapper


def submit(*arguments: str, given: str = "") -> int:
    said = run("slurm", "submit", "--probe", "solver", *arguments, given=given)
    found = re.search(r"Submitted batch job (\d+)", said)
    assert found, said
    return int(found[1])


def test_submit_goes_where_the_job_ends_soonest(slurm: SlurmCluster, tmp_path: Path) -> None:
    store_times(FAST_AND_SLOW)
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\ntrue\n")
    (tmp_path / "out").mkdir()
    words = ("--", "-o", "/dev/null", "--hold", str(script))
    free = slurm.job(submit(*words))
    assert (free["Features"], free["TimeLimit"]) == ("amd", "00:15:00")
    slurm.cancel_all()
    # The fast nodes are busy for three hours: the slow ones, twice as slow, are done long before.
    busy = [
        slurm.submit("-w", node, "--exclusive", "--time=3:00:00", script="sleep 1000\n")[0] for node in ("n1", "n2")
    ]
    slurm.wait_for(lambda: all(slurm.job(n)["JobState"] == "RUNNING" for n in busy), "the fast nodes to be busy")
    waiting = slurm.job(submit(*words))
    assert waiting["Features"] == "intel"
    by_node = slurm.job(submit("--by-node", *words))
    assert by_node["ReqNodeList"] == "n3"
    assert "Comment=probe=solver prediction=" in slurm.run("scontrol", "show", "job", by_node["JobId"]).stdout
    listed = run("slurm", "submit", "--probe", "solver", "--dry-run", *words).splitlines()
    assert [line.split()[0] for line in listed[1:3]] == ["intel", "slow"]
    assert len(slurm.run("squeue", "-h").stdout.splitlines()) == 4, "a dry run submits nothing"


def test_submit_keeps_what_the_user_and_the_script_ask_for(slurm: SlurmCluster, tmp_path: Path) -> None:
    store_times(FAST_AND_SLOW)
    (tmp_path / "job.sh").write_text(
        "#!/bin/sh\n# a job\n#SBATCH --time=2:00:00 --job-name x # two hours\ntrue\n#SBATCH -t 1\n"
    )
    common = ("--", "-o/dev/null", "--hold")
    assert slurm.job(submit(*common, "job.sh", "-t", "5"))["TimeLimit"] == "02:00:00"
    assert slurm.job(submit(*common, "-t", "7", "job.sh"))["TimeLimit"] == "00:07:00"
    assert slurm.job(submit(*common, "--time=8", "--wrap", "true"))["TimeLimit"] == "00:08:00"
    assert slurm.job(submit(*common, "--wrap=true"))["TimeLimit"] == "00:15:00"
    piped = slurm.job(submit(*common, given="#!/bin/sh\n#SBATCH -C slow\ntrue\n"))
    assert (piped["Features"], piped["TimeLimit"]) == ("slow", "00:25:00")
    assert slurm.job(submit(*common, "-w", "n4", "job.sh"))["ReqNodeList"] == "n4"


def test_submit_reads_standard_input_only_for_a_script(slurm: SlurmCluster, tmp_path: Path) -> None:
    """As from cron or ssh, where standard input may be a pipe that nobody ever closes."""
    store_times(FAST_AND_SLOW)
    (tmp_path / "job.sh").write_text("#!/bin/sh\ntrue\n")
    words = [sys.executable, "-m", "probe", "slurm", "submit", "--probe", "solver", "--dry-run", "--", "job.sh"]
    reading, writing = os.pipe()
    try:
        done = subprocess.run(
            words, stdin=reading, capture_output=True, text=True, timeout=60, check=False,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        )  # fmt: skip
    finally:
        os.close(reading)
        os.close(writing)
    assert done.returncode == 0 and "any node" in done.stdout, done.stderr


def test_submit_says_why_not(slurm: SlurmCluster, tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text("#!/bin/sh\ntrue\n")
    store_times({"elsewhere": 3.0})
    with pytest.raises(NoPrediction, match="no prediction for any node of partition main"):
        submit("--", "job.sh")
    store_times(FAST_AND_SLOW)
    with pytest.raises(SlurmError, match=r"sbatch refused: .*configuration is not available"):
        submit("--", "--mem=9000000", "job.sh")
    with pytest.raises(StorageError, match=r"missing\.sh"):
        submit("--", "missing.sh")
    with pytest.raises(ProbeError, match="nothing to submit"):
        submit("--", "--hold")
    with pytest.raises(NotInStore):
        run("slurm", "submit", "--probe", "nobody", "--", "job.sh")


# -- finished jobs


def test_run_times_come_back_from_the_completion_log(slurm: SlurmCluster) -> None:
    store_times({"n1": 2.0, "n2": 3.0})
    number, _ = slurm.submit("-J", "solver", "-w", "n1", script="sleep 2\n")
    others = [
        slurm.submit("-J", name, "-w", "n1", script=s)[0]
        for name, s in (("solver", "sleep 1; false\n"), ("x", "true\n"))
    ]
    for job in (number, *others):
        slurm.wait_for(lambda job=job: slurm.job(job)["JobState"] in ("COMPLETED", "FAILED"), "the jobs")  # type: ignore[misc]
    log = ("--completion-log", "--by-name", "--since", "now-1hours")
    slurm.wait_for(lambda: "1 run times stored" in run("slurm", "observe", *log), "the completion log")
    assert "0 run times stored, 1 were there already" in run("slurm", "observe", *log)
    with open_store() as store:
        (seen,) = observed(store)
    assert (seen.node, seen.predicted) == ("n1", 2.0) and 1 <= seen.seconds <= 30
    assert re.fullmatch(rf"slurm:[^:]+:{number}:\d+", seen.source)


# -- probes as jobs


@pytest.mark.slow
def test_probes_run_as_jobs_on_one_node_of_each_kind(slurm: SlurmCluster, builds: Path, tmp_path: Path) -> None:
    """n1 to n4 share this machine's processors: that the times are right is not tested here."""
    path = tmp_path / "small.probe"
    path.write_bytes(small_probe(builds).path.read_bytes())
    said = json.loads(run("run", str(path), "--slurm", "--per-node-type", "--repeat", "1", "--json", "-q"))
    check_keys(said, "probe run --slurm --json")
    assert len(said["results"]) == 2 and said["failures"] == []
    # One repeat, and two more where other work disturbs it; without the option there are five.
    assert all(len(r["phases"][0]["repeats"]) <= 3 for r in said["results"]), "options reach the nodes"
    with open_store() as store:
        found = {p.node: p for p in history(store)}
        features = {node.name: node.features for node in all_nodes(store)}
    assert found.keys() == {"n1", "n3"} and features["n3"] == ("intel", "slow")
    assert {p.kernel for p in found.values()} == {KERNEL}
    assert slurm.run("squeue", "-h").stdout == ""
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".probe")] == [], "nothing is left beside the probe"


@pytest.mark.slow
def test_a_node_that_fails_is_named_and_the_others_count(
    slurm: SlurmCluster, builds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "small.probe"
    path.write_bytes(small_probe(builds).path.read_bytes())
    slurm.run("scontrol", "update", "nodename=n2", "state=drain", "reason=test")
    try:
        said = run("run", str(path), "--slurm", "--partition", "short", "--repeat", "1")
    finally:
        slurm.run("scontrol", "update", "nodename=n2", "state=resume")
    assert "1 predictions stored" in said and "n1" in said and "n2" not in said
    without = tmp_path / "python-without-probe"
    without.write_text("#!/bin/sh\necho 'No module named probe' >&2\nexit 1\n")
    without.chmod(0o755)
    monkeypatch.setattr("probe.slurm.engine.sys.executable", str(without))
    with pytest.raises(SlurmError, match=r"no node gave a result: job \d+: No module named probe"):
        run("run", str(path), "--slurm", "--partition", "short")
    with pytest.raises(SlurmError, match="no partition 'none'; there are: main, short"):
        run("run", str(path), "--slurm", "--partition", "none")
    assert CliRunner().invoke(cli, ["run", str(path), "--partition", "short"]).exit_code == 2


# -- Slurm absent, down


@pytest.mark.parametrize("call", [("export",), ("submit", "--probe", "solver", "--", "--wrap=true"), ("observe",)])
def test_slurm_absent(call: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store_times(FAST_AND_SLOW)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SlurmError, match="not found; Slurm is not installed here"):
        run("slurm", *call)


def test_slurm_down(slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slurm.conf that names a port where nobody listens."""
    text = re.sub(r"SlurmctldPort=\d+", "SlurmctldPort=1", (slurm.conf / "slurm.conf").read_text())
    (tmp_path / "slurm.conf").write_text(text + "\nMessageTimeout=2\n")
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    with pytest.raises(SlurmError, match=r"scontrol refused: .*onnect"):
        slurm_facts()


def test_without_accounting(slurm: SlurmCluster) -> None:
    store_times(FAST_AND_SLOW)
    with pytest.raises(SlurmError, match="accounting storage is disabled"):
        run("slurm", "observe")


def test_named_nodes_and_slurm_exclude_each_other() -> None:
    done = CliRunner().invoke(cli, ["run", "x.probe", "--slurm", "--on", "node1"])
    assert done.exit_code == 2 and "--slurm chooses the nodes" in done.output


def test_all_options_of_measuring_reach_the_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    monkeypatch.setattr("probe.cli.run_as_jobs", lambda *given: told.extend(given))
    options = ["--repeat", "3", "--restorer", "direct", "--only-recorded-calls", "--touch-in-order"]
    options += ["--min-coverage", "0.8", "--target-error", "2%"]
    assert CliRunner().invoke(cli, ["run", "x.probe", "--slurm", "--partition", "main", *options]).exit_code == 0
    given = ["--repeat=3", "--restorer=direct", "--only-recorded-calls", "--touch-in-order", "--min-coverage=0.8"]
    assert told == [Path("x.probe"), [*given, "--target-error=0.02"], "main", False, False]
