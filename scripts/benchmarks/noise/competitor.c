// SPDX-License-Identifier: Apache-2.0
// A neighbour that takes cache and memory bandwidth in bursts, on for half of the time.
// Usage: competitor PROCESSOR SEED; ends with its parent.
#define _GNU_SOURCE
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>

enum { WORDS = 8 << 20, STRETCH = 1 << 16 };
static const double shortest = 0.05, longest = 5.0;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

// Bursts of all lengths, as many between 0.05 and 0.5 s as between 0.5 and 5 s.
static double drawn(void)
{
    return shortest * pow(longest / shortest, drand48());
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: %s PROCESSOR SEED\n", argv[0]);
        return 2;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    cpu_set_t processors;
    CPU_ZERO(&processors);
    CPU_SET(atoi(argv[1]), &processors);
    if (sched_setaffinity(0, sizeof processors, &processors)) {
        perror("competitor");
        return 1;
    }
    srand48(atol(argv[2]));
    volatile unsigned long *memory = calloc(WORDS, sizeof *memory);
    if (!memory) {
        perror("competitor");
        return 1;
    }
    for (size_t at = 0;;) {
        double burst = drawn(), end = now() + burst;
        while (now() < end)
            for (int i = 0; i < STRETCH; i += 8, at = (at + 8) % WORDS)
                memory[at]++;
        struct timespec pause = {(time_t)burst, (long)(1e9 * (burst - floor(burst)))};
        nanosleep(&pause, NULL);
    }
}
