# SPDX-License-Identifier: Apache-2.0
"""The `probe` command, and `python -m probe`: Ctrl-C is caught before anything is loaded from a file."""

from __future__ import annotations

# Both are in the interpreter itself: `signal` and `os` would load modules, in which Ctrl-C ends in a traceback.
import _signal  # type: ignore[import-not-found]
import posix
import sys

_INTERRUPTED = b"probe: interrupted; nothing was left running\n"
"""As INTERRUPTED in probe/signals.py, which is not loaded yet."""

_STATUS = 130


def main() -> None:
    """Entry point of the command."""
    # What is ignored stays so; another handler is that of a program around us.
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _leave_at_once)
    try:
        from probe.signals import leave_as_commands_do, unwrapped

        leave_as_commands_do()
        with unwrapped():
            from probe.cli.main import main as command

            command()
    except KeyboardInterrupt:
        # While the command itself was loaded: it has not begun.
        posix.write(2, _INTERRUPTED)
        sys.exit(_STATUS)


def _leave_at_once(_number: int, _frame: object) -> None:
    """End without unwinding: there is nothing to clean up yet, and what is being loaded might hold the exception up."""
    posix.write(2, _INTERRUPTED)
    posix._exit(_STATUS)


if __name__ == "__main__":
    main()
