# SPDX-License-Identifier: Apache-2.0
"""A program whose name the kernel cuts within a character: what /proc says of it is no text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from small_probe import command
from tracing import compile_small

SOURCE = r"""
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
static void *sleeps(void *of) { pause(); return of; }
__attribute__((noipa)) static unsigned step(unsigned x) { return x * 2654435761u + 1013904223u; }
int main(int argc, char **argv)
{
    unsigned x = 1;
    pthread_t helper;
    pid_t child = fork();
    if (!child)
        _exit(0);
    if (waitpid(child, NULL, 0) != child || pthread_create(&helper, NULL, sleeps, NULL))
        return 1;
    for (long i = 0; i < atol(argv[argc - 1]) * 1000000; i++)
        x = step(x);
    printf("%u\n", x);
}
"""


@pytest.mark.slow
@pytest.mark.parametrize("capture", ["direct", "criu"])
def test_a_name_that_is_cut_within_a_character(capture: str, tmp_path: Path) -> None:
    path, program = tmp_path / "cut.probe", compile_small(tmp_path, "Strömungsauflösung", SOURCE)
    assert program.name.encode()[:15].decode(errors="replace").endswith("\N{REPLACEMENT CHARACTER}")
    options = ("--interval", "10ms", "--runs", "0", "--budget", "0", "--capture", capture)
    command("build", "-q", "-o", path, *options, "--", program, "150")
    found = json.loads(command("run", "--json", "--repeat", "1", path).stdout)
    assert found["phases"] and not any(phase.get("failure") for phase in found["phases"])
