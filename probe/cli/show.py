# SPDX-License-Identifier: Apache-2.0
"""`probe show`: what a probe contains, and how far to trust it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from probe.cli.figures import milliseconds, percent, seconds, sharing_words, size
from probe.cli.parameters import PROBE_FILE
from probe.cli.rows import AS_JSON
from probe.formats.choices import SECONDS
from probe.prediction.busyness import said
from probe.terminal import console, one_line, say, say_json

if TYPE_CHECKING:
    from probe.inspection.trimming import Tradeoff

_MUCH_KERNEL = 0.05
"""Share of a phase's CPU time in the kernel from which on the phase is named."""

_ALL_COUNTED = 0.9995
"""Share of the instructions that is printed as all of them."""


@click.command()
@PROBE_FILE
@click.option("--tradeoff", is_flag=True, help="What keeping fewer phases would give (probe trim).")
@AS_JSON
def show(probe_file: Path, tradeoff: bool, as_json: bool) -> None:
    """Show what a probe contains and how far to trust it."""
    if not tradeoff:
        print_description(probe_file, as_json)
        return
    from probe.inspection.trimming import tradeoff as tradeoff_of
    from probe.inspection.trimming import tradeoff_json

    if as_json:
        say_json(tradeoff_json(probe_file))
    else:
        print_tradeoff(tradeoff_of(probe_file))


def print_description(probe_file: Path, as_json: bool) -> None:
    """Print what is in the probe, as JSON or for people. Raises ProbeFileDamaged, StorageError."""
    from probe.inspection.description import show as describe

    description = describe(probe_file)
    if as_json:
        say_json(description)
    else:
        print_probe(description)


def _interval(description: dict[str, Any]) -> str:
    if description["unit"] == SECONDS:
        return seconds(description["interval_seconds"])
    return f"{description['interval'] / 1e6:g} M instructions"


def _in_kernel(phases: list[dict[str, Any]]) -> str:
    """Share of the CPU time in the kernel, and the phases where it is much."""
    known = [(p["id"], p["time_share"], p["kernel"]["run"], p["kernel"]["run_error"]) for p in phases]
    known = [one for one in known if one[2] is not None]
    covered = sum(share for _, share, _, _ in known)
    if not covered:
        return "not known"
    whole = sum(share * inside for _, share, inside, _ in known) / covered
    named = ", ".join(f"{phase}: {i:.0%} ± {e:.0%}" for phase, _, i, e in known if i >= _MUCH_KERNEL)
    return f"{percent(whole)} of the CPU time{' (phases ' + named + ')' if named else ''}"


def _warmup(described: dict[str, Any]) -> str:
    """The warm-up, and what others would have done to the region times."""
    tried = ", ".join(
        f"{t['intervals']}: {t['relative'] - 1:+.1%} ± {t['error']:.1%}" for t in described["trials"][:-1]
    )
    compared = f" (regions against {described['trials'][-1]['intervals']}: {tried})" if tried else ""
    return f"{described['intervals']} interval{'s' * (described['intervals'] != 1)}{compared}"


def _outside(described: dict[str, Any]) -> str:
    """The time in other processes and threads, and how many there were."""
    return (
        f"{percent(described['share'], 2)} of the time in {described['processes']} other processes or threads "
        f"({described['wall_seconds']:.3g} s, {described['cpu_seconds']:.3g} s CPU): "
        + ", ".join(described["commands"])
    )


def _data(described: dict[str, Any]) -> list[str]:
    """How much of the memory is the program's own, and why the phases kept it that did."""
    from probe.inspection.real_data import real_sentence

    lines = [f"data            {real_sentence(described)}"]
    kept: dict[str, list[str]] = {}
    for phase in described["phases"]:
        if why := phase["synthetic"]["refused"]:
            kept.setdefault(why, []).append(str(phase["id"]))
    return [*lines, *(f"real data       in phases {', '.join(ids)}: {why}" for why, ids in kept.items())]


def _own_environment(found: float | None) -> str:
    return "" if found is None else f"; {seconds(found)} in its plain environment"


def _counted(share: float | None) -> str:
    """Said where not everything was counted."""
    return "" if share is None or share >= _ALL_COUNTED else f", {percent(share)} of the instructions counted"


def print_probe(description: dict[str, Any]) -> None:
    """The description for people."""
    from rich.table import Table

    d = description
    saved = 1 - d["size_bytes"] / d["raw_bytes"] if d["raw_bytes"] else 0.0
    compared = f"{percent(saved)} less than" if saved >= 0 else "more than"
    lines = [
        f"program         {' '.join(d['program'])}",
        f"ET_ref          {seconds(d['et_ref_seconds'])} ({d['clock']} time, from {len(d['et_ref_runs'])} runs"
        f"{_own_environment(d['et_plain_environment_seconds'])})",
        f"size            {size(d['size_bytes'])}, {compared} its raw checkpoints ({size(d['raw_bytes'])})",
        f"intervals       {d['intervals']} of {_interval(d)}, {len(d['phases'])} phases"
        f"{' left of ' + str(d['trimmed_from']) if d['trimmed_from'] else ''}, "
        f"{percent(d['coverage'])} of the time covered",
        f"noise           {d['noise']:.3f} (timing run / plain run); tracing {d['tracing_overhead']:.3f}"
        f"{_counted(d['counted_share'])}",
        f"errors          selection {percent(d['errors']['selection'], 2)} "
        f"(held out {percent(d['errors']['selection_held_out'], 2)}), "
        f"restore {percent(d['errors']['restore'], 2)} in the median",
        f"kernel          {_in_kernel(d['phases'])}",
        f"warm-up         {_warmup(d['warmup'])}",
        f"any user        {sum(1 for p in d['phases'] if not p['only_criu'])} of {len(d['phases'])} phases can be "
        "restored without root and CRIU",
        f"CPU features    {' '.join(d['cpu_features']) or 'those of every x86-64 processor'}",
    ]
    if d["yardsticks"]:
        lines.append(f"busy            {said(d['yardsticks'])} (in the self-check)")
    if d["threads"] > 1:
        lines.append(f"threads         {d['threads']} share the work: a node needs as many processors")
    if d["sharing"]:
        lines.append(f"sharing         {sharing_words(d['sharing'])}")
    if d["outside"]["processes"]:
        lines.append(f"outside         {_outside(d['outside'])}")
    if any(p["synthetic"]["refused"] or p["synthetic"]["words"] for p in d["phases"]):
        lines += _data(d)
    for line in lines:
        say(one_line(line))
    table = Table(box=None, pad_edge=False)
    shared = ("alone", "imbalance", "not running") if d["sharing"] else ()
    for name in (
        "phase",
        "at/s",
        "stands for",
        "weight",
        "time",
        "T_run/ms",
        "T_ref/ms",
        "restore",
        "kept",
        *shared,
        "",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for p in d["phases"]:
        threads = p["sharing"] or {}
        table.add_row(
            str(p["id"]), f"{p['started_seconds']:.2f}", str(p["intervals"]), percent(p["weight"]),
            percent(p["time_share"]), milliseconds(p["t_run"]), milliseconds(p["t_ref"]),
            percent(p["restore_error"]), percent(p["pages"]["kept"] / max(1, p["pages"]["raw"])),
            *(percent(threads.get(key)) for key in ("alone", "imbalance", "waiting")[: len(shared)]),
            "" if p["status"] == "ok" else p["status"],
        )  # fmt: skip
    console().print(table)
    for file in d["files"]:
        say(one_line(f"{file['purpose']:<8} {file['path']} ({size(file['size'])})"))
    for file in d["external_files"]:
        line = f"external {file['path']} ({size(file['size'])}): every node must have it"
        say(one_line(line))
    for note in d["notes"]:
        say(one_line(f"note: {note}"))
    for warning in d["warnings"]:
        say(one_line(f"warning: {warning}"))


def print_tradeoff(rows: Sequence[Tradeoff]) -> None:
    """What keeping fewer phases would give."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("phases", "coverage", "size", "expected error"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            str(row.phases), percent(row.coverage), size(row.size_bytes), percent(row.expected_error, 2)
        )  # fmt: skip
    console().print(table)
