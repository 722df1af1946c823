# SPDX-License-Identifier: Apache-2.0
"""Synthetic memory: what a region's flow does not depend on is replaced, all else stays, a refusal has its reason."""

from __future__ import annotations

import math
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from direct_runs import flat_job
from held_pages import held_pages
from page_cache import cached
from programs import build
from regions import captured_regions

from checkpoint.capture.stored import read_state
from checkpoint.compiled import restorer
from checkpoint.flat.image import NAME as IMAGE_NAME
from checkpoint.flat.image import decode
from checkpoint.flow.flow import Calls, Flow, Plan
from checkpoint.flow.watching import FlowWatcher
from checkpoint.restore.direct_restore import DirectAgent
from probe.flow import synthesis
from probe.flow.memory import BY_WORD, DOUBLES, FLOATS, KEPT, PAGE_OF, WHOLE, Known, PhaseMemory
from probe.flow.recording import record_flow
from probe.flow.synthesis import Answer, PhaseToSynthesize, Proved, settle, synthesize_phase, unchanged
from probe.flow.times import Repeats
from probe.formats.phase_record import Synthetic

ARRAYS, COLUMNS, PAGES = (0x200000000, 0x210000000), 0x220000000, 32
"""Where tests/programs/arrays.c has them, and pages of an array of numbers; the column numbers have half as many."""

HUGE = (0x230000000, 0x240000000)
"""Where `arrays huge` has two arrays of 1024 pages."""

SECONDS = 60.0

SECONDS_OF = synthesis.seconds_of


@pytest.fixture(autouse=True)
def short_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stepping takes most of the time: the whole length is made in test_synthetic_build.py."""
    monkeypatch.setattr(synthesis, "STEPS", 400)
    monkeypatch.setattr(synthesis, "LEAST_STEPS", 6000)
    # Regions of a millisecond on a machine with other work say nothing of time: test_paired_times does.
    monkeypatch.setattr(synthesis, "seconds_of", lambda repeat: 0.0 * repeat.cpu + 1.0)


_made: dict[Path, PhaseToSynthesize] = {}


def phase_of(builds: Path, folder: Path, kind: str) -> PhaseToSynthesize:
    """Its first region, captured once; what becomes of it goes to `folder`."""
    place = builds.with_name(f"{builds.name}-{kind}")
    if place not in _made:
        place.mkdir()
        _made[place] = _captured(builds, place, kind)
    return replace(_made[place], folder=folder / "synthetic")


def _captured(builds: Path, folder: Path, kind: str) -> PhaseToSynthesize:
    (job,) = captured_regions(build("arrays", builds), kind, folder=folder / "captured", direct=True)
    flat_job(job, folder)
    flat, pages = decode(job.images / IMAGE_NAME), read_state(job.images).pages_image
    flow = record_flow(FlowWatcher(job, flat, pages, restorer(), scratch=folder, cpu=None))
    assert flow.flow is not None, flow.missing
    return PhaseToSynthesize(job, flat, pages, restorer(), flow.flow, folder / "synthetic")


def settled(phase: PhaseToSynthesize, **more: Any) -> tuple[Synthetic, Answer | None]:
    """Synthesized, its times compared."""
    found, answer = synthesize_phase(phase, cpu=None, **more)
    if isinstance(found, Synthetic):
        return found, answer
    (record,) = settle([found], math.inf)
    return record, None if record.refused else answer


def synthesized(
    builds: Path, folder: Path, kind: str, seconds: float = SECONDS
) -> tuple[PhaseToSynthesize, Synthetic, Answer | None]:
    phase = phase_of(builds, folder, kind)
    found, answer = settled(phase, seconds=seconds, scratch=folder)
    assert bool(found.refused) == (answer is None) == (not phase.folder.exists())
    return phase, found, answer


def pages_at(answer: Answer, address: int, pages: int) -> list[int]:
    """How many of these pages are kept, replaced as a whole, and replaced by words."""
    inside = (answer.memory.addresses >= address) & (answer.memory.addresses < address + pages * 4096)
    return [int((answer.modes[inside] == mode).sum()) for mode in (KEPT, WHOLE, BY_WORD)]


def test_arrays_of_numbers_are_replaced_and_nothing_of_them_is_left(builds: Path, tmp_path: Path) -> None:
    phase, found, answer = synthesized(builds, tmp_path, "plate")
    assert answer is not None and found.pattern == DOUBLES
    for array in ARRAYS:
        assert pages_at(answer, array, PAGES) == [0, PAGES, 0]
    assert found.points >= synthesis.LEAST_POINTS and found.address_steps >= 6000 and found.unknown_steps == 0
    assert found.time_ratio == 1.0
    addresses, words = held_pages(phase.folder)
    inside = (addresses >= ARRAYS[0]) & (addresses < ARRAYS[0] + PAGES * 4096)
    assert inside.sum() == PAGES and (words[inside] == PAGE_OF[DOUBLES]).all()
    # And still it executes the same.
    watcher = FlowWatcher(
        replace(phase.job, images=phase.folder), decode(phase.folder / IMAGE_NAME), phase.folder / phase.pages.name,
        restorer(),
        scratch=tmp_path, cpu=None,
    )  # fmt: skip
    assert watcher.watch().counts == phase.flow.counts


def test_the_answer_of_one_phase_is_tried_first_in_the_next(builds: Path, tmp_path: Path) -> None:
    phase, found, answer = synthesized(builds, tmp_path, "plate")
    again, same = settled(phase, seconds=SECONDS, scratch=tmp_path, before=answer)
    assert again.words == found.words and same is not None
    # Verified at once, it needs no search.
    assert again.trials == 1 < found.trials


def test_answers_of_all_phases_before_are_known(builds: Path, tmp_path: Path) -> None:
    """The last one first, at the addresses of both."""
    memory = PhaseMemory(*(getattr(phase_of(builds, tmp_path, "plate"), name) for name in ("flat", "pages")))
    wholly, nothing = (np.full(len(memory), mode, dtype=np.uint8) for mode in (WHOLE, KEPT))
    elsewhere = Known(memory.addresses + np.uint64(1 << 40), wholly)
    known = memory.known(nothing, memory.known(wholly, elsewhere))
    assert (np.diff(known.addresses.astype(np.int64)) > 0).all() and len(known.addresses) == 2 * len(memory)
    modes, there = memory.carried_over(known)
    assert there.all() and (modes == KEPT).all()
    assert (known.modes == WHOLE).sum() == len(memory)
    _, there = memory.carried_over(elsewhere)
    assert not there.any()


@pytest.mark.parametrize("said", ["1 blocks are not executed as often", "its system calls differ"])
def test_a_run_in_copies_that_is_not_the_recorded_one_is_refused(
    builds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    """An answer that was carried over is never tried without copies."""
    monkeypatch.setattr(synthesis, "PATTERNS", (DOUBLES,))
    phase, _, answer = synthesized(builds, tmp_path, "plate")
    place = next(iter(phase.flow.counts))
    calls = Calls.of([(1, 2, 3)], True)
    other = (
        replace(phase.flow, counts={**phase.flow.counts, place: phase.flow.counts[place] + 1})
        if "blocks" in said else replace(phase.flow, calls=calls)
    )  # fmt: skip
    found, none = settled(replace(phase, flow=other), seconds=0, scratch=tmp_path, before=answer)
    assert none is None and found.refused == f"noting its steps changes what it executes: {said}"


def test_both_runs_are_stepped_where_one_has_no_room_for_copies(
    builds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    phase, _, answer = synthesized(builds, tmp_path, "plate")
    begun, plans = FlowWatcher.begun, []

    def one_without(self: FlowWatcher, plan: Plan, **more: Any) -> AbstractContextManager[Callable[[], Flow]]:
        plans.append(plan)
        return begun(self, replace(plan, in_copies=plan.in_copies and not plan.contents), **more)

    monkeypatch.setattr(FlowWatcher, "begun", one_without)
    found, _ = settled(phase, seconds=SECONDS, scratch=tmp_path, before=answer)
    assert not found.refused
    assert [plan.in_copies for plan in plans] == [True, True, False, False]


def test_column_numbers_are_kept(builds: Path, tmp_path: Path) -> None:
    _, found, answer = synthesized(builds, tmp_path, "sparse")
    assert answer is not None and found.words > 0
    assert pages_at(answer, COLUMNS, PAGES // 2) == [PAGES // 2, 0, 0]
    assert pages_at(answer, ARRAYS[1], PAGES)[1] == PAGES


@pytest.mark.parametrize("kind", ["sorted", "checksum"])
def test_numbers_that_decide_are_kept(builds: Path, tmp_path: Path, kind: str) -> None:
    """Where numbers are compared, or the program checks their sum, at most other arrays are replaced."""
    _, found, answer = synthesized(builds, tmp_path, kind)
    used = 2 if kind == "sorted" else PAGES
    assert answer is None or pages_at(answer, ARRAYS[0], used) == [used, 0, 0]
    assert answer is not None or found.refused


def test_numbers_that_processors_treat_differently_are_kept(builds: Path, tmp_path: Path) -> None:
    _, _, answer = synthesized(builds, tmp_path, "denormal")
    assert answer is None or pages_at(answer, ARRAYS[0], PAGES) == [PAGES, 0, 0]


def test_nan_infinity_and_zeros_are_kept(builds: Path, tmp_path: Path) -> None:
    _, _, answer = synthesized(builds, tmp_path, "special")
    if answer is not None:
        assert pages_at(answer, ARRAYS[0], PAGES // 2)[1:] == [0, 0]


def test_floats_are_replaced_by_floats(builds: Path, tmp_path: Path) -> None:
    phase, found, answer = synthesized(builds, tmp_path, "floats")
    assert answer is not None and not found.refused
    for array in ARRAYS:
        assert pages_at(answer, array, PAGES) == [0, PAGES, 0]
    addresses, words = held_pages(phase.folder)
    inside = (addresses >= ARRAYS[0]) & (addresses < ARRAYS[0] + PAGES * 4096)
    assert inside.sum() == PAGES and (words[inside] == PAGE_OF[FLOATS]).all()


def test_the_programs_own_data_tell_what_pages_hold(builds: Path, tmp_path: Path) -> None:
    for kind, floats in (("plate", False), ("floats", True)):
        memory = PhaseMemory(*(getattr(phase_of(builds, tmp_path, kind), name) for name in ("flat", "pages")))
        modes = np.where(memory.addresses >= ARRAYS[0], WHOLE, KEPT).astype(np.uint8)
        spans = [one for one in memory.spans(modes) if one.address == ARRAYS[0]]
        assert [one.floats for one in spans] == [floats] and spans[0].size >= PAGES * 4096
        assert sum(one.size for one in memory.spans(modes)) == 4096 * (modes == WHOLE).sum()


def test_in_pages_of_everything_the_pointers_stay(builds: Path, tmp_path: Path) -> None:
    """Doubles, floats and pointers in each line of memory: all numbers go, as numbers that are ordinary either way."""
    phase, found, answer = synthesized(builds, tmp_path, "mixed")
    assert answer is not None and not found.refused
    assert pages_at(answer, ARRAYS[0], PAGES) == [0, 0, PAGES]
    inside = (answer.memory.addresses >= ARRAYS[0]) & (answer.memory.addresses < ARRAYS[0] + PAGES * 4096)
    before, after = (
        words[inside].reshape(-1, 8) for words in (np.array(answer.memory.pages()), held_pages(phase.folder)[1])
    )
    assert (before[:, 7] == after[:, 7]).all() and (before[:, 7] >> np.uint64(28) == 0x20).all()
    assert (before[:, 4:7] != after[:, 4:7]).all()
    floats = after[:, 4:7].copy().view(np.float32)
    assert (floats >= 1).all() and (floats < 2).all()


def test_gathers_are_refused(builds: Path, tmp_path: Path) -> None:
    if "avx2" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("no AVX2 here")
    _, found, _ = synthesized(builds, tmp_path, "gather")
    assert re.fullmatch(r"the addresses of \d+ of \d+ steps are not known \(gathers\)", found.refused), found.refused


def test_arrays_in_huge_pages_are_replaced(builds: Path, tmp_path: Path) -> None:
    """The flat image says where huge pages go, as before."""
    phase, found, answer = synthesized(builds, tmp_path, "huge")
    assert answer is not None and not found.refused, found
    for start in HUGE:
        assert pages_at(answer, start, 1024) == [0, 1024, 0]
    before, after = (decode(folder / IMAGE_NAME) for folder in (phase.job.images, phase.folder))
    assert [bytes(m) for m in after.mappings] == [bytes(m) for m in before.mappings]
    assert any(not m.small for m in after.mappings if m.start in HUGE)


def test_a_phase_that_fails_with_its_own_data_has_no_flow(builds: Path, tmp_path: Path) -> None:
    (job,) = captured_regions(build("arrays", builds), "number", folder=tmp_path / "captured", direct=True)
    flat, pages = flat_job(job, tmp_path, watched=False), read_state(job.images).pages_image
    flow = record_flow(FlowWatcher(job, flat, pages, restorer(), scratch=tmp_path, cpu=None))
    assert flow.flow is None and "signal 6" in flow.missing
    assert unchanged(flow.missing).refused == flow.missing


def test_an_answer_that_breaks_the_phase_is_dropped(
    builds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the answer of another phase may: pointers are replaced, and the phase ends by a signal."""
    phase = phase_of(builds, tmp_path, "mixed")
    memory = PhaseMemory(phase.flat, phase.pages)
    monkeypatch.setattr(PhaseMemory, "mostly_numbers", property(lambda memory: memory.may))
    modes = np.where(memory.may, WHOLE, KEPT).astype(np.uint8)
    guess = Answer(memory, modes, DOUBLES, memory.known(modes))
    found, answer = settled(phase, seconds=SECONDS, scratch=tmp_path, before=guess)
    assert answer is not None and not found.refused
    assert pages_at(answer, ARRAYS[0], PAGES)[1] == 0


def test_what_is_written_to_a_file_may_be_synthetic(builds: Path, tmp_path: Path) -> None:
    """A phase's outputs are thrown away: its calls are the same, their data mean nothing."""
    phase, found, answer = synthesized(builds, tmp_path, "writes")
    assert answer is not None and phase.flow.calls.made == 1, found
    assert pages_at(answer, ARRAYS[0], PAGES)[1] == PAGES and not found.refused


def test_a_phase_that_does_not_repeat_itself_has_no_flow(builds: Path, tmp_path: Path) -> None:
    (job,) = captured_regions(build("arrays", builds), "clock", folder=tmp_path / "captured", direct=True)
    flat, pages = flat_job(job, tmp_path), read_state(job.images).pages_image
    flow = record_flow(FlowWatcher(job, flat, pages, restorer(), scratch=tmp_path, cpu=None))
    assert flow.flow is None and flow.missing.startswith("it does not repeat itself here: in a second run ")


def test_a_budget_of_nothing_keeps_everything(builds: Path, tmp_path: Path) -> None:
    _, found, answer = synthesized(builds, tmp_path, "plate", seconds=0.0)
    assert answer is None and found.words == 0 and found.refused


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("LEAST_STEPS", 10**9, "its addresses were compared in "),
        ("_MOST_UNKNOWN", -1.0, r"the addresses of 0 of \d+ steps are not known \(gathers\)"),
        ("_LEAST_SHARE", 2.0, "hardly anything in it can be replaced without a change of what it executes"),
    ],
)
def test_an_answer_that_fails_a_check_is_dropped_with_its_reason(
    builds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: float, said: str
) -> None:
    monkeypatch.setattr(synthesis, name, value)
    _, found, _ = synthesized(builds, tmp_path, "plate")
    assert found.refused and re.match(said, found.refused), found.refused


def test_classes_that_change_are_refused(builds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pattern that made LU slower: read as doubles, its numbers are near 2^-7, and a root turns into NaN."""
    monkeypatch.setattr(synthesis, "PATTERNS", (FLOATS,))
    _, found, _ = synthesized(builds, tmp_path, "roots")
    assert "numbers are NaN" in found.refused


def test_patterns_are_ordinary_numbers() -> None:
    doubles, floats = PAGE_OF[DOUBLES].view(np.float64), PAGE_OF[FLOATS].view(np.float32)
    assert (doubles >= 1).all() and (doubles < 2).all() and len(np.unique(doubles)) == 512
    assert (floats >= 1).all() and (floats < 2).all()


def ones_for_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern that makes every column number 1: blocks are executed as often, at other addresses."""
    monkeypatch.setitem(PAGE_OF, DOUBLES, np.full(512, 0x0000000100000001, dtype=np.uint64))
    monkeypatch.setattr(synthesis, "PATTERNS", (DOUBLES,))


def test_other_addresses_are_refused(builds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ones_for_numbers(monkeypatch)
    monkeypatch.setattr(synthesis, "_distinct", lambda answers: list(answers)[:1])
    _, found, _ = synthesized(builds, tmp_path, "sparse", seconds=10 * SECONDS)
    assert re.fullmatch(r"\d+ of \d+ steps use other addresses", found.refused), found.refused


def test_a_smaller_answer_follows_one_that_is_refused(
    builds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ones_for_numbers(monkeypatch)
    _, found, answer = synthesized(builds, tmp_path, "sparse")
    assert answer is not None and not found.refused
    assert pages_at(answer, COLUMNS, PAGES // 2) == [PAGES // 2, 0, 0]
    assert pages_at(answer, ARRAYS[0], PAGES)[1] > 0


def test_another_time_is_refused(builds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def repeats(*_: object) -> Iterator[Repeats]:
        yield [lambda: 1.0, lambda: 1.1]

    monkeypatch.setattr(synthesis, "_repeats", repeats)
    _, found, _ = synthesized(builds, tmp_path, "plate")
    assert found.refused == "it takes +10.0% of the time with its own data, give or take 1.0%"


def test_a_time_that_is_found_to_be_another_in_the_end_leaves_no_images(builds: Path, tmp_path: Path) -> None:
    phase = phase_of(builds, tmp_path, "plate")
    proved, answer = synthesize_phase(phase, seconds=SECONDS, scratch=tmp_path, cpu=None)
    assert isinstance(proved, Proved) and answer is not None and phase.folder.exists()
    assert proved.record.words > 0 and proved.record.time_ratio is None
    proved.times.pairs[:] = [0.03] * 28
    (record,) = settle([proved], 0.0)
    assert not phase.folder.exists() and record.words == 0 and record.mappings
    assert record.refused == "it takes +3.0% of the time with its own data, give or take 0.0%"


def test_the_next_phase_is_read_ahead(builds: Path, tmp_path: Path) -> None:
    """As far as there is time, and nothing is lost where it cannot be."""
    phase = phase_of(builds, tmp_path, "plate")
    # On a disk: what is in /tmp may be memory.
    with tempfile.NamedTemporaryFile(dir="/var/tmp") as following:
        following.write(bytes(1 << 20))
        os.fsync(following.fileno())
        os.posix_fadvise(following.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        assert cached(Path(following.name)) == 0
        for path in (Path(following.name), tmp_path / "none"):
            found, _ = settled(replace(phase, following=path), seconds=SECONDS, scratch=tmp_path)
            assert not found.refused
        # Kernels that look for memory nobody uses take single pages back at any time.
        assert cached(Path(following.name)) > (1 << 20) // 4096 / 2


def test_warm_up_and_region_are_timed(builds: Path, tmp_path: Path) -> None:
    """By the same clock: CPU seconds of both."""
    phase = phase_of(builds, tmp_path, "plate")
    with DirectAgent(phase.job, restorer(), scratch=tmp_path, flat=phase.flat) as agent:
        repeat = agent.repeat()
    assert repeat.warm_cpu is not None and 0 < repeat.warm_cpu <= repeat.warm * 1.01 + 1e-4
    assert SECONDS_OF(repeat) == repeat.warm_cpu + repeat.cpu
