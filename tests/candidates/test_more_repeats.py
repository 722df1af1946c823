# SPDX-License-Identifier: Apache-2.0
"""Other nodes time phases until the interval is as narrow as wanted, within a budget; whatever goes wrong meanwhile."""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import statistics
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from candidate_runs import Listening
from click.testing import CliRunner
from scripted_nodes import Message, Scripted, Talk, instead
from small_probe import SmallProbe, small_probe
from test_identical_nodes import with_front

from checkpoint.errors import NodeMisbehaved, ProbeError
from probe.candidates import connections, local
from probe.candidates import remote as probing
from probe.candidates.agent_client import Answer, Orders
from probe.candidates.local import seconds_of_a_round
from probe.candidates.remote import CandidateResult, seconds_besides, split_phases
from probe.candidates.time_limit import START_SECONDS, TimeLimit
from probe.candidates.wanted_width import WantedWidth
from probe.cli.main import cli
from probe.cli.node_table import candidates_json
from probe.formats.phase_record import DIRECT
from probe.node.protocol import VERSION, decode

A_MINUTE = WantedWidth(budget=60, best_effort=True)
NOISE = 0.4
"""Of the repeats that made-up nodes report: intervals are far from 3 % after five of them."""

Said = Iterator[bytes | Message | None]


@pytest.fixture(scope="module")
def small(builds: Path) -> SmallProbe:
    return small_probe(builds)


def made_quietly(manifest: dict[str, Any]) -> None:
    """As if it came from a quiet node: what keeps an interval wide are this node's repeats."""
    for phase in manifest["phases"]:
        level = statistics.median(phase["direct"]["cpu"])
        phase["direct"].update(wall=[level * more for more in _NEAR], cpu=[level * more for more in _NEAR])
        phase["spread"] = 0.0
    level = statistics.median(manifest["reference"]["cpu"])
    manifest["reference"].update(
        wall=[level * more for more in _NEAR], cpu=[level * more for more in _NEAR], voted=[level] * 2,
        voted_error=[0.001] * 2, voted_noise=[0.001] * 2, waited_share=0.0,
    )  # fmt: skip


_NEAR = (0.999, 0.9995, 1.0, 1.0005, 1.001)


@pytest.fixture(scope="module")
def talk(small: SmallProbe, tmp_path_factory: pytest.TempPathFactory) -> Talk:
    return Talk(with_front(small.path, tmp_path_factory.mktemp("quiet") / "quiet.probe", made_quietly))


class Node(Scripted):
    """A node that is asked for repeats for the `number`-th time; does as it is told, or `instead` of that."""

    def __init__(self, talk: Talk, number: int, instead: Callable[[Node, list[Message]], Said] | None) -> None:
        super().__init__(self._script(instead))
        self._talk, self.number = talk, number
        self._ordered = threading.Event()
        self.order: Message = {}

    def send(self, data: bytes, seconds: float) -> None:
        super().send(data, seconds)
        if data.startswith(b'{"op":"run"'):
            self.order = decode(data.split(b"\n", 1)[0])
            self._ordered.set()

    def hello(self) -> Message:
        node = {"name": "n", "cores": 2}
        return {
            "event": "hello", "version": VERSION, "boot": "one", "node": node, "python": "3.11", "user": 1000,
        }  # fmt: skip

    def phase(self, phase: int, repeats: int) -> Message:
        drawn = random.Random(f"{self.number}, {phase}")
        (record,) = (p for p in self._talk.manifest.phases if p.id == phase)
        level = statistics.median(record.direct.cpu)
        times = [level * math.exp(drawn.gauss(0, NOISE)) for _ in range(repeats)]
        return {
            "event": "measured", "phase": phase, "restorer": DIRECT, "times": [[t, t, 0.0, 0.01] for t in times],
            "failure": "", "kind": "", "warnings": [],
        }  # fmt: skip

    def _script(self, instead: Callable[[Node, list[Message]], Said] | None) -> Said:
        yield {"event": "agent", "have": True}
        yield self.hello()
        assert self._ordered.wait(30)
        said = [self.phase(phase, self.order["repeats"]) for phase in self.order["phases"]]
        done: Message = {"event": "done", "quiet": {"load": [0.1, 0.2], "repeats": 5, "disturbed": self.number}}
        yield from iter([*said, done]) if instead is None else instead(self, [*said, done])


@dataclass
class Asked:
    """What came of a made-up node, and all the talks with it."""

    found: CandidateResult
    talks: list[Node]
    watcher: Listening

    @property
    def repeats(self) -> list[int]:
        return [node.order.get("repeats", 0) for node in self.talks]


@pytest.fixture
def asked(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Asked]:
    def ask(
        later: Callable[[Node, list[Message]], Said] | None = None, wanted: WantedWidth = A_MINUTE,
        name: str = "node", node: type[Node] = Node, **orders: Any,
    ) -> Asked:  # fmt: skip
        """Its first talk is honest; `later` says what comes then, in place of what an honest node would say."""
        talks: list[Node] = []
        watcher = Listening()
        first = len(probing.parse_candidate(name))

        class Connected:
            notes = ()

            def __init__(self) -> None:
                self._closed = threading.Event()

            def start(self, command: str) -> contextlib.AbstractContextManager[Scripted]:
                talks.append(node(talk, len(talks), later if len(talks) >= first else None))
                return contextlib.nullcontext(talks[-1])

            def close(self) -> None:
                self._closed.set()

        monkeypatch.setattr(connections, "connect", lambda *_: contextlib.nullcontext(Connected()))
        monkeypatch.setattr(probing, "_PAUSE_SECONDS", 0.0)
        (found,) = probing.run_on(
            talk.path, [name], orders=replace(Orders(silence_seconds=5.0), **orders),
            watcher=lambda _: watcher, **asdict(wanted),
        )  # fmt: skip
        return Asked(found, talks, watcher)

    return ask


def counted(one: Asked) -> set[int]:
    """How many repeats each phase has in the result."""
    assert one.found.result is not None, one.found.error
    return {len(phase.times) for phase in one.found.result.phases}


def test_a_node_is_asked_for_more_until_nothing_narrows_the_interval(asked: Callable[..., Asked]) -> None:
    one = asked()
    assert one.repeats[:2] == [5, 5] and len(one.repeats) > 2
    assert [node.order["least"] for node in one.talks] == [3, *[0] * (len(one.talks) - 1)]
    assert counted(one) == {sum(one.repeats)}
    assert one.found.result is not None and one.found.result.narrowed is not None
    narrowed = one.found.result.narrowed
    assert (narrowed.wanted, narrowed.budget, narrowed.asked) == (0.03, 60, False)
    assert narrowed.rounds == sum(one.repeats[1:]) and narrowed.stopped == ""
    assert narrowed.reached < narrowed.before and narrowed.reached == one.found.result.prediction.half_width
    # What it says of its load, each time.
    assert [quiet["disturbed"] for quiet in one.found.quiet] == list(range(len(one.talks)))
    (said,) = candidates_json("x", [one.found])["candidates"]
    assert said["result"]["target_error"]["rounds"] == narrowed.rounds
    assert one.watcher.said[0].startswith("at most ") and "5 more repeats of each phase" in one.watcher.said


def test_what_is_not_wanted_is_not_made(asked: Callable[..., Asked]) -> None:
    fixed = asked(wanted=WantedWidth(), repeats=4)
    assert fixed.repeats == [4] and fixed.found.result is not None and fixed.found.result.narrowed is None
    wide = asked(wanted=WantedWidth(target_error=0.9, budget=60))
    assert wide.repeats == [5] and wide.found.result is not None and wide.found.result.narrowed is not None
    assert wide.found.result.narrowed.limit == ""


@pytest.mark.timed
def test_repeats_without_a_budget_have_a_bound(asked: Callable[..., Asked]) -> None:
    first = asked().found.result
    assert first is not None and first.narrowed is not None
    # How much more repeats narrow depends on the probe's reference times: a tenth of what they did.
    before, reached = first.narrowed.before, first.narrowed.reached
    one = asked(wanted=WantedWidth(target_error=before - 0.1 * (before - reached)))
    assert one.repeats[0] == 5 and 5 < sum(one.repeats) <= 40 and counted(one) == {sum(one.repeats)}
    assert one.found.result is not None and one.found.result.narrowed is not None
    assert one.found.result.narrowed.budget is None


def test_identical_nodes_repeat_what_each_had_measured(asked: Callable[..., Asked]) -> None:
    one = asked(name="one,two")
    shares = {frozenset(node.order["phases"]) for node in one.talks}
    assert len(shares) == 2 and len(one.talks) % 2 == 0 and len(one.talks) > 2
    assert counted(one) == {sum(one.repeats) // 2}


def lost(*_: Any) -> Said:
    yield b""


def silent(*_: Any) -> Said:
    yield None


@pytest.mark.parametrize(("later", "why"), [(lost, "connection or the agent was lost"), (silent, "nothing was heard")])
def test_a_node_that_is_lost_later_keeps_its_first_repeats(
    asked: Callable[..., Asked], later: Callable[[Node, list[Message]], Said], why: str
) -> None:
    one = asked(later)
    assert counted(one) == {5} and one.found.result is not None and one.found.result.narrowed is not None
    narrowed = one.found.result.narrowed
    assert narrowed.rounds == 0 and narrowed.reached == narrowed.before
    assert why in narrowed.stopped and narrowed.stopped.startswith("node: ")
    (warning,) = (w for w in one.found.result.warnings if "is not reached" in w)
    assert warning.endswith("; what was measured before that counts")


def test_a_node_that_is_started_again_keeps_its_first_repeats(asked: Callable[..., Asked]) -> None:
    class Rebooted(Node):
        def hello(self) -> Message:
            return {**super().hello(), "boot": "two" if self.number else "one"}

    one = asked(node=Rebooted)
    assert counted(one) == {5} and len(one.talks) == 2
    assert one.found.result is not None and one.found.result.narrowed is not None
    assert "it was started again between repeats" in one.found.result.narrowed.stopped


def too_many(node: Node, said: list[Message]) -> Said:
    yield node.phase(node.order["phases"][0], 2 * node.order["repeats"] + 2)
    yield from said[1:]


def without_end(node: Node, said: list[Message]) -> Said:
    time = {"event": "time", "phase": node.order["phases"][0], "restorer": DIRECT, "time": [1.0] * 4, "left_out": ""}
    yield from itertools.repeat({**time, "time": [1.0] * 4})


def of_no_phase(node: Node, said: list[Message]) -> Said:
    yield {**said[0], "phase": 999}


@pytest.mark.parametrize("later", [too_many, without_end, of_no_phase])
def test_a_node_that_says_what_no_agent_says_has_no_prediction(
    asked: Callable[..., Asked], later: Callable[[Node, list[Message]], Said]
) -> None:
    one = asked(later)
    assert one.found.result is None and isinstance(one.found.error, NodeMisbehaved)
    assert "no agent of ours says that" in str(one.found.error) and len(one.talks) == 2


def test_one_liar_of_two_identical_nodes_is_enough(asked: Callable[..., Asked]) -> None:
    def later(node: Node, said: list[Message]) -> Said:
        return lost(node, said) if node.number % 2 else too_many(node, said)

    one = asked(later, name="one,two")
    assert one.found.result is None and isinstance(one.found.error, NodeMisbehaved)


def test_repeats_that_were_all_disturbed_add_nothing(asked: Callable[..., Asked], talk: Talk) -> None:
    def none(_: Node, said: list[Message]) -> Said:
        yield from ({**one, "times": []} if one["event"] == "measured" else one for one in said)

    one = asked(none, wanted=WantedWidth(target_error=0.03, budget=10))
    assert counted(one) == {5} and len(one.talks) > 1
    # At first a node has to say why there is nothing.
    with pytest.raises(NodeMisbehaved, match="neither as measured nor as failed"):
        talk.ask(Scripted([
            {**said, "times": []} if said["event"] == "measured" else said for said in talk.honest()
        ]))  # fmt: skip


def test_a_phase_that_fails_later_keeps_its_first_repeats_and_is_told(asked: Callable[..., Asked], talk: Talk) -> None:
    failing = talk.phases[0]

    def later(_: Node, said: list[Message]) -> Said:
        for one in said:
            bad = {"times": [], "failure": "killed", "kind": "PhaseFailed"} if one.get("phase") == failing else {}
            yield {**one, **bad}

    one = asked(later)
    assert len(counted(one)) == 2 and one.found.result is not None
    assert any(f"phase {failing} failed when it was repeated" in warning for warning in one.found.result.warnings)


def test_a_probe_that_does_not_fit_the_cache_is_not_sent_again(asked: Callable[..., Asked]) -> None:
    one = asked(cache_bytes=1000)
    assert one.repeats == [5] and one.found.result is not None and one.found.result.narrowed is not None
    assert "--cache-size" in one.found.result.narrowed.stopped


def test_a_budget_too_small_is_refused_before_any_node_is_reached(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("reached")

    monkeypatch.setattr(connections, "connect", never)
    with pytest.raises(ProbeError, match=r"--budget 0: one repeat of each phase takes about .* s; give that or more"):
        probing.run_on(talk.path, ["node"], budget=0)
    done = CliRunner().invoke(cli, ["run", str(talk.path), "--on", "node", "--budget", "0"])
    assert isinstance(done.exception, ProbeError) and "one repeat of each phase" in str(done.exception)
    # Nodes that share the phases need less of it each.
    phases = [p for p in talk.manifest.phases if p.can_run]
    shares = split_phases(phases, 2)
    whole = seconds_of_a_round(talk.manifest)
    most = max(sum(p.expected_seconds for p in phases if p.id in share) for share in shares)
    assert most < whole
    with pytest.raises(ProbeError, match="one repeat of each phase"):
        probing.run_on(talk.path, ["one,two"], budget=0.99 * most)
    with pytest.raises(AssertionError, match="reached"):
        probing.run_on(talk.path, ["one,two"], budget=0.99 * whole)


@pytest.mark.parametrize("budget", [0.3, 3.0])
def test_a_budget_of_few_rounds_makes_no_more_of_them(asked: Callable[..., Asked], talk: Talk, budget: float) -> None:
    a_round = seconds_of_a_round(talk.manifest)
    rounds = max(1, min(5, int(budget / a_round)))
    one = asked(wanted=WantedWidth(budget=budget if budget > a_round else 1.1 * a_round))
    assert one.repeats[0] == rounds


def test_further_repeats_end_with_the_nodes_limit_and_the_budget(talk: Talk, asked: Callable[..., Asked]) -> None:
    limits: list[float] = []

    class Noted(TimeLimit):
        def __init__(self, manifest: Any, size: int, orders: Orders, answer: Answer, further: float = 0.0) -> None:
            super().__init__(manifest, size, orders, answer, further)
            limits.append(self.most)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probing, "TimeLimit", Noted)
        asked(wanted=WantedWidth(budget=30))
        fixed, *batches = limits
        assert batches and all(30 < one < START_SECONDS + 30 for one in batches) and fixed > START_SECONDS + 30
        limits.clear()
        asked(wanted=WantedWidth(budget=30), limit_seconds=20.0)
        assert limits[0] == 20 and len(limits) > 1 and max(limits[1:]) <= 20
    without = TimeLimit(talk.manifest, talk.path.stat().st_size, Orders(), Answer())
    more = TimeLimit(talk.manifest, talk.path.stat().st_size, Orders(), Answer(), 77.0)
    assert more.most == pytest.approx(without.most + 77) and more.left == pytest.approx(without.left + 77, abs=1)


def test_what_a_talk_costs_beside_its_repeats(talk: Talk) -> None:
    """All repeats are its work, those that were disturbed, too: of three seconds each, in a talk of no time."""
    repeats = [said for said in talk.honest() if said["event"] == "time"]
    answer = talk.ask(Scripted(instead(talk, "time", {"left_out": "other work"})))
    assert answer.besides == pytest.approx(answer.probing - answer.transfer - 3.0 * len(repeats))
    answer.besides = 3.5
    assert seconds_besides(answer) == 3.5
    # Waiting for others is no cost of a talk.
    answer.waited = True
    assert seconds_besides(answer) == seconds_besides(Answer()) == 0.5


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ([], WantedWidth(None, 60, True)),
        (["--target-error", "2%"], WantedWidth(0.02, 60, True)),
        (["--repeat", "3"], WantedWidth()),
        (["--repeat", "3", "--target-error", "2%"], WantedWidth(0.02)),
        (["--repeat", "3", "--budget", "9"], WantedWidth(None, 9)),
        (["--budget", "9"], WantedWidth(None, 9)),
    ],
)
@pytest.mark.parametrize("where", [[], ["--on", "node"]])
def test_here_and_elsewhere_the_options_mean_the_same(
    words: list[str], wanted: WantedWidth, where: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: dict[str, Any] = {}

    def noted(*_: object, **given: Any) -> None:
        told.update(given)
        raise ProbeError("noted")

    monkeypatch.setattr(probing, "run_on", noted)
    monkeypatch.setattr(local, "run", noted)
    CliRunner().invoke(cli, ["run", "x.probe", *words, *where])
    assert {key: told[key] for key in asdict(wanted)} == asdict(wanted)
    repeats = told["orders"].repeats if where else told["repeats"]
    assert repeats == (3 if "--repeat" in words else 5)
