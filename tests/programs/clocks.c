// SPDX-License-Identifier: Apache-2.0
// A region that looks at clocks. It dies of an illegal instruction where a clock has not gone on from where it was.
// Usage: clocks read       a clock went back, or seconds forth since it was read before the region
//        clocks often [TIMES]  looks at two clocks by turns, of which none goes back
//        clocks deadline   waits until a time that the clock shows, twice a hundredth of a second away
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include "site.h"

static const clockid_t clocks[] = {
    CLOCK_REALTIME, CLOCK_REALTIME_COARSE, CLOCK_MONOTONIC, CLOCK_MONOTONIC_RAW, CLOCK_MONOTONIC_COARSE,
    CLOCK_BOOTTIME, CLOCK_TAI, CLOCK_PROCESS_CPUTIME_ID, CLOCK_THREAD_CPUTIME_ID,
};
enum { CLOCKS = sizeof clocks / sizeof *clocks, READINGS = CLOCKS + 3 };

__attribute__((noipa)) static void region_warm(void) { SITE(site_warm); }
__attribute__((noipa)) static void region_start(void) { SITE(site_start); }
__attribute__((noipa)) static void region_end(void) { SITE(site_end); }

static void require(int condition)
{
    if (!condition)
        __builtin_trap();
}

static double seconds(clockid_t clock)
{
    struct timespec at;
    require(!clock_gettime(clock, &at));
    return at.tv_sec + at.tv_nsec * 1e-9;
}

static void read_all(double to[READINGS])
{
    struct timeval day;
    for (int i = 0; i < CLOCKS; i++)
        to[i] = seconds(clocks[i]);
    require(!gettimeofday(&day, NULL));
    to[CLOCKS] = day.tv_sec + day.tv_usec * 1e-6;
    to[CLOCKS + 1] = time(NULL);
    to[CLOCKS + 2] = (double)clock() / CLOCKS_PER_SEC;
}

static void wait_until(clockid_t clock)
{
    struct timespec at;
    require(!clock_gettime(clock, &at));
    at.tv_nsec += 10000000;
    if (at.tv_nsec >= 1000000000)
        at.tv_nsec -= 1000000000, at.tv_sec++;
    require(!clock_nanosleep(clock, TIMER_ABSTIME, &at, NULL));
}

static void look_often(int times)
{
    double last[2] = {seconds(CLOCK_MONOTONIC_COARSE), seconds(CLOCK_MONOTONIC)};
    for (int i = 0; i < times; i++) {
        double now = seconds(i % 2 ? CLOCK_MONOTONIC : CLOCK_MONOTONIC_COARSE);
        require(now >= last[i % 2] && now <= last[i % 2] + 5);
        last[i % 2] = now;
        // The coarse one is as old as the last tick, which comes late where a host lets its machines wait.
        require(last[0] >= last[1] - 0.2);
    }
}

int main(int argc, char **argv)
{
    static double before[READINGS], now[READINGS];

    printf("%d readings\n", READINGS);
    fflush(stdout);
    while (seconds(CLOCK_PROCESS_CPUTIME_ID) < 0.3)
        ;
    read_all(before);
    region_warm();
    region_start();
    if (argc > 1 && !strcmp(argv[1], "deadline")) {
        wait_until(CLOCK_MONOTONIC);
        wait_until(CLOCK_REALTIME);
    } else if (argc > 1 && !strcmp(argv[1], "often")) {
        look_often(argc > 2 ? atoi(argv[2]) : 20000);
    } else {
        read_all(now);
        for (int i = 0; i < READINGS; i++)
            require(now[i] >= before[i] && now[i] <= before[i] + 5);
    }
    region_end();
    return 0;
}
