# SPDX-License-Identifier: Apache-2.0
"""Hot sites: those that cost too much are taken out, and every interval keeps a marker."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from probe.formats.arrays import BoolArray, FloatArray
from probe.tracers.hot_sites import (
    FEW_BUSY,
    LITTLE,
    MARKER_FIRINGS,
    MOST_AT_ALL,
    MOST_BEARABLE,
    MOST_OVERHEAD,
    Removal,
    Row,
    counted_share,
    dearest_sites,
    hottest_sites,
    sites_to_remove,
)


@st.composite
def loads(draw: st.DrawFn) -> tuple[FloatArray, list[Row], BoolArray]:
    columns = draw(st.integers(1, 12))
    rate = np.array(draw(st.lists(st.floats(0, 1e9), min_size=columns, max_size=columns)))
    removed = np.array(draw(st.lists(st.booleans(), min_size=columns, max_size=columns)))
    rows = []
    for _ in range(draw(st.integers(0, 4))):
        counts = np.array(draw(st.lists(st.integers(0, 100), min_size=columns, max_size=columns)), dtype=np.int64)
        active = np.flatnonzero(counts)
        rows.append(Row(active, counts[active], 0.05))
    return np.where(removed, 0, rate), rows, removed


@given(loads())
def test_every_interval_keeps_a_marker(case: tuple[FloatArray, list[Row], BoolArray]) -> None:
    rate, rows, removed = case
    cost = np.full(len(rate), 1e-9)
    wanted = hottest_sites(rate, cost)
    chosen = sites_to_remove(wanted, cost, rows, removed)
    assert set(chosen.tolist()) <= set(wanted.tolist()) and not removed[chosen].any()
    gone = removed.copy()
    gone[chosen] = True
    for row in rows:
        firm = row.columns[row.executions >= MARKER_FIRINGS]
        assert (~gone[firm]).any() or not (~removed[firm]).any()


@given(loads())
def test_what_is_wanted_gone_makes_the_cost_bearable(
    case: tuple[FloatArray, list[Row], BoolArray],
) -> None:
    rate, _, _ = case
    cost = np.full(len(rate), 1e-9)
    wanted = hottest_sites(rate, cost)
    left = np.delete(rate, wanted)
    assert (left * 1e-9).sum() <= (MOST_OVERHEAD / 2 + 1e-12 if len(wanted) else MOST_OVERHEAD)
    assert not len(wanted) or not len(left) or left.max() <= rate[wanted].min()


def test_the_hottest_go_and_cheap_runs_keep_all() -> None:
    cost = np.full(6, 1e-9)
    assert not len(hottest_sites(np.full(6, 5e6), cost))
    assert hottest_sites(np.array([1e6, 9e8, 1e6, 5e7, 2e6, 0]), cost).tolist() == [1, 3]


def test_executions_spread_over_many_sites_cost_more() -> None:
    # 4e7 executions a second: bearable on a few sites, which stay in the caches; not on 20,000.
    assert not len(hottest_sites(np.full(20, 2e6), np.full(20, 1e-9)))
    assert len(hottest_sites(np.full(20_000, 2e3), np.full(20_000, 1e-9))) > 10_000


def test_what_holds_the_instructions_stays_while_it_can_be_borne() -> None:
    cost, wanted = np.full(3, 1e-9), np.array([0, 1])
    rate = np.array([0.7e8, 0.6e8, 1e6])
    assert not len(dearest_sites(wanted, rate, cost, np.array([5.0, 20.0, 5.0]))), "13 % can be borne"
    # Above that, what costs most for what it counts goes, and no more than has to.
    assert dearest_sites(wanted, 2 * rate, cost, np.array([1.0, 40.0, 5.0])).tolist() == [0]
    assert 2 * rate.sum() * 1e-9 - 2 * rate[0] * 1e-9 < MOST_BEARABLE
    # Where that would be too much, twice as much can be borne, and above that no more goes than has to.
    much = np.array([5.0, 20.0, 5.0])
    assert not len(dearest_sites(wanted, 2 * rate, cost, much)) and 2 * rate.sum() * 1e-9 < MOST_AT_ALL
    assert dearest_sites(wanted, 4 * rate, cost, much).tolist() == [0] and 4 * rate.sum() * 1e-9 > MOST_AT_ALL
    # Where little is lost with them, and where many sites are busy, all of them go.
    assert dearest_sites(wanted, rate, cost, np.array([1.0, 1.0, 2e2 / LITTLE * 100])).tolist() == [0, 1]
    many = np.full(4 * FEW_BUSY, 1e6)
    assert len(dearest_sites(np.arange(9), many, np.full(len(many), 1e-10), np.ones(len(many)))) == 9


def test_share_of_what_was_removed() -> None:
    def row(*executions: int) -> Row:
        found = np.array(executions, dtype=np.int64)
        return Row(np.flatnonzero(found), found[found > 0], 0.05)

    instructions = np.array([4.0, 2.0, 1.0])
    with_it, without, elsewhere = row(100, 300, 0), row(100, 0, 0), row(0, 0, 400)
    assert counted_share([without, elsewhere], [], instructions) == 1.0
    removal = Removal(np.array([1]), with_it)
    # 400 instructions counted beside 600 that were not, whether they were seen before or not.
    assert counted_share([with_it], [removal], instructions) == 0.4
    assert counted_share([with_it, without], [removal], instructions) == 0.4
    # Code that the removed site never ran beside is counted whole.
    assert counted_share([without, elsewhere], [removal], instructions) == 800 / 1400
