# SPDX-License-Identifier: Apache-2.0
"""The table that hooks read: which probe a command line means."""

from __future__ import annotations

from probe.schedulers.usable import Predicted
from probe.slurm.facts import SlurmFacts, SlurmNode, SlurmPartition
from probe.slurm.table import advise, table_text
from probe.store.records import Candidate, StoredProbe

NODE = SlurmNode("n1", (), 8, 2000, "6.1", ("main",), ("one",), True)
FACTS = SlurmFacts((NODE,), (SlurmPartition("main", True, None),))


def predicted(number: int, program: tuple[str, ...], seconds: float, *, node: str = "n1") -> Predicted:
    """A probe with a key of its own, as other threads or another input give it."""
    probe = StoredProbe(number, f"key{number}", f"solver{number}", program, "", ())
    found = Candidate(node, "", (), 8, 1, number, 1.0, seconds, seconds, seconds, "", "")
    return Predicted(probe, (found,), 0)


def lines_of(*given: Predicted) -> dict[str, str]:
    """Prediction by key."""
    text, left_out = table_text(advise(given, FACTS, commands=True), "main", 1.0)
    assert not left_out
    return {key: rest[0] for key, *rest in (line.split("\t") for line in text.splitlines()[1:])}


def test_a_command_line_of_several_probes_means_none_of_them() -> None:
    one, four = predicted(1, ("solver", "-n", "9"), 400.0), predicted(2, ("solver", "-n", "9"), 100.0)
    assert lines_of(one) == {"n:solver1": "1", "c:solver -n 9": "1"}
    assert lines_of(one, four) == {"n:solver1": "1", "n:solver2": "2"}
    # One that was predicted for nodes of another cluster alone is a probe of that command, too.
    assert lines_of(one, predicted(2, ("solver", "-n", "9"), 100.0, node="far")) == {"n:solver1": "1"}


def test_only_the_line_that_two_commands_share_is_left_out() -> None:
    found = lines_of(predicted(1, ("solver", "a b"), 400.0), predicted(2, ("solver", "a", "b"), 100.0))
    assert found == {"n:solver1": "1", "n:solver2": "2", "c:solver 'a b'": "1"}
