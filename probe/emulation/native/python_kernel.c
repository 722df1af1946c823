/* SPDX-License-Identifier: Apache-2.0
 * Interpreters for a user's kernel in Python (-DPYTHON_KERNEL, and its text as `python_source`). */
#define _GNU_SOURCE
#include "python_kernel.h"

#include "kernels.h"

#ifdef PYTHON_KERNEL

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

extern const char python_source[];

/* Answers each number of iterations, and before all the first, with the CPU seconds used so far. What the kernel
 * prints goes nowhere: nobody reads it before the end. */
static const char runner[] =
    "import os, sys, time\n"
    "answers, errors = os.fdopen(os.dup(1), 'w'), os.fdopen(os.dup(2), 'w')\n"
    "nowhere = os.open(os.devnull, os.O_WRONLY)\n"
    "os.dup2(nowhere, 1); os.dup2(nowhere, 2)\n"
    "try:\n"
    "    space = {'__name__': 'kernel'}\n"
    "    exec(compile(sys.argv[1], 'kernel.py', 'exec'), space)\n"
    "    kernel = space['kernel']\n"
    "    print(time.process_time(), file=answers, flush=True)\n"
    "    while line := sys.stdin.readline():\n"
    "        kernel(int(line))\n"
    "        print(time.process_time(), file=answers, flush=True)\n"
    "except BaseException as error:\n"
    "    print(f'error 22 the kernel in Python: {error!r}'[:200], file=errors, flush=True)\n"
    "    sys.exit(3)\n";

static struct interpreter {
    FILE *orders, *answers;
    volatile double used;
} *interpreters;

static int answered(struct interpreter *one)
{
    double used;
    if (fscanf(one->answers, "%lf", &used) != 1)
        return EPIPE;
    one->used = used;
    return 0;
}

static int start(struct interpreter *one)
{
    int orders[2], answers[2];
    if (pipe2(orders, O_CLOEXEC) || pipe2(answers, O_CLOEXEC))
        return errno;
    pid_t parent = getpid(), pid = fork();
    if (pid < 0)
        return errno;
    if (!pid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() == parent && dup2(orders[0], 0) == 0 && dup2(answers[1], 1) == 1)
            execlp("python3", "python3", "-I", "-c", runner, python_source, (char *)NULL);
        dprintf(2, "error %d python3 does not start: install it, or put it into PATH\n", errno);
        _exit(127);
    }
    close(orders[0]);
    close(answers[1]);
    one->orders = fdopen(orders[1], "w");
    one->answers = fdopen(answers[0], "r");
    return one->orders && one->answers ? 0 : ENOMEM;
}

int python_prepare(const char *folder)
{
    (void)folder;
    signal(SIGPIPE, SIG_IGN);
    interpreters = calloc(kernel_threads, sizeof *interpreters);
    if (!interpreters)
        return ENOMEM;
    int failed = 0;
    for (unsigned which = 0; which < kernel_threads && !failed; which++)
        failed = start(&interpreters[which]);
    for (unsigned which = 0; which < kernel_threads && !failed; which++)
        failed = answered(&interpreters[which]);
    return failed;
}

void python_run(uint64_t iterations)
{
    struct interpreter *one = &interpreters[kernel_thread];
    if (!iterations)
        return;
    if (fprintf(one->orders, "%" PRIu64 "\n", iterations) < 0 || fflush(one->orders) || answered(one)) {
        _exit(3); /* It has said why. */
    }
}

double python_own_seconds(void)
{
    return interpreters ? interpreters[kernel_thread].used : 0;
}

double python_seconds(void)
{
    double all = 0;
    for (unsigned which = 0; interpreters && which < kernel_threads; which++)
        all += interpreters[which].used;
    return all;
}

#else

double python_own_seconds(void)
{
    return 0;
}

double python_seconds(void)
{
    return 0;
}

#endif
