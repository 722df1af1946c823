# SPDX-License-Identifier: Apache-2.0
"""Ranks share what is computed, and each does all else; one that fails ends all."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from made_usage import made_usage

import probe
from checkpoint.errors import StorageError
from probe.emulation import running
from probe.emulation.kernels import COMPUTING, MOVING, USER, emulator, forget
from probe.emulation.plan import SECONDS, EmulateOptions, make_plan
from probe.emulation.running import _run
from probe.emulation.usage import save_usage

RATES = dict.fromkeys([*COMPUTING, *MOVING], 1e5)
COUNTING = """
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
static unsigned long counted;
void kernel(unsigned long iterations) { counted += iterations; }
__attribute__((destructor)) static void say(void)
{
    char line[40];
    int file = open(PLACE, O_WRONLY | O_APPEND);
    if (counted && write(file, line, (size_t)snprintf(line, sizeof line, "%lu\\n", counted)) < 0)
        _exit(9);
}
"""


def test_computing_is_shared_to_the_last_iteration(tmp_path: Path) -> None:
    source, place = tmp_path / "counting.c", tmp_path / "counted"
    place.touch()
    source.write_text(f'#define PLACE "{place}"\n{COUNTING}')
    program = emulator(source)
    try:
        options = EmulateOptions(own_kernel=source, folder=tmp_path, ranks=3)
        plan = make_plan(made_usage(7, cpu_user=0.041), options, {**RATES, USER: 1001.0})
        assert plan.threads == 1
        done = subprocess.run([str(program), "run"], input=plan.text(options), capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
    finally:
        forget(program, source)
    counted = sorted(map(int, place.read_text().split()))
    # 41 iterations by three: 14, 14, 13.
    assert counted == [7 * 13, 7 * 14, 7 * 14]


def test_each_rank_reads_writes_and_holds_all(tmp_path: Path) -> None:
    usage = made_usage(10, read=4e6, written=2e6, resident=8e7)
    options = EmulateOptions(equal=SECONDS, folder=tmp_path, ranks=2)
    plan = make_plan(usage, options, {})
    (tmp_path / "plan").write_text(plan.text(options))
    found = probe.profile_usage(["sh", "-c", f"exec {emulator()} run < {tmp_path / 'plan'} > {tmp_path / 'said'}"])
    assert found.header.exit_status == 0
    for name in ("read", "written", "resident"):
        assert found.total(name) == pytest.approx(2 * (usage.total(name) or 0), rel=0.05), name
    assert found.total("processes") == 3
    assert (plan.most_resident, plan.all_written) == (160_000_000, 40_000_000)
    said = (tmp_path / "said").read_text().splitlines()
    used = [float(line.split()[2]) for line in said if line.startswith("sample ")]
    assert len(used) == 10 and used[-1] == pytest.approx(0.5, rel=0.1)


@pytest.mark.timed
def test_the_result_has_all_ranks(tmp_path: Path) -> None:
    save_usage(made_usage(10, RATES), tmp_path / "a.usage")
    result = probe.emulate(tmp_path / "a.usage", EmulateOptions(equal=SECONDS, folder=tmp_path, ranks=2, threads=2))
    said = result.to_json()
    assert (said["ranks"], said["threads"]) == (2, 2)
    totals = {row["name"]: row["emulated"] for row in said["totals"]}
    assert (totals["read"], totals["written"]) == (2e7, 1e7)
    assert totals["cpu_seconds"] == pytest.approx(0.5, rel=0.1)
    assert (np.diff([end for end, _ in result.outcome.samples]) > 0).all()


def test_more_ranks_than_files_may_be_open(tmp_path: Path) -> None:
    """As many as the hard limit allows, and no rank holds what is for others."""
    options = EmulateOptions(equal=SECONDS, folder=tmp_path, ranks=40, files=20)
    plan = make_plan(made_usage(2, cpu_user=0.001), options, {})
    command = ["prlimit", "--nofile=20:70", str(emulator()), "run"]
    done = subprocess.run(command, input=plan.text(options), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("ranks", [1, 4])
def test_a_rank_that_fails_ends_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int) -> None:
    """The disk has room for what one rank writes in the first samples."""
    monkeypatch.setattr(running, "check_room", lambda *_: None)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "probe-tests", str(tmp_path)], check=True)
    try:
        options = EmulateOptions(folder=tmp_path, ranks=ranks)
        with pytest.raises(StorageError, match="the emulation ended early: writing: No space left on device"):
            _run(emulator(), make_plan(made_usage(5), options, RATES), options, lambda share: None)
        assert list(tmp_path.iterdir()) == []
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_ranks_end_with_the_first_process(tmp_path: Path) -> None:
    options = EmulateOptions(equal=SECONDS, folder=tmp_path, ranks=3)
    with subprocess.Popen([str(emulator()), "run"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as going:
        assert going.stdin is not None and going.stdout is not None
        going.stdin.write(make_plan(made_usage(1, cpu_user=300.0), options, {}).text(options))
        going.stdin.close()
        assert going.stdout.readline() == "begin\n"
        with open(f"/proc/{going.pid}/task/{going.pid}/children") as file:
            ranks = [int(word) for word in file.read().split()]
        assert len(ranks) == 3
        os.kill(going.pid, signal.SIGKILL)
    limit = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in ranks):
        assert time.monotonic() < limit
        time.sleep(0.05)


def test_an_efficiency_is_the_kernels_share() -> None:
    usage = made_usage(4)
    plan = make_plan(usage, EmulateOptions(kernel="scalar", efficiency=0.75), RATES)
    assert {name: values.sum() for name, values in plan.computed.items()} == pytest.approx(
        {"scalar": 0.75 * 0.16 * 1e5, "chase": 0.25 * 0.16 * 1e5}
    )
    assert make_plan(usage, EmulateOptions(kernel="chase", efficiency=0.5), RATES).computed.keys() == {"chase"}
