# SPDX-License-Identifier: Apache-2.0
"""`probe energy`: what nodes draw."""

from __future__ import annotations

from typing import Any

import click

from probe.cli.rows import AS_JSON, FORMAT, STORE, print_outcome, print_rows


@click.group()
def energy() -> None:
    """Keep and measure the power of types of nodes."""


class _Point(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A load and its watts such as 50%=210."""

    name = "load=watts"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, float]:
        if isinstance(value, tuple):
            return value[0], value[1]
        load, _, watts = str(value).partition("=")
        try:
            share = float(load.rstrip("%")) / (100 if load.endswith("%") else 1)
            found = share, float(watts)
        except ValueError:
            self.fail(f"{value!r} is not a load and watts such as 50%=210", param, ctx)
        if not 0 <= share <= 1:
            self.fail(f"{value!r}: a load is between 0 and 1", param, ctx)
        return found


@energy.command()
@click.argument("node_type", metavar="[TYPE]", required=False)
@FORMAT
@STORE
def show(node_type: str | None, form: str, url: str | None) -> None:
    """Print what types of nodes draw, and where that is known from; the first source of a type is used."""
    from probe.store.opening import open_store
    from probe.store.records import iso
    from probe.store.runs import stored_power

    with open_store(url, create=False) as opened:
        found = stored_power(opened, node_type)
    rows = [{**one.to_json(), "set_at": iso(one.set_at)} for one in found]
    columns = {
        "type": lambda r: r["node_type"],
        "cores": lambda r: str(r["cores"]),
        "idle": lambda r: f"{r['points'][0]['watts']:g} W",
        "full": lambda r: f"{r['points'][-1]['watts']:g} W",
        "points": lambda r: str(len(r["points"])),
        "source": lambda r: r["source"],
        "set": lambda r: r["set_at"],
    }
    print_rows(rows, form, "power", columns)


@energy.command(name="set")
@click.argument("node_type", metavar="TYPE")
@click.option("--cores", required=True, type=click.IntRange(1, 1000000), help="Of one node.")
@click.option("--idle", required=True, type=click.FloatRange(min=0), help="Watts of an idle node.")
@click.option("--full", required=True, type=click.FloatRange(min=0), help="Watts with all cores busy.")
@click.option(
    "--point", "points", type=_Point(), multiple=True, help="LOAD=WATTS between them, such as 50%=210. Repeatable."
)
@click.option(
    "--source",
    type=click.Choice(("accounting", "powercap", "ipmi", "published", "hand")),
    default="hand",
    show_default=True,
    help="Where the watts come from; published: as SPECpower's tables.",
)
@AS_JSON
@STORE
def enter(
    node_type: str,
    cores: int,
    idle: float,
    full: float,
    points: tuple[tuple[float, float], ...],
    source: str,
    as_json: bool,
    url: str | None,
) -> None:
    """Enter what a type of nodes draws, idle and busy."""
    from probe.store.opening import open_store
    from probe.store.runs import set_power

    with open_store(url) as opened:
        made = set_power(opened, node_type, cores, [(0.0, idle), *points, (1.0, full)], source)
    print_outcome(as_json, "", type=made.node_type, source=made.source)


@energy.command()
@click.option("--seconds", type=click.FloatRange(0.1, 3600), default=10.0, show_default=True, help="How long.")
@click.option("--powercap", metavar="FOLDER", default="/sys/class/powercap", show_default=True, help="Of the kernel.")
@AS_JSON
def measure(seconds: float, powercap: str, as_json: bool) -> None:
    """Measure what this node draws now, by the kernel's counters or its baseboard controller."""
    import time
    from pathlib import Path

    from checkpoint.errors import ToolMissing
    from probe.scaling.meters import Meter

    with Meter(Path(powercap)) as meter:
        begun = time.monotonic()
        if meter.source:
            time.sleep(seconds)
        took = time.monotonic() - begun
    if meter.joules is None:
        reasons = "; ".join(f"{one.source}: {one.reason}" for one in meter.passed_over)
        raise ToolMissing(f"no energy can be measured here ({reasons}); enter watts with `probe energy set`")
    watts = meter.joules / took
    said = f"{watts:.4g} W over {took:.3g} s, by {meter.source}"
    said += "".join(f"\nnot by {one.source}: {one.reason}" for one in meter.passed_over)
    print_outcome(
        as_json, said, watts=watts, seconds=took, joules=meter.joules, source=meter.source,
        passed_over=[vars(one) for one in meter.passed_over],
    )  # fmt: skip
