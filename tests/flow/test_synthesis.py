# SPDX-License-Identifier: Apache-2.0
"""Synthetic memory: what a region's flow does not depend on is replaced, all else stays, a refusal has its reason."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from direct_runs import flat_job
from programs import build
from regions import captured_regions

from checkpoint.capture.stored import read_state
from checkpoint.compiled import restorer
from checkpoint.flat.image import NAME as IMAGE_NAME
from checkpoint.flow.flow import Calls, Flow, Plan
from checkpoint.flow.watching import FlowWatcher
from probe.flow import synthesis
from probe.flow.memory import BY_WORD, DOUBLES, FLOATS, KEPT, PAGE_OF, WHOLE, PhaseMemory
from probe.flow.recording import record_flow
from probe.flow.synthesis import Answer, PhaseToSynthesize, compare_times, synthesize_phase, unchanged
from probe.formats.phase_record import Synthetic

ARRAYS, COLUMNS, PAGES = (0x200000000, 0x210000000), 0x220000000, 32
"""Where tests/programs/arrays.c has them, and pages of an array of numbers; the column numbers have half as many."""

HUGE = (0x230000000, 0x240000000)
"""Where `arrays huge` has two arrays of 1024 pages."""

SECONDS = 60.0


@pytest.fixture(autouse=True)
def short_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stepping takes most of the time: the whole length is made in test_synthetic_build.py."""
    monkeypatch.setattr(synthesis, "STEPS", 400)
    monkeypatch.setattr(synthesis, "LEAST_STEPS", 6000)
    # Regions of a millisecond on a machine with other work say nothing of time: test_times does.
    monkeypatch.setattr(synthesis, "compare_times", lambda repeats: (sum(r() for r in repeats) * 0 + 1.0, 0.0))


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
    flat, pages = flat_job(job, folder), read_state(job.images).pages_image
    flow = record_flow(FlowWatcher(job, flat, pages, restorer(), scratch=folder, cpu=None))
    assert flow.flow is not None, flow.missing
    return PhaseToSynthesize(job, flat, pages, restorer(), flow.flow, folder / "synthetic")


def synthesized(
    builds: Path, folder: Path, kind: str, seconds: float = SECONDS
) -> tuple[PhaseToSynthesize, Synthetic, Answer | None]:
    phase = phase_of(builds, folder, kind)
    found, answer = synthesize_phase(phase, seconds=seconds, scratch=folder, cpu=None)
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
    replaced = PhaseMemory(phase.flat, phase.folder / phase.pages.name)
    inside = (replaced.addresses >= ARRAYS[0]) & (replaced.addresses < ARRAYS[0] + PAGES * 4096)
    assert (replaced.pages()[inside] == PAGE_OF[DOUBLES]).all()
    # And still it executes the same.
    watcher = FlowWatcher(
        replace(phase.job, images=phase.folder), phase.flat, phase.folder / phase.pages.name, restorer(),
        scratch=tmp_path, cpu=None,
    )  # fmt: skip
    assert watcher.watch().counts == phase.flow.counts


def test_the_answer_of_one_phase_is_tried_first_in_the_next(builds: Path, tmp_path: Path) -> None:
    phase, found, answer = synthesized(builds, tmp_path, "plate")
    again, same = synthesize_phase(phase, seconds=SECONDS, scratch=tmp_path, cpu=None, before=answer)
    assert again.words == found.words and same is not None
    # Verified at once, it needs no search.
    assert again.trials == 1 < found.trials


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
    found, none = synthesize_phase(replace(phase, flow=other), seconds=0, scratch=tmp_path, cpu=None, before=answer)
    assert none is None and found.refused == f"noting its steps changes what it executes: {said}"


def test_both_runs_are_stepped_where_one_has_no_room_for_copies(
    builds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    phase, _, answer = synthesized(builds, tmp_path, "plate")
    watch, plans = FlowWatcher.watch, []

    def one_without(self: FlowWatcher, plan: Plan, **_: object) -> Flow:
        plans.append(plan)
        return watch(self, replace(plan, in_copies=plan.in_copies and not plan.contents))

    monkeypatch.setattr(FlowWatcher, "watch", one_without)
    found, _ = synthesize_phase(phase, seconds=SECONDS, scratch=tmp_path, cpu=None, before=answer)
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
    replaced = PhaseMemory(phase.flat, phase.folder / phase.pages.name)
    inside = (replaced.addresses >= ARRAYS[0]) & (replaced.addresses < ARRAYS[0] + PAGES * 4096)
    assert (replaced.pages()[inside] == PAGE_OF[FLOATS]).all()


def test_in_pages_of_everything_the_pointers_stay(builds: Path, tmp_path: Path) -> None:
    """Doubles, floats and pointers in each line of memory: all numbers go, as numbers that are ordinary either way."""
    phase, found, answer = synthesized(builds, tmp_path, "mixed")
    assert answer is not None and not found.refused
    assert pages_at(answer, ARRAYS[0], PAGES) == [0, 0, PAGES]
    inside = (answer.memory.addresses >= ARRAYS[0]) & (answer.memory.addresses < ARRAYS[0] + PAGES * 4096)
    before, after = (
        np.array(memory.pages()[inside]).reshape(-1, 8)
        for memory in (answer.memory, PhaseMemory(phase.flat, phase.folder / phase.pages.name))
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
    """The flat image, which says where huge pages go, is the same file as before."""
    phase, found, answer = synthesized(builds, tmp_path, "huge")
    assert answer is not None and not found.refused
    for start in HUGE:
        assert pages_at(answer, start, 1024) == [0, 1024, 0]
    assert (phase.folder / IMAGE_NAME).samefile(phase.job.images / IMAGE_NAME)


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
    guess = Answer(memory, np.where(memory.may, WHOLE, KEPT).astype(np.uint8), DOUBLES)
    found, answer = synthesize_phase(phase, seconds=SECONDS, scratch=tmp_path, cpu=None, before=guess)
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


class Taking:
    """A repeat that takes these seconds, again and again, and how often it was made."""

    def __init__(self, *seconds: float) -> None:
        self.seconds, self.made = seconds, 0

    def __call__(self) -> float:
        self.made += 1
        return self.seconds[(self.made - 1) % len(self.seconds)]


def test_equal_times_need_few_repeats() -> None:
    first, second = Taking(1.0, 1.002), Taking(1.001, 1.0)
    ratio, error = compare_times([first, second])
    assert ratio == pytest.approx(1.0, abs=0.01) and 0 < error < 0.005
    assert first.made == second.made == 7


def test_times_that_spread_need_more_repeats() -> None:
    first, second = Taking(1.0, 1.02), Taking(1.02, 1.0)
    ratio, error = compare_times([first, second])
    assert abs(ratio - 1) <= 0.01 and 0.002 < error < 0.01
    assert first.made == second.made == 28


def test_chance_agreement_ends_nothing() -> None:
    """The first five repeats agree, and none of the others does."""
    second = Taking(*[1.0] * 5, *[1.03] * 23)
    with pytest.raises(Exception, match=r"it takes \+3\.0% of"):
        compare_times([Taking(1.0), second])
    assert second.made == 28


def test_noise_passes_no_time() -> None:
    """Two standard errors are 4 % here: neither time is known, and the data are kept."""
    for shift in (0.0, 0.015, 0.03):
        first, second = Taking(1.0, 1.1, 1.2), Taking(1.0 + shift, 1.1 + shift, 1.2 + shift)
        with pytest.raises(Exception, match=r"its time cannot be told: .* while the machine does less"):
            compare_times([first, second])
        assert first.made == 28


def test_another_time_is_refused_as_soon_as_it_is_clear() -> None:
    first = Taking(1.0)
    with pytest.raises(Exception, match=r"it takes \+10\.0% of the time with its own data, give or take 0\.0%"):
        compare_times([first, Taking(1.1)])
    assert first.made == 7
    unclear = Taking(1.0, 1.04)
    with pytest.raises(Exception, match=r"it takes \+"):
        compare_times([unclear, Taking(1.04, 1.06)])
    assert unclear.made > 7


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
    monkeypatch.setattr(synthesis, "compare_times", lambda _: compare_times([lambda: 1.0, lambda: 1.1]))
    _, found, _ = synthesized(builds, tmp_path, "plate")
    assert found.refused == "it takes +10.0% of the time with its own data, give or take 0.0%"
