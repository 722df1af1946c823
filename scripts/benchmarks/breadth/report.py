# SPDX-License-Identifier: Apache-2.0
"""Draw docs/breadth.md from the recorded rows: what was predicted, what refused, and each figure beside its bar."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.breadth.measurement import FAILED, PREDICTED, REFUSED, UNUSABLE
from benchmarks.breadth.recorded import Row, newest
from benchmarks.pages import put_between

BEGIN, END = "<!-- rows: drawn by scripts/bench breadth -->", "<!-- end of rows -->"
_NONE = "No row yet: `scripts/bench breadth` on a quiet machine makes them."

_PREDICTED_SHARE, _IN_TIME, _MEDIAN, _WORST, _HELD, _HALF_WIDTH = 0.90, 0.90, 0.01, 0.05, 0.93, 0.025
"""Bars: programs with one working thread that are predicted, refusals in time, errors of what is shown as predicted,
intervals that hold, and the median half width."""

_QUIET = 0.05
"""By how much the full runs of a program may differ on a quiet machine, for which the bars of errors and intervals
are."""

_TRACING_MEDIAN, _TRACING_WORST = 1.10, 1.4
"""Bars: the traced run over a plain one."""

_LATE_SECONDS, _LATE_SHARE = 10.0, 0.20
"""A refusal is in time before the later of these: seconds, and share of the native time."""

_ESTIMATORS = ("calibrated", "direct", "strube")
_COLUMNS = 120
_MOST_COMMITS = 4
_MESSAGE_WORDS = 34
"""tests/repository/test_prose.py holds the words of a table cell to 35."""


def line(row: Row) -> str:
    """One row, as soon as it is measured."""
    if row["outcome"] == PREDICTED:
        said = "holds" if row["held"] else "DOES NOT HOLD"
        return (
            f"{row['program']}: predicted {row['predicted']:.3f} s ± {row['half_width']:.1%}, measured "
            f"{statistics.mean(row['full']):.3f} s: {shown_error(row):+.1%}, interval {said}"
        )
    after = f" after {row['late']:.0f} s, {row['share']:.0%} of the native time" if "late" in row else ""
    return f"{row['program']}: {outcome(row)}{after}: {row['message']}"


def outcome(row: Row) -> str:
    """What became of a program, in two words at most."""
    if row["outcome"] == REFUSED:
        return "refused rightly" if row["rightly"] else "refused wrongly"
    return str(row["outcome"])


def tables(rows: Sequence[Row]) -> str:
    """The newest row of each program: what is predicted, what is not, and how the whole stands against the bars."""
    if not rows:
        return _NONE
    rows = sorted(newest(rows), key=lambda row: (row["kind"], row["program"]))
    good = [row for row in rows if row["outcome"] == PREDICTED]
    other = [row for row in rows if row["outcome"] != PREDICTED]
    parts = [_where(rows), _bars(rows), _kinds(rows)]
    parts += [f"### Predicted\n\n{_predicted(good)}"] * bool(good)
    parts += [f"### Not predicted\n\n{_others(other)}"] * bool(other)
    return "\n\n".join(parts)


def _where(rows: Sequence[Row]) -> str:
    machines = sorted({row["machine"] for row in rows})
    dates = sorted({row["date"] for row in rows})
    commits = list(dict.fromkeys(row["commit"] for row in rows))
    loads = [row["load"]["others"] for row in rows if "load" in row]
    busy = f" Others used {statistics.median(loads):.2f} processors in the median row." if loads else ""
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    many = f"{len(commits)} commits, which `data/breadth.jsonl` names"
    probes = ", ".join(f"`{c}`" for c in commits) if len(commits) <= _MOST_COMMITS else many
    said = f"{'; '.join(machines)}. Measured {when}, probe of {probes}.{busy}"
    return textwrap.fill(said, _COLUMNS, break_long_words=False, break_on_hyphens=False)


def in_time(row: Row) -> bool:
    """Whether a refusal came soon enough."""
    return bool(row["late"] <= _LATE_SECONDS or row["share"] <= _LATE_SHARE)


def shown_error(row: Row) -> float:
    """Of the prediction that the user is shown, whichever estimators it is combined from."""
    return round(float(row["predicted"] / statistics.mean(row["full"]) - 1), 5)


def quiet(row: Row) -> bool:
    """Whether the full runs of a predicted program, no part of the prediction, say that the machine was quiet."""
    return bool((max(row["full"]) - min(row["full"])) <= _QUIET * statistics.median(row["full"]))


def bars(rows: Sequence[Row]) -> list[tuple[str, str, str, bool | None]]:
    """Each figure: what it is of, its bar, what was measured, and whether it is met (None: nothing to judge by, as for
    errors and intervals on a machine that was not quiet)."""
    good = [row for row in rows if row["outcome"] == PREDICTED]
    judged = [row for row in rows if not row["expected"] and row["outcome"] != UNUSABLE]
    reached = [row for row in judged if row["outcome"] == PREDICTED]
    refusals = [row for row in rows if row["outcome"] == REFUSED]
    wrongly = [row for row in rows if (row["outcome"] == REFUSED and not row["rightly"]) or row["outcome"] == FAILED]
    still = [row for row in good if quiet(row)]
    errors = [abs(shown_error(row)) for row in still]
    tracing = [row["tracing"] for row in good if row.get("tracing") is not None]
    widths = [row["half_width"] for row in still]
    soon, held = sum(map(in_time, refusals)), sum(row["held"] for row in still)
    return [
        _share("programs with one working thread that are predicted", len(reached), len(judged), _PREDICTED_SHARE),
        ("refused wrongly, or failed", "0", str(len(wrongly)), not wrongly),
        _share(f"refused within {_LATE_SECONDS:.0f} s or {_LATE_SHARE:.0%} of the native time", soon, len(refusals),
               _IN_TIME),
        _most("quiet: error, median", statistics.median, errors, _MEDIAN),
        _most("quiet: error, worst", max, errors, _WORST),
        _share("quiet: intervals that hold", held, len(still), _HELD),
        _most("quiet: half width of the interval, median", statistics.median, widths, _HALF_WIDTH),
        *_of_all(good),
        _times("traced run over a plain one, median", statistics.median, tracing, _TRACING_MEDIAN),
        _times("traced run over a plain one, worst", max, tracing, _TRACING_WORST),
    ]  # fmt: skip


def _of_all(good: Sequence[Row]) -> list[tuple[str, str, str, None]]:
    """The same of all rows, however much the machine was disturbed."""
    if not good:
        return []
    errors = [abs(shown_error(row)) for row in good]
    width, held = statistics.median(row["half_width"] for row in good), sum(row["held"] for row in good)
    return [
        ("all: error, median and worst", "-", f"{statistics.median(errors):.2%}, {max(errors):.2%}", None),
        ("all: intervals that hold", "-", f"{held} of {len(good)}, {held / len(good):.0%}", None),
        ("all: half width of the interval, median", "-", f"{width:.2%}", None),
    ]


def _share(what: str, part: int, whole: int, bar: float) -> tuple[str, str, str, bool | None]:
    if not whole:
        return what, f">= {bar:.0%}", "none", None
    return what, f">= {bar:.0%}", f"{part} of {whole}, {part / whole:.0%}", part >= bar * whole


def _most(
    what: str, figure: Callable[[Sequence[float]], float], values: Sequence[float], bar: float
) -> tuple[str, str, str, bool | None]:
    if not values:
        return what, f"<= {bar:.1%}", "none", None
    return what, f"<= {bar:.1%}", f"{figure(values):.2%}", figure(values) <= bar


def _times(
    what: str, figure: Callable[[Sequence[float]], float], values: Sequence[float], bar: float
) -> tuple[str, str, str, bool | None]:
    if not values:
        return what, f"<= {bar:.2f}", "none", None
    return what, f"<= {bar:.2f}", f"{figure(values):.3f}", figure(values) <= bar


def _bars(rows: Sequence[Row]) -> str:
    said = {True: "met", False: "**short**", None: "-"}
    return _table(
        ("figure", "bar", "measured", ""), [(what, bar, found, said[met]) for what, bar, found, met in bars(rows)]
    )


def _kinds(rows: Sequence[Row]) -> str:
    found = []
    for kind in dict.fromkeys(row["kind"] for row in rows):
        said = [outcome(row) for row in rows if row["kind"] == kind]
        found.append((kind, *(_number(said.count(what)) for what in _OUTCOMES)))
    return f"### By kind\n\n{_table(('kind', *_OUTCOMES), found)}"


_OUTCOMES = (PREDICTED, "refused rightly", "refused wrongly", FAILED, UNUSABLE)


def _number(count: int) -> str:
    return str(count) if count else ""


def _predicted(rows: Sequence[Row]) -> str:
    heads = ("program", "kind", "command", "plain / s", "ET_ref", "predicted / s", "95 % interval", "error",
             "calibrated", "direct", "thesis", "holds", "half width", "phases")  # fmt: skip
    lines = []
    for row in rows:
        errors = [f"{row['errors'][n]:+.1%}" if n in row["errors"] else "-" for n in _ESTIMATORS]
        lines.append(
            (
                _name(row), row["kind"], _code(row["command"]), f"{statistics.mean(row['full']):.2f}",
                _drift(row), f"{row['predicted']:.2f}", f"{row['low']:.2f} to {row['high']:.2f}",
                f"{shown_error(row):+.1%}", *errors,
                "yes" if row["held"] else "**no**", f"{row['half_width']:.1%}", str(row["phases"]),
            )
        )  # fmt: skip
    return _table(heads, lines)


def _drift(row: Row) -> str:
    """ET_ref against the plain runs: what the machine's own speed adds to the error."""
    if "reference" not in row:
        return "-"
    return f"{row['reference'] / statistics.mean(row['full']) - 1:+.1%}"


def _others(rows: Sequence[Row]) -> str:
    lines = []
    for row in rows:
        late = f"{row['late']:.0f} s, {row['share']:.0%}" if "late" in row else ""
        said = _short(row["message"])
        lines.append((_name(row), _code(row["command"]), _at_work(row), outcome(row), row["expected"], late, said))
    return _table(("program", "command", "at work", "outcome", "expected", "after", "message"), lines)


def _at_work(row: Row) -> str:
    """Threads of the largest process and processes of the native run, and what the busiest thread had of its time."""
    found = row.get("native")
    if found is None:
        return ""
    return f"threads {found['threads']}, processes {found['processes']}, largest {found['largest']:.0%}"


def _name(row: Row) -> str:
    return f"{row['program']} ({row['package']})" + " (aside)" * row["aside"]


def _code(command: str) -> str:
    words = command.split()
    short = " ".join(words[:_MESSAGE_WORDS - 4]) + " ..." * (len(words) > _MESSAGE_WORDS - 4)  # fmt: skip
    return f"`{short}`".replace("|", "\\|")


def _short(message: str) -> str:
    """A message as a table cell: few words, nothing that Markdown would take for its own."""
    words = message.replace("|", "/").replace("<", "(").replace(">", ")").replace("`", "'").split()
    return " ".join(words[:_MESSAGE_WORDS]) + " ..." * (len(words) > _MESSAGE_WORDS)


def _table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *lines))


def write(page: Path, rows: Sequence[Row]) -> None:
    """Put the tables between the page's marks."""
    put_between(page, BEGIN, END, f"\n{tables(rows)}\n")
