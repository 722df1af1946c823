# SPDX-License-Identifier: Apache-2.0
"""Commands on a real terminal and in real shells: bars with the time left, colours, quiet, completed words."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest
from programs import build

ROOT = Path(__file__).parents[2]
SECONDS = 60.0
COLOUR = re.compile(r"\x1b\[[0-9;]*[34][0-9](;[0-9;]*)?m")
STAGE = """
import time
from probe.progress import display_for
display = display_for({quiet})
with display.stage("reference") as report:
    for share in range(8):
        report(share / 8)
        time.sleep(0.15)
with display.stage("select"):
    time.sleep(0.3)
display.note("that is all")
"""


def on_terminal(arguments: list[str], *, keys: str = "", until: str = "", **variables: str) -> str:
    """Everything that a command writes to a terminal of its own; `keys` are typed once `until` has appeared."""
    master, slave = pty.openpty()
    kept = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLORTERM", "FORCE_COLOR")}
    environment = {**kept, "TERM": "xterm-256color", "COLUMNS": "120", "PYTHONPATH": str(ROOT), **variables}
    process = subprocess.Popen(
        arguments, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
    )
    os.close(slave)
    said, typed, deadline = b"", not keys, time.monotonic() + SECONDS
    try:
        while time.monotonic() < deadline:
            if not select.select([master], [], [], 0.1)[0]:
                if process.poll() is not None:
                    break
                continue
            try:
                piece = os.read(master, 65536)
            except OSError:
                break
            said += piece
            if not typed and until.encode() in said:
                os.write(master, keys.encode())
                typed = True
        assert process.wait(max(0.1, deadline - time.monotonic())) == 0, said
    finally:
        process.kill()
        process.wait()
        os.close(master)
    return said.decode(errors="replace")


def staged(quiet: bool = False, **variables: str) -> str:
    return on_terminal([sys.executable, "-c", STAGE.format(quiet=quiet)], **variables)


def test_a_terminal_gets_bars_with_the_time_left() -> None:
    said = staged()
    assert COLOUR.search(said) and "that is all" in said
    left = re.findall(r"(\d+) %.*?left.*?(\d:\d\d:\d\d)", said)
    assert ("100", "0:00:00") in left
    assert "-:--:--" in said, "nothing is known of the time left at first"
    assert any(0 < int(percent) < 100 for percent, _ in left)
    # Of a stage that does not report there is none, and no invented share.
    shares = re.findall(r"select\s+[^\r\n]*?(\d+) %", said)
    assert "select" in said and set(shares) <= {"100"}


def test_no_color_has_no_colours() -> None:
    said = staged(NO_COLOR="1")
    assert not COLOUR.search(said) and "reference" in said and "left" in said


def test_a_dumb_terminal_gets_lines() -> None:
    said = staged(TERM="dumb")
    assert "\x1b" not in said and re.search(r"reference: done in \d+\.\d s", said)


def test_quiet_says_nothing() -> None:
    assert staged(quiet=True) == ""


def test_a_pipe_gets_lines_and_standard_output_stays_clean() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STAGE.format(quiet=False)],
        capture_output=True, text=True, timeout=SECONDS, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.stdout == "" and "\x1b" not in done.stderr
    assert [line.split(" in ")[0] for line in done.stderr.splitlines()] == [
        "reference ...", "reference: done", "select ...", "select: done", "that is all",
    ]  # fmt: skip


@pytest.mark.slow
def test_a_command_on_a_terminal(builds: Path, tmp_path: Path) -> None:
    program = [str(build("nbody", builds)), "60"]
    trace = [sys.executable, "-m", "probe", "trace", "--interval", "10ms", "-o", str(tmp_path / "n.profile")]
    said = on_terminal([*trace, "--", *program])
    assert "trace" in said and "left" in said and "intervals" in said.splitlines()[-1]
    quiet = on_terminal([*trace, "-q", "--", *program])
    assert quiet.count("\n") == 1 and "\x1b" not in quiet


# -- completion


@pytest.fixture(scope="module")
def command_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with this checkout's command, to be in PATH."""
    folder = tmp_path_factory.mktemp("bin")
    command = folder / "probe"
    command.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m probe "$@"\n')
    command.chmod(0o755)
    return folder


def shell(name: str, script: str, folder: Path) -> str:
    options = {"bash": ["--norc", "--noprofile"], "zsh": ["-f"], "fish": ["--no-config"]}[name]
    done = subprocess.run(
        [name, *options, "-c", script],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS, check=True, cwd=folder,
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(folder), "XDG_DATA_HOME": str(folder)},
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout


def test_bash_completes_what_is_typed(command_folder: Path) -> None:
    """In an interactive bash, by the Tab key."""
    rc = command_folder / "rc"
    rc.write_text(
        f'PATH={command_folder}:$PATH; eval "$(probe completion bash)"; PS1="ready> "; bind "set bell-style none"\n'
    )
    said = on_terminal(
        ["bash", "--noprofile", "--rcfile", str(rc), "-i"],
        keys="probe expl\t--versio\x15probe --versi\t\nexit\n", until="ready> ", HISTFILE="/dev/null",
    )  # fmt: skip
    assert "probe explain " in said
    assert re.search(r"probe, version \d", said)


def test_bash_completes_every_kind_of_word(command_folder: Path) -> None:
    def completed(*words: str) -> list[str]:
        quoted = " ".join(f"'{word}'" for word in words)
        script = f"""
            eval "$(probe completion bash)"
            COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}
            _probe_completion probe; printf '%s\\n' "${{COMPREPLY[@]}}"
        """
        return shell("bash", script, command_folder).split()

    assert {"build", "run", "explain", "store"} <= set(completed("probe", ""))
    assert completed("probe", "store", "pr") == ["probes"]
    assert "--scrub-env" in completed("probe", "build", "--")
    assert completed("probe", "build", "--tracer", "v") == ["valgrind"]


def test_fish_completes(command_folder: Path) -> None:
    script = (
        'probe completion fish | source; complete --do-complete "probe store pr"; complete --do-complete "probe expl"'
    )
    said = shell("fish", script, command_folder)
    assert [line.split("\t")[0] for line in said.splitlines()] == ["probes", "explain"]


def test_zsh_completes(command_folder: Path) -> None:
    """The function runs where zsh would call it; what it would offer is printed in place of its own builtin."""
    script = """
        autoload -U compinit && compinit -u -D
        eval "$(probe completion zsh)"
        (( $+functions[_probe_completion] )) || exit 3
        [[ ${_comps[probe]} == _probe_completion ]] || exit 4
        _describe() { print -l -- "${completions_with_descriptions[@]}" }
        compadd() { print -l -- "${completions[@]}" }
        words=(probe store pr); CURRENT=3
        typeset -A compstate
        _probe_completion
    """
    assert "probes" in shell("zsh", script, command_folder)
