// SPDX-License-Identifier: Apache-2.0
// A real timer at 4 kHz whose handler executes the main loop's hot function: signals arrive
// inside stubs. How many arrive differs from run to run, so the exact counts go to a file of
// their own and stdout is always the same.
// Usage: signals [MILLION_ROUNDS] [COUNT_FILE]
#include <signal.h>
#include <sys/time.h>
#include "site.h"

static volatile uint64_t handled, handler_state = 7;

__attribute__((noipa)) static uint64_t hot(uint64_t state)
{
    SITE(site_hot);
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state + (state == 0x123456789abcdef0u);
}

__attribute__((noipa)) static void on_timer(int number)
{
    (void)number;
    SITE(site_handler);
    handler_state = hot(handler_state);
    handled++;
}

int main(int argc, char **argv)
{
    uint64_t rounds = (uint64_t)size_argument(argc, argv, 200) * 1000000, state = 1;
    struct sigaction action = {.sa_handler = on_timer, .sa_flags = SA_RESTART};
    struct itimerval often = {{0, 250}, {0, 250}}, never = {{0, 0}, {0, 0}};
    if (sigaction(SIGALRM, &action, NULL) || setitimer(ITIMER_REAL, &often, NULL)) {
        perror("signals");
        return 2;
    }
    for (uint64_t round = 0; round < rounds; round++)
        state = hot(state);
    setitimer(ITIMER_REAL, &never, NULL);
    uint64_t replayed = 7;
    for (uint64_t i = 0; i < handled; i++) {
        replayed ^= replayed << 13;
        replayed ^= replayed >> 7;
        replayed ^= replayed << 17;
    }
    int wrong = replayed != handler_state;
    printf("signals %016llx handlers %s\n", (unsigned long long)state, wrong ? "WRONG" : "ok");
    if (argc > 2) {
        FILE *file = fopen(argv[2], "w");
        if (!file) {
            perror(argv[2]);
            return 2;
        }
        fprintf(file, "count site_hot %llu\ncount site_handler %llu\n",
                (unsigned long long)(rounds + handled), (unsigned long long)handled);
        fclose(file);
    }
    return wrong;
}
