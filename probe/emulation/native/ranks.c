/* SPDX-License-Identifier: Apache-2.0
 * Ranks as processes of one program. */
#define _GNU_SOURCE
#include "ranks.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* One process: says on `ready` that it is prepared, and waits until nobody has the other end of `go` any more. */
static _Noreturn void be(unsigned rank, pid_t parent, int ready, int go, void (*prepare)(unsigned),
                         void (*work)(unsigned))
{
    char byte = 1;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(3);
    prepare(rank);
    if (write(ready, &byte, 1) != 1 || read(go, &byte, 1) != 0)
        _exit(3);
    work(rank);
    exit(0);
}

static int end_all(const pid_t *pids, unsigned count, int why)
{
    for (unsigned rank = 0; rank < count; rank++)
        if (pids[rank] > 0)
            kill(pids[rank], SIGKILL);
    while (wait(NULL) > 0 || errno == EINTR)
        ;
    return why;
}

/* Waits for all; -1 when the first has failed. */
static int wait_for(pid_t *pids, unsigned count)
{
    for (unsigned left = count; left; left--) {
        int status;
        pid_t pid = wait(&status);
        for (unsigned rank = 0; rank < count; rank++)
            if (pids[rank] == pid)
                pids[rank] = 0;
        if (pid < 0 || status)
            return end_all(pids, count, -1);
    }
    return 0;
}

int run_ranks(unsigned ranks, void (*prepare)(unsigned), void (*begin)(void), void (*work)(unsigned))
{
    if (ranks == 1) {
        prepare(0);
        begin();
        work(0);
        return 0;
    }
    pid_t parent = getpid(), *pids = calloc(ranks, sizeof *pids);
    int *prepared = calloc(ranks, sizeof *prepared), go[2];
    struct rlimit files;
    /* One descriptor for each rank, and those that a rank writes to. */
    if (!getrlimit(RLIMIT_NOFILE, &files)) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    if (!pids || !prepared || pipe(go))
        return errno;
    for (unsigned rank = 0; rank < ranks; rank++) {
        int ready[2];
        if (pipe(ready) || (pids[rank] = fork()) < 0)
            return end_all(pids, ranks, errno);
        if (!pids[rank]) {
            close(go[1]);
            close(ready[0]);
            for (unsigned before = 0; before < rank; before++)
                close(prepared[before]);
            be(rank, parent, ready[1], go[0], prepare, work);
        }
        close(ready[1]);
        prepared[rank] = ready[0];
    }
    close(go[0]);
    for (unsigned rank = 0; rank < ranks; rank++) {
        char byte;
        if (read(prepared[rank], &byte, 1) != 1)
            return end_all(pids, ranks, -1);
        close(prepared[rank]);
    }
    begin();
    close(go[1]);
    int failed = wait_for(pids, ranks);
    free(pids);
    free(prepared);
    return failed;
}
