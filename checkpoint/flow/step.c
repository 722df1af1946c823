/* SPDX-License-Identifier: Apache-2.0
 *
 * Steps a stopped, traced process, and notes its registers before every step. From Python a step would take ten times
 * as long. */

#include <errno.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>

/* SIGCHLD may go to another thread of ours: look again after so many nanoseconds. */
#define LOOK 50000000

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Wait until the process stops or ends, about until `until` on the monotonic clock: a system call may last for ever.
 * SIGCHLD is blocked. */
static int wait_until(int pid, double until, const sigset_t *child, int *status)
{
    static const struct timespec look = {0, LOOK};
    for (;;) {
        int told = sigtimedwait(child, NULL, &look);
        pid_t found = waitpid(pid, status, __WALL | WNOHANG);
        if (found)
            return found == pid ? 0 : -1;
        if (told < 0 && seconds_now() > until) {
            errno = ETIMEDOUT;
            return -1;
        }
    }
}

static long steps(int pid, long most, double until, const sigset_t *child, struct user_regs_struct *noted,
                  int *status)
{
    for (long made = 0; made < most; made++) {
        if (ptrace(PTRACE_GETREGS, pid, 0, &noted[made]) || ptrace(PTRACE_SINGLESTEP, pid, 0, 0))
            return -1;
        int found;
        if (wait_until(pid, until, child, &found))
            return -1;
        if (!WIFSTOPPED(found) || WSTOPSIG(found) != SIGTRAP || found >> 16) {
            *status = found;
            return made + 1;
        }
    }
    return most;
}

/* Make at most `most` steps of process `pid`. `noted` has room for as many registers. The number of steps made; -1
 * where ptrace fails, and where one does not end until `until`. `status`: of the stop that was no step, or of the end;
 * 0 where every step was made. */
long step(int pid, long most, double until, struct user_regs_struct *noted, int *status)
{
    sigset_t child, before;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    pthread_sigmask(SIG_BLOCK, &child, &before);
    *status = 0;
    long made = steps(pid, most, until, &child, noted, status);
    int error = errno;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = error;
    return made;
}
