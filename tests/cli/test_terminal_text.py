# SPDX-License-Identifier: Apache-2.0
"""Text of others on the terminal: whatever a probe, result or store holds, nothing of it acts; JSON says it exactly."""

from __future__ import annotations

import ast
import io
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_probe import changed, made_manifest, made_probe, made_result, without_times
from rich.table import Table

from checkpoint.errors import PhaseFailed
from probe.cli.explain import _print_phase
from probe.formats.manifest import ExternalFile
from probe.formats.phase_record import Times
from probe.progress import Bars, Lines
from probe.terminal import console, harmless, one_line, say

ROOT = Path(__file__).parents[2]
NASTY = "\033]0;owned\a\033[2J\x9b31mred\r\b\0\u202etxt.exe\u2066\u2028\ud800\x7f\nprobe: all is well [bold]:smile:"
PLAIN = NASTY.replace("\ud800", "").replace("\0", "")
"""What of it a command line and a JSON file may hold."""

_OURS = re.compile(r"\x1b\[[0-9;]*m|\x1b\[[0-9;?]*[A-Zhlp]|\r")
"""What rich writes for colours and bars."""


def acts(text: str) -> list[str]:
    return sorted({c for c in text if not c.isprintable() and c not in "\n\t"})


def on_a_terminal(*arguments: str | Path, folder: Path) -> tuple[str, int]:
    """What the command writes to a terminal, and its status."""
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "probe", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "PROBE_STORE": str(folder / "store")}
    with subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower, env=environment) as process:
        os.close(follower)
        said = b""
        while True:
            try:
                piece = os.read(leader, 65536)
            except OSError:
                break
            if not piece:
                break
            said += piece
        status = process.wait(60)
    os.close(leader)
    return said.decode().replace("\r\n", "\n"), status


@pytest.fixture(scope="module")
def nasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """A probe and a result of it with such text in every field that may have it."""
    folder = tmp_path_factory.mktemp("nasty")
    path = f"/{PLAIN}"
    manifest, table = made_manifest(
        3, 60, argv=("./solver", PLAIN), warnings=(PLAIN,), notes=(PLAIN,), program__cpu_features=(PLAIN,),
        program__executable=path, program__cwd=path, program__stdin=path, program__isa=PLAIN, tracing__tracer=PLAIN,
        reference_node__name=PLAIN, reference_node__cpu=PLAIN, reference_node__kernel=PLAIN,
        files__external=(ExternalFile(path, 7, "0" * 64, 0o644),),
    )  # fmt: skip
    first = changed(manifest.phases[0], checkpoint__whole=PLAIN, direct=Times(failure=PLAIN))
    manifest = replace(manifest, phases=(first, *manifest.phases[1:]))
    probe = made_probe(folder / "nasty.probe", manifest, table)
    result = made_result(manifest, PLAIN, probe=f"{PLAIN}.probe", warnings=[PLAIN])
    result["node"] |= {"cpu": PLAIN, "kernel": PLAIN, "features": [PLAIN]}
    result = without_times(result, [1], PLAIN)
    (folder / "result.json").write_text(json.dumps(result))
    yield probe, folder / "result.json"


def test_nothing_acts_on_the_terminal(nasty: tuple[Path, Path], tmp_path: Path) -> None:
    probe, result = nasty
    for arguments in (
        ("show", probe),
        ("show", "--tradeoff", probe),
        ("explain", probe),
        ("trim", probe, "--phases", "1", "-o", tmp_path / "one.probe"),
        ("run", probe),
        ("report", probe, result, "-o", tmp_path / "report.html"),
        ("store", "import", result, "--probe", probe),
        ("store", "import", result, "--name", "x", "--node", "y", "--cluster", PLAIN[:60]),
        ("store", "probes"),
        ("store", "nodes"),
        ("store", "nodes", "--format", "csv"),
        ("store", "clusters"),
        ("history",),
        ("compare", "#1", "#2"),
        ("compare", PLAIN, "y"),
        ("export", "--format", "csv", "x"),
        ("rank", "x"),
        ("store", "observe", "x", "y", "3s"),
        ("store", "calibration", "--runs"),
        ("show", tmp_path / PLAIN[:40]),
        ("report", probe, tmp_path / PLAIN[:40], "-o", tmp_path / "other.html"),
        (PLAIN,),
    ):
        said, _ = on_a_terminal(*arguments, folder=tmp_path)
        assert "Traceback" not in said, (arguments, said)
        assert said and acts(_OURS.sub("", said)) == [], (arguments, said)
        # No sequence of another kind than ours, and none of ours with text of others in it.
        assert "\x1b]" not in said and "\x1b[2J" not in said and "\x1b[31m" not in said, (arguments, said)
        if arguments[0] in ("show", "explain", "history"):
            assert "\nprobe: all is well" not in said, (arguments, said)


def test_json_is_exact(nasty: tuple[Path, Path]) -> None:
    probe, _ = nasty
    done = subprocess.run(
        [sys.executable, "-m", "probe", "show", "--json", str(probe)], capture_output=True, check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert acts(done.stdout.decode()) == []
    said = json.loads(done.stdout)
    assert said["program"] == ["./solver", PLAIN] and PLAIN in said["warnings"]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_what_an_encoding_lacks_is_no_error(nasty: tuple[Path, Path], encoding: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "probe", "show", str(nasty[0])], capture_output=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"},
    )  # fmt: skip
    assert done.returncode == 0 and b"Traceback" not in done.stderr, done.stderr


def test_text_is_cleaned_where_it_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert harmless("plain – ü 漢\tx\n") == "plain – ü 漢\tx\n"
    assert acts(harmless(NASTY)) == [] and len(harmless(NASTY)) == len(NASTY)
    assert "\n" not in one_line(NASTY)
    say(NASTY)
    Lines().note(NASTY)
    out = io.StringIO()
    Bars(console(out)).note(NASTY)
    table = Table("head" + NASTY, title=NASTY)
    table.add_row(NASTY)
    terminal = console(out)
    terminal._force_terminal = True
    terminal.print(table)
    with Bars(console(out)).stage(NASTY):
        pass
    captured = capsys.readouterr()
    for said in (captured.out, captured.err, out.getvalue()):
        assert said and acts(_OURS.sub("", said)) == [] and "\x1b]" not in said
    assert "[bold]:smile:" in out.getvalue()


def test_names_that_a_program_brings(capsys: pytest.CaptureFixture[str]) -> None:
    """Functions and files come out of the program's own symbols."""
    one = {"time": 0.5, "instructions": 0.5, "name": NASTY, "image": NASTY}
    phase: dict[str, Any] = {
        "id": 0, "time_share": 1.0, "weight": 1.0, "intervals": 3, "started_seconds": 0.0, "functions": [one],
        "lines": [{**one, "file": NASTY, "line": 3, "function": NASTY}], "all_calls": True,
        "pages": {"touched": 1, "raw": 2, "kept": 1}, "calls": [{"name": NASTY, "times": 1}],
        "mappings": [{"touched": 1, "mapped": 1, "name": NASTY, "kind": ""}],
        "sharing": None,
    }  # fmt: skip
    _print_phase(phase)
    said = capsys.readouterr().out
    assert acts(said) == [] and "\nprobe: all is well" not in said


def test_errors_are_cleaned(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from probe.cli import main

    def fail(**_: object) -> None:
        raise PhaseFailed(NASTY)

    monkeypatch.setattr(main, "leave_as_commands_do", lambda: None)
    monkeypatch.setattr(main.cli, "main", fail)
    with pytest.raises(SystemExit) as ended:
        main.main([])
    assert ended.value.code == 12
    said = capsys.readouterr().err
    assert said.startswith("probe: ") and acts(said) == []


_PRINTING = ("probe/terminal.py", "probe/dataflow/disk_times.py")
"""The one way to a terminal, and a program for candidate nodes: the command reads the JSON which it prints."""
_CLEANED = ("one_line", "harmless")


def test_nothing_else_prints() -> None:
    """Each way to a terminal that is not probe/terminal.py, in code that runs in the command."""
    found = []
    for path in sorted((ROOT / "probe").rglob("*.py")):
        name = str(path.relative_to(ROOT))
        if name in _PRINTING or name.startswith("probe/node/"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            prints = called in ("print", "click.echo", "click.secho", "Console", "sys.stdout.write", "sys.stderr.write")
            ours = bool(node.args) and isinstance(node.args[0], (ast.Call, ast.Name, ast.Constant))
            ours = ours and ast.unparse(node.args[0]).startswith((*_CLEANED, "INTERRUPTED"))
            if prints and not ours and not (called == "print" and ast.unparse(node).startswith("print(f'{name}")):
                found.append(f"{name}:{node.lineno}: {ast.unparse(node)[:60]}")
    assert [line for line in found if not line.startswith(_ALLOWED)] == []


_ALLOWED = ("probe/cli/node_table.py", "probe/progress.py")
"""A wider console for the same file, in which each text is cleaned; names of our own stages."""
