# SPDX-License-Identifier: Apache-2.0
"""The file that is sent to nodes and the command that starts it: old Pythons, odd shells, nothing but our own."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from candidate_runs import assert_nothing_left, probed, root
from hypothesis import given
from hypothesis import strategies as st
from sent_modules import OURS, SAFE, file_of, imported
from small_probe import small_probe
from sshd import machine

from probe.candidates import agent_file as agent_file_module
from probe.candidates.agent_file import NODE_MODULES, ROOT, AgentFile, agent_file
from probe.candidates.agent_start import _CODE, start_command
from probe.node.phases import OWN_RESTORER

_OPTIONAL = {
    "checkpoint/paths.py": {"platformdirs"},
    "reducer/compression.py": {"isal", "zstandard", "backports", "compression"},
}
"""Modules that are used where they are installed, or never reached on a node."""


@pytest.mark.parametrize("name", [*NODE_MODULES, "probe/node/__main__.py"])
def test_nothing_is_imported_that_is_not_sent(name: str) -> None:
    source = (ROOT / name).read_text()
    for module in imported(source, name):
        top = module.split(".")[0]
        if top not in OURS:
            assert top in sys.stdlib_module_names or top in _OPTIONAL.get(name, ()), f"{name} imports {module}"
            continue
        path = file_of(module)
        assert path is None or path in NODE_MODULES or path == "probe/__init__.py", f"{name} imports {module}"


def test_all_of_the_agent_is_sent() -> None:
    """What starts by name alone is reached from nowhere else."""
    here = {str(path.relative_to(ROOT)) for path in (ROOT / "probe" / "node").glob("*.py")}
    assert here - {"probe/node/__main__.py"} <= set(NODE_MODULES)


def test_the_file_holds_our_modules_alone_and_is_always_the_same() -> None:
    first = agent_file()
    agent_file_module.agent_file.cache_clear()
    again = agent_file()
    assert first == again and first is not again
    with zipfile.ZipFile(io.BytesIO(first.data)) as archive:
        names = archive.namelist()
        assert sorted(names) == sorted([*NODE_MODULES, "probe/__init__.py", "__main__.py", OWN_RESTORER])
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        for name in NODE_MODULES:
            assert archive.read(name) == (ROOT / name).read_bytes()
        assert archive.read("probe/__init__.py") == b""
    assert len(first.data) < 160_000


def test_python_3_8_is_enough(tmp_path: Path) -> None:
    """By what the sources use: syntax, modules, functions, arguments."""
    start = tmp_path / "start.py"
    start.write_text(_CODE)
    sources = [ROOT / name for name in (*NODE_MODULES, "probe/node/__main__.py", "probe/dataflow/disk_times.py")]
    vermin = Path(sys.executable).with_name("vermin")
    done = subprocess.run(
        [vermin, "--no-tips", "--violations", "-t=3.8-", start, *sources],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def pythons() -> dict[str, Path]:
    """Interpreters of 3.8 that this machine has: on the path, or of pyenv."""
    found = [shutil.which("python3.8"), *Path.home().glob(".pyenv/versions/3.8*/bin/python3.8")]
    working = {}
    for path in found:
        asked = [str(path), "-c", "import sys; print(*sys.version_info[:2])"]
        if path and subprocess.run(asked, capture_output=True, text=True).stdout == "3 8\n":
            working[str(path)] = Path(path)
    return working


def test_a_real_python_3_8_runs_it(tmp_path: Path, builds: Path) -> None:
    """Where there is one; the test above always runs."""
    if not pythons():
        pytest.skip("no python3.8 on this machine; vermin has judged the sources")
    with machine(tmp_path / "machine") as made:
        (made.folder / "programs").mkdir()
        (made.folder / "programs" / "python3").symlink_to(next(iter(pythons().values())))
        server = made.serve("SetEnv PATH=/run/node/programs:/usr/bin:/bin")
        (found,) = probed(made, small_probe(builds).path, root(server))
        assert found.result is not None, found.error
        assert found.result.node["python"].startswith("3.8.")
        assert_nothing_left(made)


_folders = st.text(max_size=30) | st.sampled_from(["", "~/x", "it's", '"', "$HOME", "a b", "\\", "!x", "\n", "ü", "-n"])


@given(folder=_folders.filter(lambda text: "\0" not in text), as_root=st.booleans())
def test_every_shell_understands_the_command(folder: str, as_root: bool) -> None:
    command = start_command(agent_file(), folder, as_root)
    # One quoted word, quoted as all of them quote, with nothing in it that is special between such quotes somewhere.
    before, loader, after = command.split("'")
    assert before == "exec python3 -I -c " and SAFE.match(after)
    assert not set(loader) & set("'\"\\!\n$`") and loader.isascii()
    words = shlex.split(command)
    assert words[:5] == ["exec", "python3", "-I", "-c", loader] and len(command) < 20_000
    sent = words[10] if len(words) > 10 else ""
    assert base64.b64decode(sent).decode() == folder


_SHELLS = [shell for shell in ("bash", "dash", "zsh", "ksh", "fish", "csh", "tcsh", "yash") if shutil.which(shell)]


@pytest.mark.parametrize("shell", ["sh", *_SHELLS])
def test_shells_that_are_here_start_it(shell: str, tmp_path: Path) -> None:
    folder = tmp_path / "a 'folder' $x"
    command = [shell, "-c", start_command(agent_file(), str(folder), False)]
    done = subprocess.run(command, input=b"", capture_output=True)
    assert done.stdout.strip() == b'{"event": "agent", "have": false}', done
    # The input ended before the agent's bytes.
    assert done.returncode == 3 and os.listdir(folder / "agents") == []  # noqa: PTH208


def test_an_agent_that_arrives_damaged_is_not_run(tmp_path: Path) -> None:
    agent = agent_file()
    command = ["sh", "-c", start_command(agent, str(tmp_path / "x"), False)]
    done = subprocess.run(command, input=bytes(len(agent.data)), capture_output=True)
    assert b"the agent arrived damaged" in done.stdout and not list((tmp_path / "x" / "agents").iterdir())
    # Nor one that was changed on the disk since.
    (tmp_path / "x" / "agents" / f"{agent.sha256}.pyz").write_bytes(agent.data[:-1])
    old = tmp_path / "x" / "agents" / "old.pyz"
    old.touch()
    os.utime(old, (0, 0))
    done = subprocess.run(command, input=agent.data, capture_output=True)
    assert b'"have": false' in done.stdout and b'"event":"hello"' in done.stdout
    assert [path.name for path in (tmp_path / "x" / "agents").iterdir()] == [f"{agent.sha256}.pyz"]
    done = subprocess.run(command, input=b"", capture_output=True)
    assert b'"have": true' in done.stdout and done.returncode == 3


def test_an_agent_of_another_version_is_neither_used_nor_harmed(tmp_path: Path) -> None:
    """Both versions keep theirs in one folder: each starts its own, and leaves the other's."""
    ours, theirs = agent_file(), of_another_version()
    folder = tmp_path / "cache"
    stored = {agent.sha256: folder / "agents" / f"{agent.sha256}.pyz" for agent in (ours, theirs)}
    assert said_by(theirs, folder, theirs.data) == [{"event": "agent", "have": False}, {"event": "other version"}]
    have, hello = said_by(ours, folder, ours.data)
    assert not have["have"] and hello["event"] == "hello"
    assert {path: path.read_bytes() for path in (folder / "agents").iterdir()} == {
        stored[ours.sha256]: ours.data,
        stored[theirs.sha256]: theirs.data,
    }
    assert said_by(theirs, folder) == [{"event": "agent", "have": True}, {"event": "other version"}]
    assert [line["event"] for line in said_by(ours, folder)] == ["agent", "hello"]


def of_another_version() -> AgentFile:
    """Our agent with another start."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(agent_file().data)) as ours, zipfile.ZipFile(out, "w") as made:
        for name in ours.namelist():
            start = b"""print('{"event": "other version"}')"""
            made.writestr(name, start if name == "__main__.py" else ours.read(name))
    return AgentFile(out.getvalue(), hashlib.sha256(out.getvalue()).hexdigest())


def said_by(agent: AgentFile, folder: Path, sent: bytes = b"") -> list[dict[str, Any]]:
    """The lines that the node answers with when `agent` is asked for."""
    command = ["sh", "-c", start_command(agent, str(folder), False)]
    done = subprocess.run(command, input=sent, capture_output=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line]
