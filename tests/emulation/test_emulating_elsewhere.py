# SPDX-License-Identifier: Apache-2.0
"""Profiles are emulated on other nodes: what is used there, what is refused, and that nothing stays there."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from candidate_runs import ROOT, Listening
from documentation import check_keys
from made_usage import made_usage
from published import schema_errors
from sshd import GUEST, Machine, Server, machine, wait_until

import probe
from checkpoint.errors import (
    INTERRUPTED_EXIT_CODE,
    NodeBusy,
    NodesFailed,
    NodeUnfit,
    NodeUnreachable,
    ProbeError,
    StorageError,
    ToolMissing,
)
from probe.candidates.agent_client import SilentNode, Watcher
from probe.emulation.elsewhere import remote
from probe.emulation.elsewhere.talk import NodeOrders
from probe.emulation.plan import SECONDS, EmulateOptions
from probe.emulation.usage import Usage, save_usage
from probe.node.facts import this_node
from probe.node.machine_lock import measuring_alone

OPTIONS = EmulateOptions(equal=SECONDS, threads=1)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Machine, Server]]:
    with machine(tmp_path_factory.mktemp("node") / "machine") as made:
        yield made, made.serve()


@pytest.fixture(scope="module")
def poor_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Machine, Server]]:
    """Without a compiler."""
    compiler = shutil.which("cc")
    assert compiler
    with machine(tmp_path_factory.mktemp("poor") / "machine", hide=[compiler]) as made:
        yield made, made.serve()


def saved(usage: Usage, tmp_path: Path) -> Path:
    path = tmp_path / "a.usage"
    save_usage(usage, path)
    return path


def emulated(
    there: tuple[Machine, Server], usage: Usage, tmp_path: Path, options: EmulateOptions = OPTIONS,
    watcher: Callable[[str], Watcher] = lambda _: SilentNode(), **orders: float,
) -> remote.EmulatedNode:  # fmt: skip
    """From this process, as the guest of a node."""
    machine_, server = there
    with machine_.network():
        (found,) = probe.emulate_on(
            saved(usage, tmp_path), [server.address(GUEST)], options, ssh=machine_.options(),
            orders=NodeOrders(**orders), watcher=watcher,
        )  # fmt: skip
    return found


def assert_nothing_left(there: Machine) -> None:
    wait_until(lambda: not there.users_processes(), f"the end of {there.users_processes()}")
    wait_until(lambda: not list((there.folder / "tmp").iterdir()), "an empty folder of temporary files")
    assert not list((there.folder / "home" / GUEST).iterdir())


# -- what is used


@pytest.mark.timed
def test_a_node_with_a_compiler_builds_the_emulator(node: tuple[Machine, Server], tmp_path: Path) -> None:
    said = Listening()
    found = emulated(node, made_usage(20), tmp_path, watcher=lambda _: said)
    assert found.error is None and found.result is not None and found.built
    totals = {row["name"]: row["emulated"] for row in found.result.totals}
    assert totals["cpu_seconds"] == pytest.approx(1.0, rel=0.05)
    assert totals["read"] == pytest.approx(2e7) and totals["written"] == pytest.approx(1e7)
    assert len(found.result.outcome.samples) == 20
    assert (np.diff([end for end, _ in found.result.outcome.samples]) > 0).all()
    assert 0 < found.result.outcome.start < found.seconds
    assert found.result.node.keys() == this_node().keys()
    assert said.said == ["building the emulator", "emulating", "done"]
    assert_nothing_left(node[0])


def test_a_node_without_one_is_sent_the_emulator(poor_node: tuple[Machine, Server], tmp_path: Path) -> None:
    found = emulated(poor_node, made_usage(4), tmp_path)
    assert found.error is None and found.result is not None and not found.built
    assert found.sent > 500_000
    assert_nothing_left(poor_node[0])


def test_a_kernel_of_ones_own_goes_along(node: tuple[Machine, Server], tmp_path: Path) -> None:
    own = tmp_path / "kernels.c"
    own.write_text("static volatile double x; void kernel(unsigned long n) { while (n--) x = x * 0.5 + 1.0; }\n")
    found = emulated(node, made_usage(2), tmp_path, EmulateOptions(equal=SECONDS, own_kernel=own, threads=1))
    assert found.error is None and found.built
    assert_nothing_left(node[0])


def test_a_compiler_that_cannot_is_no_hindrance(node: tuple[Machine, Server], tmp_path: Path) -> None:
    """Of this header the node knows nothing; so the program is built here."""
    (tmp_path / "mine.h").write_text("#define HALF 0.5\n")
    own = tmp_path / "own.c"
    own.write_text(
        '#include "mine.h"\nstatic volatile double x; void kernel(unsigned long n) { while (n--) x = x * HALF; }\n'
    )
    found = emulated(node, made_usage(2), tmp_path, EmulateOptions(equal=SECONDS, own_kernel=own, threads=1))
    assert found.error is None and not found.built
    assert_nothing_left(node[0])


def test_files_are_made_in_the_folder_of_the_node(node: tuple[Machine, Server], tmp_path: Path) -> None:
    found = emulated(node, made_usage(2), tmp_path, EmulateOptions(equal=SECONDS, folder=Path("/no/such")))
    assert isinstance(found.error, StorageError) and "/no/such: not a folder" in str(found.error)
    found = emulated(node, made_usage(2), tmp_path, EmulateOptions(equal=SECONDS, folder=Path("/tmp"), threads=1))
    assert found.error is None
    assert_nothing_left(node[0])


def test_the_node_is_loaded_meanwhile(node: tuple[Machine, Server], tmp_path: Path) -> None:
    seen: list[str] = []

    def look(kind: str, what: Any) -> None:
        seen.extend(name for name in node[0].processes().values() if "stress-ng" in name)

    options = EmulateOptions(equal=SECONDS, threads=1, load={"cpu": 1, "disk": 1})
    found = emulated(node, made_usage(20), tmp_path, options, watcher=lambda _: Listening(look))
    assert found.error is None, found.error
    assert any("-cpu" in name for name in seen)
    assert_nothing_left(node[0])


# -- the command


def command(there: Machine, *words: str | Path) -> list[str]:
    ssh = ["--identity", there.identity, "--known-hosts", there.known_hosts, "--ssh-config", "/dev/null"]
    return there.command(["env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "probe", "emulate", *words, *ssh])


def test_the_command(node: tuple[Machine, Server], tmp_path: Path) -> None:
    path, good = saved(made_usage(4), tmp_path), node[1].address(GUEST).text
    words = [path, "--equal", "seconds", "--on", good, "-q"]
    done = subprocess.run(command(node[0], *words, "--json"), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert schema_errors("probe-emulate-on", said) == []
    check_keys(said["candidates"][0]["result"], "probe emulate --json")
    assert said["candidates"][0]["built_there"] is True
    done = subprocess.run(
        command(node[0], *words, "--on", "guest@127.0.0.1:9"), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == NodesFailed.exit_code
    assert "1 of 2 nodes have no emulation: guest@127.0.0.1:9" in done.stderr
    assert "built there" in done.stdout and "no emulation: guest@127.0.0.1:9: " in done.stdout
    assert "these are no predictions" in done.stdout
    assert_nothing_left(node[0])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("moment", ["building", "emulating"])
def test_whoever_is_interrupted_leaves_nothing(
    node: tuple[Machine, Server], tmp_path: Path, number: signal.Signals, moment: str
) -> None:
    # One long sample, in which the emulator says nothing: no broken pipe ends it.
    path = saved(made_usage(1, cpu_user=100.0), tmp_path)
    words = [path, "--equal", "seconds", "--on", node[1].address(GUEST).text]
    going = subprocess.Popen(command(node[0], *words), stderr=subprocess.PIPE, text=True)
    assert going.stderr is not None
    line = next(line for line in going.stderr if moment in line)
    assert line.startswith("guest@")
    if moment == "emulating":
        wait_until(lambda: any("emulator run" in name for name in node[0].processes().values()), "the emulator")
    # nsenter has become the command: its number is the command's.
    going.send_signal(number)
    _, said = going.communicate(timeout=20)
    assert going.returncode == (INTERRUPTED_EXIT_CODE if number == signal.SIGINT else -number), said
    assert_nothing_left(node[0])


# -- what is refused


@pytest.mark.parametrize(
    ("values", "kind", "said"),
    [
        ({"resident": 1e16}, NodeUnfit, "MB of memory are available, the profile holds"),
        ({"written": 1e16}, NodeUnfit, "are free, the profile writes"),
    ],
)
def test_more_than_the_node_holds(
    node: tuple[Machine, Server], tmp_path: Path, values: dict[str, float], kind: type[ProbeError], said: str
) -> None:
    found = emulated(node, made_usage(3, **values), tmp_path)
    assert type(found.error) is kind and said in str(found.error)
    assert str(found.error).startswith("guest@127.0.0.1:")
    assert_nothing_left(node[0])


def test_what_is_wrong_with_the_order_is_refused_before_any_connection(tmp_path: Path) -> None:
    path = saved(made_usage(3), tmp_path)
    for nodes, options, said in (
        (["a", "A"], OPTIONS, "A is named twice"),
        (["a b"], OPTIONS, "no host can have that name"),
        (["a"], EmulateOptions(kernel="none"), "no kernel 'none'"),
        (["a"], EmulateOptions(threads=0), "no rate of"),
        (["a"], EmulateOptions(equal=SECONDS, read_block=0), "read_block: 0 is not from 1"),
    ):
        with pytest.raises(ProbeError, match=said):
            probe.emulate_on(path, nodes, options)


def test_a_host_key_that_is_not_known(node: tuple[Machine, Server], tmp_path: Path) -> None:
    path = saved(made_usage(3), tmp_path)
    (tmp_path / "empty").touch()
    with node[0].network():
        ssh = node[0].options(known_hosts=tmp_path / "empty")
        (found,) = probe.emulate_on(path, [node[1].address(GUEST)], OPTIONS, ssh=ssh)
    assert isinstance(found.error, NodeUnreachable) and "host key" in str(found.error)


def test_a_node_without_python(tmp_path: Path) -> None:
    with machine(tmp_path / "machine") as made:
        found = emulated((made, made.serve(bare=True)), made_usage(3), tmp_path)
        assert isinstance(found.error, NodeUnfit) and "no python3 on this node" in str(found.error)
        assert_nothing_left(made)


def test_no_compiler_on_either_side(
    poor_node: tuple[Machine, Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    found = emulated(poor_node, made_usage(3), tmp_path)
    assert isinstance(found.error, ToolMissing) and "install gcc there, or cc here" in str(found.error)
    monkeypatch.undo()
    assert_nothing_left(poor_node[0])


def test_one_measurement_at_a_time(node: tuple[Machine, Server], tmp_path: Path) -> None:
    said = Listening()
    with node[0].network(), measuring_alone([0]):
        found = emulated(node, made_usage(3), tmp_path, watcher=lambda _: said, lock_seconds=1.0)
    assert isinstance(found.error, NodeBusy) and "did not end within 1 s" in str(found.error)
    assert any(line.startswith("waiting for another measurement") for line in said.said)
    assert_nothing_left(node[0])


def test_a_node_that_takes_too_long(node: tuple[Machine, Server], tmp_path: Path) -> None:
    found = emulated(node, made_usage(1, cpu_user=100.0), tmp_path, limit_seconds=1.0)
    assert isinstance(found.error, NodeUnfit) and "not done within 1 s; give a longer --node-limit" in str(found.error)
    assert_nothing_left(node[0])


def test_a_link_that_breaks(tmp_path: Path) -> None:
    """Both sides give up: this one, and what emulates there."""
    with machine(tmp_path / "machine") as made:
        there = made, made.serve()

        def cut(kind: str, what: Any) -> None:
            if what == "emulating":
                threading.Timer(0.5, made.cut).start()

        found = emulated(
            there, made_usage(1, cpu_user=100.0), tmp_path, watcher=lambda _: Listening(cut), silence_seconds=8.0
        )
        assert isinstance(found.error, NodeUnreachable), found.error
        assert_nothing_left(made)
