# SPDX-License-Identifier: Apache-2.0
"""`scripts/bench breadth`: the table of programs, bounds, and what becomes of each program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks.arguments import packages, read_arguments
from benchmarks.breadth import bounded, measurement, recorded, report, suite
from benchmarks.breadth.inputs import KEPT, MAKER, place
from benchmarks.breadth.measurement import FAILED, PREDICTED, REFUSED, UNUSABLE, Tool, key, measure
from benchmarks.breadth.programs import KINDS, PROGRAMS, Program, Refusal, named
from documentation import ROOT

from checkpoint.process.program import Streams

TINY = Program("tiny", "test", "coreutils", "true")
SPEAKS = Refusal("it speaks", "speak")


def tiny(command: str, **changes: Any) -> Program:
    return replace(TINY, command=command, inputs="", **changes)


def tool(folder: Path, *, build: str, run: str = "", **changes: Any) -> Tool:
    """A command in probe's place: lines of shell for `build` and `run`."""
    script = folder / "tool.sh"
    script.write_text(f"case $1 in build)\n{build}\n;;run)\n{run}\n;;esac\n")
    return Tool(argv=("/bin/sh", str(script)), commit="c1", **changes)


def quiet(_: str) -> None:
    pass


def tried(program: Program, with_tool: Tool, folder: Path) -> dict[str, Any]:
    row = measure(program, folder / "here", folder / "made", with_tool, quiet)
    assert not (folder / "here").exists(), "nothing is left"
    json.dumps(row, allow_nan=False)
    return row


# -- the table of programs


def test_the_table_is_as_large_and_as_wide_as_it_should_be() -> None:
    assert len(PROGRAMS) >= 60 and len(KINDS) >= 15
    assert len({p.name for p in PROGRAMS}) == len(PROGRAMS)
    aside = sum(p.aside for p in PROGRAMS)
    assert 0.25 <= aside / len(PROGRAMS) <= 0.4
    assert sum(p.refusal is not None for p in PROGRAMS) < len(PROGRAMS) / 4


def test_every_input_is_kept_or_made() -> None:
    made = MAKER.read_text()
    names = {name for p in PROGRAMS for name in p.inputs.split()}
    assert [name for name in sorted(names) if not (KEPT / name).exists() and f'"{name}":' not in made] == []
    assert {path.name for path in KEPT.iterdir()} - names == set(), "kept for nothing"
    assert [p.name for p in PROGRAMS if p.stdin != "/dev/null" and p.stdin not in p.inputs.split()] == []


def test_programs_set_aside_need_a_word_of_their_own() -> None:
    assert not any(p.aside for p in named(None, aside=False))
    everything = named(None, aside=True)
    assert sorted(p.name for p in everything) == sorted(p.name for p in PROGRAMS)
    assert [p.kind for p in everything[: len(KINDS)]] == list(KINDS), "whatever time there is goes to all kinds"
    with pytest.raises(ValueError, match="guile: set aside; --aside tries them"):
        named(["lua", "guile"], aside=False)
    with pytest.raises(ValueError, match="no program luaa; there are: lua, "):
        named(["luaa"], aside=True)


def test_only_what_is_tried_is_installed(capsys: pytest.CaptureFixture[str]) -> None:
    assert packages(read_arguments(["breadth", "--only", "lua", "samtools"])) == ["bwa", "lua5.4", "samtools"]
    assert packages(read_arguments(["breadth", "--report"])) == []
    assert "guile-3.0" not in packages(read_arguments(["breadth"]))
    assert "guile-3.0" in packages(read_arguments(["breadth", "--aside"]))
    with pytest.raises(SystemExit):
        read_arguments(["breadth", "--only", "guile"])
    assert "guile: set aside" in capsys.readouterr().err


# -- one program


PREDICTION = {
    "clock": "cpu", "phases": [1, 2], "tracing_overhead": 1.02, "warnings": ["w1"], "et_ref_seconds": 2.04,
    "threads": 1,
}  # fmt: skip
RUN = {
    "prediction": {"seconds": 2.0, "low": 1.9, "high": 2.2}, "warnings": ["w2"], "threads": 1,
    "estimators": {"calibrated": 2.0, "direct": 2.1, "strube": None},
}  # fmt: skip


def test_a_prediction_is_compared_with_the_mean_of_plain_runs() -> None:
    runs = [bounded.Ended(9.0, seconds, 0, "", 0) for seconds in (1.9, 2.0, 2.3)]
    row = measurement.compared({"build": PREDICTION, "run": RUN}, runs)
    truth = 6.2 / 3
    assert row["errors"] == {"calibrated": round(2 / truth - 1, 5), "direct": round(2.1 / truth - 1, 5)}
    assert (row["held"], row["half_width"], row["phases"], row["reference"]) == (True, 0.075, 2, 2.04)
    assert row["full"] == [1.9, 2.0, 2.3] and row["warnings"] == ["w1", "w2"]
    off = [replace(ended, cpu=3.0) for ended in runs]
    assert measurement.compared({"build": PREDICTION, "run": RUN}, off)["held"] is False
    by_wall = measurement.compared({"build": {**PREDICTION, "clock": "wall"}, "run": RUN}, runs)
    assert by_wall["full"] == [9.0, 9.0, 9.0]


def test_a_tiny_program_goes_through(tmp_path: Path) -> None:
    """Both commands of probe are run in the program's folder, with its input, around plain runs."""
    build = f"test -f words.lua && echo '{json.dumps(PREDICTION)}'; shift; echo \"$@\" >asked"
    row = tried(TINY_LUA, tool(tmp_path, build=build, run=f"cat asked >&2; echo '{json.dumps(RUN)}'"), tmp_path)
    assert row["outcome"] == PREDICTED and len(row["full"]) == 4 and row["predicted"] == 2.0
    assert row["package"].startswith("coreutils ") and row["native"]["status"] == 0
    assert set(row["load"]) == {"others", "stolen"} and "message" not in row


@pytest.mark.parametrize(("threads", "seen"), [(1, True), (2, True), (2, False)])
def test_plain_runs_have_as_many_processors_as_the_probe(threads: int, seen: bool, tmp_path: Path) -> None:
    code = (
        "import os, threading, time\n"
        f"other = threading.Thread(target=time.sleep, args=({0.4 * seen},)); other.start(); other.join()\n"
        f"open('{tmp_path}/seen', 'a').write(f'{{len(os.sched_getaffinity(0))}} ')\n"
    )
    (tmp_path / "it.py").write_text(code)
    built, ran = ({**said, "threads": threads} for said in (PREDICTION, RUN))
    ways = tool(tmp_path, build=f"echo '{json.dumps(built)}'", run=f"echo '{json.dumps(ran)}'")
    row = tried(tiny(f"/usr/bin/python3 {tmp_path}/it.py"), ways, tmp_path)
    free = len(os.sched_getaffinity(0))
    expected = [free, 1, *[free] * (row["native"]["threads"] > 1), *[1 if threads == 1 else free] * 3]
    assert (tmp_path / "seen").read_text().split() == [str(n) for n in expected]
    assert row["native"]["threads"] > 1 or not seen


TINY_LUA = replace(TINY, command="sha256sum work.lua", inputs="work.lua")
TINY_LUA = replace(TINY_LUA, prepare="cp work.lua words.lua")


@pytest.mark.timed
@pytest.mark.slow(minutes=1)
def test_a_program_goes_through_probe_itself(tmp_path: Path) -> None:
    """A second of bodies in the caches: predicted within bounds that hold on a loaded machine, too."""
    subprocess.run(["make", "-s", "-C", ROOT / "data" / "programs"], check=True)
    command = f"{ROOT}/data/programs/bin/nbody 600"
    ways = Tool(commit="c1", patience=(600.0, 60.0), options=("--interval", "20ms", "--max-phases", "4"))
    row = tried(tiny(command), ways, tmp_path)
    assert row["outcome"] == PREDICTED, row["message"]
    assert abs(row["errors"]["calibrated"]) < 0.5 and row["low"] < row["predicted"] < row["high"]
    assert report.line(row).startswith("tiny: predicted ") and "| tiny (" in report.tables([row])


def test_each_command_begins_in_the_folder_as_it_was_prepared(tmp_path: Path) -> None:
    """What a run wrote is gone before the next; a home of its own takes what a program keeps there."""
    command = "sh -c 'test ! -e out && test ! -e ~/.kept-by-us && echo x >out'"
    row = tried(tiny(command), tool(tmp_path, build="test ! -e out || exit 1; echo no >&2; exit 4"), tmp_path)
    assert (row["outcome"], row["message"]) == (REFUSED, "no")


@pytest.mark.timed
@pytest.mark.parametrize(
    ("said", "status", "outcome", "rightly"),
    [
        ("probe: x: it speaks", 4, REFUSED, True),
        ("probe: x: it sings", 4, REFUSED, False),
        ("Traceback (most recent call last): it speaks", 4, FAILED, None),
        ("it speaks", 1, FAILED, None),
        ("", 4, FAILED, None),
    ],
)
def test_a_refusal_is_right_where_its_reason_was_expected(
    said: str, status: int, outcome: str, rightly: bool | None, tmp_path: Path
) -> None:
    build = f"sleep 0.2; echo '{said}' >&2; exit {status}"
    row = tried(tiny("sleep 0.1", refusal=SPEAKS), tool(tmp_path, build=build), tmp_path)
    assert (row["outcome"], row.get("rightly"), row["message"]) == (outcome, rightly, said)
    assert (row["exit"], row["expected"], row["stage"]) == (status, "it speaks", "build")
    assert row["late"] >= 0.2 and row["share"] > 1
    unexpected = tried(tiny("sleep 0.1"), tool(tmp_path, build=build), tmp_path)
    assert unexpected.get("rightly") in (False, None)


def test_a_refusal_of_probe_run_counts_the_build(tmp_path: Path) -> None:
    ways = tool(tmp_path, build=f"sleep 0.3; echo '{json.dumps(PREDICTION)}'", run="echo no prediction >&2; exit 34")
    row = tried(tiny("true"), ways, tmp_path)
    assert (row["outcome"], row["stage"], row["exit"]) == (REFUSED, "run", 34) and row["late"] >= 0.3


def test_a_build_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    build = f"(setsid sleep 77 & echo $! >{tmp_path}/pid); sleep 77"
    begun = time.monotonic()
    row = tried(tiny("true"), tool(tmp_path, build=build, patience=(0.5, 0.0)), tmp_path)
    assert time.monotonic() - begun < 30
    assert row["outcome"] == FAILED and row["message"].startswith("ended at the bound of time")
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def test_processes_that_outlive_a_build_are_a_fault_of_its(tmp_path: Path) -> None:
    build = f"setsid sleep 77 >/dev/null 2>&1 & echo $! >{tmp_path}/pid; echo '{json.dumps(PREDICTION)}'"
    row = tried(tiny("true"), tool(tmp_path, build=build, run=f"echo '{json.dumps(RUN)}'"), tmp_path)
    assert (row["outcome"], row["left"]) == (FAILED, 1)
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def test_a_command_may_fill_so_much_of_the_disk(tmp_path: Path) -> None:
    ended = bounded.run_program(
        ("sh", "-c", "head -c 30000000 /dev/zero >large; sleep 60"), folder=tmp_path, stdin="/dev/null",
        environment=dict(os.environ), streams=Streams(tmp_path / "o", tmp_path / "e"),
        bounds=bounded.Bounds(50, 20_000_000), watched=tmp_path,
    )  # fmt: skip
    assert ended.stopped == bounded.DISK and ended.wall < 20
    assert bounded.bytes_in(tmp_path) >= 30_000_000


@pytest.mark.parametrize(
    ("program", "says"),
    [
        (tiny("sh -c 'echo oh >&2; exit 3'"), "exit status 3 instead of 0: oh"),
        (tiny("no-such-program"), "no-such-program: program not found"),
        (tiny("true", prepare="echo dear >&2; false"), "preparing failed: dear"),
        (tiny("true", prepare="no-such-program | true"), "preparing failed"),
    ],
)
def test_a_program_that_does_not_run_as_the_table_says_is_no_fault_of_probe(
    program: Program, says: str, tmp_path: Path
) -> None:
    row = tried(program, tool(tmp_path, build="exit 4"), tmp_path)
    assert row["outcome"] == UNUSABLE and says in row["message"]


def test_another_exit_status_may_be_the_right_one(tmp_path: Path) -> None:
    ways = tool(tmp_path, build=f"echo '{json.dumps(PREDICTION)}'", run=f"echo '{json.dumps(RUN)}'")
    assert tried(tiny("sh -c 'exit 20'", status=20), ways, tmp_path)["outcome"] == PREDICTED


def test_threads_and_processes_are_seen(tmp_path: Path) -> None:
    code = (
        "import threading, subprocess, time\n"
        "def work():\n  end = time.process_time() + 0.4\n  while time.process_time() < end: pass\n"
        "other = threading.Thread(target=time.sleep, args=(0.4,)); other.start(); work(); other.join()\n"
        "subprocess.run(['sleep', '0.3'])\n"
    )
    (tmp_path / "it.py").write_text(code)
    ways = tool(tmp_path, build="exit 4")
    row = tried(tiny(f"{sys.executable} {tmp_path}/it.py"), ways, tmp_path)
    assert (row["native"]["threads"], row["native"]["processes"]) == (2, 2) and row["native"]["largest"] > 0.7


def test_messages_name_no_folder_of_this_machine(tmp_path: Path) -> None:
    base = tmp_path / "here"
    said = f"probe: {base}/run/x.lua:\n  no, see {base}/temporary and {ROOT}/docs"
    assert measurement.without_paths(said, base) == "probe: x.lua: no, see FOLDER/temporary and docs"


def test_inputs_are_made_once_and_copied(tmp_path: Path) -> None:
    program = tiny("true", prepare="echo more >>secret")
    program = replace(program, inputs="secret work.lua")
    for _ in range(2):
        with place(program, tmp_path / "here", tmp_path / "made") as found:
            assert (found.folder / "secret").read_text() == "secretmore\n"
            assert (found.folder / "work.lua").read_bytes() == (KEPT / "work.lua").read_bytes()
            (found.folder / "secret").write_text("changed")
            found.fresh()
            assert (found.folder / "secret").read_text() == "secretmore\n"
    assert (tmp_path / "made" / "secret").read_text() == "secret"


# -- the suite


def test_the_suite_goes_on_where_it_stopped(tmp_path: Path) -> None:
    file = tmp_path / "breadth.jsonl"
    ways = tool(tmp_path, build="echo no >&2; exit 4")
    programs = [replace(tiny("true"), name=name) for name in ("one", "two", "three")]
    for row in suite.go_through(programs, tmp_path, ways, quiet, file=file):
        if row["program"] == "two":
            break
    assert [r["program"] for r in recorded.read_rows(file)] == ["one", "two"]
    assert [p.name for p in suite.due(programs, "c1", again=False, file=file)] == ["three"]
    assert len(suite.due(programs, "c1", again=True, file=file)) == 3
    rest = [p.name for p in suite.due(programs, "c2", again=False, file=file)]
    assert rest == ["three", "one", "two"], "of another commit: first what was never tried, then the oldest rows"
    other = [replace(programs[0], command="false")]
    assert suite.due(other, "c1", again=False, file=file) == other, "another command"


def test_a_limit_of_time_begins_no_further_program(tmp_path: Path) -> None:
    said: list[str] = []
    ways = tool(tmp_path, build="echo no >&2; exit 4")
    programs = [replace(tiny("sleep 0.3"), name=name) for name in ("one", "two")]
    file = tmp_path / "breadth.jsonl"
    done = list(suite.go_through(programs, tmp_path, ways, said.append, minutes=0.001, file=file))
    assert [row["program"] for row in done] == ["one"]
    assert said[-1] == "bench: 0.001 minutes are over; 1 programs remain: start it again"


# -- its rows


def test_a_row_is_known_by_program_command_version_and_commit() -> None:
    name, command, package, commit = key(TINY, "c1")
    assert (name, command, commit) == ("tiny", TINY.command, "c1")
    assert package.startswith("coreutils ") and measurement.version("no-such-package") == ""
    assert measurement.tool_commit().strip("+").isalnum()
