# SPDX-License-Identifier: Apache-2.0
"""A program that keeps a file of /proc or /sys open: each node reads its own, and no probe carries it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from small_probe import command
from tracing import compile_small

SOURCE = r"""
#include <stdio.h>
__attribute__((noipa)) static unsigned step(unsigned x) { return x * 2654435761u + 1013904223u; }
int main(int argc, char **argv)
{
    FILE *kept = fopen(argv[argc - 1], "r");
    unsigned x = 1, lines = 0;
    char line[256];
    if (!kept)
        return 1;
    setvbuf(kept, NULL, _IONBF, 0);
    for (int turn = 0; turn < 40; turn++) {
        for (long i = 0; i < 4000000; i++)
            x = step(x);
        rewind(kept);
        lines += fgets(line, sizeof line, kept) != NULL;
    }
    printf("%u %u\n", x, lines);
}
"""


@pytest.mark.slow
@pytest.mark.parametrize("kept", ["/proc/meminfo", "/proc/self/statm", "/sys/devices/system/cpu/online"])
def test_files_of_the_kernels(kept: str, tmp_path: Path) -> None:
    path, program = tmp_path / "kept.probe", compile_small(tmp_path, "kept", SOURCE)
    command("build", "-q", "-o", path, "--interval", "10ms", "--runs", "0", "--budget", "0", "--", program, kept)
    carried = json.loads(command("show", "--json", path).stdout)["files"]
    assert [file["path"] for file in carried if file["path"].startswith(("/proc", "/sys"))] == []
    found = json.loads(command("run", "--json", "--repeat", "1", path).stdout)
    assert found["phases"] and not any(phase.get("failure") for phase in found["phases"])
