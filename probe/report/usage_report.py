# SPDX-License-Identifier: Apache-2.0
"""A report on a resource profile from beginning to end: read, drawn, written as files and as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from checkpoint.errors import ProbeError
from checkpoint.foreign_file import finite, read_foreign_json
from probe.emulation.metrics import key_of, metrics
from probe.emulation.usage import Usage, load_usage
from probe.formats.result import EMULATION_VERSION, METHOD
from probe.progress import Display, Silent
from probe.report.drawing import Drawing, style
from probe.report.figure_files import write_drawings, write_file
from probe.report.page import picture
from probe.report.templates import templates
from probe.report.usage_figures import Shown, usage_figures
from probe.report.writing import Report
from reducer.output_file import check_target

SUFFIX = ".usage"


def write_usage_report(
    profile: Path, others: Sequence[Path] = (), *, page: Path | None = None, figures: Path | None = None,
    display: Display | None = None,
) -> Report:  # fmt: skip
    """Draw a resource profile. `others`: profiles to draw beside it, and files of `probe emulate --json`.

    Files have mode 0600. Raises ProbeError for emulations of another command, ProbeFileDamaged, StorageError.
    """
    if page is not None:
        check_target(page)
    with (display or Silent()).stage("draw") as report, style():
        usage = load_usage(profile)
        beside = [Shown(path.name, load_usage(path)) for path in others if path.suffix == SUFFIX]
        emulated: dict[str, list[Mapping[str, Any]]] = {}
        without = 0
        for path in others:
            if path.suffix != SUFFIX:
                found, failed = _emulations(path, usage)
                emulated.update(found)
                without += failed
        drawings = usage_figures(Shown(profile.name, usage), beside, emulated)
        files = write_drawings(drawings, figures.absolute()) if figures is not None else []
        if page is not None:
            text = _page(profile, usage, drawings)
            write_file(page.absolute(), lambda out: out.write(text.encode("utf-8", "replace")))
        report(1.0)
    return Report(page, tuple(files), len(emulated) + without, without)


def _emulations(path: Path, usage: Usage) -> tuple[dict[str, list[Mapping[str, Any]]], int]:
    """Totals of the emulations in a file, by their nodes' names; and how many nodes had none."""
    value = read_foreign_json(path, "give the file that `probe emulate --json` printed")
    try:
        candidates = value.get("candidates")
        listed = [value] if candidates is None else [one["result"] for one in candidates]
        results = [one for one in listed if one is not None]
        found = {f"{one['node']['name']}, {one['kernel']}": _totals(one, path, usage) for one in results}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProbeError(f"{path}: not what `probe emulate --json` prints ({error!r}); emulate again") from error
    return found, len(listed) - len(results)


def _totals(result: Mapping[str, Any], path: Path, usage: Usage) -> list[Mapping[str, Any]]:
    if result["method"] != METHOD or result["format_version"] != EMULATION_VERSION:
        raise ValueError("another method or version")
    if tuple(result["program"]) != key_of(usage)[0]:
        raise ProbeError(f"{path}: emulates another command ({' '.join(map(str, result['program']))[:200]})")
    return [
        {
            "name": str(one["name"]), "unit": str(one["unit"]), "wanted": finite(one["wanted"]),
            "profiled": None if one["profiled"] is None else finite(one["profiled"]),
            "emulated": finite(one["emulated"]),
        }
        for one in result["totals"]
    ]  # fmt: skip


def _page(profile: Path, usage: Usage, drawings: Sequence[Drawing]) -> str:
    return (
        templates()
        .get_template("usage.html")
        .render(
            name=profile.name, header=usage.header, usage=usage, metrics=metrics(usage), pictures=map(picture, drawings)
        )
    )
