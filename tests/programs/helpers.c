// SPDX-License-Identifier: Apache-2.0
// Computes, and starts processes in the way of MODE: what of them reaches the program itself, and what they leave.
// Usage: helpers MILLISECONDS MODE [EVERY]
//   start    a shell asks for the system's name before anything else
//   system   a shell that does little, after every EVERY milliseconds of work
//   fork     a child that computes as long as EVERY/4 milliseconds, in the program's own code, then
//   vfork    a child on the program's memory that computes for a millisecond, then
//   ahead    a child that computes for EVERY milliseconds before anything else
//   beside   a child that computes while the program does, from the second quarter to the third
//   clone    a child that shares the memory and runs at the same time
//   zombies  a child at the start that is never waited for
//   later    the same, waited for at the third quarter
//   forever  a child that lives until the program ends
//   daemon   goes on in a child in a session of its own, and ends
//   wrapper  all work in a child, after a hundredth of it
//   loop     replaces itself EVERY times by itself, and computes then
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "site.h"

static uint64_t compute(long milliseconds, uint64_t state)
{
    for (long i = 0; i < milliseconds; i++)
        state = work(state);
    return state;
}

static void failed(const char *what)
{
    perror(what);
    exit(2);
}

static void wait_for(pid_t child)
{
    int status = 1;
    if (child < 0 || waitpid(child, &status, 0) < 0 || status)
        failed("helpers: child");
}

static pid_t start_computing(long milliseconds)
{
    pid_t child = fork();
    if (child == 0)
        _exit(compute(milliseconds, 2) == 0);
    return child;
}

static int beside(void *argument)
{
    _exit(compute(*(long *)argument, 3) == 0);
}

static void start_helper(const char *mode, long every)
{
    if (!strcmp(mode, "system") && system("uname -s >/dev/null; :"))
        failed("helpers: system");
    if (!strcmp(mode, "fork"))
        wait_for(start_computing(every / 4));
    if (!strcmp(mode, "vfork")) {
        pid_t child = vfork();
        if (child == 0)
            _exit(work(1) == 0);
        wait_for(child);
    }
}

static void begin(const char *mode, long milliseconds, char **argv, long every)
{
    static char stack[1 << 16] __attribute__((aligned(16)));
    static long length;
    if (!strcmp(mode, "start")) {
        char name[80] = "";
        FILE *said = popen("uname -s", "r");
        if (!said || !fgets(name, sizeof name, said) || pclose(said))
            failed("helpers: popen");
        printf("system %s", name);
    }
    if (!strcmp(mode, "clone")) {
        length = milliseconds / 4;
        if (clone(beside, stack + sizeof stack, CLONE_VM | SIGCHLD, &length) < 0)
            failed("helpers: clone");
    }
    if (!strcmp(mode, "zombies") && start_computing(1) < 0)
        failed("helpers: fork");
    if (!strcmp(mode, "forever") && fork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;)
            pause();
    }
    if (!strcmp(mode, "daemon") && fork() != 0)
        _exit(0);
    if (!strcmp(mode, "daemon"))
        setsid();
    if (!strcmp(mode, "wrapper")) {
        wait_for(start_computing(milliseconds));
        exit(compute(milliseconds / 100, 1) == 0);
    }
    if (!strcmp(mode, "ahead"))
        wait_for(start_computing(every));
    if (!strcmp(mode, "loop") && every > 0) {
        char left[24];
        snprintf(left, sizeof left, "%ld", every - 1);
        argv[3] = left;
        fflush(stdout);
        execv("/proc/self/exe", argv);
        failed("helpers: execv");
    }
}

int main(int argc, char **argv)
{
    long milliseconds = size_argument(argc, argv, 300), every = argc > 3 ? atol(argv[3]) : 100, own = 0;
    const char *mode = argc > 2 ? argv[2] : "start";
    uint64_t state = 1;
    pid_t child = 0;
    begin(mode, milliseconds, argv, every);
    if (every < 1)
        every = milliseconds;
    if (!strcmp(mode, "later"))
        child = start_computing(1);
    for (long i = 0; i < milliseconds; i++, own++) {
        if (i && i % every == 0)
            start_helper(mode, every);
        if (!strcmp(mode, "beside") && i == milliseconds / 4)
            child = start_computing(milliseconds / 4);
        if (child && i == milliseconds * 3 / 4)
            wait_for(child);
        state = work(state);
    }
    printf("helpers %016llx\n", (unsigned long long)state);
    print_count("site_work", (uint64_t)own * WORK_UNITS);
    return 0;
}
