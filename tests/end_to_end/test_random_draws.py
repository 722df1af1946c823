# SPDX-License-Identifier: Apache-2.0
"""Programs whose tables are ordered by random numbers, as Python's are, or which begin them with the time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from small_probe import command
from tracing import compile_small

from checkpoint.errors import Diverged
from checkpoint.stubs.wall_clock import WallClock
from probe import BuildOptions, SelectionOptions, build, run

QUICK = BuildOptions(interval=0.01, runs=1, selection=SelectionOptions(max_phases=3))

PYTHON = """
names = ["n%d" % (number * 7919 % 100003) for number in range(20000)]
found = 0
for turn in range(60):
    seen = set(names[turn * 100 :])
    wanted = "n%d" % (turn * 31 % 10)
    for name in seen:
        if name.endswith(wanted[-1]):
            found = (found * 31 + len(name)) % 1000003
            if found % 7 == 0:
                found += sum(map(ord, name)) % 5
    for name in seen:
        found += 1
        if name == names[-turn - 1]:
            break
        if found % 5 == 0:
            found += name.count("7")
print(found > 0)
"""


@pytest.mark.slow
def test_tables_in_a_random_order(tmp_path: Path) -> None:
    # In a folder of its own: Python lists it, and the probe would be one more file there.
    path, written = tmp_path / "tables.probe", tmp_path / "scripts/tables"
    written.parent.mkdir()
    written.write_text(PYTHON)
    options = ("--interval", "10ms", "--runs", "0", "--budget", "0")
    command("build", "-q", "-o", path, *options, "--", "/usr/bin/python3", written)
    shown = json.loads(command("show", "--json", path).stdout)
    assert any("draws random numbers" in note for note in shown["notes"])
    assert not [said for said in shown["warnings"] if "out of order" in said]
    found = json.loads(command("run", "--json", "--repeat", "1", path).stdout)
    assert found["phases"] and not any(phase.get("failure") for phase in found["phases"])


LUCKY = r"""
#include <stdio.h>
#include <sys/random.h>
#include <sys/sysinfo.h>
__attribute__((noipa)) static unsigned step(unsigned x) { return x * 2654435761u + 1013904223u; }
int main(void)
{
    unsigned char drawn[64];
    struct sysinfo told;
    unsigned x = 1;
    if (getrandom(drawn, sizeof drawn, 0) != sizeof drawn)
        return 1;
    if (sysinfo(&told))
        return 2;
    long turns = told.procs == 100 && !told.bufferram ? 200000000 : 600000000; /* the build's answers */
    for (long i = 0; i < turns; i++)
        x = step(x);
    printf("%u\n", x);
}
"""


@pytest.mark.slow
def test_a_time_that_depends_on_the_numbers_is_refused(tmp_path: Path) -> None:
    path, program = tmp_path / "lucky.probe", compile_small(tmp_path, "lucky", LUCKY)
    said = command("build", "-q", "-o", path, "--interval", "20ms", "--budget", "0", "--", program, status=7).stderr
    assert "by the random numbers that it draws" in said and "fix its seed" in said


SEEDED = r"""
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
__attribute__((noipa)) static unsigned sum(unsigned x) { for (int i = 0; i < 900; i++) x += x >> 3 ^ i; return x; }
__attribute__((noipa)) static unsigned mix(unsigned x) { for (int i = 0; i < 700; i++) x = x * 31 ^ x >> 5; return x; }
int main(void)
{
    struct timeval begun, now;
    unsigned x = 1;
    gettimeofday(&begun, NULL);
    srandom(begun.tv_sec ^ begun.tv_usec);
    for (int i = 0; i < 800; i++) {
        int many = 1000 + random() % 3000, which = random() % 2;
        while (many--)
            x = which ? sum(x) : mix(x);
    }
    gettimeofday(&now, NULL);
    printf("%u\n", x);
    return now.tv_sec - begun.tv_sec > 100 || now.tv_sec < begun.tv_sec;
}
"""


@pytest.mark.slow
@pytest.mark.parametrize("repeats", [True, False])
def test_numbers_that_begin_with_the_time_of_day(
    repeats: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, program = tmp_path / "seeded.probe", compile_small(tmp_path, "seeded", SEEDED)
    if not repeats:
        monkeypatch.setattr(WallClock, "install", lambda self: None)
        with pytest.raises(Diverged, match="did not repeat the traced run"):
            build([str(program)], path, options=QUICK)
        return
    built = build([str(program)], path, options=QUICK)
    assert not [said for said in built.manifest.warnings if "out of order" in said]
    result = run(path, repeats=1)
    assert result.phases and all(phase.times for phase in result.phases)
