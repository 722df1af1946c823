# SPDX-License-Identifier: Apache-2.0
"""The `probe` command: its verbs, each in a module of its own, and how every error ends it."""

from __future__ import annotations

import importlib
import signal
import sys
from collections.abc import Sequence

import click

from checkpoint.errors import INTERRUPTED_EXIT_CODE, ProbeError
from probe.signals import LEAVING, leave_on

_MODULES = {
    "build": "build", "compare": "store", "completion": "completion", "doctor": "doctor", "explain": "explain",
    "export": "export", "history": "store", "net": "net", "rank": "rank", "report": "report", "run": "run",
    "show": "show", "slurm": "slurm", "store": "store", "trace": "trace", "trim": "trim",
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


class _Interrupted(KeyboardInterrupt):
    """A KeyboardInterrupt under another name. Where KeyboardInterrupt itself escapes from exec'd code (a dataclass
    being built), Python ends by the signal, whatever status is asked for."""


def _ending(number: int) -> BaseException:
    return _Interrupted() if number == signal.SIGINT else SystemExit(128 + number)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: every error of ours becomes one message and its exit code."""
    # What is ignored stays so: nohup and shells' background jobs rely on it.
    leave_on([number for number in LEAVING if signal.getsignal(number) is not signal.SIG_IGN], _ending)
    try:
        # By its name also as `python -m probe`: the shell's completion asks by it (completion.py).
        cli.main(args=list(arguments) if arguments is not None else None, prog_name="probe", standalone_mode=False)
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except ProbeError as error:
        click.echo(f"probe: {error}", err=True)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        click.echo("probe: interrupted; nothing was left running", err=True)
        sys.exit(INTERRUPTED_EXIT_CODE)


if __name__ == "__main__":
    main()
