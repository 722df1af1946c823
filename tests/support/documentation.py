# SPDX-License-Identifier: Apache-2.0
"""The pages of docs/ as tests read them: sections, tables, the keys of published JSON, the options of every command."""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import click
from published import schema_errors

from probe.cli.main import cli
from probe.prediction.estimators import PredictionOptions

ROOT = Path(__file__).parents[2]
schema_file = runpy.run_path(str(ROOT / "scripts" / "schemas"))["file_name"]

TYPES: dict[str, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "text": (str,),
    "list": (list,),
    "object": (dict,),
    "true/false": (bool,),
    "null": (type(None),),
}

UNSHOWN_DEFAULTS = {
    "interval": "by the run",
    "min_coverage": f"{PredictionOptions().min_coverage:g}",
}
"""Options whose default is decided behind the command line."""


def pages() -> list[Path]:
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "pintools").glob("*.md")]
    assert len(found) > 10
    return sorted(found)


@cache
def text_of(name: str) -> str:
    return (ROOT / name).read_text()


def section(name: str, heading: str) -> str:
    """The part of a page below a heading, up to the next one of the same or a higher level."""
    found = re.search(rf"^(#+) {re.escape(heading)}\n(.*?)(?=^#{{1,2}} |\Z)", text_of(name), re.S | re.M)
    assert found, f"{name} has no section {heading!r}"
    return found[2]


def rows(text: str) -> list[list[str]]:
    """Cells of all tables in `text`, without heads and lines of dashes."""
    tables = re.findall(r"^\|.*\n\|[-| :]+\|\n((?:\|.*\n?)*)", text, re.M)
    lines = [line for table in tables for line in table.splitlines()]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def keys(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every key path of a JSON value with its value; `[]` for list items, `<phase>` for keys that are numbers."""
    if isinstance(value, dict):
        for name, inner in value.items():
            inside = f"{path}.{'<phase>' if name.isdigit() else name}".lstrip(".")
            yield inside, inner
            yield from keys(inner, inside)
    elif isinstance(value, list):
        for inner in value:
            if not isinstance(inner, dict):
                yield f"{path}[]", inner
            yield from keys(inner, f"{path}[]")


def check_keys(value: dict[str, Any], heading: str) -> None:
    """`value` has exactly the keys that the section lists, with their types; what may be empty may lack its items.

    And its published schema says the same.
    """
    assert schema_errors(schema_file(heading).removesuffix(".json"), value) == []
    listed = {code(cells[0])[0]: cells[1] for cells in rows(section("docs/json.md", heading))}
    found = list(keys(value))
    names = {name for name, _ in found}
    assert names - listed.keys() == set(), "not documented"
    absent = listed.keys() - names
    empty = {name for name, inner in found if inner in ([], {})}
    unexplained = {name for name in absent if not any(name.startswith((f"{e}.", f"{e}[]")) for e in empty)}
    assert unexplained == set(), "documented, but not there"
    for name, inner in found:
        kinds = [kind for word in listed[name].split(" or ") for kind in TYPES[word]]
        assert isinstance(inner, tuple(kinds)), (name, inner)
        assert isinstance(inner, bool) <= (bool in kinds), (name, inner)


def options(of: click.Command) -> Iterator[click.Option]:
    group = click.Context(cli, **cli.context_settings)
    with click.Context(of, parent=None if of is cli else group, **of.context_settings) as context:
        yield from (p for p in of.get_params(context) if isinstance(p, click.Option))


def default_of(option: click.Option) -> str:
    if option.name in UNSHOWN_DEFAULTS:
        return UNSHOWN_DEFAULTS[option.name]
    # Newer versions of click mark what was not given by an object of their own.
    given = option.default is not None and "UNSET" not in repr(option.default)
    return str(option.default) if given and not option.is_flag and not option.required else ""


def named(of: click.Group) -> Iterator[tuple[str, click.Command]]:
    """Commands of a group by their words; the first group imports its verbs when they are asked for."""
    context = click.Context(of)
    for word in of.list_commands(context):
        found = of.get_command(context, word)
        assert found is not None, word
        yield word, found


def commands(of: click.Group = cli, name: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every command by its name, the groups and what is in them included."""
    yield name, of
    for word, inner in named(of):
        full = f"{name} {word}".strip()
        if isinstance(inner, click.Group):
            yield from commands(inner, full)
        else:
            yield full, inner
