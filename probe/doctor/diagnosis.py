# SPDX-License-Identifier: Apache-2.0
"""Say what on this machine stands in the way of making and running probes, and mend what can be mended."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from checkpoint.criu.private_copy import fetch_private_criu
from checkpoint.criu.tool import format_version
from checkpoint.errors import ProbeError, ToolMissing
from probe.doctor.checks import BETTER, FOR_CRIU, GOVERNORS, NEEDED, Finding, checks, need_of
from probe.terminal import console, say, say_json

FORMAT_VERSION: Final = 1
"""Version of the JSON report; raised when a key changes its meaning or goes away."""

_APT_TIMEOUT: Final = 900.0
_HEADINGS: Final = {NEEDED: "needed", BETTER: "better with", FOR_CRIU: "only for --capture criu and --restorer criu"}


@dataclass(frozen=True)
class Repair:
    """What `fix` did about one finding."""

    name: str
    done: bool
    detail: str


def examine(folder: Path | None = None) -> list[Finding]:
    """Run every check, in the order in which problems should be mended. Takes some two seconds.

    `folder` is where work files will go (default: the current folder). A check that itself breaks is reported
    as failed, never raised.
    """
    folder = folder or Path.cwd()
    findings = []
    for name, check in checks(folder):
        try:
            found = check()
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            found = Finding(name, "fail", f"the check itself broke: {error}", exit_code=ProbeError.exit_code)
        findings.append(replace(found, name=name, need=need_of(name)))
    return findings


def fix(findings: Iterable[Finding]) -> list[Repair]:
    """Mend every fixable finding that is not ok; look again with `examine` afterwards.

    Installs packages and changes settings only with root; never asks anything.
    """
    repairs = []
    for finding in findings:
        if finding.status == "ok" or not finding.fixable:
            continue
        try:
            repairs.append(Repair(finding.name, True, _FIXES[finding.name]()))
        except (ProbeError, OSError) as error:
            repairs.append(Repair(finding.name, False, str(error)))
    return repairs


_mend = fix


def exit_code(findings: Iterable[Finding]) -> int:
    """0 when nothing failed, else the exit code of the first failure."""
    return next((f.exit_code for f in findings if f.status == "fail"), 0)


def report_json(findings: Iterable[Finding], repairs: Iterable[Repair] = ()) -> dict[str, Any]:
    """The report: `format_version`, `status` (the worst one), `exit_code`, `findings`, `repairs`."""
    listed = list(findings)
    seen = {f.status for f in listed}
    return {
        "format_version": FORMAT_VERSION,
        "status": next((s for s in ("fail", "warn") if s in seen), "ok"),
        "exit_code": exit_code(listed),
        "findings": [asdict(f) for f in listed],
        "repairs": [asdict(r) for r in repairs],
    }


def run_doctor(fix: bool = False, as_json: bool = False) -> int:
    """Examine, mend when asked, print, and return the exit code of `probe doctor`."""
    findings = examine()
    repairs: list[Repair] = []
    if fix:
        repairs = _mend(findings)
        findings = examine() if repairs else findings
    if as_json:
        say_json(report_json(findings, repairs))
    else:
        _print(findings, repairs)
    return exit_code(findings)


def _print(findings: list[Finding], repairs: list[Repair]) -> None:
    out = console()
    if out.is_terminal:
        table = Table("", "check", "found", box=None, pad_edge=False)
        marks = {"ok": ("ok", "green"), "warn": ("warn", "yellow"), "fail": ("FAIL", "red")}
        for heading, group in _groups(findings):
            table.add_row("", Text(heading, "bold"), "")
            for finding in group:
                table.add_row(Text(*marks[finding.status]), finding.name, "\n-> ".join(_lines(finding)))
        out.print(table)
    else:
        for heading, group in _groups(findings):
            say(f"{heading}:")
            for finding in group:
                say(f"{finding.status:4}  {finding.name:13}  " + "\n".join(_indented(_lines(finding))))
    for repair in repairs:
        say(f"{'mended' if repair.done else 'could not mend'} {repair.name}: {repair.detail}")
    fixable = [f.name for f in findings if f.fixable and f.status != "ok"]
    if fixable and not repairs:
        say(f"`probe doctor --fix` can mend: {', '.join(fixable)}")


def _groups(findings: list[Finding]) -> Iterator[tuple[str, list[Finding]]]:
    """(heading, findings) of what is needed, what helps, and what CRIU alone wants."""
    for need, heading in _HEADINGS.items():
        if group := [finding for finding in findings if finding.need == need]:
            yield heading, group


def _lines(finding: Finding) -> list[str]:
    return [line for line in (finding.detail, finding.remedy) if line]


def _indented(lines: list[str]) -> list[str]:
    return [lines[0], *(f"{'':21}-> {line}" for line in lines[1:])]


def _fetch_criu() -> str:
    criu = fetch_private_criu()
    return f"private CRIU {format_version(criu.version)} at {criu.command[-1]}"


def _packages(*names: str) -> Callable[[], str]:
    def install() -> str:
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        command = ["apt-get", "install", "-y", "--no-install-recommends", *names]
        # The lists of a fresh machine are empty or old, so the second try comes after an update.
        for step in (command, ["apt-get", "update"], command):
            done = subprocess.run(
                step,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env=environment,
                timeout=_APT_TIMEOUT,
                check=False,
            )
            if step is command and done.returncode == 0:
                return f"installed {', '.join(names)}"
        lines = [line for line in done.stdout.splitlines() if line.startswith("E:")]
        raise ToolMissing(f"apt-get cannot install {', '.join(names)}: {' '.join(lines)[:300]}")

    return install


def _performance() -> str:
    for path in Path("/").glob(GOVERNORS):
        path.write_text("performance")
    return "governor performance on all CPUs"


_FIXES: Final[dict[str, Callable[[], str]]] = {
    "namespaces": _packages("util-linux"),
    "criu": _fetch_criu,
    "compiler": _packages("gcc", "libc6-dev", "binutils"),
    "valgrind": _packages("valgrind", "gcc"),
    "governor": _performance,
}
