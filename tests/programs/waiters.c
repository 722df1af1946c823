// SPDX-License-Identifier: Apache-2.0
// One thread works, others wait: for work that never comes, for a clock, or for what the first hands them now and then.
// Usage: waiters [MILLISECONDS] [HOW]
#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>
#include "site.h"

enum { HELPERS = 3, HANDED_EVERY = 40 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static uint64_t handed, taken;
static atomic_int over;
static const char *how = "idle";

static int is(const char *name) { return !strcmp(how, name); }

// Helpers that need not be helped are never woken.
static void wait_for_work(void)
{
    uint64_t seen = 0;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (handed == seen)
            pthread_cond_wait(&changed, &lock);
        seen = handed;
        taken = seen;
        pthread_cond_broadcast(&changed);
    }
}

// Each in another system call, for good; where asked for, at descriptors of the program's own.
static void wait_in(intptr_t number)
{
    struct epoll_event event;

    if (is("epoll"))
        epoll_wait(epoll_create1(0), &event, 1, -1);
    if (number == 0)
        poll(NULL, 0, -1);
    if (number == 1)
        sigwaitinfo(&(sigset_t){0}, NULL);
    nanosleep(&(struct timespec){.tv_sec = 3600}, NULL);
}

static void *helper(void *number)
{
    if (is("late-third") && (intptr_t)number == 2)
        usleep(1500000);
    if (is("calls") || is("epoll"))
        wait_in((intptr_t)number);
    const struct timespec tick = {.tv_nsec = 10000000};
    uint64_t state = 7;
    while ((is("busy") || is("late-third")) && !over)
        state = work(state);
    while (is("tick") && !over)
        nanosleep(&tick, NULL);
    if (is("ends"))
        usleep(100000);
    else if (is("help"))
        work(state);
    else if (is("fork"))
        _exit(fork() < 0);
    else if (is("load"))
        dlopen("libutil.so.1", RTLD_NOW);
    else if (is("leave")) {
        usleep(300000);
        dlopen("libutil.so.1", RTLD_NOW);
    } else if (is("int3"))
        __asm__ volatile("int3");
    else
        wait_for_work();
    return state ? NULL : &over;
}

static void hand_over(void)
{
    pthread_mutex_lock(&lock);
    handed++;
    pthread_cond_broadcast(&changed);
    while (taken != handed)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

// One unit of work by another thread, while the first waits for its end.
static void have_helped(void)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, helper, NULL) || pthread_join(thread, NULL))
        exit(2);
}

static void start_helpers(void)
{
    pthread_t thread;
    for (int i = 0; i < HELPERS; i++)
        if (pthread_create(&thread, NULL, helper, (void *)(intptr_t)i))
            exit(2);
}

__attribute__((noipa)) static uint64_t other_work(uint64_t state)
{
    for (int i = 0; i < 40000; i++)
        state = (state ^ (state >> 7)) * 0x9e3779b97f4a7c15u;
    return state;
}

int main(int argc, char **argv)
{
    long milliseconds = size_argument(argc, argv, 400);
    uint64_t state = 1;
    if (argc > 2)
        how = argv[2];
    if (!is("late") && !is("none") && !is("help"))
        start_helpers();
    if (is("leave"))
        pthread_exit(NULL);
    for (long i = 0; i < milliseconds; i++) {
        if (is("late") && i == milliseconds / 2)
            start_helpers();
        if (is("help") && i % HANDED_EVERY == 0)
            have_helped();
        state = i / 100 % 2 ? other_work(state) : work(state);
        if (is("ask") && i % HANDED_EVERY == 0)
            hand_over();
    }
    over = 1;
    printf("waiters %016llx\n", (unsigned long long)state);
    return 0;
}
