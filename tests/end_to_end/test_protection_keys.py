# SPDX-License-Identifier: Apache-2.0
"""A program that guards its memory by protection keys, as engines for JavaScript guard the code they make."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from small_probe import command
from tracing import compile_small

from probe.node.facts import cpu_flags

SOURCE = r"""
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
static volatile unsigned *guarded;
static int key;
__attribute__((noipa)) static unsigned step(unsigned x) { return x * 2654435761u + 1013904223u; }
__attribute__((noipa)) static void keep(unsigned x)
{
    if (key >= 0)
        pkey_set(key, 0);
    guarded[x % 1024] ^= x;
    if (key >= 0)
        pkey_set(key, PKEY_DISABLE_WRITE);
}
int main(int argc, char **argv)
{
    unsigned x = 1;
    guarded = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    key = pkey_alloc(0, PKEY_DISABLE_WRITE);
    if (argc < 2 || (key >= 0 && pkey_mprotect((void *)guarded, 4096, PROT_READ | PROT_WRITE, key)))
        return 1;
    for (int i = 0; i < atoi(argv[1]) * 1000000; i++) {
        x = step(x);
        if (i % 1000 == 0)
            keep(x);
    }
    printf("%u %u\n", x, guarded[7]);
}
"""


@pytest.mark.slow
def test_phases_run_without_the_keys(tmp_path: Path) -> None:
    path, program = tmp_path / "guarded.probe", compile_small(tmp_path, "guarded", SOURCE)
    command("build", "-q", "-o", path, "--interval", "10ms", "--runs", "0", "--budget", "0", "--", program, "200")
    shown = json.loads(command("show", "--json", path).stdout)
    # Where the processor has no keys, the program gets none.
    guarded = "ospke" in cpu_flags()
    assert ("ospke" in shown["cpu_features"]) == guarded
    assert any("protection keys" in note for note in shown["notes"]) == guarded
    found = json.loads(command("run", "--json", "--repeat", "1", path).stdout)
    assert found["phases"] and not any(phase.get("failure") for phase in found["phases"])
