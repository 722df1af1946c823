# SPDX-License-Identifier: Apache-2.0
"""The `probe` command: its verbs, each in a module of its own, and how every error ends it."""

from __future__ import annotations

import importlib
import io
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from checkpoint.errors import INTERRUPTED_EXIT_CODE, ProbeError, StorageError
from probe.signals import INTERRUPTED, leave_as_commands_do
from probe.terminal import say, show_all_characters

_MODULES = {
    "app": "app", "bench": "bench", "build": "build", "check": "check", "compare": "store", "completion": "completion",
    "doctor": "doctor", "emulate": "emulate", "energy": "energy", "explain": "explain", "export": "export",
    "history": "store", "kernels": "kernels", "model": "model", "mpi": "mpi", "net": "net", "plan": "plan",
    "profile": "profile", "queue": "queue", "rank": "rank", "report": "report", "run": "run", "scale": "scale",
    "show": "show", "simulate": "simulate", "slurm": "slurm", "store": "store", "trace": "trace", "trim": "trim",
    "usage": "usage",
}  # fmt: skip
"""Verb -> module beside this one that holds a command of that name."""


class _Verbs(click.Group):
    """The verbs, each imported when it is asked for: no verb waits for another's libraries."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _MODULES:
            return None
        found = getattr(importlib.import_module(f"probe.cli.{_MODULES[cmd_name]}"), cmd_name)
        assert isinstance(found, click.Command)
        return found


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="probe")
def cli() -> None:
    """Predict how long a program takes on another machine, from seconds of it."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: every error of ours becomes one message and its exit code."""
    leave_as_commands_do()
    show_all_characters()
    try:
        # By its name also as `python -m probe`: the shell's completion asks by it (completion.py).
        cli.main(args=list(arguments) if arguments is not None else None, prog_name="probe", standalone_mode=False)
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
    except click.ClickException as error:
        shown = io.StringIO()
        error.show(shown)
        say(shown.getvalue(), err=True, end=False)
        sys.exit(error.exit_code)
    except ProbeError as error:
        _end(error, error.exit_code)
    except OSError as error:
        _end(error, StorageError.exit_code)
    except MemoryError:
        _end("not enough memory; end other programs, or use a larger machine", StorageError.exit_code)
    except (KeyboardInterrupt, click.Abort):
        say(INTERRUPTED, err=True)
        sys.exit(INTERRUPTED_EXIT_CODE)


def _end(said: object, status: int) -> NoReturn:
    say(f"probe: {said}", err=True)
    sys.exit(status)


if __name__ == "__main__":
    main()
