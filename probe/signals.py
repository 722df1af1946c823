# SPDX-License-Identifier: Apache-2.0
"""Ending on a signal: the stack is unwound, so that nothing is left behind, and the signal is never lost."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, NoReturn

LEAVING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals by which users, schedulers and lost terminals end a program."""

INTERRUPTED = "probe: interrupted; nothing was left running"

_AGAIN_SECONDS = 0.01


class _Interrupted(KeyboardInterrupt):
    """Where KeyboardInterrupt itself passes through code given as text, as of a dataclass that is being made, Python
    ends by the signal whatever status is asked for."""


def leave_as_commands_do() -> None:
    """At the first signal that ends programs raise KeyboardInterrupt, or SystemExit with the status of shells."""
    # What is ignored stays so: nohup and shells' background jobs rely on it.
    leave_on([number for number in LEAVING if signal.getsignal(number) is not signal.SIG_IGN], _ending)


def _ending(number: int) -> BaseException:
    return _Interrupted() if number == signal.SIGINT else SystemExit(128 + number)


@contextlib.contextmanager
def unwrapped() -> Iterator[None]:
    """Raise what a signal raised where Python put it into a RuntimeError.

    Python 3.11 does so with whatever `__set_name__` raises while a class is made, a dataclass or an enumeration.
    """
    try:
        yield
    except RuntimeError as error:
        if isinstance(error.__cause__, (_Interrupted, SystemExit)):
            raise error.__cause__ from None
        raise


def leave_on(numbers: Sequence[int], ending: Callable[[int], BaseException]) -> None:
    """At the first of the signals `numbers` raise `ending` of it in the main thread; later ones do not cut that short.

    What is raised inside a destructor, or in what Python does before and after a fork, it reports and drops
    (sys.unraisablehook); the program would go on, deaf to all signals. Then it is raised again a moment later.
    """
    raised: list[BaseException] = []
    before = sys.unraisablehook

    def leave(number: int, _frame: FrameType | None) -> NoReturn:
        for other in numbers:
            signal.signal(other, signal.SIG_IGN)
        raised[:] = [ending(number)]
        raise raised[0]

    def again(_number: int, _frame: FrameType | None) -> NoReturn:
        raise raised[0].with_traceback(None)

    def dropped(what: Any) -> None:
        if raised and what.exc_value is raised[0] and not sys.is_finalizing():
            signal.signal(signal.SIGALRM, again)
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)
        else:
            before(what)

    for number in numbers:
        signal.signal(number, leave)
    sys.unraisablehook = dropped
