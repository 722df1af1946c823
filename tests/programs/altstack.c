// SPDX-License-Identifier: Apache-2.0
// The timer's handler runs on an alternate stack while the main loop keeps live data in the
// red zone (redzone.S). Counts that differ from run to run go to the count file.
// Usage: altstack [CALLS] [COUNT_FILE]
#define _DEFAULT_SOURCE
#include <signal.h>
#include <sys/time.h>
#include "site.h"

uint64_t redzone_mix(uint64_t rounds, uint64_t seed);

enum { STACK = 1 << 16, ROUNDS = 10000 };
static char stack[STACK];
static volatile uint64_t handled, elsewhere;

__attribute__((noipa)) static void on_timer(int number)
{
    char here = (char)number;
    SITE(site_handler);
    char *volatile at = &here;
    elsewhere += at < stack || at >= stack + STACK;
    handled++;
}

int main(int argc, char **argv)
{
    uint64_t calls = (uint64_t)size_argument(argc, argv, 8000), sum = 0;
    stack_t alternate = {.ss_sp = stack, .ss_size = STACK};
    struct sigaction action = {.sa_handler = on_timer, .sa_flags = SA_RESTART | SA_ONSTACK};
    struct itimerval often = {{0, 250}, {0, 250}}, never = {{0, 0}, {0, 0}};
    if (sigaltstack(&alternate, NULL) || sigaction(SIGALRM, &action, NULL) ||
        setitimer(ITIMER_REAL, &often, NULL)) {
        perror("altstack");
        return 2;
    }
    for (uint64_t call = 0; call < calls; call++)
        sum = sum * 31 + redzone_mix(ROUNDS, call + 1);
    setitimer(ITIMER_REAL, &never, NULL);
    printf("altstack %016llx %s\n", (unsigned long long)sum, elsewhere ? "WRONG STACK" : "ok");
    print_count("site_redzone_long", calls * ROUNDS);
    print_count("site_redzone_short", calls * ROUNDS);
    if (argc > 2) {
        FILE *file = fopen(argv[2], "w");
        if (!file) {
            perror(argv[2]);
            return 2;
        }
        fprintf(file, "count site_handler %llu\n", (unsigned long long)handled);
        fclose(file);
    }
    return elsewhere != 0;
}
