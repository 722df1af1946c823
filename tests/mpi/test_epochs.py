# SPDX-License-Identifier: Apache-2.0
"""Epochs that stand for others: where recordings are cut, which are simulated, how far off the whole is then."""

from __future__ import annotations

import json
import shutil
import statistics
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from mpi_parts import call
from mpi_programs import allow_root, recorded
from mpi_recordings import made_call, made_recording
from published import schema_errors

from checkpoint.errors import ProbeFileDamaged
from probe.cli.main import cli
from probe.mpi.epochs import Epochs, epochs_of
from probe.mpi.play import NUMBERS
from probe.mpi.probes import clusters
from probe.mpi.probes.building import MpiProbe
from probe.mpi.probes.predicting import predict
from probe.mpi.recording import Recording
from probe.mpi.simulate import Simulated, Where, simulate
from probe.mpi.trace import read_calls
from probe.simulation.platform import Links

DOUBLE = {"element": 8}
ENOUGH = 40
"""Epochs of the small recordings."""


def on(ranks: int, latency: float = 1e-6) -> Where:
    return Where(network=f"torus:{ranks}", links=Links(1e9, latency))


def chosen(recording: Recording) -> Epochs:
    found = epochs_of(recording)
    assert isinstance(found, Epochs), found
    return found


def ring(folder: Path, *, ranks: int, steps: int, noise: float, seed: int = 7) -> Recording:
    """Messages around a ring and a sum in each step, an all-to-all in every tenth; ranks differ, and each step, too."""
    draw = np.random.default_rng(seed)
    computing = 1e-3 * (1 + 0.1 * draw.random((ranks, 1))) * np.exp(noise * draw.standard_normal((ranks, steps)))
    computing[draw.random((ranks, steps)) < 0.001] += 5e-3
    made = []
    for rank in range(ranks):
        calls, before, after = [], (rank - 1) % ranks, (rank + 1) % ranks
        for step, seconds in enumerate(computing[rank].tolist()):
            one = 2 * step
            calls += [
                made_call("Irecv", peer=before, other=before, tag=1, count=1000, request=one, **DOUBLE),
                made_call("Isend", seconds / 2, peer=after, tag=1, count=1000, request=one + 1, **DOUBLE),
                made_call("Waitall", seconds / 2, extras=[one, before, 1, one + 1, -1, -1]),
                made_call("Allreduce", count=1, **DOUBLE),
            ]
            if step % 10 == 0:
                calls.append(made_call("Alltoall", count=16, **DOUBLE))
        made.append(calls)
    return made_recording(folder, made)


def both(recording: Recording, where: Where) -> tuple[Simulated, Simulated]:
    return simulate(recording, where), simulate(recording, where, epochs=True)


# -- the error


def test_epochs_stand_for_the_whole_program(tmp_path: Path) -> None:
    errors, covered, played = [], [], []
    for seed, noise in enumerate((0.01, 0.02, 0.05, 0.1, 0.2)):
        made = ring(tmp_path / f"ring{seed}", ranks=16, steps=200, noise=noise, seed=seed)
        for latency in (1e-6, 1e-4):
            whole, some = both(made, on(16, latency))
            assert whole.epochs == 0 and whole.played == whole.calls == some.calls and some.epochs > 200
            errors.append(abs(some.seconds / whole.seconds - 1))
            covered.append(abs(some.seconds - whole.seconds) <= some.error)
            played.append(some.played / some.calls)
            assert some.computing == pytest.approx(whole.computing) and max(some.ranks) == some.seconds
    print(errors, covered, played)
    assert statistics.median(errors) < 0.02 and max(errors) < 0.05
    assert sum(covered) >= 0.9 * len(covered)
    assert statistics.mean(played) < 0.45


def test_computing_is_scaled_in_epochs_too(tmp_path: Path) -> None:
    made = ring(tmp_path / "ring", ranks=4, steps=200, noise=0.05)
    scales = dict.fromkeys(range(4), 1.0) | {2: 3.0}
    whole, some = (simulate(made, on(4), scales=scales, epochs=epochs) for epochs in (False, True))
    assert some.seconds == pytest.approx(whole.seconds, rel=0.02)
    assert some.computing == pytest.approx(whole.computing)


@pytest.mark.parametrize(
    ("name", "arguments"), [("halo", ("96", "600")), ("cg", ("4000", "400")), ("fft", ("64", "400"))]
)
def test_programs_that_ran(
    name: str, arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow_root(monkeypatch)
    # Ranks leave their results where they run.
    monkeypatch.chdir(tmp_path)
    made = recorded(name, "openmpi", 2, tmp_path, arguments)
    whole, some = both(made, on(2))
    assert some.epochs > 90, some.whole
    assert some.played < whole.played / 2
    assert abs(some.seconds / whole.seconds - 1) < 0.02 or abs(some.seconds - whole.seconds) <= some.error


def test_all_epochs_together_are_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all are simulated, nothing is estimated."""
    monkeypatch.setattr("probe.mpi.epochs.SAMPLES", 1000)
    monkeypatch.setattr("probe.mpi.epochs.MOST_KEPT", 1.0)
    whole, some = both(ring(tmp_path / "ring", ranks=3, steps=50, noise=0.1), on(3))
    assert some.epochs > 50 and some.error == 0
    assert some.seconds == pytest.approx(whole.seconds, rel=1e-9) and some.ranks == pytest.approx(whole.ranks)


# -- where recordings are cut

Step = Callable[[int, int], list[bytes]]
"""What a rank calls in a step: of its number and the step's."""


def made_of(folder: Path, step: Step, ranks: int = 2, steps: int = ENOUGH) -> Recording:
    return made_recording(folder, [[one for n in range(steps) for one in step(rank, n)] for rank in range(ranks)])


def meeting(seconds: float = 1e-3) -> bytes:
    return made_call("Barrier", seconds)


def test_a_message_under_way_forbids_a_cut(tmp_path: Path) -> None:
    """In odd steps the message is received behind the meeting that follows its send."""

    def step(rank: int, number: int) -> list[bytes]:
        message = made_call("Send", peer=1, tag=2, count=1, **DOUBLE) if rank == 0 else made_call(
            "Recv", peer=0, other=0, tag=2, count=1, **DOUBLE)  # fmt: skip
        late = rank == 1 and number % 2 == 1
        return [meeting(), message] if late else [message, meeting()]

    found = chosen(made_of(tmp_path / "late", step, steps=2 * ENOUGH))
    # One cut in two steps, and the tail.
    assert len(found.kind) == ENOUGH + 1


def test_an_open_request_forbids_a_cut(tmp_path: Path) -> None:
    def step(rank: int, number: int) -> list[bytes]:
        begin = made_call("Ibarrier", request=number)
        return [begin, meeting(), made_call("Wait", extras=[number, -1, -1])]

    found = epochs_of(made_of(tmp_path / "open", step))
    assert found == f"the ranks meet {ENOUGH} times, 0 of them without messages under way or open requests: " \
        "epochs take 20 or more"  # fmt: skip


def test_ranks_that_do_not_meet_in_the_same_calls(tmp_path: Path) -> None:
    found = epochs_of(made_of(tmp_path / "other", lambda rank, _: [meeting()] * (1 + rank)))
    assert found == "rank 1 does not meet all others in the same calls as rank 0"


def test_a_communicator_of_some_is_no_meeting(tmp_path: Path) -> None:
    def calls(members: list[int]) -> list[list[bytes]]:
        new = made_call("Comm_split", other=2, extras=members)
        return [[new, *[made_call("Barrier", 1e-3, comm=2)] * ENOUGH] for _ in members]

    assert str(epochs_of(made_recording(tmp_path / "some", [*calls([0, 1]), *calls([2, 3])]))).startswith(
        "the ranks meet 0 times"
    )
    assert len(chosen(made_recording(tmp_path / "all", calls([0, 1, 2]))).kind) == ENOUGH + 1


def test_epochs_with_new_communicators_are_all_simulated(tmp_path: Path) -> None:
    new = {3: 2, 30: 3}

    def step(rank: int, number: int) -> list[bytes]:
        more = [made_call("Comm_dup", other=new[number], extras=[0, 1])] if number in new else []
        return [*more, meeting()]

    made = made_of(tmp_path / "new", step)
    found = chosen(made)
    assert found.counted[[0, 3, 30, ENOUGH]].all() and found.kept[[2, 29, ENOUGH - 1]].all()
    assert not found.kept.all()
    some = found.reduced(read_calls(made.folder, 0))
    assert len(some.calls) == found.ends(0)[-1] < ENOUGH and int((some.calls["extras"] == 2).sum()) == 2
    assert simulate(made, on(2), epochs=True).seconds == pytest.approx(simulate(made, on(2)).seconds, rel=1e-3)


def test_other_calls_are_of_another_kind(tmp_path: Path) -> None:
    def step(rank: int, number: int) -> list[bytes]:
        peer = 1 - rank if number % 4 == 0 else -1
        kind = {"peer": peer, "other": peer, "tag": number % 2, "count": 1 + number % 3, "extras": [number % 2, 8]}
        return [made_call("Sendrecv", **kind, **DOUBLE), meeting()]

    found = chosen(made_of(tmp_path / "kinds", step, steps=240))
    # Peers by fours, tags by twos, counts by threes: a period of twelve, with 3 of the 4 pairs of peer and tag.
    assert [len(set(found.kind[1:-1][begin::12].tolist())) for begin in range(12)] == [1] * 12
    assert len(set(found.kind[1:-1].tolist())) == 9


# -- commands


def run(*words: Any) -> str:
    done = CliRunner().invoke(cli, ["mpi", *map(str, words)])
    assert done.exit_code == 0, done.output
    return done.output


def test_the_command_says_what_was_simulated(tmp_path: Path) -> None:
    made = ring(tmp_path / "ring", ranks=2, steps=200, noise=0.05)
    told = json.loads(run("simulate", "--network", "torus:2", "--epochs", "--json", made.folder))
    assert schema_errors("probe-mpi-simulate", told) == []
    assert 0 < told["played"] < told["calls"] / 2 and told["epochs"] > 200 and told["whole"] is None
    printed = run("simulate", "--network", "torus:2", "--epochs", made.folder)
    assert f"{told['played']} of them were played, for {told['epochs']} epochs: known to " in printed
    assert "epochs" not in run("simulate", "--network", "torus:2", made.folder)


def test_the_command_says_why_all_was_simulated(tmp_path: Path) -> None:
    made = made_recording(tmp_path / "alone", [[meeting()], [meeting()]])
    assert "simulated whole, without epochs: the ranks meet 1 times" in run(
        "simulate", "--network", "torus:2", "--epochs", made.folder
    )
    told = json.loads(run("simulate", "--network", "torus:2", "--epochs", "--json", made.folder))
    assert schema_errors("probe-mpi-simulate", told) == []
    assert told["played"] == told["calls"] == 4 and told["whole"].startswith("the ranks meet 1 times")


def test_the_interval_of_a_prediction_holds_the_error_of_epochs(tmp_path: Path) -> None:
    made = ring(tmp_path / "ring", ranks=2, steps=200, noise=0.3)
    probe = MpiProbe(made, (clusters.Cluster(0, (0, 1), 1.0, 0.0, None, None),))
    told = SimpleNamespace(seconds=1.0, low=1.0, high=1.0, variances={})
    manifest = SimpleNamespace(reference=SimpleNamespace(seconds=1.0))
    result: Any = SimpleNamespace(prediction=told, manifest=manifest, warnings=())
    found = predict(probe, lambda _: result, on(2, 1e-4), epochs=True)
    assert found.simulated.epochs and found.simulated.error > 0
    assert found.high - found.seconds == pytest.approx(found.simulated.error)
    assert found.seconds - found.low == pytest.approx(found.simulated.error)


# -- damaged recordings


def test_half_of_a_request_is_refused(tmp_path: Path) -> None:
    """Three halves have as many numbers as whole ones."""
    half = call(NUMBERS["Wait"], comm=-1, extras=[1, 2, 3, 4])
    with pytest.raises(ProbeFileDamaged, match="waits for half of a request"):
        epochs_of(made_recording(tmp_path / "half", [[half] * 3] * 2))


def test_a_rank_of_another_run_is_refused(tmp_path: Path) -> None:
    made = made_recording(tmp_path / "two", [[made_call("Barrier")]] * 2)
    other = made_recording(tmp_path / "one", [[made_call("Barrier")]])
    shutil.copy(other.folder / "calls.0.000", made.folder / "calls.0.000")
    with pytest.raises(ProbeFileDamaged, match=r"rank 0 is of a run of 1 ranks, the recording of 2"):
        simulate(made, on(2))
