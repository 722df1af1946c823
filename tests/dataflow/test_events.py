# SPDX-License-Identifier: Apache-2.0
"""The calendar of events beside a heap: the same order, whatever the times are."""

from __future__ import annotations

import heapq
import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from small_probe import ROOT

from checkpoint.compiled import built
from probe.dataflow.engines import OPTIONS, sources

OWNERS = 700


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    files = [ROOT / "tests" / "programs" / "calendar.c", *sources("events.c", "events.h")]
    checks = ("-g", "-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all")
    place = tmp_path_factory.mktemp("calendar")
    return built("calendar", files, (*OPTIONS, *checks), libraries=("-lm",), place=place)


Later = Callable[[random.Random, float], float]
LAWS: dict[str, Later] = {
    "alike": lambda drawn, now: now + drawn.uniform(0.5, 1.5),
    "at once": lambda drawn, now: now,
    "steps": lambda drawn, now: now + drawn.choice((0.0, 0.25, 1.0)),
    "far apart": lambda drawn, now: now + 10.0 ** drawn.uniform(-12, 9),
    "one in a hurry": lambda drawn, now: now + (1e-9 if drawn.random() < 0.9 else 1e3),
    "beyond numbers": lambda drawn, now: now + drawn.choice((1e-300, 1.0, 1e300)),
}


@pytest.mark.parametrize("law", LAWS)
def test_events_come_in_the_order_of_their_times(driver: Path, law: str) -> None:
    """Equal times in the order in which they were added; numbers of events go up and down to none."""
    drawn, heap, lines, expected = random.Random(law), list[tuple[float, int, int]](), list[str](), list[str]()
    idle, now, added = list(range(OWNERS)), 0.0, 0
    for share in (0.9, 0.5, 0.3, 0.7, 0.1):
        for _ in range(2000):
            if idle and (not heap or drawn.random() < share):
                who, time = idle.pop(drawn.randrange(len(idle))), LAWS[law](drawn, now)
                heapq.heappush(heap, (time, added, who))
                added += 1
                lines.append(f"a {who} {time!r}")
            else:
                now, _, who = heapq.heappop(heap)
                idle.append(who)
                lines.append("n")
                expected.append(f"{who} {now!r}")
    while heap:
        now, _, who = heapq.heappop(heap)
        lines.append("n")
        expected.append(f"{who} {now!r}")
    lines.append("n")
    done = subprocess.run(
        [driver, str(OWNERS)], input="\n".join(lines), capture_output=True, text=True, timeout=120,
        env={"ASAN_OPTIONS": "detect_leaks=0"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    found = done.stdout.splitlines()
    assert found.pop() == "none"
    assert [(line.split()[0], float(line.split()[1])) for line in found] == [
        (line.split()[0], float(line.split()[1])) for line in expected
    ]
