# SPDX-License-Identifier: Apache-2.0
"""Capture a process that we trace: its state and its pages into a folder, as an ordinary user."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from checkpoint.capture import process_facts
from checkpoint.capture.injected import Answers, ask_all
from checkpoint.capture.memory_map import guard_areas, page_runs, read_areas
from checkpoint.capture.open_files import OpenFiles
from checkpoint.capture.own_descriptors import own_descriptors
from checkpoint.capture.page_copy import copy_pages, require_room
from checkpoint.capture.readable import readable
from checkpoint.capture.shared_memory import SharedParts
from checkpoint.capture.stored import write_state
from checkpoint.capture.team import other_threads
from checkpoint.page_table import PageTable
from checkpoint.process.plain_run import children_of
from checkpoint.process.ptrace import signal_mask
from checkpoint.process.team import Team
from checkpoint.process.threads import HelperThreads
from checkpoint.process.tracee import Tracee
from checkpoint.process.waiting import ENDED, process_state, status_of, threads_of
from checkpoint.state.process_state import STOPPED, ProcessState, SignalState, Task
from checkpoint.state.shared_memory import QueuedSignal

_PAGES_ID = 1
_MOST_ASKED = 8
"""Times that the kernel is asked, where a timer runs out just then."""


@dataclass(frozen=True)
class Captured:
    """A captured process, and address ranges of its mappings that held huge pages."""

    state: ProcessState
    huge: tuple[tuple[int, int], ...]


def capture_process(tracee: Tracee, folder: Path, what: str) -> Captured:
    """Put state and pages of the stopped process into `folder`, which exists. It is as before afterwards.

    `what` names it in messages. Raises StorageError, ProgramFailed where it ends meanwhile, OSError, PrivilegeMissing
    where this user may not look into it.
    """
    clocks = process_facts.clocks_of(tracee.pid, tracee.wall_clock_shift())
    with readable(tracee):
        waiting, answers = _asked(tracee)
        state, huge = _state(tracee, folder, answers[0], waiting, what)
        state = replace(state, clocks=clocks)
        if tracee.team is not None:
            state = _with_team(state, tracee, tracee.team, answers[1:])
        require_room(folder, state.pages, what)
        memory = os.open(f"/proc/{tracee.pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            stretches = [(run.vaddr, run.pages) for run in state.page_runs]
            copy_pages(tracee.pid, memory, stretches, state.pages_image)
        finally:
            os.close(memory)
    write_state(state)
    return Captured(state, huge)


@dataclass(frozen=True)
class _Waiting:
    """Signals that wait to be delivered: their numbers, and what is known of those in the queues."""

    pending: tuple[int, ...]
    queued: tuple[QueuedSignal, ...]

    @staticmethod
    def of(tracee: Tracee) -> _Waiting:
        status = status_of(f"{tracee.pid}/task/{tracee.marking}")
        return _Waiting(process_facts.pending_signals(status), tuple(process_facts.queued_signals(tracee.marking)))


def _asked(tracee: Tracee) -> tuple[_Waiting, list[Answers]]:
    """Signals and timers of the same moment: one that runs out later is a timer that runs, and no signal."""
    others = tracee.team.stopped() if tracee.team else ()
    waiting = _Waiting.of(tracee)
    for _ in range(_MOST_ASKED):
        answers = ask_all(tracee, others)
        before, waiting = waiting, _Waiting.of(tracee)
        if waiting == before:
            break
    return before, answers


def _state(
    tracee: Tracee, folder: Path, answers: Answers, waiting: _Waiting, what: str
) -> tuple[ProcessState, tuple[tuple[int, int], ...]]:
    pid, marking = tracee.pid, tracee.marking
    status = status_of(f"{pid}/task/{marking}")
    areas = read_areas(pid)
    files = OpenFiles(pid, {(area.device, area.inode) for area in areas if area.as_memory})
    descriptors = tuple(files.descriptors())
    shared = SharedParts(tracee, areas, descriptors)
    with PageTable(pid) as table:
        runs = page_runs(areas, table)
        guards = list(guard_areas(areas, table))
        present = tuple(shared.present(table))
    vmas = [area.vma(files.mapped(area) if area.file else shared.number(area)) for area in areas]
    state = ProcessState(
        folder=folder,
        tasks=(Task(pid, int(status["PPid"]), _threads(pid, tracee.helpers)), *_children(pid)),
        pid=pid,
        comm=process_facts.name_of(pid, marking),
        state=STOPPED,
        registers=process_facts.registers_of(tracee.registers()),
        exe_file_id=files.link("exe"),
        cwd_file_id=files.link("cwd"),
        root_file_id=files.link("root"),
        umask=int(status["Umask"], 8),
        vmas=(*vmas, *guards),
        page_runs=tuple(runs),
        pages_id=_PAGES_ID,
        descriptors=descriptors,
        files=files.files,
        removed_files=files.copy_removed(folder),
        own=own_descriptors(pid, descriptors, files.files),
        signals=SignalState(
            signal_mask(marking),
            answers.actions,
            *answers.stack,
            waiting.pending,
        ),
        thread=process_facts.thread_state(marking, answers.clear_tid),
        extended=process_facts.extended_state(marking, answers.places),
        layout=process_facts.layout_of(pid, answers),
        timers=answers.timers,
        posix_timers=process_facts.has_posix_timers(pid),
        limits=process_facts.limits_of(pid),
        no_huge_pages=answers.no_huge_pages,
        filtered=process_facts.is_filtered(status),
        shared=shared.copy(folder, what),
        present=present,
        queued=waiting.queued,
    )
    return state, tuple((area.start, area.end) for area in areas if area.huge)


def _with_team(state: ProcessState, tracee: Tracee, team: Team, answers: Sequence[Answers]) -> ProcessState:
    """`state` with the threads that share the work. Raises ProgramUnsupported."""
    others = tuple(other_threads(tracee, team, answers))
    first = replace(state.tasks[0], threads=tuple(sorted(threads_of(tracee.pid))))
    pending = tuple(dict.fromkeys([*state.signals.pending, *(n for one in others for n in one.signals.pending)]))
    return replace(
        state, others=others, tasks=(first, *state.tasks[1:]), signals=replace(state.signals, pending=pending)
    )


def _children(pid: int) -> Iterator[Task]:
    """All processes below another that live: they are named, not captured."""
    for child in children_of(pid):
        if process_state(child) != ENDED:
            yield Task(child, pid, (child,))
            yield from _children(child)


def _threads(pid: int, helpers: HelperThreads) -> tuple[int, ...]:
    """Without those that are known to wait: nothing of them is captured."""
    waiting = {child.pid for child in helpers.all}
    return tuple(sorted(threads_of(pid) - waiting))
