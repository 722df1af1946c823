# SPDX-License-Identifier: Apache-2.0
"""Real nodes time phases more often than at first, within a budget; one dies meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from candidate_runs import Listening, as_json, assert_nothing_left, command, guest, probed
from small_probe import SmallProbe, small_probe
from sshd import GUEST, Machine, Server, machine

from probe.candidates import remote as probing
from probe.candidates.wanted_width import WantedWidth
from probe.prediction import spending


@pytest.fixture(scope="module")
def small(builds: Path) -> SmallProbe:
    return small_probe(builds)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Machine, Server]]:
    with machine(tmp_path_factory.mktemp("nodes") / "machine") as made:
        yield made, made.serve()


def test_the_command_line_of_a_real_node(nodes: tuple[Machine, Server], small: SmallProbe) -> None:
    made, server = nodes
    done = command(
        made, small.path, "--on", f"{GUEST}@127.0.0.1:{server.port}", "--json", "--target-error", "90%", "--budget", "5"
    )
    (said,) = as_json(done)
    aim = said["result"]["target_error"]
    assert (aim["wanted"], aim["budget"], aim["limit"], aim["stopped"], aim["rounds"]) == (0.9, 5, "", "", 0)
    assert_nothing_left(made)


@pytest.fixture
def insatiable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeats are bought however little they narrow: how much that is on a real node, nobody knows beforehand."""
    monkeypatch.setattr(spending, "_WORTH", -1.0)
    monkeypatch.setattr(probing, "_PAUSE_SECONDS", 0.2)


@pytest.mark.timed
@pytest.mark.usefixtures("insatiable")
def test_a_real_node_repeats_within_its_budget(nodes: tuple[Machine, Server], small: SmallProbe) -> None:
    made, server = nodes
    watcher = Listening()
    (found,) = probed(
        made, small.path, guest(server), repeats=3, wanted=WantedWidth(1e-6, 8), watcher=lambda _: watcher
    )
    assert found.result is not None and found.result.narrowed is not None, found.error
    narrowed = found.result.narrowed
    assert narrowed.rounds > 0 and narrowed.limit and narrowed.stopped == "", narrowed
    (warning,) = (w for w in found.result.warnings if "is not reached" in w)
    assert f"{narrowed.rounds} more rounds in" in warning
    # Disturbed ones are made again at first, and not afterwards.
    assert max(len(phase.times) for phase in found.result.phases) > 3 and len(found.quiet) > 1
    assert any("more repeats of each phase" in said for said in watcher.said)
    assert_nothing_left(made)


@pytest.mark.timed
@pytest.mark.usefixtures("insatiable")
@pytest.mark.parametrize("for_good", [False, True])
def test_a_real_node_that_dies_among_further_repeats(
    nodes: tuple[Machine, Server], small: SmallProbe, for_good: bool
) -> None:
    """Its agent alone, which is started again; or the server, and nothing is reached any more."""
    made, _ = nodes
    server = made.serve()
    dying: list[threading.Thread] = []
    further = threading.Event()

    def die() -> None:
        if for_good:
            made.stop(server)
        else:
            agents = [str(n) for n, line in made.users_processes().items() if "probe-node" in line]
            made.run(["kill", "-KILL", *agents], check=False)

    def react(kind: str, what: Any) -> None:
        if kind == "say" and "more repeats" in what:
            further.set()
        if kind == "measured" and further.is_set() and not dying:
            dying.append(threading.Thread(target=die))
            dying[-1].start()

    watcher = Listening(react)
    (found,) = probed(
        made, small.path, guest(server), repeats=3, wanted=WantedWidth(1e-6, 8), watcher=lambda _: watcher
    )
    for thread in dying:
        thread.join()
    if not for_good:
        made.stop(server)
    assert dying and found.result is not None and found.result.narrowed is not None, found.error
    assert all(phase.times for phase in found.result.phases)
    if for_good:
        assert "what was measured before that counts" in found.result.narrowed.stopped
    else:
        assert any("connecting again" in said for said in watcher.said), watcher.said
    assert_nothing_left(made)
