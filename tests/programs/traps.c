// SPDX-License-Identifier: Apache-2.0
// Memory and signals that are hard to capture. Dies of an illegal instruction where its region does not find what was
// there. Usage: traps SCENARIO
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "site.h"

#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT 21
#endif

enum { PAGE = 4096, PAGES = 16 };

static char *area;

__attribute__((noipa)) static void region_warm(void) { SITE(site_warm); }
__attribute__((noipa)) static void region_start(void) { SITE(site_start); }
__attribute__((noipa)) static void region_end(void) { SITE(site_end); }

static void require(int condition)
{
    if (!condition)
        __builtin_trap();
}

static char *mapped(size_t bytes, int flags)
{
    char *got = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    require(got != MAP_FAILED);
    return got;
}

static void fill(void)
{
    area = mapped(PAGES * PAGE, 0);
    for (int page = 0; page < PAGES; page++)
        memset(area + page * PAGE, 'a' + page, PAGE);
}

static void begin(void)
{
    region_warm();
    region_start();
}

static void pending(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, NULL);
    raise(SIGUSR1);
    begin();
    region_end();
}

static void posix(void)
{
    timer_t timer;
    struct sigevent event = {.sigev_notify = SIGEV_NONE};
    require(!timer_create(CLOCK_MONOTONIC, &event, &timer));
    begin();
    region_end();
}

static void nondumpable(void)
{
    fill();
    require(!prctl(PR_SET_DUMPABLE, 0));
    begin();
    require(area[5 * PAGE] == 'f');
    region_end();
}

// As above, and then opens a library: its code is looked for in the mappings.
static void opening(void)
{
    require(!prctl(PR_SET_DUMPABLE, 0));
    require(dlopen("libm.so.6", RTLD_NOW) != NULL);
    fill();
    for (int region = 0; region < 2; region++) {
        begin();
        require(area[5 * PAGE] == 'f');
        region_end();
        require(prctl(PR_GET_DUMPABLE) == 0);
    }
}

// As above, with what no probe holds: a connection to elsewhere.
static void connected(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int made = socket(AF_INET, SOCK_DGRAM, 0);
    require(!prctl(PR_SET_DUMPABLE, 0) && !connect(made, (struct sockaddr *)&address, sizeof(address)));
    begin();
    region_end();
}

static volatile sig_atomic_t handled;

static void in_handler(int number)
{
    stack_t stack;
    require(!sigaltstack(NULL, &stack) && stack.ss_flags == SS_ONSTACK);
    begin();
    require(number == SIGUSR1 && area[5 * PAGE] == 'f');
    require(!sigaltstack(NULL, &stack) && stack.ss_flags == SS_ONSTACK && stack.ss_size == 1 << 16);
    region_end();
    handled++;
}

// Its region lies in a handler of a signal, on the stack of handlers.
static void handler(void)
{
    stack_t stack = {.ss_sp = mapped(1 << 16, 0), .ss_size = 1 << 16};
    struct sigaction action = {.sa_handler = in_handler, .sa_flags = SA_ONSTACK};
    fill();
    require(!sigaltstack(&stack, NULL) && !sigaction(SIGUSR1, &action, NULL));
    raise(SIGUSR1);
    require(handled == 1 && !sigaltstack(NULL, &stack) && stack.ss_flags == 0);
}

// Contents behind a protection that keeps the program itself from reading them.
static void unreadable(void)
{
    fill();
    require(!mprotect(area + 4 * PAGE, 2 * PAGE, PROT_NONE));
    begin();
    require(!mprotect(area + 4 * PAGE, 2 * PAGE, PROT_READ));
    require(area[4 * PAGE] == 'e' && area[6 * PAGE - 1] == 'f' && area[6 * PAGE] == 'g');
    region_end();
}

// Far more addresses than memory.
static void sparse(void)
{
    size_t bytes = 60UL << 30;
    area = mapped(bytes, MAP_NORESERVE);
    area[0] = 'a';
    area[bytes - 1] = 'z';
    begin();
    require(area[0] == 'a' && area[bytes - 1] == 'z' && area[bytes / 2] == 0);
    region_end();
}

// Neighbours of different protection do not become one mapping.
static void scattered(void)
{
    enum { COUNT = 20000 };
    area = mapped((size_t)COUNT * PAGE, 0);
    for (int page = 0; page < COUNT; page += 2) {
        area[(size_t)page * PAGE] = (char)page;
        require(!mprotect(area + (size_t)page * PAGE, PAGE, PROT_READ));
    }
    begin();
    require(area[4242UL * PAGE] == (char)4242);
    region_end();
}

// Advice that the kernel refuses for memory of a file.
static void advised(void)
{
    fill();
    begin();
    require(!madvise(area + 2 * PAGE, 2 * PAGE, MADV_WIPEONFORK));
    require(area[2 * PAGE] == 'c' && area[3 * PAGE] == 'd');
    require(!madvise(area + 8 * PAGE, PAGE, MADV_FREE));
    area[8 * PAGE] = 'x';
    require(area[8 * PAGE] == 'x' && area[9 * PAGE] == 'j');
    require(!madvise(area + 10 * PAGE, 2 * PAGE, MADV_DONTNEED));
    require(area[10 * PAGE] == 0 && area[11 * PAGE] == 0 && area[12 * PAGE] == 'm');
    region_end();
}

// What is not in memory where the region starts.
static void swapped(void)
{
    fill();
    require(!madvise(area, PAGES * PAGE, MADV_PAGEOUT));
    begin();
    for (int page = 0; page < PAGES; page++)
        require(area[page * PAGE] == 'a' + page);
    region_end();
}

// What leaves it in the region, some of it for good: it was asked for all the same.
static void paged(void)
{
    fill();
    begin();
    require(area[3 * PAGE] == 'd');
    area[4 * PAGE]++;
    area[6 * PAGE]++;
    require(!madvise(area, PAGES * PAGE, MADV_PAGEOUT));
    require(area[4 * PAGE] == 'f' && area[5 * PAGE] == 'f');
    region_end();
}

// Nothing of it is in a copy made by fork.
static void unforked(void)
{
    fill();
    require(!madvise(area, 4 * PAGE, MADV_DONTFORK) && !madvise(area + 4 * PAGE, 4 * PAGE, MADV_WIPEONFORK));
    begin();
    for (int page = 0; page < PAGES; page++)
        require(area[page * PAGE] == 'a' + page);
    region_end();
}

static void count(int number)
{
    (void)number;
    area[0]++;
}

// A timer of the processor's time that is due while the program is looked at, and its handler.
static void profiled(void)
{
    struct itimerval often = {{0, 1000}, {0, 1000}};
    fill();
    signal(SIGPROF, count);
    require(!setitimer(ITIMER_PROF, &often, NULL));
    begin();
    while (*(volatile char *)area < 'c')
        ;
    region_end();
}

// Processes of its own: one that lives, and one that has ended and was not waited for.
static void child(void)
{
    if (fork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;)
            pause();
    }
    begin();
    region_end();
}

static void zombie(void)
{
    siginfo_t found;
    if (fork() == 0)
        _exit(0);
    require(!waitid(P_ALL, 0, &found, WEXITED | WNOWAIT));
    begin();
    region_end();
}

int main(int count_of, char **arguments)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } all[] = {
        {"pending", pending}, {"posix", posix},         {"nondumpable", nondumpable}, {"unreadable", unreadable},
        {"sparse", sparse},   {"scattered", scattered}, {"advised", advised},         {"unforked", unforked},
        {"profiled", profiled}, {"child", child},       {"zombie", zombie},           {"opening", opening},
        {"connected", connected}, {"handler", handler}, {"swapped", swapped},         {"paged", paged},
    };

    for (size_t i = 0; count_of == 2 && i < sizeof(all) / sizeof(*all); i++) {
        if (!strcmp(arguments[1], all[i].name)) {
            all[i].run();
            puts(all[i].name);
            return 0;
        }
    }
    return 2;
}
