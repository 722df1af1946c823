# SPDX-License-Identifier: Apache-2.0
"""Kernels like NAS's on a simulated network (SimGrid's SMPI): curves through 1 to 32 ranks against 64, and more steps.

SMPI runs the program itself. Here the simulated processor is told the work of each step, so that no figure depends on
this machine or its load; the same library counts MPI times, in simulated seconds. `scripts/benchmarks` has the same
kernels with their own times.
"""

from __future__ import annotations

import pytest
from benchmarks.scaling_kernels import BARS, Case, Simulated, measure_case

pytestmark = pytest.mark.slow(minutes=2)

CASES = (Case("ep", 2_000_000, 2, 5), Case("cg", 524_288, 1, 2), Case("ft", 33_554_432, 1, 2))


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Simulated:
    return Simulated(tmp_path_factory.mktemp("simulated"), counted=True)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_64_ranks_and_an_unseen_size_are_predicted(simulated: Simulated, case: Case) -> None:
    """Within the errors of ComPat D4.3, table 4, divided by what was measured; inside the interval."""
    record = measure_case(simulated, case)
    for what in ("more ranks", "unseen size"):
        found = record[what]
        for part, bar in BARS.items():
            assert abs(found[part]["error"]) < bar, (what, part, found)
        assert found["held"], (what, found)


def test_equal_runs_are_equal(simulated: Simulated) -> None:
    """Nothing of this machine is in them."""
    case = CASES[0]
    first, second = (simulated.run(case, 8, case.steps) for _ in range(2))
    assert (first.computing, first.mpi) == (second.computing, second.mpi)


def test_a_step_of_the_network_is_known_from_its_bandwidths(simulated: Simulated) -> None:
    """Messages of 64 ranks are below SMPI's step, those of 32 above. Without the bandwidths the total is 20 % off."""
    case = Case("cg", 262_144, 1, 2)
    record = measure_case(simulated, case, simulated.bandwidths())
    for what in ("more ranks", "unseen size"):
        for part, bar in BARS.items():
            assert abs(record[what][part]["error"]) < bar, (what, part, record[what])
        assert record[what]["held"]
    blind = measure_case(simulated, case)
    assert blind["more ranks"]["total"]["error"] < -BARS["total"]
