# SPDX-License-Identifier: Apache-2.0
"""Run two passes over parts of a work, each part in a process of its own that stays between the passes."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Collection, Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from typing import Any, TypeVar

from checkpoint.parent import die_with_parent

_Part = TypeVar("_Part")
_State = TypeVar("_State")
_Told = TypeVar("_Told")
_All = TypeVar("_All")
_Result = TypeVar("_Result")

SECONDS = 600.0
"""A process that says nothing for so long has failed."""

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def two_passes(
    parts: Sequence[_Part],
    first: Callable[[_Part], tuple[_State, _Told]],
    merged: Callable[[list[_Told]], _All],
    second: Callable[[_State, _All], _Result],
    processors: Collection[int],
) -> list[_Result] | None:
    """What `second` makes of each part's state and of what all parts told in the first pass. None where a process
    failed, by lack of memory for instance: then the work is still to be done.

    States stay in their processes; what is told, and results, go through pipes. Processes are forked: they see all that
    is here, and run on `processors`.
    """
    fork = multiprocessing.get_context("fork")
    pipes: list[Connection] = []
    processes: list[ForkProcess] = []
    try:
        for part in parts:
            ours, theirs = fork.Pipe()
            pipes.append(ours)
            with theirs, _interrupted_later():
                given = (os.getpid(), [*pipes], theirs, part, first, second, processors)
                process = fork.Process(target=_work, args=given, daemon=True)
                process.start()
                processes.append(process)
        everything = merged([_received(pipe) for pipe in pipes])
        for pipe in pipes:
            pipe.send(everything)
        return [_received(pipe) for pipe in pipes]
    except (OSError, EOFError):
        return None
    finally:
        # All that they know is here, or of no use.
        for process in processes:
            process.kill()
        for process in processes:
            process.join()
            process.close()
        for pipe in pipes:
            pipe.close()


@contextlib.contextmanager
def _interrupted_later() -> Iterator[None]:
    """Signals that end this process come when it knows its new child, and never to the child before it is ready."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _received(pipe: Connection) -> Any:
    if not pipe.poll(SECONDS):
        raise OSError("a process says nothing")
    return pipe.recv()


def _work(
    parent: int,
    others: Sequence[Connection],
    pipe: Connection,
    part: _Part,
    first: Callable[[_Part], tuple[_State, _Told]],
    second: Callable[[_State, _All], _Result],
    processors: Collection[int],
) -> None:
    """In a process of its own. Its parent ends it, or its parent's end."""
    die_with_parent(parent)
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)
    for other in others:
        other.close()
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, processors)
    # Whoever asked does the work by himself then, and sees what goes wrong.
    with contextlib.suppress(Exception):
        state, told = first(part)
        pipe.send(told)
        pipe.send(second(state, pipe.recv()))
    pipe.close()
