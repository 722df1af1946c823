# SPDX-License-Identifier: Apache-2.0
"""Programs whose output another process reads: a shell that keeps it, a `tee`, a filter."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tracing import compile_small

from checkpoint.errors import ProgramUnsupported
from probe import BuildOptions, SelectionOptions, build, run

QUICK = BuildOptions(interval=0.02, runs=1, repeats=2, selection=SelectionOptions(max_phases=2))

# Prints 200 kB in each interval: more than a pipe holds that nobody reads.
PRINTS = r"""
#include <stdio.h>
__attribute__((noipa)) static unsigned sum(unsigned x) { for (int i = 0; i < 900; i++) x += x >> 3 ^ i; return x; }
__attribute__((noipa)) static unsigned mix(unsigned x) { for (int i = 0; i < 700; i++) x = x * 31 ^ x >> 5; return x; }
int main(void)
{
    unsigned x = 1;
    for (int i = 0; i < 40; i++)
        for (int k = 0; k < 8000; k++) {
            x = i < 20 ? sum(x) : mix(x);
            if (k % 4 == 0 && printf("%080u\n", x) < 0)
                return 1;
        }
    return fflush(stdout) != 0;
}
"""


@pytest.mark.slow
@pytest.mark.parametrize("wrapper", ["{} | cat >log", "said=$({}); test ${{#said}} -gt 6000000"])
def test_a_phase_prints_to_nobody(wrapper: str, tmp_path: Path) -> None:
    program = compile_small(tmp_path, "prints", PRINTS)
    argv = ["sh", "-c", wrapper.format(program)]
    built = build(argv, tmp_path / "x.probe", options=QUICK, cwd=str(tmp_path))
    assert [said for said in built.manifest.warnings if "left out" in said] == []
    result = run(tmp_path / "x.probe", repeats=2)
    assert result.phases and all(phase.times for phase in result.phases)


@pytest.mark.slow
def test_where_criu_captures_it_is_refused(tmp_path: Path) -> None:
    """A pipe that CRIU restores has no reader: the phase would be ended by SIGPIPE."""
    program = compile_small(tmp_path, "prints", PRINTS)
    with pytest.raises(ProgramUnsupported, match=r"a pipe \(descriptor 1\), which process \d+ \(cat\) has too"):
        build(
            ["sh", "-c", f"{program} | cat >log"], tmp_path / "x.probe", options=replace(QUICK, capture="criu"),
            cwd=str(tmp_path),
        )  # fmt: skip
