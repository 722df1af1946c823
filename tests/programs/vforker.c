// SPDX-License-Identifier: Apache-2.0
// Starts itself as a helper with posix_spawn (vfork below it) and waits: to be refused.
// Usage: vforker [MILLISECONDS]
#include <spawn.h>
#include <sys/wait.h>
#include "site.h"

extern char **environ;

int main(int argc, char **argv)
{
    long milliseconds = size_argument(argc, argv, 300);
    uint64_t state = 1;
    for (long i = 0; i < milliseconds; i++)
        state = work(state);
    if (argc > 2)
        return state == 0;
    char helper[] = "helper";
    char *arguments[] = {argv[0], argc > 1 ? argv[1] : (char[]){"300"}, helper, NULL};
    pid_t child;
    int status = 1;
    if (posix_spawn(&child, "/proc/self/exe", NULL, NULL, arguments, environ) ||
        waitpid(child, &status, 0) < 0 || status) {
        fprintf(stderr, "vforker: the helper failed\n");
        return 2;
    }
    printf("vforker %016llx\n", (unsigned long long)state);
    return 0;
}
