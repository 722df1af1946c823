// SPDX-License-Identifier: Apache-2.0
// Two worker processes after a while alone: to be refused, not half measured.
// Usage: forker [MILLISECONDS]
#include <sys/wait.h>
#include <unistd.h>
#include "site.h"

int main(int argc, char **argv)
{
    long milliseconds = size_argument(argc, argv, 300);
    enum { WORKERS = 2 };
    uint64_t state = 1;
    int failed = 0;
    for (long i = 0; i < milliseconds; i++)
        state = work(state);
    for (int worker = 0; worker < WORKERS; worker++) {
        pid_t child = fork();
        if (child < 0) {
            perror("forker");
            return 2;
        }
        if (child == 0) {
            for (long i = 0; i < milliseconds; i++)
                state = work(state + (uint64_t)worker);
            _exit(state == 0);
        }
    }
    for (int worker = 0; worker < WORKERS; worker++) {
        int status = 1;
        failed |= wait(&status) < 0 || status;
    }
    printf("forker %016llx %s\n", (unsigned long long)state, failed ? "FAILED" : "ok");
    return failed;
}
