# SPDX-License-Identifier: Apache-2.0
"""Restored threads keep a processor each until the kernel would leave them there by itself."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from small_probe import command
from tracing import compile_small

MEETING = r"""
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
static pthread_barrier_t barrier;
static long rounds;
static double parts[2][8];
__attribute__((noipa)) static double work(long seed)
{
    double x = (double)seed * 1e-3 + 0.5;
    for (long i = 0; i < 60000; i++)
        x = sqrt(x * 1.0001 + (double)(i & 15));
    return x;
}
static void *share(void *of)
{
    for (long round = 0; round < rounds; round++) {
        parts[(long)of][0] += work(round);
        pthread_barrier_wait(&barrier);
    }
    return NULL;
}
int main(int argc, char **argv)
{
    pthread_t other;
    rounds = atol(argv[argc - 1]);
    if (pthread_barrier_init(&barrier, NULL, 2) || pthread_create(&other, NULL, share, (void *)1))
        return 1;
    share(NULL);
    pthread_join(other, NULL);
    printf("%g\n", parts[0][0] + parts[1][0]);
}
"""


@pytest.mark.slow
@pytest.mark.timed
@pytest.mark.alone("two threads on two processors, which nothing else may use")
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="two threads need two processors")
def test_threads_that_meet_often_are_not_put_on_one_processor(tmp_path: Path) -> None:
    """Else regions take 1.5 times as long: the other processor counts as laden by whoever restored the phase."""
    program = compile_small(tmp_path, "meeting", MEETING, "-pthread", "-fno-math-errno")
    options = ("--interval", "20ms", "--runs", "0", "--budget", "0", "--max-phases", "4")
    built = command("build", "-q", "-o", tmp_path / "meeting.probe", "--json", *options, "--", program, "1500")
    found = json.loads(built.stdout)
    assert found["errors"]["restore"] < 0.15
