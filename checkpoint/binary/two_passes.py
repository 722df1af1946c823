# SPDX-License-Identifier: Apache-2.0
"""Run two passes over parts of a work, each part in a process of its own that stays between the passes."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Collection, Sequence
from multiprocessing.connection import Connection
from typing import Any, TypeVar

_Part = TypeVar("_Part")
_State = TypeVar("_State")
_Told = TypeVar("_Told")
_All = TypeVar("_All")
_Result = TypeVar("_Result")

SECONDS = 600.0
"""A process that says nothing for so long has failed."""

_ENDING_SECONDS = 1.0


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
    processes = []
    try:
        for part in parts:
            ours, theirs = fork.Pipe()
            pipes.append(ours)
            processes.append(
                fork.Process(target=_work, args=(list(pipes), theirs, part, first, second, processors), daemon=True)
            )
            processes[-1].start()
            theirs.close()
        everything = merged([_received(pipe) for pipe in pipes])
        for pipe in pipes:
            pipe.send(everything)
        return [_received(pipe) for pipe in pipes]
    except (OSError, EOFError):
        return None
    finally:
        for pipe in pipes:
            pipe.close()
        for process in processes:
            # One that is done is about to end by itself; a failed one's neighbours are of no use.
            process.join(_ENDING_SECONDS)
            process.kill()
            process.join()
            process.close()


def _received(pipe: Connection) -> Any:
    if not pipe.poll(SECONDS):
        raise OSError("a process says nothing")
    return pipe.recv()


def _work(
    others: Sequence[Connection],
    pipe: Connection,
    part: _Part,
    first: Callable[[_Part], tuple[_State, _Told]],
    second: Callable[[_State, _All], _Result],
    processors: Collection[int],
) -> None:
    # With these open it would not see that the parent has died.
    for other in others:
        other.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, processors)
    # Whoever asked does the work by himself then, and sees what goes wrong.
    with contextlib.suppress(Exception):
        state, told = first(part)
        pipe.send(told)
        pipe.send(second(state, pipe.recv()))
    pipe.close()
