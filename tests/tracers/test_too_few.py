# SPDX-License-Identifier: Apache-2.0
"""Runs with too few intervals, each for a reason of its own: more work is asked for where that would help."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from checkpoint.errors import ProgramTooShort
from checkpoint.process.program import Streams, resolve_program
from probe.pipeline.select import _why_so_few
from probe.tracers.native import trace
from probe.tracers.too_few import why_too_few
from probe.tracers.valgrind import trace as trace_exactly

_ENDS_AT_ONCE = "int main(void) { return 0; }"
_HIDES_AN_ERROR = """
#include <unistd.h>
int main(void) { write(2, "solver: \\033[2Jno input.dat\\n", 26); return 0; }
"""
_WAITS = """
#include <unistd.h>
int main(void) { sleep(1); return 0; }
"""
_MAKES_CODE = """
#include <string.h>
#include <sys/mman.h>
int main(void)
{
	unsigned char code[] = {0x48, 0xc7, 0xc0, 0, 0, 0, 0x60, 0x48, 0xff, 0xc8, 0x75, 0xfb, 0xc3};
	void *page = mmap(0, 4096, 7, 0x22, -1, 0);
	memcpy(page, code, sizeof(code));
	((void (*)(void))page)();
	return 0;
}
"""


@pytest.mark.parametrize(
    ("source", "says", "not_said"),
    [
        (_ENDS_AT_ONCE, "Give it more work", "standard error"),
        (_HIDES_AN_ERROR, "It said on standard error: solver: [2Jno input.dat", "waited"),
        (_WAITS, "and waited for the rest", "more work,"),
        (_MAKES_CODE, "cannot be counted natively", "more work,"),
    ],
    ids=["short", "error", "waiting", "made code"],
)
def test_the_true_reason_is_given(source: str, says: str, not_said: str, tmp_path: Path) -> None:
    (tmp_path / "solver.c").write_text(source)
    subprocess.run(["cc", "-O1", "-o", tmp_path / "solver", tmp_path / "solver.c"], check=True)
    streams = Streams(tmp_path / "out", tmp_path / "err")
    with pytest.raises(ProgramTooShort) as caught:
        trace(resolve_program([str(tmp_path / "solver")], env={}), streams=streams)
    said = str(caught.value)
    assert says in said and not_said not in said and "at least 5 are needed. " in said and said.isprintable()


_IN_THE_KERNEL = """
#include <fcntl.h>
#include <unistd.h>
static char block[1 << 22];
int main(void)
{
	int from = open("/dev/urandom", O_RDONLY);
	for (int i = 0; i < 300; i++)
		if (read(from, block, sizeof(block)) < 0)
			return 1;
	return 0;
}
"""
_WAITS_LONG = _WAITS.replace("sleep(1)", "sleep(12)")


@pytest.mark.parametrize(
    ("source", "says", "not_said"),
    [
        (_ENDS_AT_ONCE, "Give it more work", "standard error"),
        (_HIDES_AN_ERROR, "It said on standard error: solver: [2Jno input.dat", "waited"),
        (_WAITS_LONG, "and waited for the rest", "more work,"),
        (_IN_THE_KERNEL, "It was in the kernel for", "more work,"),
    ],
    ids=["short", "error", "waiting", "kernel"],
)
def test_exact_tracers_give_the_true_reason(source: str, says: str, not_said: str, tmp_path: Path) -> None:
    (tmp_path / "solver.c").write_text(source)
    subprocess.run(["cc", "-O1", "-o", tmp_path / "solver", tmp_path / "solver.c"], check=True)
    streams = Streams(tmp_path / "out", tmp_path / "err")
    with pytest.raises(ProgramTooShort) as caught:
        trace_exactly(resolve_program([str(tmp_path / "solver")], env={}), streams=streams)
    said = str(caught.value)
    assert says in said and not_said not in said and "at least 5 are needed. " in said and said.isprintable()


def test_boundaries_that_were_lost_are_the_reason_where_there_were_enough(tmp_path: Path) -> None:
    assert "17 of the boundaries" in _why_so_few(20, 17) and "more work" not in _why_so_few(20, 17)
    assert "more work" in _why_so_few(3, 2) and "more work" in _why_so_few(20, 0)
    streams = Streams(tmp_path / "none", tmp_path / "none")
    assert "more work" in why_too_few(0.1, 0.1, 0.3, streams)
