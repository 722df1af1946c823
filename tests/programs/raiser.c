// SPDX-License-Identifier: Apache-2.0
// Signals sent by the program to itself: the handler executes the hot function an exactly
// known number of times.
// Usage: raiser [THOUSAND_SIGNALS]
#include <signal.h>
#include "site.h"

static volatile uint64_t handled, handler_state = 7;

__attribute__((noipa)) static uint64_t hot(uint64_t state)
{
    SITE(site_hot);
    for (int i = 0; i < 4; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
    }
    return state;
}

__attribute__((noipa)) static void on_signal(int number)
{
    (void)number;
    SITE(site_handler);
    handler_state = hot(handler_state);
    handled++;
}

int main(int argc, char **argv)
{
    uint64_t signals = (uint64_t)size_argument(argc, argv, 250) * 1000, state = 1;
    enum { BETWEEN = 100 };
    if (signal(SIGUSR1, on_signal) == SIG_ERR) {
        perror("raiser");
        return 2;
    }
    for (uint64_t i = 0; i < signals; i++) {
        for (int j = 0; j < BETWEEN; j++)
            state = hot(state);
        raise(SIGUSR1);
    }
    printf("raiser %016llx %016llx\n", (unsigned long long)state, (unsigned long long)handler_state);
    print_count("site_hot", signals * (BETWEEN + 1));
    print_count("site_handler", signals);
    return handled != signals;
}
