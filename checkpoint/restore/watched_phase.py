# SPDX-License-Identifier: Apache-2.0
"""Steps of all that restores a phase under ptrace to watch it: a child for it, its view of files, its end. Build time.

Watchers: of system calls (recorded_calls.py), of pages (observation.py), of all that is executed (checkpoint/flow).
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from checkpoint.errors import PhaseFailed
from checkpoint.flat.control import Option
from checkpoint.flat.image import FlatImage
from checkpoint.linux import PAGE_SIZE, WALL
from checkpoint.restore.direct_agent import RESTORED, Control, copy_written, enter_private_view
from checkpoint.restore.direct_restore import STEPS, hint


class Lost(Exception):
    """The phase did not come to its region's end."""


class Endless(Lost):
    """Nor would it ever, as far as can be told."""


class NeverEnds(PhaseFailed):
    """A phase waits, or goes on, for so long that its region has no end without what was not restored."""


@contextlib.contextmanager
def answering_child(act: Callable[[int, int], NoReturn], most: int = -1) -> Iterator[Callable[[], bytes]]:
    """A child of its own, which traces, and sees other files than we. The block gets what waits for all that the child
    writes: at most `most` bytes; b"" for nothing.

    `act` gets the descriptor to write to and our process number. Left without the answer, the child is killed.
    """
    reader, writer = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if not child:
        # Or it would keep its own pipe open, and write for ever what nobody reads.
        os.close(reader)
        act(writer, parent)
    os.close(writer)
    answered = False
    try:
        with os.fdopen(reader, "rb") as answers:

            def answer() -> bytes:
                nonlocal answered
                said = answers.read(most)
                answered = True
                return said

            yield answer
    finally:
        if not answered:
            # Interrupted. What it writes into the folder meanwhile would keep the folder from being removed.
            os.kill(child, signal.SIGKILL)
        # Behind the pipe's end: a child that writes more than is read would wait for ever.
        os.waitpid(child, 0)


def answer_of_child(act: Callable[[int, int], NoReturn], most: int = -1) -> bytes:
    """What such a child writes."""
    with answering_child(act, most) as answer:
        return answer()


def confined(spec: dict[str, Any], folder: Path) -> int:
    """Enter the phase's view of files, and put copies of those it writes into `folder`; options for its restorer."""
    options = 0
    try:
        enter_private_view(spec)
    except OSError:
        # No user namespaces here: then nothing but landlock keeps the phase from this node's files.
        options = Option.CONFINE_WRITES | Option.ANY_FOLDER
    copy_written(spec, str(folder))
    return options


def stub_areas(flat: FlatImage) -> list[tuple[int, int]]:
    """Address ranges of stubs and their records: memory of no file around the pages that hold event records."""
    pages = [(page, page + PAGE_SIZE) for page in flat.stamps]
    joined: list[tuple[int, int]] = []
    for start, end in sorted([*pages, *((int(m.start), int(m.end)) for m in flat.mappings if not m.file)]):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return [(start, end) for start, end in joined if any(start <= page < end for page in flat.stamps)]


def restorer_said(control: Control) -> str:
    """How far the restorer came, and what stopped it."""
    progress, step, error, _, address, detail, *_ = control.report()
    if progress == RESTORED:
        return "restored"
    at, number = f"{address:#x}", f"number {detail}"
    what = STEPS.get(step, f"step {step} of the restorer").format(
        file=number, mapping=at, address=at, detail=detail, cwd="its own", opened=number
    )
    return f"{what}: {os.strerror(error)}{hint(step, error, 'too many')}"


def ending(status: int, control: Control | None = None) -> str:
    """How a phase ended, by its wait status; of one that `control` says was not restored, how far it came."""
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return "SIGKILL: the kernel ended it, most likely for want of memory"
    if control is not None and control.report()[0] != RESTORED:
        return restorer_said(control)
    return f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"status {status >> 8}"


def end_phase(pid: int) -> None:
    """Kill the phase, which we trace, and wait until it is gone."""
    os.kill(pid, signal.SIGKILL)
    gone = False
    while not gone:
        _, status = os.waitpid(pid, WALL)
        gone = os.WIFEXITED(status) or os.WIFSIGNALED(status)
