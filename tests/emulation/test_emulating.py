# SPDX-License-Identifier: Apache-2.0
"""Emulations use what profiles say, within 5 %, and nothing elsewhere; what they cannot do is refused first."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from documentation import check_keys
from made_usage import made_usage

import probe
from checkpoint.compiled import built
from checkpoint.errors import NodeUnfit, ProbeError, ProbeFileDamaged, StorageError, ToolMissing
from probe.emulation import running
from probe.emulation.kernels import (
    BLAS,
    COMPUTING,
    MOVING,
    OPTIONS,
    SOURCES,
    USER,
    all_rates,
    computing,
    emulator,
    forget,
    has_blas,
    judged,
)
from probe.emulation.metrics import cpu_seconds
from probe.emulation.plan import SECONDS, EmulateOptions, make_plan
from probe.emulation.usage import Usage, save_usage
from probe.node.facts import this_node

RATES = dict.fromkeys([*COMPUTING, *MOVING], 1e5)
COUNTING = """
#include <stdatomic.h>
#include <stdio.h>
static _Atomic unsigned long counted, calls;
void kernel(unsigned long iterations) { counted += iterations; calls++; }
__attribute__((destructor)) static void say(void) { printf("counted %lu %lu\\n", counted, calls); }
"""


@pytest.fixture
def counting(tmp_path: Path) -> Iterator[Path]:
    """The emulator with a kernel that only counts its iterations."""
    source = tmp_path / "counting.c"
    source.write_text(COUNTING)
    program = emulator(source)
    yield program
    forget(program, source)
    assert not program.parent.exists()


def saved(usage: Usage, tmp_path: Path) -> Path:
    path = tmp_path / "a.usage"
    save_usage(usage, path)
    return path


def run_plan(program: Path, text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(program), "run"], input=text, capture_output=True, text=True, timeout=120)


# -- what is used


@pytest.mark.timed
def test_the_emulation_uses_what_was_profiled(tmp_path: Path) -> None:
    """Profiled itself, each resource's total is within 5 %."""
    usage = made_usage(40, read=4e6, written=2e6, resident=8e7)
    options = EmulateOptions(equal=SECONDS, folder=tmp_path, threads=1)
    (tmp_path / "plan").write_text(make_plan(usage, options, {}).text(options))
    found = probe.profile_usage(["sh", "-c", f"exec {emulator()} run < {tmp_path / 'plan'} > /dev/null"])
    assert found.header.exit_status == 0
    assert cpu_seconds(found) == pytest.approx(cpu_seconds(usage), rel=0.05)
    for name in ("read", "written", "resident"):
        assert found.total(name) == pytest.approx(usage.total(name), rel=0.05), name
    assert found.total("threads") == 5


@pytest.mark.timed
def test_the_result_says_so(tmp_path: Path) -> None:
    usage = made_usage(10, RATES)
    result = probe.emulate(saved(usage, tmp_path), EmulateOptions(equal=SECONDS, folder=tmp_path, threads=2))
    said = result.to_json()
    check_keys(said, "probe emulate --json")
    assert said["method"] == "emulation"
    assert said["prediction"] == {"seconds": result.outcome.wall, "low": None, "high": None}
    totals = {row["name"]: row for row in said["totals"]}
    assert totals["cpu_seconds"]["emulated"] == pytest.approx(0.5, rel=0.05)
    assert totals["cpu_seconds"]["wanted"] == pytest.approx(0.5)
    assert len(result.outcome.samples) == 10
    assert (np.diff([end for end, _ in result.outcome.samples]) > 0).all()
    assert 0 < said["start_seconds"] < 5


@pytest.mark.parametrize("threads", [1, 3])
def test_equal_work_is_exactly_that_many_iterations(tmp_path: Path, counting: Path, threads: int) -> None:
    usage = made_usage(7, cpu_user=0.041)
    options = EmulateOptions(own_kernel=tmp_path / "counting.c", folder=tmp_path, threads=threads)
    plan = make_plan(usage, options, {**RATES, USER: 1001.0})
    assert plan.iterations.tolist() == [41.0] * 7
    done = run_plan(counting, plan.text(options))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"counted {7 * 41} {7 * threads}"


def test_a_scale_changes_its_resource_alone() -> None:
    usage, options = made_usage(5), EmulateOptions(threads=1)
    whole = make_plan(usage, options, RATES)
    for name, column in (("compute", "iterations"), ("memory", "resident"), ("read", "read"), ("write", "written")):
        scaled = make_plan(usage, EmulateOptions(threads=1, scale={name: 3.0}), RATES)
        for other in ("iterations", "resident", "read", "written"):
            factor = 3.0 if other == column else 1.0
            assert np.allclose(getattr(scaled, other), factor * getattr(whole, other), atol=2), (name, other)


def test_time_in_the_kernel_that_moving_bytes_takes_is_not_taken_twice() -> None:
    """100 blocks read, at 1e4 blocks a second, are the 10 ms in the kernel."""
    rates = {**RATES, "read": 1e4, "write": 1e12, "touch": 1e12, "syscalls": 1e6}
    plan = make_plan(made_usage(3, read=100 * 65536.0), EmulateOptions(threads=1), rates)
    assert plan.system_calls.max() <= 1
    plan = make_plan(made_usage(3, read=50 * 65536.0), EmulateOptions(threads=1), rates)
    assert plan.system_calls == pytest.approx(np.full(3, 5000), abs=1)


def test_waits_are_kept_on_request(tmp_path: Path) -> None:
    """Samples of 50 ms in which hardly anything is computed."""
    path = saved(made_usage(10, cpu_user=0.001, cpu_kernel=0.0), tmp_path)
    kept = probe.emulate(path, EmulateOptions(equal=SECONDS, folder=tmp_path, keep_waits=True))
    assert kept.seconds >= 0.48
    assert kept.warnings == ()
    left_out = probe.emulate(path, EmulateOptions(equal=SECONDS, folder=tmp_path))
    assert left_out.outcome.user + left_out.outcome.kernel < 0.2
    assert any("98% of the profiled time the command waited" in warning for warning in left_out.warnings)


def test_unknown_columns_are_said_and_not_emulated() -> None:
    usage = made_usage(4)
    unknown = Usage(usage.header, usage.end, {**usage.values, "read": np.full(4, math.nan)})
    plan = make_plan(unknown, EmulateOptions(threads=1), RATES)
    assert plan.read.sum() == 0
    assert plan.warnings[0].startswith("read is not known, and not emulated")
    columns = {name: column for name, column in usage.header.columns.items() if name != "read"}
    without = Usage(replace(usage.header, columns=columns), usage.end, unknown.values)
    assert make_plan(without, EmulateOptions(threads=1), RATES).warnings[0].endswith("no such column")


def test_as_many_threads_as_processors_were_used() -> None:
    cores = os.cpu_count() or 1
    assert make_plan(made_usage(5), EmulateOptions(), RATES).threads == 1
    assert make_plan(made_usage(5, cpu_user=0.1), EmulateOptions(), RATES).threads == min(2, cores)


# -- where it may not


def test_files_have_no_names_and_are_in_the_folder(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    usage = made_usage(30, cpu_user=0.0, cpu_kernel=0.0)
    options = EmulateOptions(equal=SECONDS, folder=place, files=3, keep_waits=True, threads=1)
    with subprocess.Popen([str(emulator()), "run"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as going:
        assert going.stdin is not None and going.stdout is not None
        going.stdin.write(make_plan(usage, options, {}).text(options))
        going.stdin.close()
        assert going.stdout.readline() == "begin\n"
        descriptors = [entry for entry in Path(f"/proc/{going.pid}/fd").iterdir() if int(entry.name) > 2]
        goals = [str(entry.readlink()) for entry in descriptors]
        files = [goal for goal in goals if goal.startswith("/") and not goal.startswith("/dev/")]
        going.kill()
    assert len(files) == 4
    assert all(goal.startswith(f"{place}/") and goal.endswith(" (deleted)") for goal in files), goals
    assert list(place.iterdir()) == []


@pytest.fixture
def not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is refused is refused before the emulator starts."""

    def started(*_: object) -> None:
        raise AssertionError("the emulator was started")

    monkeypatch.setattr(running, "_run", started)


@pytest.mark.usefixtures("not_started")
@pytest.mark.parametrize(
    ("values", "options", "kind", "said"),
    [
        ({"resident": 1e16}, {}, NodeUnfit, "MB of memory are available, the profile holds"),
        ({"written": 1e16}, {}, NodeUnfit, "are free, the profile writes"),
        ({"written": 1e16}, {"scale": {"write": 1000.0}}, NodeUnfit, "more bytes than any node has"),
        ({}, {"folder": Path("/no/such/folder")}, StorageError, "not a folder that files can be made in"),
        ({}, {"kernel": "nothing"}, ProbeError, "no kernel 'nothing'; there are scalar"),
        ({}, {"own_kernel": Path("/no/kernel.c")}, StorageError, "no file of a kernel"),
        ({}, {"own_kernel": Path("/etc/passwd")}, StorageError, "no file of a kernel"),
        ({}, {"ranks": 1025}, ProbeError, "ranks: 1025 is not from 1 to 1024"),
        ({}, {"efficiency": 1.5}, ProbeError, "a share from 0 to 1 of the computing"),
        ({}, {"efficiency": 0.5, "equal": SECONDS}, ProbeError, "takes a part of one kernel's iterations"),
        ({"resident": 1e11}, {"ranks": 1000}, NodeUnfit, "MB of memory are available, the profile holds 95367431 MB"),
        ({}, {"threads": 1025}, ProbeError, "threads: 1025 is not from 1 to 1024"),
        ({}, {"read_block": 0}, ProbeError, "read_block: 0 is not from 1"),
        ({}, {"scale": {"compute": -1.0}}, ProbeError, "factors from 0 to 1e9"),
        ({}, {"scale": {"compute": math.nan}}, ProbeError, "factors from 0 to 1e9"),
        ({}, {"scale": {"network": 1.0}}, ProbeError, "scales are compute, memory, read, write"),
        ({"cpu_user": math.nan}, {}, ProbeError, "does not know its CPU time"),
        ({"cpu_user": 1e17}, {}, ProbeError, "computes for longer than any program"),
        ({"cpu_user": 1e9}, {"equal": SECONDS}, ProbeError, "computes for longer than any program"),
        ({"cpu_user": 1e6}, {"scale": {"compute": 1e9}}, ProbeError, "computes for longer than any program"),
    ],
)
def test_what_is_refused(
    tmp_path: Path, values: dict[str, float], options: dict[str, object], kind: type[ProbeError], said: str
) -> None:
    path = saved(made_usage(3, RATES, **values), tmp_path)
    with pytest.raises(kind, match=said):
        probe.emulate(path, EmulateOptions(**{"folder": tmp_path, **options}))  # type: ignore[arg-type]


@pytest.mark.usefixtures("not_started")
def test_a_damaged_profile_is_refused(tmp_path: Path) -> None:
    path = saved(made_usage(3), tmp_path)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ProbeFileDamaged):
        probe.emulate(path)


@pytest.mark.usefixtures("not_started")
def test_another_node_needs_the_rates_of_the_profiled_one(tmp_path: Path) -> None:
    path = saved(made_usage(3, {name: rate for name, rate in RATES.items() if name != "chase"}), tmp_path)
    assert this_node()["name"] != "n1"
    with pytest.raises(ProbeError, match="no rate of chase on n1, and this is another node"):
        probe.emulate(path, EmulateOptions(kernel="chase", folder=tmp_path))


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Full since the room was looked at: here, as nobody looked."""
    monkeypatch.setattr(running, "check_room", lambda *_: None)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "probe-tests", str(tmp_path)], check=True)
    try:
        with pytest.raises(StorageError, match="the emulation ended early: writing: No space left on device"):
            running._run(
                emulator(), make_plan(made_usage(5), EmulateOptions(folder=tmp_path), RATES),
                EmulateOptions(folder=tmp_path), lambda share: None,
            )  # fmt: skip
        assert list(tmp_path.iterdir()) == []
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_signal_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    """The fixture of all tests finds processes that go on."""
    # One long sample, during which the emulator says nothing: no broken pipe ends it.
    path = saved(made_usage(1, cpu_user=100.0), tmp_path)
    place = tmp_path / "place"
    place.mkdir()
    emulator()
    words = ["emulate", "-q", "--equal", "seconds", "--folder", str(place), str(path)]
    going = subprocess.Popen([sys.executable, "-m", "probe", *words], stderr=subprocess.PIPE, text=True)
    limit = time.monotonic() + 60
    while (
        b"emulator" not in subprocess.run(["ps", "-o", "comm=", "--ppid", str(going.pid)], capture_output=True).stdout
    ):
        assert time.monotonic() < limit
        time.sleep(0.05)
    time.sleep(0.3)
    going.send_signal(number)
    _, said = going.communicate(timeout=20)
    assert going.returncode == (130 if number == signal.SIGINT else -number)
    assert "interrupted" in said or number == signal.SIGKILL
    assert list(place.iterdir()) == []


# -- the program


HEAD = "emulation 1\nkernel scalar\nfolder /tmp\nequal work\nthreads 2\nfiles 1\nread_block 10\nwrite_block 10\n"
SAMPLE = "10 10 0.0 100 100 100 0 0 0.0\n"


@pytest.mark.parametrize(
    "text",
    [
        "", "x\n", "emulation 2\n", HEAD, f"{HEAD}samples 1\n", f"{HEAD}samples 1\n{SAMPLE}",
        f"{HEAD}samples 2\n{SAMPLE}end\n", f"{HEAD}samples 1\n{SAMPLE}stop\n", f"{HEAD}samples 1\n{SAMPLE}end",
        f"{HEAD}samples -1\n", f"{HEAD}samples 1e3\n", f"{HEAD}samples 99999999999999999999\n",
        f"{HEAD}samples 1\n1 2 3 4\nend\n", f"{HEAD}samples 1\n10 10 nan 0 0 0 0 0 0\nend\n",
        f"{HEAD}samples 1\n10 10 0 0 0 0 0 0 -1\nend\n", f"{HEAD}samples 1\n10 10 0 0 0 0 0 0 0 0\nend\n",
        f"{HEAD}threads 0\nsamples 1\n{SAMPLE}end\n", f"{HEAD}threads 99999\nsamples 1\n{SAMPLE}end\n",
        f"{HEAD}{'kernel scalar' + chr(10)}" * 9 + "end\n",
        f"{HEAD}ranks 0\nsamples 1\n{SAMPLE}end\n", f"{HEAD}ranks 99999\nsamples 1\n{SAMPLE}end\n",
        f"{HEAD}colour red\nsamples 1\n{SAMPLE}end\n", f"{HEAD}kernel none\nsamples 1\n{SAMPLE}end\n",
        f"{HEAD}send_to localhost 9\nsamples 1\n{SAMPLE}end\n", f"{HEAD}send_to 127.0.0.1 0\nsamples 1\n{SAMPLE}end\n",
        f"{HEAD}receive_from 127.0.0.1 9 9\nsamples 1\n{SAMPLE}end\n",
        f"{HEAD}folder /no/such/folder\nsamples 1\n{SAMPLE}end\n", "x" * 10000,
    ],
)  # fmt: skip
def test_the_program_refuses_what_is_no_plan(text: str) -> None:
    done = run_plan(emulator(), text)
    assert done.returncode == 3
    assert done.stderr.startswith("error ")
    assert "begin" not in done.stdout


@pytest.mark.parametrize("checks", ["address,undefined", "thread"])
def test_sanitizers_find_nothing(tmp_path: Path, checks: str) -> None:
    program = built("emulator", SOURCES, (*OPTIONS, "-g", f"-fsanitize={checks}"), place=tmp_path)
    for equal in ("work", "seconds"):
        text = HEAD.replace("equal work", f"equal {equal}").replace("/tmp", str(tmp_path))
        samples = "20 20 0.05 300000 200000 9000000 0 0 0.01\n5 0 0.06 0 7 40000000 0 0 0\n1 1 0.07 9 0 0 0 0 0\n"
        done = run_plan(program, f"{text}samples 3\n{samples}end\n")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.splitlines()[-1].startswith("done ")
    for name in (*(one for one in COMPUTING if one != BLAS), *MOVING):
        done = subprocess.run([str(program), "calibrate", name, str(tmp_path)], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), name
        assert done.stdout.count("round ") == 8


# -- kernels


def test_every_kernel_is_listed_and_calibrated() -> None:
    names = subprocess.run([str(emulator()), "kernels"], capture_output=True, text=True, check=True).stdout.split()
    assert names == [*COMPUTING, *MOVING]
    rates = all_rates()
    assert {*names} - {*rates} <= {BLAS}
    assert all(1e2 < rate < 1e9 for rate in rates.values()), rates


def test_the_kernels_command() -> None:
    command = [sys.executable, "-m", "probe", "kernels"]
    listed = json.loads(subprocess.run([*command, "--json"], capture_output=True, text=True, check=True).stdout)
    check_keys(listed, "probe kernels --json")
    assert [row["rate"] for row in listed["kernels"]] == [None] * 10
    done = subprocess.run([*command, "--calibrate", "--json"], capture_output=True, text=True, check=True)
    check_keys(json.loads(done.stdout), "probe kernels --json")
    rows = json.loads(done.stdout)["kernels"]
    assert all(row["rate"] > 0 for row in rows if row["name"] != BLAS or has_blas(emulator()))


def test_a_kernel_that_slows_down_is_noticed() -> None:
    with pytest.raises(ProbeError, match="denormals"):
        judged("user", [(100, 0.001)] * 6 + [(100, 0.02)] * 6)
    assert judged("user", [(100, 0.001)] * 12).rate == pytest.approx(1e5)


def test_a_kernel_that_cannot_be_compiled(tmp_path: Path) -> None:
    source = tmp_path / "wrong.c"
    source.write_text("void kernel(unsigned long iterations) { this is no C }\n")
    with pytest.raises(ToolMissing, match=r"wrong\.c"):
        emulator(source)


def test_a_profile_has_the_rates_of_its_node() -> None:
    usage = probe.profile_usage(["true"], kernels=True)
    # So short a command may end during the only look at it, which is said too.
    assert [note for note in usage.header.notes if "they ended during a look" not in note] == []
    assert usage.header.kernels.keys() == {*computing(emulator()), *MOVING}
