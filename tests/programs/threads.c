// SPDX-License-Identifier: Apache-2.0
// Two more threads after a while alone: to be refused, not half measured.
// Usage: threads [MILLISECONDS]
#include <pthread.h>
#include "site.h"

static long milliseconds;

static void *labour(void *state)
{
    for (long i = 0; i < milliseconds; i++)
        *(uint64_t *)state = work(*(uint64_t *)state);
    return NULL;
}

int main(int argc, char **argv)
{
    enum { THREADS = 2 };
    pthread_t threads[THREADS];
    uint64_t states[THREADS + 1];
    milliseconds = size_argument(argc, argv, 300);
    states[THREADS] = 1;
    labour(&states[THREADS]);
    for (int i = 0; i < THREADS; i++) {
        states[i] = (uint64_t)i + 2;
        if (pthread_create(&threads[i], NULL, labour, &states[i]))
            return 2;
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    printf("threads %016llx\n", (unsigned long long)(states[0] ^ states[1] ^ states[2]));
    print_count("site_work", (uint64_t)milliseconds * WORK_UNITS * (THREADS + 1));
    return 0;
}
