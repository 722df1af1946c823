# SPDX-License-Identifier: Apache-2.0
"""pytest plugin of scripts/test: fast tests run first, so that a simple mistake shows within seconds.

With pytest-xdist (`-n`) files are run side by side, one worker for each processor. Tests marked `alone` come last, when
every other worker has ended. Fast tests of a file come before its slow ones; slow files that say how many minutes they
take begin first, so that nobody waits for them at the end.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

FAST, SLOW, ALONE = 0, 1, 2
MOST_WORKERS = 4
"""More would only be in each other's way: tests write to disks and start servers."""

_KEY = "fast_first_file"


def part_of(item: pytest.Item) -> tuple[int, float]:
    """Place in the order: FAST, SLOW or ALONE, and within it the longest files first."""
    slow = item.get_closest_marker("slow")
    minutes = float(slow.kwargs.get("minutes", 0)) if slow is not None else 0.0
    if item.get_closest_marker("alone") is not None:
        return ALONE, 0.0
    return (FAST if slow is None else SLOW), -minutes


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=part_of)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Tell who distributes the tests which part each belongs to: it collects none itself."""
    given = getattr(session.config, "workerinput", {})
    if given.get("workerid") == "gw0":
        Path(given[_KEY]).write_text(json.dumps([part_of(item)[0] for item in session.items]))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    return min(MOST_WORKERS, len(os.sched_getaffinity(0)))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput[_KEY] = str(_parts_file(node.config))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config) -> SideBySide:
    from xdist.workermanage import parse_tx_spec_config

    return SideBySide(_parts_file(config), len(parse_tx_spec_config(config)))


def _parts_file(config: pytest.Config) -> Path:
    return Path(config._tmp_path_factory.getbasetemp()) / "parts.json"  # type: ignore[attr-defined]


class SideBySide:
    """Scheduler of pytest-xdist (its protocol `Scheduling`): units of work are the parts of files.

    A worker keeps its last test until it gets another one or is told to end, so that it knows which fixtures to close.
    Hence every worker but one is ended when no unit is left; the one that stays gets the tests that run alone when all
    others are gone.
    """

    def __init__(self, parts: Path, count: int) -> None:
        self._parts = parts
        self._count = count
        self._ids: list[str] = []
        self._collected: dict[Any, list[str]] = {}
        self._queued: dict[Any, list[int]] = {}
        self._units: list[list[int]] | None = None
        self._alone: list[int] = []

    @property
    def nodes(self) -> list[Any]:
        return list(self._queued)

    @property
    def collection_is_completed(self) -> bool:
        return len(self._collected) >= self._count

    @property
    def tests_finished(self) -> bool:
        waiting = self._units is None or self._units or self._alone
        return not waiting and all(len(queued) < 2 for queued in self._queued.values())

    @property
    def has_pending(self) -> bool:
        return bool(self._units or self._alone or any(self._queued.values()))

    def add_node(self, node: Any) -> None:
        self._queued[node] = []

    def add_node_collection(self, node: Any, collection: Sequence[str]) -> None:
        self._collected[node] = list(collection)

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        self._queued[node].remove(item_index)
        self._go_on()

    def mark_test_pending(self, item: str) -> None:
        raise NotImplementedError

    def remove_pending_tests_from_node(self, node: Any, indices: Sequence[int]) -> None:
        raise NotImplementedError

    def remove_node(self, node: Any) -> str | None:
        """The test at which the worker broke down, None if it had ended. Others take over the rest."""
        left = self._queued.pop(node)
        self._collected.pop(node, None)
        crashed = self._ids[left.pop(0)] if left else None
        if left and self._units is not None:
            self._units.insert(0, left)
        self._count = max(1, len(self._queued))
        self._go_on()
        return crashed

    def schedule(self) -> None:
        if self._units is None:
            self._ids = next(iter(self._collected.values()))
            different = [node.gateway.id for node, ids in self._collected.items() if ids != self._ids]
            if different:
                raise pytest.UsageError(f"workers {', '.join(different)} collected other tests than the first")
            self._units, self._alone = _units(self._ids, json.loads(self._parts.read_text()))
        self._go_on()

    def _go_on(self) -> None:
        """Give work to whoever has none but the test that it keeps."""
        if self._units is None:
            return
        for node in [node for node in self._queued if not node.shutting_down and node in self._collected]:
            while len(self._queued[node]) < 2 and self._units:
                self._send(node, self._units.pop(0))
            if len(self._queued[node]) < 2 and not self._units:
                self._end_or_run_alone(node)

    def _end_or_run_alone(self, node: Any) -> None:
        others = [other for other in self._queued if other is not node]
        if any(not other.shutting_down for other in others):
            node.shutdown()
        elif not others:
            if self._alone:
                self._send(node, self._alone)
                self._alone = []
            node.shutdown()

    def _send(self, node: Any, indices: list[int]) -> None:
        self._queued[node] += indices
        node.send_runtest_some(indices)


def _units(ids: Sequence[str], parts: Sequence[int]) -> tuple[list[list[int]], list[int]]:
    """Tests of the same part of the same file, by number in `ids`, in the order of their first; and those alone."""
    units: dict[tuple[int, str], list[int]] = {}
    for index, (name, part) in enumerate(zip(ids, parts, strict=True)):
        if part != ALONE:
            units.setdefault((part, name.split("::", 1)[0]), []).append(index)
    return list(units.values()), [index for index, part in enumerate(parts) if part == ALONE]
