# SPDX-License-Identifier: Apache-2.0
"""Records of direct builds as tables, and each bar met or missed."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.accuracy.report import percent
from benchmarks.pages import measured_here, put_between
from benchmarks.rootless.both import ALLOWED
from benchmarks.rootless.programs import CAPTURED, COMPARED, HALF_MINUTE, LONG

Record = dict[str, Any]

MEDIAN, WORST = 0.005, 0.02
"""Bars of region times captured directly against CRIU's."""

FORKED, COPIED = (0.005, 0.05), (0.005, 1.1)
"""Bars of the stop: seconds, and seconds for a GB more. By a fork that is captured in the program's place, and without.
The second names no constant; the first one's is taken."""

LONG_TIMES, LONG_NONE, SHORT_TIMES = 3.1, 2.1, 6.0
"""Bars of whole builds, in native times: of the long program, of that with --runs 0, of one of half a minute."""

ROOM = 3.0
"""Bar of the work folder without a probe's size, in the program's memory."""

SEEDS = 5

_BEGIN, _END, _WIDTH = "<!-- rootless -->", "<!-- end of rootless -->", 120

_HEADS = ("program", "stops", "header", "pages", "differ", "T_ref, median", "T_ref, worst", "seeds", "phases",
          "left out", "asked for", "copied ms", "stood ms", "room")  # fmt: skip
_WHOLE_HEADS = ("program", "native s", "build", "native times", "full runs", "error", "interval", "holds")

_NAMES = {"default": "as it is", "none": "--runs 0", "nine": "nine full runs"}


def line(record: Record) -> str:
    """A record, as soon as it is measured."""
    name = record["program"]
    if "failure" in record:
        return f"{name}: FAILED: {record['failure'].splitlines()[-1]}"
    if "builds" in record:
        times = ", ".join(f"{_NAMES[kind]} {one['times']:.2f}" for kind, one in record["builds"].items())
        return f"{name}: {record['wall']:.1f} s; builds in native times: {times}; {record['bench_seconds']:.0f} s"
    found = _touched(record)
    said = f"{name}: {found['phases']} phases with {found['seeds']} seeds, {found['asked_for']} pages asked for"
    if "compared" in record:
        said += f"; {len(state_faults(record))} differences"
        said += f", T_ref {percent(_worst(record), 2)} at worst" if record["compared"]["ratios"] else ""
    return f"{said}; {record['bench_seconds']:.0f} s"


def tables(records: Sequence[Record]) -> str:
    """A row for each program, a table of whole builds, the bars, and what failed."""
    return "\n".join([*_programs(records), "", *_builds(records), "", *bars(records), *_lost(records)])


def write(page: Path, records: Sequence[Record]) -> None:
    """Put tables and bars, with machine and dates, between the page's marks. Raises ValueError."""
    if not records:
        return
    head = f"{measured_here(r['date'] for r in records)}."
    said = [textwrap.fill(f"- {text}", _WIDTH, subsequent_indent="  ") for text in (*bars(records), *_lost(records))]
    body = [textwrap.fill(head, _WIDTH), "", *_programs(records), "", *_builds(records), "", *said]
    put_between(page, _BEGIN, _END, "\n".join(body))


def bars(records: Sequence[Record]) -> list[str]:
    """Each bar: met or missed, and by which programs; how much of it is measured."""
    there = [r for r in records if r.get("seeds")]
    built = [r for r in records if "builds" in r]
    return [*_same(there), *_stops([*there, *built]), *_whole(built), *_room([*there, *built])]


def _same(records: Sequence[Record]) -> list[str]:
    compared = [r for r in records if "compared" in r]
    tried = [r for r in records if r["program"] in CAPTURED]
    wrong = [f"{r['program']} ({', '.join(faults)})" for r in compared if (faults := state_faults(r))]
    stops = sum(r["compared"]["state"]["stops"] for r in compared)
    asking = [r["program"] for r in tried if _touched(r)["asked_for"]]
    seeds = sum(len(r["seeds"]) for r in tried)
    phases, asked = (sum(_touched(r)[key] for r in tried) for key in ("phases", "asked_for"))
    off = [abs(ratio - 1) for r in compared for ratio in r["compared"]["ratios"].values()]
    far = [r["program"] for r in compared if abs(_worst(r)) > WORST]
    found = [
        _bar(
            "header and page set are those of CRIU's dump", f"{len(compared) - len(wrong)} of {len(compared)} programs",
            wrong, len(compared), len(COMPARED), f"{stops} stops. Allowed: {'; '.join(ALLOWED)}",
        ),
        _bar(
            "no page that was left out is asked for", f"{asked} in {phases} phases", asking, seeds,
            len(CAPTURED) * SEEDS, "pairs of program and seed",
        ),
    ]  # fmt: skip
    if off:
        timed = sum(bool(r["compared"]["ratios"]) for r in compared)
        median = statistics.median(off)
        found += [
            _bar(f"T_ref, direct against CRIU: median within {MEDIAN:.1%}", f"{median:.2%} of {len(off)} phases",
                 ["all"] if median > MEDIAN else [], timed, len(COMPARED)),
            _bar(f"T_ref, direct against CRIU: worst within {WORST:.0%}", f"{max(off):.2%}", far, timed, len(COMPARED)),
        ]  # fmt: skip
    return found


def state_faults(record: Record) -> list[str]:
    """What differed from CRIU's dump and may not: parts of the header, and pages."""
    state = record["compared"]["state"]
    pages = [f"{state[key]} pages {said}" for key, said in (
        ("missing", "missing"), ("extra", "more"), ("contents", "with other contents")) if state[key]]  # fmt: skip
    return [*state["header"], *pages, *(f"not captured: {why}" for why in state["refused"])]


def stops_of(record: Record) -> list[list[float]]:
    """Bytes, seconds until they were copied, and until the program went on, of each stop; none of those measured while
    the machine was in use (`--untimed`)."""
    parts = record["seeds"].values() if "seeds" in record else [record]
    return [stop for part in parts if not part.get("untimed") for stop in part["stops"]]


def _stops(records: Sequence[Record]) -> list[str]:
    records = [r for r in records if stops_of(r)]
    if not records:
        return []
    every = [stop for r in records for stop in stops_of(r)]
    found = []
    for said, at, (least, each) in (
        ("copied", 1, COPIED),
        ("reduced, too, and the program goes on", 2, COPIED),
        ("reduced, as a fork would let it go on", 2, FORKED),
    ):
        over = sum(stop[at] > least + each * stop[0] / 1e9 for stop in every)
        slow = [r["program"] for r in records if any(s[at] > least + each * s[0] / 1e9 for s in stops_of(r))]
        large = [stop[at] / (stop[0] / 1e9) for stop in every if stop[0] > 1e8]
        found.append(
            _bar(
                f"stop until pages are {said}: {1e3 * least:.0f} ms and {1e3 * each:.0f} ms a GB",
                f"{over} of {len(every)} over, longest {1e3 * max(stop[at] for stop in every):.0f} ms"
                + (f", {1e3 * statistics.median(large):.0f} ms a GB where there is more than 0.1 GB" if large else ""),
                slow,
                len(records),
                len(records),
            )
        )
    return found


def _whole(records: Sequence[Record]) -> list[str]:
    found = []
    for asked, kind, most, long in (
        ("long program, whole build", "default", LONG_TIMES, True),
        ("the same with --runs 0", "none", LONG_NONE, True),
        (f"program of {HALF_MINUTE:.0f} s, whole build", "default", SHORT_TIMES, False),
    ):
        own = [r for r in records if (r["program"] == LONG) == long]
        times = {f"{r['program']} ({r['wall']:.0f} s)": r["builds"][kind]["times"] for r in own}
        if times:
            over = [name for name, value in times.items() if value > most]
            worst, count = f"{max(times.values()):.2f}", len(times)
            found.append(_bar(f"{asked}: at most {most:g} native times", worst, over, count, count))
    beside = [r for r in records if "nine" in r["builds"]]
    if beside:
        worse = [r["program"] for r in beside if worse_than_nine(r)]
        found.append(
            _bar("error no larger than with nine runs, beyond what full runs differ by",
                 f"{len(beside) - len(worse)} of {len(beside)}", worse, len(beside), len(records))
        )  # fmt: skip
    if records:
        lost = [r["program"] for r in records if not r["builds"]["default"]["held"]]
        found.append(
            _bar("interval holds the mean of the full runs", f"{len(records) - len(lost)} of {len(records)}", lost,
                 len(records), len(records))
        )  # fmt: skip
    return found


def worse_than_nine(record: Record) -> bool:
    """Whether the few runs predict worse than nine, by more than full runs differ from each other."""
    few, nine = (abs(record["builds"][kind]["error"]) for kind in ("default", "nine"))
    return bool(few > nine + record["spread"])


def room_of(record: Record) -> list[float]:
    """How many times the program's memory the work folder held, without the probe's size."""
    parts = record["seeds"].values() if "seeds" in record else [record]
    rooms = [part["room"] for part in parts]
    return [max(0.0, one["peak"] - one["probe"]) / one["resident"] for one in rooms if one["resident"]]


def _room(records: Sequence[Record]) -> list[str]:
    worst = {r["program"]: max(found) for r in records if (found := room_of(r))}
    if not worst:
        return []
    over = [name for name, value in worst.items() if value > ROOM]
    return [
        _bar(f"work folder: at most {ROOM:.0f} times the program's memory, and the probe",
             f"{max(worst.values()):.1f} times at worst, median {statistics.median(worst.values()):.1f}", over,
             len(worst), len(worst))
    ]  # fmt: skip


def _bar(asked: str, value: str, short: Sequence[str], done: int, wanted: int, more: str = "") -> str:
    judged = "not measured" if not done else "MISSED" if short else "met"
    said = [f"{judged}: {asked}: {value}", *([", ".join(short)] if short else [])]
    if done < wanted:
        said.append(f"{done} of {wanted} measured")
    return "; ".join([*said, *([more] if more else [])])


def _touched(record: Record) -> Record:
    seeds = record["seeds"].values()
    sums = {key: sum(seed[key] for seed in seeds) for key in ("phases", "pages", "left_out")}
    return {**sums, "seeds": len(seeds), "asked_for": sum(len(seed["asked_for"]) for seed in seeds)}


def _worst(record: Record) -> float:
    return float(max((ratio - 1 for ratio in record["compared"]["ratios"].values()), key=abs, default=0.0))


def _programs(records: Sequence[Record]) -> list[str]:
    there = [r for r in records if r.get("seeds")]
    return [f"| {' | '.join(_HEADS)} |", f"|{' --- |' * len(_HEADS)}", *(_row(r) for r in there)] if there else []


def _row(record: Record) -> str:
    cells, found, stops = [record["program"]], _touched(record), stops_of(record)
    if compared := record.get("compared"):
        state, off = compared["state"], [ratio - 1 for ratio in compared["ratios"].values()]
        cells += [
            str(state["stops"]),
            "**" + ", ".join(state["header"]) + "**" if state["header"] else "equal",
            f"{state['pages']:,}",
            str(state["missing"] + state["extra"] + state["contents"]),
            percent(statistics.median(off), 2) if off else "-",
            percent(_worst(record), 2) if off else "-",
        ]
    else:
        cells += ["-"] * 6
    cells += [
        str(found["seeds"]),
        str(found["phases"]),
        f"{found['left_out'] / found['pages']:.1%}" if found["pages"] else "-",
        str(found["asked_for"]),
        *(f"{1e3 * max(stop[at] for stop in stops):.0f}" if stops else "-" for at in (1, 2)),
        f"{max(room_of(record), default=0.0):.1f}",
    ]
    return f"| {' | '.join(cells)} |"


def _builds(records: Sequence[Record]) -> list[str]:
    rows = [
        f"| {r['program']} | {r['wall']:.1f} | {_NAMES[kind]} | {one['times']:.2f} | {one['runs'] or '-'} "
        f"| {percent(one['error'])} | ±{one['half_width']:.1%} | {'yes' if one['held'] else '**no**'} |"
        for r in records
        for kind, one in r.get("builds", {}).items()
    ]
    heads = [f"| {' | '.join(_WHOLE_HEADS)} |", f"|{' --- |' * len(_WHOLE_HEADS)}"]
    return [*heads, *rows] if rows else []


def _lost(records: Sequence[Record]) -> list[str]:
    """What failed, and phases that were kept whole for another reason than a page."""
    lines = [f"FAILED: {r['program']}: {r['failure'].splitlines()[-1]}" for r in records if "failure" in r]
    whole = {
        (r["program"], why) for r in records for seed in r.get("seeds", {}).values() for why in seed["whole"]
    }  # fmt: skip
    return lines + [f"kept whole: {name}: {why}" for name, why in sorted(whole)]
