// SPDX-License-Identifier: Apache-2.0
// Does something else once the host's name has changed: what goes wrong in a restored phase alone. The new name
// says what: illegal, segment, divide, kill, exit; anything else hangs.
// Usage: elsewhere [MILLISECONDS]
#include <signal.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>
#include "site.h"

static volatile int zero;
static char *volatile nowhere;

static void misbehave(const char *how)
{
    if (!strcmp(how, "illegal"))
        __builtin_trap();
    else if (!strcmp(how, "segment"))
        *nowhere = 1;
    else if (!strcmp(how, "divide"))
        zero = 1000 / zero;
    else if (!strcmp(how, "kill"))
        kill(getpid(), SIGKILL);
    else if (!strcmp(how, "exit"))
        _exit(5);
    else
        for (;;)
            pause();
}

int main(int argc, char **argv)
{
    struct utsname first, now;
    uint64_t state = 1;
    uname(&first);
    for (long i = size_argument(argc, argv, 400); i; i--) {
        uname(&now);
        if (strcmp(first.nodename, now.nodename))
            misbehave(now.nodename);
        state = work(state);
    }
    printf("elsewhere %016llx\n", (unsigned long long)state);
    return 0;
}
