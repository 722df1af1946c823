# SPDX-License-Identifier: Apache-2.0
"""Predictions in a real Slurm's submissions: the hooks, and Slurm that is absent or down."""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from slurm_cluster import SlurmCluster
from slurm_submissions import FAST_AND_SLOW, asked, here, run, slurm, store_times, untouched

from checkpoint.errors import SlurmError
from probe.cli.main import cli
from probe.slurm.engine import minutes_for
from probe.slurm.facts import slurm_facts
from probe.slurm.installing import install

pytestmark = pytest.mark.alone("four nodes of Slurm, on its ports, share the processors")

__all__ = ["here", "slurm"]


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
    monkeypatch.setattr("probe.cli.run.run_as_jobs", lambda *given: told.extend(given))
    options = ["--repeat", "3", "--restorer", "direct", "--only-recorded-calls", "--touch-in-order"]
    options += ["--min-coverage", "0.8", "--target-error", "2%", "--budget", "7200"]
    assert CliRunner().invoke(cli, ["run", "x.probe", "--slurm", "--partition", "main", *options]).exit_code == 0
    given = ["--repeat=3", "--restorer=direct", "--only-recorded-calls", "--touch-in-order", "--min-coverage=0.8"]
    given += ["--target-error=0.02", "--budget=7200"]
    assert told == [Path("x.probe"), given, "main", False, False, 7200]


def test_jobs_have_time_for_what_they_may_spend() -> None:
    assert [minutes_for(budget) for budget in (0.0, 60.0, 3000.0, 7200.0)] == [60, 60, 60, 130]
