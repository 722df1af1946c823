/* SPDX-License-Identifier: Apache-2.0
 * Measure one kernel, or do nothing but execute it. */
#define _GNU_SOURCE
#include "calibration.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "clock.h"
#include "fail.h"
#include "kernels.h"
#include "python_kernel.h"

/* Whether this thread has computed with denormal numbers, or made one, since the last time it was asked. */
static int denormals(void)
{
#if defined __x86_64__
    /* MXCSR: DE and UE stay set until they are cleared. */
    unsigned now = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(now & ~0x3fu);
    return (now & 0x12) != 0;
#elif defined __aarch64__
    /* FPSR: UFC and IDC, likewise. */
    uint64_t now;
    __asm__ volatile("mrs %0, fpsr" : "=r"(now));
    __asm__ volatile("msr fpsr, %0" : : "r"(now & ~(uint64_t)0x9f));
    return (now & 0x88) != 0;
#else
    return 0;
#endif
}

static double used_by_kernel(void)
{
    return seconds_of(CLOCK_THREAD_CPUTIME_ID) + python_own_seconds();
}

/* CPU seconds of that many iterations. */
static double taken(const struct kernel *one, uint64_t iterations)
{
    double before = used_by_kernel();
    one->run(iterations);
    return used_by_kernel() - before;
}

void emulator_calibrate(const char *name, const char *folder)
{
    const struct kernel *one = emulator_kernel_named(name);
    emulator_prepare_kernel(one, folder);
    uint64_t iterations = 1;
    while (taken(one, iterations) < 0.005 && iterations < ((uint64_t)1 << 40))
        iterations *= 2;
    int with = 0;
    denormals();
    for (int round = 0; round < 8; round++) {
        printf("round %" PRIu64 " %.9f\n", iterations, taken(one, iterations));
        with += denormals();
    }
    printf("denormals %d\n", with);
}

void emulator_repeat(const char *name, const char *folder, const char *seconds)
{
    const struct kernel *one = emulator_kernel_named(name);
    emulator_prepare_kernel(one, folder);
    puts("ready");
    fflush(stdout);
    if (getchar() != '\n')
        emulator_fail("nobody says when to begin", EINVAL);
    double limit = strtod(seconds, NULL), end = seconds_of(CLOCK_THREAD_CPUTIME_ID) + limit;
    if (!(limit > 0 && limit <= 1000))
        emulator_fail("no sensible time", EINVAL);
    while (seconds_of(CLOCK_THREAD_CPUTIME_ID) < end)
        one->run(100);
}
