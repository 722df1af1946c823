/* SPDX-License-Identifier: Apache-2.0
 * Kernels: what the compute atoms execute. An iteration takes some microseconds on any node. */
#ifndef PROBE_KERNELS_H
#define PROBE_KERNELS_H

#include <stdint.h>

struct kernel {
    const char *name;
    /* Makes what all threads share, once, before anything is measured. Returns 0, or an errno. */
    int (*prepare)(const char *folder);
    /* Executes that many iterations. Any number of threads may be in it. */
    void (*run)(uint64_t iterations);
};

/* How many threads compute, and which of them this one is: for kernels that have something for each. */
extern unsigned kernel_threads;
extern _Thread_local unsigned kernel_thread;

/* Ends with an entry whose name is NULL. */
extern const struct kernel kernels[];

/* The kernel of a name, and the kernel prepared: both fail where that cannot be. */
const struct kernel *emulator_kernel_named(const char *name);
void emulator_prepare_kernel(const struct kernel *one, const char *folder);

/* One iteration of the kernels read, write and touch, in bytes. */
#define MOVED 65536

/* A file in the folder that has no name, so that it is gone with the process. -1 and errno where there is none. */
int nameless_file(const char *folder);

#endif
