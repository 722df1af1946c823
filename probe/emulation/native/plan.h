/* SPDX-License-Identifier: Apache-2.0
 * A plan: text on standard input. `emulation 1`, then a line for each setting, then a line for each sample, then
 * `end`. */
#ifndef PROBE_PLAN_H
#define PROBE_PLAN_H

#include <stdint.h>

#define MOST_FILES 1024
#define MOST_KERNELS 8

struct sample {
    uint64_t iterations[MOST_KERNELS], system_calls, read, written, resident, sent, received;
    double cpu;  /* CPU seconds from the beginning to its end (equal seconds) */
    double wait; /* seconds of sleep behind it */
};

struct plan {
    char kernels[MOST_KERNELS][64], folder[4097];
    char send_to[80], receive_from[80];    /* empty: nobody */
    int seconds;                           /* equal CPU seconds; else equal work */
    unsigned threads, ranks, files, mixed; /* mixed: how many kernels there are */
    uint64_t read_block, write_block;
    uint64_t count, most_resident; /* of the samples; the largest of their resident bytes */
    int reads;                     /* whether a sample reads */
    struct sample *samples;
};

extern struct plan emulator_plan;

/* Fails where standard input holds no such plan, or there is no memory for it. */
void emulator_read_plan(void);

#endif
