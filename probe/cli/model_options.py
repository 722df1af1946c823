# SPDX-License-Identifier: Apache-2.0
"""Options that `probe model` and `probe simulate` share, and the objects they make."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from probe.cli.rows import STORE

if TYPE_CHECKING:
    from probe.models.expressions import Settings
    from probe.models.machine import Machine
    from probe.models.walk import Flow

Command = TypeVar("Command", bound=Callable[..., Any])


def _settings(_context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, float]:
    found = {}
    for text in given:
        name, _, value = text.partition("=")
        try:
            found[name] = float(value)
        except ValueError:
            raise click.BadParameter(f"{text}: NAME=NUMBER is wanted") from None
    return found


MODEL = click.argument("model_file", metavar="MODEL.aspen", type=click.Path(path_type=Path))
SETTINGS = click.option(
    "--set", "settings", multiple=True, metavar="NAME=NUMBER", callback=_settings, help="Value of a parameter."
)
NAMED = click.option("--model", "named", default="", metavar="NAME", help="Which of several models in the file.")
SOCKET = click.option("--socket", default="", metavar="NAME", help="Socket that computes. [default: the first]")
GRID = click.option("--grid", default="1", show_default=True, metavar="XxYxZ", help="Grid of ranks, such as 4x4x4.")


def PROBES(command: Command) -> Command:
    """Add where the seconds of `probe` resources come from."""
    command = click.option(
        "--probe", "probes", multiple=True, metavar="NAME[=SECONDS]", help="Seconds of a probe; without, the store's."
    )(command)
    return STORE(click.option("--node", default="", help="The node whose predictions the store is asked for.")(command))


def MACHINE(required: bool) -> Callable[[Command], Command]:
    """`--machine`, a machine model."""
    return click.option(
        "--machine", "machine_file", required=required, type=click.Path(path_type=Path), metavar="MACHINE.aspen",
        help="Machine model that prices computing.",
    )  # fmt: skip


def flow(model_file: Path, settings: dict[str, float], named: str) -> Flow:
    """The application that was asked for."""
    from probe.models.reader import read_model
    from probe.models.walk import flow_of

    return flow_of(read_model(model_file), _given(settings), named)


def machine(machine_file: Path, socket: str) -> Machine:
    """The machine that was asked for."""
    from probe.models.machine import read_machine
    from probe.models.reader import read_model

    return read_machine(read_model(machine_file), _given({}), socket, str(machine_file))


def _given(settings: dict[str, float]) -> Settings:
    from probe.models.expressions import Settings

    return Settings(settings)
