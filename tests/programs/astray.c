// SPDX-License-Identifier: Apache-2.0
// The thread that tells places does something else before it reaches the first of them. It is the first thread, or one
// that the first one (crew), or another (boss), has started; a further thread works beside it.
// HOW held...: the boss's thread cannot begin to mark as long as the first one waits for a process (vfork).
// Usage: astray [HOW] [WHO] [ROUNDS]
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "site.h"

enum { WARM = 10, START = 15, END = 30 };

static const char *how = "", *who = "first";
static long rounds = 40;
static volatile char *volatile nowhere;
static int words[2];
static _Atomic int holding;
static uint64_t states[2];

static int is(const char *name)
{
    return !strcmp(how, name);
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

static void stray(void)
{
    if (is("leave"))
        pthread_exit(NULL);
    if (is("fault"))
        *nowhere = 0;
    if (is("execute"))
        execl("/bin/true", "true", NULL);
    if (is("stop"))
        kill(getpid(), SIGSTOP);
    if (is("stop-itself"))
        raise(SIGSTOP);
    if (is("fork")) {
        pid_t child = fork();
        if (!child) {
            warm();
            _exit(0);
        }
        waitpid(child, NULL, 0);
    }
    if (is("vfork")) {
        pid_t child = vfork();
        if (!child) {
            usleep(100000);
            execl("/bin/true", "true", NULL);
        }
        waitpid(child, NULL, 0);
    }
    if (is("vfork-there")) {
        pid_t child = vfork();
        if (!child) {
            warm();
            _exit(0);
        }
        waitpid(child, NULL, 0);
    }
}

/* The first thread, which the kernel suspends until its child is gone. */
static void hold(void)
{
    char word;

    if (strncmp(how, "held", 4))
        return;
    pid_t child = vfork();
    if (!child) {
        holding = 1; /* in memory that is the parent's */
        if (is("held-briefly"))
            usleep(300000);
        else if (read(words[0], &word, 1) != 1)
            _exit(1);
        _exit(0);
    }
    waitpid(child, NULL, 0);
}

static void *mark(void *of)
{
    if (write(words[1], "x", 1) != 1)
        _exit(8);
    for (long round = 0; round < rounds; round++) {
        if (round == WARM / 2)
            stray();
        if (round == WARM)
            warm();
        if (round == START)
            start();
        if (round == END)
            end();
        states[0] = work(states[0]);
    }
    return of;
}

static void *beside(void *of)
{
    for (long round = 0; round < rounds; round++)
        states[1] = work(states[1]);
    return of;
}

static void *boss(void *of)
{
    pthread_t other;

    while (!strncmp(how, "held", 4) && !holding)
        usleep(1000);
    if (pthread_create(&other, NULL, mark, NULL))
        exit(2);
    if (is("held-execute") || is("held-end"))
        usleep(200000);
    if (is("held-execute"))
        execl("/bin/true", "true", NULL);
    if (is("held-end"))
        _exit(3);
    pthread_join(other, NULL);
    return of;
}

int main(int argc, char **argv)
{
    pthread_t marking, other;

    if (argc > 1)
        how = argv[1];
    if (argc > 2)
        who = argv[2];
    if (argc > 3)
        rounds = atol(argv[3]);
    if (pipe(words))
        return 2;
    if (strcmp(who, "first")) {
        if (pthread_create(&marking, NULL, strcmp(who, "boss") ? mark : boss, NULL))
            return 2;
    }
    if (pthread_create(&other, NULL, beside, NULL))
        return 2;
    hold();
    if (strcmp(who, "first"))
        pthread_join(marking, NULL);
    else
        mark(NULL);
    pthread_join(other, NULL);
    printf("astray %016llx\n", (unsigned long long)(states[0] + states[1]));
    return 0;
}
