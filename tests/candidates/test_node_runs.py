# SPDX-License-Identifier: Apache-2.0
"""`probe run` on other nodes from end to end: as anybody, as root, with and without CRIU, without a useful Python."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from candidate_runs import as_json, assert_nothing_left, cache, client, command, guest, members, probed, root
from small_probe import SmallProbe, small_probe
from sshd import Machine, Server, machine, wait_until

from checkpoint.criu.tool import find_criu, private_command, read_version
from checkpoint.errors import NodeUnfit, PrivilegeMissing
from probe.contents.carried_criu import pack_criu
from probe.formats.manifest import Manifest
from probe.formats.phase_record import CRIU, DIRECT
from probe.node.agent import _runtime
from probe.node.criu_member import unpack_criu
from reducer.unpack import open_probe

_PYTHONS = {
    # Too old: before the agent's file is even asked for, the start knows.
    "old": """#!/usr/bin/python3
import sys
sys.version_info = (3, 7, 9, "final", 0)
sys.argv = ["-c", *sys.argv[4:]]
exec(sys.argv[1] and __import__("base64").b64decode(sys.argv[1]))
""",
    "crashing": "#!/bin/sh\nkill -SEGV $$\n",
    "complaining": "#!/bin/sh\necho 'ImportError: \033[31mno module\a named encodings' >&2\nexit 1\n",
    "incomplete": """#!/usr/bin/python3
import sys
sys.modules["ctypes"] = None
sys.argv = ["-c", *sys.argv[4:]]
exec(__import__("base64").b64decode(sys.argv[1]))
""",
    "sudo": "#!/bin/sh\necho 'sudo: a password is required' >&2\nexit 1\n",
}


_SUDO = """
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(int count, char **words)
{
    if (count < 3 || strcmp(words[1], "-n") != 0 || setgid(0) || setuid(0))
        return 1;
    setenv("HOME", "/home/root", 1);
    return execv(words[2], words + 2);
}
"""


@dataclass(frozen=True)
class Nodes:
    machine: Machine
    plain: Server
    bare: Server
    sudo: Server
    pythons: dict[str, Server]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    folder = tmp_path_factory.mktemp("nodes")
    with machine(folder / "machine") as made:
        pythons = {}
        for name, text in _PYTHONS.items():
            programs = made.folder / name
            programs.mkdir()
            script = programs / ("sudo" if name == "sudo" else "python3")
            script.write_text(text)
            script.chmod(0o755)
            pythons[name] = made.serve(f"SetEnv PATH=/run/node/{name}:/usr/bin:/bin")
        (made.folder / "true-sudo").mkdir()
        program = made.folder / "true-sudo" / "sudo"
        subprocess.run(["cc", "-x", "c", "-", "-o", program], input=_SUDO, text=True, check=True)
        program.chmod(0o4755)
        sudo = made.serve("SetEnv PATH=/run/node/true-sudo:/usr/bin:/bin")
        yield Nodes(made, made.serve(), made.serve(bare=True), sudo, pythons)


@pytest.fixture(scope="module")
def small(builds: Path) -> SmallProbe:
    return small_probe(builds)


@pytest.fixture(scope="module")
def carrying(small: SmallProbe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same probe with CRIU."""
    path = tmp_path_factory.mktemp("carrying") / "carrying.probe"
    small.again(path, "--with-criu")
    return path


def test_anybody_can_have_a_probe_run_on_another_node(nodes: Nodes, small: SmallProbe) -> None:
    shutil.rmtree(cache(nodes.machine), ignore_errors=True)
    node = f"guest@127.0.0.1:{nodes.plain.port}"
    first = command(nodes.machine, small.path, "--on", node, "--repeat", "3")
    header, row = first.stdout.splitlines()[:2]
    assert header.split() == [
        "node",
        "predicted",
        "95",
        "%",
        "interval",
        "speed",
        "coverage",
        "probing",
        "transfer",
        "sent",
    ]
    with open_probe(small.path) as archive:
        covered = Manifest.from_json(archive.manifest).coverage
    found = re.match(rf"{re.escape(node)} +([\d.]+) s +([\d.]+) to ([\d.]+) s +([\d.]+) +{covered:.1%}", row)
    assert found, row
    seconds, low, high, speed = map(float, found.groups())
    assert low <= seconds <= high and speed > 0
    assert f"{node}: sending the agent" in first.stderr and f"{node}: done" in first.stderr
    assert_nothing_left(nodes.machine)

    second = as_json(command(nodes.machine, small.path, "--on", node, "--repeat", "3", "--json", "-q"))
    assert len(second) == 1
    (said,) = second
    assert (said["name"], said["status"], said["reason"], said["exit_code"]) == (node, "ok", "", 0)
    # Only the front of the probe went there again: what it is, not what is in it.
    assert 0 < said["sent_bytes"] < 20_000 and said["transfer_seconds"] == 0 and said["early_repeats"] == 0
    result = said["result"]
    assert result["node"]["user"] == 12345 and result["node"]["kernel"] == os.uname().release
    assert [len(phase["repeats"]) >= 3 for phase in result["phases"]] == [True] * len(result["phases"])
    assert {phase["restorer"] for phase in result["phases"]} == {DIRECT}
    prediction = result["prediction"]
    assert prediction["low"] < prediction["seconds"] < prediction["high"]
    assert prediction["coverage"] == pytest.approx(covered)
    assert said["quiet"][0]["repeats"] >= 3 * len(result["phases"])
    assert_nothing_left(nodes.machine)


def test_quiet_says_nothing_on_standard_error(nodes: Nodes, small: SmallProbe) -> None:
    node = f"guest@127.0.0.1:{nodes.plain.port}"
    assert command(nodes.machine, small.path, "--on", node, "--repeat", "1", "-q").stderr == ""


def test_a_node_that_fails_is_a_row_and_an_exit_code(nodes: Nodes, small: SmallProbe) -> None:
    good, bare = (f"guest@127.0.0.1:{server.port}" for server in (nodes.plain, nodes.bare))
    alone = command(nodes.machine, small.path, "--on", bare, "--repeat", "1", "-q", status=NodeUnfit.exit_code)
    assert alone.stdout.splitlines()[1].split() == [bare, "none"]
    assert "no python3 on this node" in alone.stderr and "no python3 on this node" in alone.stdout
    both = command(nodes.machine, small.path, "--on", bare, "--on", good, "--repeat", "1", "--json", "-q", status=20)
    failed, done = as_json(both)
    assert (failed["name"], failed["status"], failed["exit_code"]) == (bare, "failed", NodeUnfit.exit_code)
    assert failed["result"] is None and failed["relative_speed"] is None and "3.8" in failed["reason"]
    assert (done["name"], done["status"]) == (good, "ok")
    assert "1 of 2 candidates have no prediction" in both.stderr and bare in both.stderr
    assert_nothing_left(nodes.machine)


@pytest.mark.parametrize(
    ("python", "reason"),
    [
        ("old", "python3 is 3.7 here; 3.8 or newer is needed"),
        ("crashing", "the agent does not start"),
        ("complaining", "the agent does not start (status 1): ImportError: "),
        ("incomplete", "the python3 here is incomplete"),
    ],
)
def test_a_python_of_no_use_is_named(nodes: Nodes, small: SmallProbe, python: str, reason: str) -> None:
    (found,) = probed(nodes.machine, small.path, guest(nodes.pythons[python]))
    assert isinstance(found.error, NodeUnfit) and reason in str(found.error)
    assert str(found.error).startswith(found.name) and str(found.error).isprintable()
    assert_nothing_left(nodes.machine)


def test_root_restores_in_namespaces_of_its_own(nodes: Nodes, small: SmallProbe) -> None:
    (found,) = probed(nodes.machine, small.path, root(nodes.plain))
    assert found.result is not None, found.error
    assert {phase.restorer for phase in found.result.phases} == {DIRECT} and found.result.node["user"] == 0
    assert_nothing_left(nodes.machine)


def test_criu_is_packed_with_all_it_needs(tmp_path: Path) -> None:
    here = find_criu()
    packed = pack_criu(here)
    assert pack_criu(here) == packed

    class Carrying:
        def read_data(self, name: str) -> bytes:
            return packed

    archive: Any = Carrying()
    command = private_command(unpack_criu(archive, tmp_path) / "data" / "criu")
    assert command is not None and command[0].startswith(str(tmp_path))
    # Its own loader, its own libraries, nothing of this machine's.
    done = subprocess.run(
        [*command[:-1], "--list", command[-1]], capture_output=True, text=True, env={}, check=True
    ).stdout
    loaded = re.findall(r"=> (\S+)", done)
    assert loaded and all(path.startswith(str(tmp_path)) for path in loaded)
    assert read_version(command) == here.version


def test_criu_can_be_asked_for(nodes: Nodes, small: SmallProbe, carrying: Path) -> None:
    assert not shutil.which("criu", path="/usr/sbin:/usr/bin:/usr/local/sbin"), "the node must have no CRIU of its own"
    (found,) = probed(nodes.machine, small.path, root(nodes.plain), restorer=CRIU)
    assert (
        found.result is None
        and "CRIU >= " in str(found.error)
        and "no system CRIU; no private CRIU" in str(found.error)
    )
    (found,) = probed(nodes.machine, small.path, guest(nodes.plain), restorer=CRIU)
    assert isinstance(found.error, PrivilegeMissing) and "sudo" in str(found.error)
    (found,) = probed(nodes.machine, small.path, guest(nodes.pythons["sudo"]), restorer=CRIU)
    assert isinstance(found.error, PrivilegeMissing) and "a password is required" in str(found.error)

    (found,) = probed(nodes.machine, carrying, root(nodes.plain), restorer=CRIU)
    assert found.result is not None, found.error
    assert {phase.restorer for phase in found.result.phases} == {CRIU}
    assert_nothing_left(nodes.machine)
    # It is of no use to the direct restorer, and stays here then.
    shutil.rmtree(cache(nodes.machine), ignore_errors=True)
    (found,) = probed(nodes.machine, carrying, guest(nodes.plain))
    assert found.result is not None, found.error
    carried = {path.name for path in (cache(nodes.machine, "root") / "criu").iterdir()}
    assert len(carried) == 1 and not (cache(nodes.machine) / "criu").exists()
    assert set(members(nodes.machine)) < set(members(nodes.machine, "root"))


def test_sudo_is_used_where_criu_needs_it(nodes: Nodes, small: SmallProbe, carrying: Path) -> None:
    shutil.rmtree(cache(nodes.machine), ignore_errors=True)
    node = f"guest@127.0.0.1:{nodes.sudo.port}"
    done = command(nodes.machine, carrying, "--on", node, "--restorer", CRIU, "--repeat", "1", "--json", "-q")
    (said,) = as_json(done)
    assert said["result"]["node"]["user"] == 0
    assert {phase["restorer"] for phase in said["result"]["phases"]} == {CRIU}
    # Root's folder, not the guest's.
    assert (cache(nodes.machine, "root") / "members").exists() and not cache(nodes.machine).exists()
    # Without need it is not.
    (found,) = probed(nodes.machine, small.path, guest(nodes.sudo))
    assert found.result is not None and found.result.node["user"] == 12345
    assert {phase.restorer for phase in found.result.phases} == {DIRECT}
    assert_nothing_left(nodes.machine)


def test_an_interrupted_run_leaves_nothing_of_root_either(nodes: Nodes, carrying: Path) -> None:
    node = f"guest@127.0.0.1:{nodes.sudo.port}"
    probing = subprocess.Popen(
        client(nodes.machine, carrying, "--on", node, "--restorer", CRIU, "--repeat", "1000"),
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert probing.stderr
    with probing:
        assert any("measured" in line for line in probing.stderr)
        probing.kill()
    wait_until(lambda: not nodes.machine.users_processes(), f"the end of {nodes.machine.users_processes()}")
    assert_nothing_left(nodes.machine)


@pytest.mark.parametrize(
    ("restorer", "user", "refused", "sent"),
    [
        ("auto", 0, "", []),
        ("auto", 0, "it has a timer", ["criu"]),
        ("auto", 1000, "it has a timer", []),
        (DIRECT, 0, "it has a timer", []),
        (CRIU, 0, "", ["criu"]),
    ],
)
def test_what_is_of_use_is_sent(
    small: SmallProbe, monkeypatch: pytest.MonkeyPatch, restorer: str, user: int, refused: str, sent: list[str]
) -> None:
    class Carrying:
        data_names = ("criu", "restorer", "touched-0")

    archive: Any = Carrying()
    monkeypatch.setattr(os, "geteuid", lambda: user)
    with open_probe(small.path) as probe:
        manifest = Manifest.from_json(probe.manifest)
    first, *others = manifest.phases
    manifest = replace(manifest, phases=(replace(first, direct=replace(first.direct, failure=refused)), *others))
    every = frozenset(p.id for p in manifest.phases)
    assert _runtime(restorer, archive, manifest, every, carried=False) == sent
    # The restorer in the probe is its author's.
    asked_for = ["restorer"] if restorer != CRIU else []
    assert _runtime(restorer, archive, manifest, every, carried=True) == asked_for + sent
    # What others do is their affair.
    if restorer == "auto":
        assert _runtime(restorer, archive, manifest, frozenset(p.id for p in others), carried=False) == []
