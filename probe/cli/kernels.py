# SPDX-License-Identifier: Apache-2.0
"""`probe kernels`: what an emulation can compute with, and how fast that is here."""

from __future__ import annotations

from pathlib import Path

import click

from probe.cli.rows import FORMAT_VERSION
from probe.terminal import console, say_json


@click.command()
@click.option("--calibrate", "measure", is_flag=True, help="Measure iterations per CPU second on this node.")
@click.option(
    "--own",
    type=click.Path(path_type=Path),
    metavar="FILE.c|FILE.py",
    help="A kernel of your own, in C, assembly or Python, instead.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/json.md).")
def kernels(measure: bool, own: Path | None, as_json: bool) -> None:
    """List the kernels of `probe emulate`, and calibrate them."""
    from probe.emulation.kernels import BLAS, COMPUTING, MOVING, NO_BLAS, USER, calibrate, emulator, forget, has_blas

    what = {USER: str(own)} if own is not None else {**COMPUTING, **MOVING}
    rates, absent = {}, set[str]()
    if measure:
        program = emulator(own)
        try:
            absent = {BLAS} if own is None and not has_blas(program) else set()
            rates = {one.kernel: one for one in calibrate([name for name in what if name not in absent], program)}
        finally:
            forget(program, own)
    what.update({name: f"not here: {NO_BLAS}" for name in absent})
    rows = [
        {
            "name": name,
            "does": does,
            "rate": rates[name].rate if name in rates else None,
            "spread": rates[name].spread if name in rates else None,
        }
        for name, does in what.items()
    ]
    if as_json:
        say_json({"format_version": FORMAT_VERSION, "kernels": rows})
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for head in ("kernel", "iterations/s", "spread", "what it does"):
        table.add_column(head, justify="right" if head in ("iterations/s", "spread") else "left")
    for name, does in what.items():
        one = rates.get(name)
        table.add_row(name, f"{one.rate:.4g}" if one else "-", f"{one.spread:.1%}" if one else "-", does)
    console().print(table)
