# SPDX-License-Identifier: Apache-2.0
"""The records as one table, and each bar of the project met or missed."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

CALIBRATED_BAR, DIRECT_BAR, RESTORE_BAR = 0.03, 0.08, 0.03
TRACING_BAR, TRACING_WORST_BAR, VALIDATION_BAR = 1.2, 1.5, 1.2
INSTALL_BAR_SECONDS, INSTALL_BAR_SITES = 3.0, 100_000
REGIONS_BAR, PASS_BAR = 0.01, 0.05
WEIGHT_BAR = 0.95
SELECT_SECONDS_BAR, SELECT_MEGABYTES_BAR = 60.0, 2_000
DIRECT_MEDIAN_BAR, DIRECT_WORST_BAR, DIRECT_SHARE_BAR = 0.01, 0.04, 0.95

Record = dict[str, Any]


def _percent(value: float | None, digits: int = 1, sign: bool = True) -> str:
    if value is None:
        return "-"
    return f"{100 * value:{'+' if sign else ''}.{digits}f}"


def _boundaries(f: Record) -> str:
    b = f["boundaries"]
    return f"{b['all']}: {b['unmarked']}/{b['missing']}/{b['out_of_order']}"


def _agreeing(f: Record) -> str:
    b = f["boundaries"]
    return f"{b['markers_agreeing']}/{b['markers_compared']}"


def _direct_errors(f: Record) -> str:
    errors = [abs(e) for e in f.get("direct", {}).get("region_errors", [])]
    if not errors:
        return "-"
    return f"{_percent(statistics.median(errors), 2, sign=False)} / {_percent(max(errors), sign=False)}"


def _restore_times(f: Record) -> str:
    direct = f.get("direct", {})
    times = [direct.get("restore_median"), direct.get("restore_median_criu")]
    return " / ".join("-" if t is None else f"{t * 1e3:.0f}" for t in times)


def _disturbed(record: Record) -> str:
    """Processors' worth of other work during build, run and plain runs."""
    loads = [record.get(f"{step}_load") for step in ("build", "run", "plain")]
    return " ".join(f"{one['others'] / one['seconds']:.2f}" if one and one["seconds"] > 0.5 else "-" for one in loads)


COLUMNS: tuple[tuple[str, Callable[[Record], str]], ...] = (
    ("native s", lambda f: f"{f['native']:.2f}"),
    ("±%", lambda f: _percent(f["native_spread"], sign=False)),
    ("calibr. %", lambda f: _percent(f["errors"].get("calibrated"))),
    ("direct %", lambda f: _percent(f["errors"].get("direct"))),
    ("strube %", lambda f: _percent(f["errors"].get("strube"), 0)),
    ("95 % holds", lambda f: f"{'yes' if f['held'] else 'NO'} ±{_percent(f['reach'], sign=False)}"),
    ("random %", lambda f: _percent(f.get("random_error"), sign=False)),
    ("selected %", lambda f: _percent(f["selection_error"], 2)),
    ("phases", lambda f: str(f["phases"])),
    ("restore % med/worst", lambda f: f"{_percent(f['restore_error_median'], sign=False)} / "
     f"{_percent(f['restore_error_worst'], sign=False)}"),
    ("direct/criu % med/worst", lambda f: _direct_errors(f)),
    ("restore ms direct/criu", lambda f: _restore_times(f)),
    ("tracing", lambda f: f"{f['tracing']:.2f}"),
    ("timing", lambda f: f"{f['validation']:.2f}"),
    ("boundaries: u/m/o", _boundaries),
    ("counts agree", _agreeing),
    ("sites -removed", lambda f: f"{f['sites']['installed']} -{f['sites']['removed']}"),
    ("install s", lambda f: f"{f['sites']['seconds']:.1f}"),
    ("own env %", lambda f: _percent(f["own_environment"] - 1)),
    ("MB", lambda f: f"{f['size_bytes'] / 1e6:.0f}"),
)  # fmt: skip


def table(records: Sequence[Record]) -> str:
    """All programs, one line each, failures included."""
    rows = [["program", *(name for name, _ in COLUMNS), "other load"]]
    remarks = []
    for record in records:
        found = record.get("figures")
        if found and "native" in found:
            rows.append([record["name"], *(show(found) for _, show in COLUMNS), _disturbed(record)])
        else:
            said = record.get("refused") or record.get("failure") or "no figures"
            word = "refused, as it should be" if "refused" in record else "FAILED"
            remarks.append(f"{record['name']}: {word}: {said.splitlines()[-1]}")
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join([row[0].ljust(widths[0]), *cells[1:]]))
    return "\n".join([*lines, *remarks])


def bars(records: Sequence[Record], install: Record | None, long: Record | None, page: Record | None) -> str:
    """One line for each bar, with what was measured."""
    good = [r for r in records if "figures" in r and "native" in r["figures"]]
    failed = [r["name"] for r in records if "failure" in r]
    lines = []

    def bar(what: str, said: str, met: bool | None) -> None:
        lines.append(f"{'  met' if met else '  n/a' if met is None else 'SHORT'}  {what}: {said}")

    def over(limit: float, key: Callable[[Record], float | None]) -> list[str]:
        return [f"{r['name']} {v:+.1%}" for r in good if (v := key(r["figures"])) is not None and abs(v) > limit]

    if good:
        for name, limit in (("calibrated", CALIBRATED_BAR), ("direct", DIRECT_BAR)):
            found = over(limit, lambda f, name=name: f["errors"].get(name))
            within = f"{len(good) - len(found)} of {len(good)}"
            bar(f"{name} within {limit:.0%}", f"{within}; over: {found or 'none'}", not found)
        held = [r["name"] for r in good if not r["figures"]["held"]]
        bar("95 % interval holds the median", f"{len(good) - len(held)} of {len(good)}; not: {held or 'none'}", None)
        restored = over(RESTORE_BAR, lambda f: f["restore_error_median"])
        bar(f"restored region within {RESTORE_BAR:.0%}, median phase", f"over: {restored or 'none'}", not restored)
        tracing = [r["figures"]["tracing"] for r in good]
        bar(f"tracing, median at most {TRACING_BAR}", f"{statistics.median(tracing):.3f}",
            statistics.median(tracing) <= TRACING_BAR)  # fmt: skip
        bar(f"tracing, worst at most {TRACING_WORST_BAR}", f"{max(tracing):.3f}", max(tracing) <= TRACING_WORST_BAR)
        slow = [f"{r['name']} {v:.2f}" for r in good if (v := r["figures"]["validation"]) > VALIDATION_BAR]
        bar(f"timing run at most {VALIDATION_BAR}", f"over: {slow or 'none'}", not slow)
        counted = [(r["name"], r["figures"]["boundaries"]) for r in good]
        late = [name for name, b in counted if b["missing"] or b["out_of_order"]]
        bar("every boundary stamped in order", f"not: {late or 'none'}", not late)
        bare = [f"{name} {b['unmarked']} of {b['all']}" for name, b in counted if b["unmarked"]]
        bar("boundaries without a site active on both sides (intervals joined)", f"{bare or 'none'}", None)
        shifted = [name for name, b in counted if b["markers_agreeing"] != b["markers_compared"]]
        bar("two runs agree on every count", f"not: {shifted or 'none'}", not shifted)
        for record in good:
            if record["name"] == "matmul":
                share, weight = (record["figures"][f"largest_{k}"] for k in ("time_share", "weight"))
                said = f"{share:.1%} of the time, {weight:.1%} of the counted instructions"
                bar(f"matrix multiplication: one stratum above {WEIGHT_BAR:.0%}", said, share > WEIGHT_BAR)
        lines += _direct_bars([(r["name"], r["figures"]["direct"]) for r in good if "direct" in r["figures"]])
    if install is not None:
        if "seconds" in install:
            scaled = install["seconds"] * INSTALL_BAR_SITES / install["sites"]
            said = f"{install['sites']} in {install['seconds']:.2f} s"
            bar(f"10^5 sites installed in {INSTALL_BAR_SECONDS:g} s", said, scaled < INSTALL_BAR_SECONDS)
        else:
            bar("10^5 sites installed", install["failure"], False)
    if long is not None and "figures" in long:
        f = long["figures"]
        bar(f"regions alone under {REGIONS_BAR:.0%} of a minute", f"{f['regions_share']:.2%}",
            f["regions_share"] < REGIONS_BAR)  # fmt: skip
        bar(f"with warm-up and restores under {PASS_BAR:.0%}", f"{f['one_pass_share']:.2%}",
            f["one_pass_share"] < PASS_BAR)  # fmt: skip
    elif long is not None:
        bar("one pass over a program of a minute", long.get("failure", "no figures"), False)
    if page is not None:
        places = ", ".join(
            f"{k.removesuffix('_ns').replace('_', ' ')} {v:.2f} ns" for k, v in page.items() if "_ns" in k
        )
        bar("one count, by where the counter lies from the code", places, None)
    if failed:
        bar("every program gives a probe", f"failed: {failed}", False)
    return "\n".join(lines)


def _direct_bars(found: Sequence[tuple[str, Record]]) -> list[str]:
    """The direct restorer against CRIU, over all phases of all programs."""
    errors = [abs(e) for _, d in found for e in d["region_errors"]]
    if not errors:
        return []
    phases, possible = (sum(d[k] for _, d in found) for k in ("phases", "possible"))
    over = {name: sum(abs(e) > DIRECT_WORST_BAR for e in d["region_errors"]) for name, d in found}
    over_names = ", ".join(f"{name} {count}" for name, count in over.items() if count)
    late, slower = (sum(d[k] for _, d in found) for k in ("restore_over_bar", "slower_than_criu"))
    median, worst = statistics.median(errors), max(errors)
    rows = [
        (median <= DIRECT_MEDIAN_BAR, f"direct against CRIU, region time, median within {DIRECT_MEDIAN_BAR:.0%}",
         f"{median:.2%}"),
        (worst <= DIRECT_WORST_BAR, f"the same, worst within {DIRECT_WORST_BAR:.0%}",
         f"{worst:.1%}; over in {sum(over.values())} of {len(errors)} phases: {over_names or 'none'}"),
        (possible >= DIRECT_SHARE_BAR * phases, "phases that direct can restore", f"{possible} of {phases}"),
        (not late, "direct restore within 20 ms + 1 ms per 2 MB", f"{late} of {possible} phases over"),
        (not slower, "never slower than CRIU", f"{slower} of {possible} phases slower"),
    ]  # fmt: skip
    return [f"{'  met' if met else 'SHORT'}  {what}: {said}" for met, what, said in rows]


def scale(record: Record) -> str:
    """Two lines about very large profiles."""
    select, read = record["select"], record["read"]
    met = select["seconds"] <= SELECT_SECONDS_BAR and select["megabytes"] <= SELECT_MEGABYTES_BAR
    return (
        f"{'  met' if met else 'SHORT'}  selection from 100,000 intervals x 50,000 blocks in {SELECT_SECONDS_BAR:g} s "
        f"and {SELECT_MEGABYTES_BAR:,} MB: {select['seconds']:.1f} s ({select['cpu_seconds']:.1f} s of CPU), "
        f"{select['megabytes']:,.0f} MB, {select['phases']} phases, off by {_percent(select['selection_error'])} %\n"
        f"  n/a  reading the largest profile of the native tracer, {read['entries']:,} entries, "
        f"{read['bytes'] / 1e6:.0f} MB on disk: {read['seconds']:.1f} s, {read['megabytes']:,.0f} MB"
    )


def many(record: Record) -> str:
    """One line about eight nodes driven by one prober, round after round."""
    failures, left = sum(record["failures"].values()), sum(record["left"].values())
    return (
        f"{'  met' if not failures and not left else 'SHORT'}  {record['nodes']} nodes, {record['rounds']} rounds: "
        f"{failures} failures, {left} things left; a round takes {record['round_seconds']:.1f} s, sends "
        f"{record['first_sent'] / 1e6:.1f} MB at first and {record['later_sent'] / 1e6:.2f} MB later"
    )


def link(record: Record) -> str:
    """One line about a probe over a slow link."""
    first, again = record["first"], record["again"]
    return (
        f"{record['name']}: {record['size_bytes'] / 1e6:.1f} MB, {record['touched'] / 1e6:.1f} MB in the largest; "
        f"{first['sent_bytes'] / 1e6:.2f} MB sent, done after {first['seconds']:.1f} s, {first['early_repeats']} "
        f"repeats before the last byte; again: {again['sent_bytes'] / 1e6:.2f} MB, {again['seconds']:.1f} s"
    )
