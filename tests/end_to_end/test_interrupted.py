# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C, kill and kill -9 at every stage: nothing goes on, and the build can be resumed."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest
from command import STATUS, Command, interrupt, wait_for
from conftest import MakeProgram, Sample

STAGES = ["trace", "validate", "reference", "select", "capture", "reduce", "flatten", "self-check"]
BEFORE = [("trace", ""), ("validate", ""), ("reference", ""), ("select", "")]
PLACES = {
    "direct": [("capture", ""), ("flatten", ""), ("self-check", "direct_agent.py")],
    "criu": [*BEFORE, ("capture", " dump "), ("capture", " restore "), ("flatten", ""), ("self-check", " restore ")],
}
"""By way of capturing: stages, and what a child of them does. The stage `reduce` finds its work done."""


@pytest.mark.slow
@pytest.mark.parametrize("capture", ["direct", "criu"])
def test_a_build_survives_every_signal_at_every_stage(
    capture: str, command: Command, tmp_path: Path, program: MakeProgram
) -> None:
    output, work = tmp_path / "out.probe", tmp_path / "work"
    arguments = ["build", "-o", output, "--interval", "20ms", "--max-phases", "2", "--work", work, "--resume"]
    arguments += ["--capture", capture]
    arguments += ["--", program("nbody"), "150"]
    before = STAGES[0]
    for stage, child in PLACES[capture]:
        for sent in STATUS:
            said = interrupt(command, command.start(*arguments), stage, sent, child=child)
            begun = [line[: -len(" ...")] for line in said if line.endswith(" ...")]
            # Finished stages are not run again: at most those since the place before, the first time.
            assert set(begun) <= set(STAGES[STAGES.index(before) : STAGES.index(stage) + 1]), said
            assert ("probe: interrupted; nothing was left running" in said) == (sent == signal.SIGINT)
            command.nothing_left()
            assert not output.exists() and [p.name for p in tmp_path.iterdir() if "part" in p.name] == []
        before = stage
    done = command(*arguments)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if line.endswith("...")] == ["self-check ...", "pack ..."]
    assert command.json("run", "--repeat", "1", output)["prediction"]["seconds"] > 0


@pytest.mark.parametrize("restorer", ["direct", "criu"])
@pytest.mark.parametrize("sent", [*STATUS])
def test_a_run_survives_every_signal(sent: int, restorer: str, sample: Sample, command: Command) -> None:
    running = command.start("run", "--restorer", restorer, "--repeat", "200", sample.path)
    # Restored directly, a phase has the environment that its program had: it is the agent's that is ours.
    sign = " restore " if restorer == "criu" else "direct_agent.py"
    wait_for(lambda: any(sign in c for c in command.processes().values()), "a restore")
    interrupt(command, running, "run", sent)
    # Nothing can remove the folder of a process that was killed; everything else is gone.
    command.nothing_left(files=sent != signal.SIGKILL)
    if sent == signal.SIGKILL:
        left = list(command.temporary.iterdir())
        assert [p.name.startswith("probe-run-") for p in left] == [True]
        subprocess.run(["rm", "-r", *left], check=True)


_IN_FORK = """
import os, signal, sys
import probe.cli.main
command, sent = os.getpid(), []
def send():
    if os.getpid() == command and not sent:
        sent.append(True)
        os.kill(command, signal.SIGTERM)
os.register_at_fork(after_in_parent=send)
probe.cli.main.main(sys.argv[1:])
"""


def test_a_signal_during_a_fork(sample: Sample, command: Command) -> None:
    """Python drops what is raised then; the run went on, and no signal could end it."""
    with command.start(
        "run", "--restorer", "direct", "--repeat", "200", sample.path, entry=["-c", _IN_FORK]
    ) as running:
        assert running.wait(20) == 143
    command.nothing_left()


def test_an_impatient_user(sample: Sample, command: Command) -> None:
    running = command.start("run", "--repeat", "200", sample.path)
    interrupt(command, running, "run", signal.SIGINT, times=5)
    command.nothing_left()


def test_a_build_without_a_folder_of_its_own(command: Command, tmp_path: Path, program: MakeProgram) -> None:
    arguments = ["build", "-o", tmp_path / "out", "--interval", "20ms", "--", program("nbody"), "200"]
    interrupt(command, command.start(*arguments), "reference", signal.SIGINT, times=3)
    command.nothing_left()


def test_a_trace(command: Command, tmp_path: Path, program: MakeProgram) -> None:
    running = command.start("trace", "-o", tmp_path / "out", "--", program("nbody"), "2000")
    interrupt(command, running, "trace", signal.SIGTERM)
    command.nothing_left()
    assert [p.name for p in tmp_path.iterdir()] == ["command"]
