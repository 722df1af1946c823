# SPDX-License-Identifier: Apache-2.0
"""Runs that would mislead: left out, warned of, or refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made_runs import made_runs

from checkpoint.errors import Unpredictable
from probe.scaling.judging import doubts_of_types, judge
from probe.scaling.model import fit_kernel


def test_oversubscribed_runs_and_smt_threads_are_no_data() -> None:
    """Eight ranks on four cores are no eighth size, and not the third one either."""
    good = made_runs((1, 2, 4))
    crowded = [replace(run, cores=4, source=f"smt{run.source}") for run in made_runs((8,))]
    judged = judge([*good, *crowded], "gem")
    assert {run.ranks for run in judged.runs} == {1, 2, 4}
    assert "1 of 4 runs left out: they ran up to 8 threads on 4 cores (oversubscribed" in judged.warnings[0]
    with pytest.raises(Unpredictable, match="oversubscribed"):
        judge([*made_runs((1, 2)), *crowded], "gem")


def test_shared_nodes_are_no_data() -> None:
    judged = judge([*made_runs((1, 2, 4)), *made_runs((8,), shared=True)], "gem")
    assert len(judged.runs) == 3 and "shared their nodes" in judged.warnings[0]


def test_equal_sizes_under_two_names_count_once() -> None:
    """4 x 1 and 2 x 2 are four cores both: with 2 and 8 that is three sizes, without one of them two."""
    hybrid = [replace(run, ranks=2, threads=2, source=f"h{run.source}") for run in made_runs((4,))]
    assert (
        "4 cores are 2 ranks x 2 threads and 4 ranks x 1 threads"
        in judge([*made_runs((2, 4, 8)), *hybrid], "gem").warnings[0]
    )
    with pytest.raises(Unpredictable, match=r"2 different numbers of cores \(2, 4\)"):
        judge([*made_runs((2, 4)), *hybrid], "gem")


def test_equal_parameters_under_two_configurations_are_warned_of() -> None:
    first = made_runs((1, 2, 4), config="a" * 64)
    second = [replace(run, config="b" * 64, source=f"b{run.source}", runtime=1.3 * run.runtime) for run in first]
    same = [replace(run, config="b" * 64, source=f"b{run.source}") for run in first]
    assert judge([*first, *same], "gem").warnings == ()
    assert "equal parameters under two configurations" in judge([*first, *second], "gem").warnings[0]


def test_whole_seconds_are_warned_of() -> None:
    short = [replace(run, runtime=float(n), mpi=0.0) for n, run in zip((9, 5, 3), made_runs((1, 2, 4)), strict=True)]
    assert "whole seconds, and the shortest is 3 s: rounding alone is 17 %" in judge(short, "gem").warnings[0]
    long = [replace(run, runtime=1000 * run.runtime) for run in short]
    assert judge(long, "gem").warnings == ()


def test_work_that_is_not_linear_is_warned_of() -> None:
    runs = [
        replace(run, runtime=run.runtime * work**0.5, mpi=(run.mpi or 0) * work**0.5, source=f"{work}{run.source}")
        for work in (1.0, 2.0, 4.0)
        for run in made_runs((1, 2, 4, 8), work=work)
    ]
    assert any("work to the power of 1.5" in warning for warning in fit_kernel(runs).warnings)
    assert fit_kernel([*made_runs((1, 2, 4)), *made_runs((2, 4, 8), work=4.0)]).warnings == ()


def test_distance_is_warned_of_and_refused() -> None:
    model = fit_kernel(made_runs((4, 8, 16)))
    assert model.predict(32, 1.0).warnings == ()
    assert "extrapolated 3 times" in model.predict(48, 1.0).warnings[0]
    assert "extrapolated 4 times" in model.predict(1, 1.0).warnings[0]
    with pytest.raises(Unpredictable, match=r"65 cores are 4\.06 times away"):
        model.predict(65, 1.0)
    assert any("far from what was measured" in warning for warning in model.predict(8, 11.0).warnings)


def test_node_type_confounded_with_size_is_warned_of() -> None:
    apart = [*made_runs((1, 2, 4)), *made_runs((8, 16, 32), node_type="skylake")]
    assert "confounded: haswell has runs on 1 to 4 cores alone, skylake on 8 to 32" in doubts_of_types(apart)[0]
    assert doubts_of_types([*apart, *made_runs((4,), node_type="skylake")]) == []
