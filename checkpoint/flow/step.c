/* SPDX-License-Identifier: Apache-2.0
 *
 * Steps a stopped, traced process, and notes its registers before every step. From Python a step would take ten times
 * as long. */

#include <signal.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/user.h>
#include <sys/wait.h>

/* Make at most `most` steps of process `pid`. `noted` has room for as many registers. The number of steps made; -1
 * where ptrace fails. `status`: of the stop that was no step, or of the end; 0 where every step was made. */
long step(int pid, long most, struct user_regs_struct *noted, int *status)
{
    *status = 0;
    for (long made = 0; made < most; made++) {
        if (ptrace(PTRACE_GETREGS, pid, 0, &noted[made]) || ptrace(PTRACE_SINGLESTEP, pid, 0, 0))
            return -1;
        int found;
        if (waitpid(pid, &found, __WALL) != pid)
            return -1;
        if (!WIFSTOPPED(found) || WSTOPSIG(found) != SIGTRAP || found >> 16) {
            *status = found;
            return made + 1;
        }
    }
    return most;
}
