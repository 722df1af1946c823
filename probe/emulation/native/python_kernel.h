/* SPDX-License-Identifier: Apache-2.0
 * A user's kernel in Python: each thread that computes has an interpreter of its own, started before anything is
 * measured. */
#ifndef PROBE_PYTHON_KERNEL_H
#define PROBE_PYTHON_KERNEL_H

#include <stdint.h>

int python_prepare(const char *folder);
void python_run(uint64_t iterations);

/* CPU seconds that the interpreters used: of this thread's, and of all threads'. 0 without any. */
double python_own_seconds(void);
double python_seconds(void);

#endif
