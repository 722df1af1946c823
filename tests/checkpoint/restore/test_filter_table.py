# SPDX-License-Identifier: Apache-2.0
"""Every row of the filter's table has an attempt of its own in tests/programs/hostile.c."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from programs import build
from small_probe import ROOT

from checkpoint.binary.syscall_names import call_number

FILTER = (ROOT / "checkpoint" / "restorer" / "filter.c").read_text()
BY_ATTEMPTS_OF_A_NAME = {"OPENS", "OPENS_AT", "OPENS_BY_STRUCT", "CONTROLS", "DESCRIPTORS", "SELF"}
"""Verdicts by flags or commands: hostile.c tries these one by one (by_open_truncating, by_flags, by_lease, ...)."""

NOT_TOLD_APART = {*range(335, 424), *range(470, 512)}
"""Absent in the table, and on kernels that do not have them: rows for kernels to come. The kernel filters no call 335
(uretprobe), and ends who makes it by itself."""


def rows() -> dict[int, str]:
    """Number of a call -> its verdict in the table."""
    table = re.search(r"verdicts\[\] = {\n(.*?)\n};", FILTER, re.S)
    assert table
    found = {}
    for first, last, verdict in re.findall(r"\[(\d+)(?: \.\.\. (\d+))?\] = (\w+),", table[1]):
        found.update(dict.fromkeys(range(int(first), int(last or first) + 1), verdict))
    return found


def tried(program: Path, kind: str) -> set[int]:
    said = subprocess.run([program, "-", kind], capture_output=True, text=True, check=True).stdout.split()
    return {int(name.removeprefix("call_")) for name in said}


def test_every_row_has_an_attempt(builds: Path) -> None:
    program, table = build("hostile", builds), rows()
    assert len(table) > 200 and table[call_number("kill")] == "OWN_PROCESS"
    by_number = {n for n, verdict in table.items() if verdict not in BY_ATTEMPTS_OF_A_NAME | {"ALLOWED"}}
    of_files = {n for n, verdict in table.items() if verdict == "CHANGES_FILES"}
    assert tried(program, "file_calls") == of_files
    assert tried(program, "calls") == by_number - of_files - NOT_TOLD_APART
