// SPDX-License-Identifier: Apache-2.0
// Threads that share the work, in one of many ways; the first takes part. All compute the same: where one is found to
// have another result than the first in the middle of the marked region, the region does not end, and the status is 9.
// Usage: team [ROUNDS] [HOW] [THREADS]
#include <asm/prctl.h>
#include <dlfcn.h>
#include <omp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "site.h"

enum { MOST = 320, TURNS = 2, WARM = 10, START = 15, KEPT = 22, END = 30 };

static long rounds;
static int threads = 2;
static const char *how = "barrier";
static pthread_barrier_t barrier;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t robust, inheriting;
static sigset_t waited_for;
static struct {
    uint64_t value, kept;
    char apart[48];
} states[MOST];
static volatile sig_atomic_t handled;
static uint64_t shared;
static int words[2];

static int is(const char *name)
{
    return !strcmp(how, name);
}

static void await_word(void)
{
    char word;

    while (read(words[0], &word, 1) != 1)
        ;
}

static void on_signal(int number)
{
    handled += number == SIGUSR1;
    if (is("handler"))
        await_word();
}

__attribute__((noipa)) static void warm(void)
{
    SITE(site_warm);
}
__attribute__((noipa)) static void start(void)
{
    SITE(site_start);
}
__attribute__((noipa)) static void end(void)
{
    SITE(site_end);
}

static void mark(long round)
{
    if (round == WARM)
        warm();
    if (round == START)
        start();
    if (round != END)
        return;
    for (int i = 1; i < threads; i++)
        if (states[i].kept != states[0].kept)
            _exit(9);
    end();
}

/* Two kinds of work, so that there are phases. */
static uint64_t labour(uint64_t value, long round)
{
    if (round / 20 % 3 < 2)
        for (int i = 0; i < TURNS; i++)
            value = work(value);
    else
        for (int i = 0; i < TURNS * 400000; i++)
            value = value * 6364136223846793005u + (value >> 33);
    return value;
}

static void handle_elsewhere(void)
{
    static char stack[64 << 10];
    stack_t other = {.ss_sp = stack, .ss_size = sizeof(stack)};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};

    sigaltstack(&other, NULL);
    sigaction(SIGUSR1, &action, NULL);
}

/* Where one of the others is when the first comes to a marker: in a call, in a handler, or past the marker. */
static void meet(int number, long round)
{
    int marked = round == WARM || round == START || round == END;

    if (number == 0) {
        if (marked)
            usleep(50000);
        mark(round);
        if (write(words[1], "x", 1) != 1)
            _exit(8);
        return;
    }
    if (number > 1)
        return;
    if (!round)
        handle_elsewhere();
    if (is("ahead") && round == WARM)
        warm();
    if (is("ahead") && round == START)
        start();
    if (is("ahead") && round == END)
        end();
    if (is("handler"))
        raise(SIGUSR1);
    else
        await_word();
}

/* A barrier in the program's own code: whoever comes early executes more. */
static void spin(long round)
{
    __atomic_add_fetch(&shared, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&shared, __ATOMIC_SEQ_CST) < (uint64_t)(round + 1) * (uint64_t)threads)
        ;
}

/* As emulators do. `own`: as far as where it counts is not mapped; else it counts in the first one's counters. */
static void take_base(int own, int by_instruction)
{
    uint64_t base = own ? (uint64_t)(uintptr_t)states : 8;

    if (by_instruction && getauxval(AT_HWCAP2) & 2)
        __asm__ volatile("wrgsbase %0" : : "r"(base));
    else
        syscall(SYS_arch_prctl, ARCH_SET_GS, base);
}

static void again(int number)
{
    handled = number;
}

/* What only one of the others does. */
static void misbehave(long round)
{
    if (!round && is("alternate"))
        handle_elsewhere();
    if (!round && is("gs-handled"))
        signal(SIGSEGV, again);
    if (!round && (is("gs") || is("gs-near") || is("gs-instruction") || is("gs-handled")))
        take_base(!is("gs-near"), is("gs-instruction"));
    if (is("alternate") && (round < WARM - 2 || round > START))
        raise(SIGUSR1);
    if (round == rounds / 2 && is("fork")) {
        pid_t child = fork();
        if (!child)
            _exit(0);
        waitpid(child, NULL, 0);
    }
    if (round == rounds / 2 && is("execute"))
        execl("/bin/true", "true", NULL);
    if (!round && is("trap"))
        signal(SIGTRAP, on_signal);
    if (round % 10 == 0 && is("trap"))
        raise(SIGTRAP);
    if (round == rounds / 2 && is("load"))
        dlopen("libutil.so.1", RTLD_NOW);
    if (round == rounds / 2 && is("fault"))
        raise(SIGSEGV);
    if (round == rounds / 2 && is("stop"))
        kill(getpid(), SIGSTOP);
    if (round == 1 && is("robust"))
        pthread_mutex_lock(&robust);
    if (!round && is("priority")) {
        shared = 1;
        pthread_mutex_lock(&inheriting);
        pthread_mutex_unlock(&inheriting);
    }
    if (is("sigwait"))
        sigtimedwait(&waited_for, NULL, &(struct timespec){0, 200000});
    if (is("sleep"))
        nanosleep(&(struct timespec){0, 200000}, NULL);
    if (is("poll"))
        poll(NULL, 0, 1);
}

static void *share(void *of)
{
    int number = (int)(intptr_t)of;

    for (long round = 0; round < rounds; round++) {
        /* The other one has asked for what this one holds; soon it waits. */
        while (!number && round == WARM && is("priority") && !__atomic_load_n(&shared, __ATOMIC_RELAXED))
            usleep(1000);
        if (!number && round == WARM && is("priority"))
            usleep(200000);
        if (is("read") || is("handler") || is("ahead"))
            meet(number, round);
        else if (!number)
            mark(round);
        states[number].value = labour(states[number].value, round);
        if (round == KEPT)
            states[number].kept = states[number].value;
        if (!number && !round && (is("gs-first") || is("gs-first-near")))
            take_base(is("gs-first"), 0);
        if (number == 1)
            misbehave(round);
        if (is("lock") || is("orphan") || is("process-shared")) {
            pthread_mutex_lock(&lock);
            shared += states[number].value & 1;
            pthread_mutex_unlock(&lock);
        }
        if (is("spin"))
            spin(round);
        else if (!is("orphan") && !is("priority"))
            pthread_barrier_wait(&barrier);
    }
    return NULL;
}

static void *once(void *of)
{
    states[1].value = work(states[1].value);
    return of;
}

static void loops(void)
{
    static double from[1 << 18], to[1 << 18];
    enum { SIZE = 1 << 18 };
    double sum = 0;

    for (long round = 0; round < rounds; round++) {
        mark(round);
        states[0].value = labour(states[0].value, round);
        if (is("dynamic")) {
#pragma omp parallel for schedule(dynamic, 1000) num_threads(threads)
            for (int i = 1; i < SIZE - 1; i++)
                to[i] = 0.5 * from[i] + 0.25 * (from[i - 1] + from[i + 1]) + (double)(round & 3);
        } else if (is("nested")) {
#pragma omp parallel num_threads(threads)
            {
                int half = SIZE / threads, begin = omp_get_thread_num() * half;
#pragma omp parallel for schedule(static) num_threads(2)
                for (int i = begin + 1; i < begin + half - 1; i++)
                    to[i] = 0.5 * from[i] + 0.25 * (from[i - 1] + from[i + 1]) + (double)(round & 3);
            }
        } else if (is("cancel")) {
            int found = 0;
#pragma omp parallel num_threads(threads)
            {
#pragma omp for schedule(static)
                for (int i = 1; i < SIZE - 1; i++) {
                    to[i] = 0.5 * from[i] + 0.25 * (from[i - 1] + from[i + 1]) + (double)(round & 3);
                    if (i == SIZE / 2) {
#pragma omp atomic
                        found++;
#pragma omp cancel for
                    }
#pragma omp cancellation point for
                }
            }
            if (found != 1)
                _exit(7);
        } else {
#pragma omp parallel for schedule(static) num_threads(threads)
            for (int i = 1; i < SIZE - 1; i++)
                to[i] = 0.5 * from[i] + 0.25 * (from[i - 1] + from[i + 1]) + (double)(round & 3);
        }
        if (round % 40 < 15) {
#pragma omp parallel for schedule(static) reduction(+ : sum) num_threads(threads)
            for (int i = 0; i < SIZE; i++)
                sum += (from[i] = to[i]);
        }
    }
    printf("loops %.6g\n", sum);
}

int main(int argc, char **argv)
{
    pthread_t others[MOST];
    pthread_mutexattr_t kind;

    rounds = size_argument(argc, argv, 300);
    if (argc > 2)
        how = argv[2];
    if (argc > 3)
        threads = atoi(argv[3]);
    for (int i = 0; i < MOST; i++)
        states[i].value = 1;
    if (is("static") || is("dynamic") || is("nested") || is("cancel")) {
        omp_set_max_active_levels(2);
        loops();
        return 0;
    }
    if (is("short")) {
        for (long i = 0; i < rounds * 3; i++) {
            states[0].value = labour(states[0].value, i);
            if (pthread_create(&others[0], NULL, once, NULL) || pthread_join(others[0], NULL))
                return 2;
        }
        return 0;
    }
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&robust, &kind);
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_setprotocol(&kind, PTHREAD_PRIO_INHERIT);
    pthread_mutex_init(&inheriting, &kind);
    if (is("process-shared")) {
        pthread_mutexattr_init(&kind);
        pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
        pthread_mutex_init(&lock, &kind);
    }
    if ((is("read") || is("handler") || is("ahead")) && pipe(words))
        return 2;
    sigaddset(&waited_for, SIGUSR2);
    if (is("sigwait"))
        pthread_sigmask(SIG_BLOCK, &waited_for, NULL);
    pthread_barrier_init(&barrier, NULL, (unsigned)threads);
    if (is("priority"))
        pthread_mutex_lock(&inheriting);
    for (int i = 1; i < threads; i++)
        if (pthread_create(&others[i], NULL, share, (void *)(intptr_t)i))
            return 2;
    if (is("orphan")) {
        states[0].value = labour(1, 0);
        pthread_exit(NULL);
    }
    share(NULL);
    if (is("priority"))
        pthread_mutex_unlock(&inheriting);
    for (int i = 1; i < threads; i++)
        pthread_join(others[i], NULL);
    for (int i = 1; i < threads; i++)
        states[0].value += states[i].value;
    printf("team %016llx %d\n", (unsigned long long)states[0].value, (int)handled);
    return 0;
}
