// SPDX-License-Identifier: Apache-2.0
// The first thread starts others and waits for them. Each of these has its own part of the work, the same in every run.
// HOW is boss: it starts one that starts the others, and looks after them from time to time; boss-vfork, boss-execute,
// boss-leave: it does that before.
// Usage: crews [ROUNDS] [HOW] [THREADS]
#include <asm/prctl.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "site.h"

enum { MOST = 16, CREWS = 8, WARM = 10, START = 15, END = 30 };

static long rounds;
static const char *how = "crew";
static uint64_t states[MOST];
static pthread_barrier_t barrier;
static _Atomic int finished;

static int is(const char *name) { return !strcmp(how, name); }
static int has_boss(void) { return !strncmp(how, "boss", 4); }

__attribute__((noipa)) static void warm(void) { SITE(site_warm); }
__attribute__((noipa)) static void start(void) { SITE(site_start); }
__attribute__((noipa)) static void end(void) { SITE(site_end); }

static uint64_t labour(uint64_t value, long round)
{
    if (round / 20 % 3 < 2)
        return work(work(value));
    for (int i = 0; i < 800000; i++)
        value = value * 6364136223846793005u + (value >> 33);
    return value;
}

static void *part(void *of)
{
    int number = (int)(intptr_t)of;

    for (long round = 0; round < rounds; round++) {
        if (number == 0) {
            if (round == WARM)
                warm();
            if (round == START)
                start();
            if (round == END)
                end();
        }
        states[number] = labour(states[number], round);
        if (!is("apart"))
            pthread_barrier_wait(&barrier);
    }
    if (is("kill") && number == 0)
        _exit(3);
    finished++;
    return NULL;
}

static void hire(int threads)
{
    pthread_t crew[MOST];

    for (int i = 0; i < threads; i++)
        if (pthread_create(&crew[i], NULL, part, (void *)(intptr_t)i))
            exit(2);
    if (is("gs"))
        syscall(SYS_arch_prctl, ARCH_SET_GS, 8);
    if (is("fork")) {
        pid_t child = fork();
        if (!child)
            _exit(0);
        waitpid(child, NULL, 0);
    }
    if (is("execute")) {
        usleep(300000);
        execl("/bin/true", "true", NULL);
    }
    if (is("leave")) {
        usleep(300000);
        pthread_exit(NULL);
    }
    while (is("poll") && finished < threads)
        usleep(1000);
    while (is("look") && finished < threads)
        poll(NULL, 0, 1);
    for (int i = 0; i < threads; i++)
        pthread_join(crew[i], NULL);
}

static void *boss(void *of)
{
    usleep(100000);
    hire((int)(intptr_t)of);
    return NULL;
}

static void hire_by_another(int threads)
{
    pthread_t other;

    if (pthread_create(&other, NULL, boss, (void *)(intptr_t)threads))
        exit(2);
    if (is("boss-vfork")) {
        pid_t child = vfork();
        if (!child) {
            usleep(500000);
            _exit(0);
        }
        waitpid(child, NULL, 0);
    }
    if (is("boss-execute")) {
        usleep(300000);
        execl("/bin/true", "true", NULL);
    }
    if (is("boss-leave")) {
        usleep(300000);
        pthread_exit(NULL);
    }
    while (finished < threads)
        usleep(1000);
    pthread_join(other, NULL);
}

int main(int argc, char **argv)
{
    int threads = argc > 3 ? atoi(argv[3]) : 2;
    int crews = 1;

    rounds = size_argument(argc, argv, 300);
    if (argc > 2)
        how = argv[2];
    if (is("crews"))
        crews = CREWS;
    pthread_barrier_init(&barrier, NULL, (unsigned)threads);
    for (int i = 0; i < threads; i++)
        states[i] = (uint64_t)i + 1;
    for (long i = 0; i < rounds / 4; i++)
        states[0] = labour(states[0], 0);
    rounds /= crews;
    if (has_boss())
        hire_by_another(threads);
    else
        for (int i = 0; i < crews; i++)
            hire(threads);
    for (int i = 1; i < threads; i++)
        states[0] += states[i];
    printf("crews %016llx\n", (unsigned long long)states[0]);
    return 0;
}
