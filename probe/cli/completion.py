# SPDX-License-Identifier: Apache-2.0
"""`probe completion`: what a shell reads to complete the command's words."""

from __future__ import annotations

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from probe.terminal import say

COMPLETE_VARIABLE = "_PROBE_COMPLETE"
"""By which the shell's function asks for words; click answers (click, "Shell Completion")."""
_SHELLS: dict[str, type[ShellComplete]] = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


@click.command()
@click.argument("shell", type=click.Choice(list(_SHELLS)))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that completes commands and options in SHELL."""
    # Not its `source`, which refuses where the shell of that name is too old or absent here.
    made = _SHELLS[shell](context.find_root().command, {}, "probe", COMPLETE_VARIABLE)
    say(made.source_template % made.source_vars())
