// SPDX-License-Identifier: Apache-2.0
// Computes while it holds something that no probe can carry.
// Usage: holder MILLISECONDS deleted|mapped|eventfd|epoll|timerfd|signalfd|inotify|memfd|fifo
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <unistd.h>
#include "site.h"

static int deleted_file(void)
{
    char path[] = "holder-XXXXXX";
    int file = mkstemp(path);
    if (file < 0 || write(file, path, sizeof path) != sizeof path || unlink(path))
        return -1;
    return file;
}

static int hold(const char *what)
{
    sigset_t none;
    sigemptyset(&none);
    if (!strcmp(what, "deleted"))
        return deleted_file();
    if (!strcmp(what, "mapped")) {
        int file = deleted_file();
        void *at = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, file, 0);
        return at == MAP_FAILED ? -1 : close(file);
    }
    if (!strcmp(what, "eventfd"))
        return eventfd(0, 0);
    if (!strcmp(what, "epoll"))
        return epoll_create1(0);
    if (!strcmp(what, "timerfd"))
        return timerfd_create(CLOCK_MONOTONIC, 0);
    if (!strcmp(what, "signalfd"))
        return signalfd(-1, &none, 0);
    if (!strcmp(what, "inotify"))
        return inotify_init();
    if (!strcmp(what, "memfd"))
        return memfd_create("holder", 0);
    if (!strcmp(what, "fifo"))
        return mkfifo("holder.fifo", 0600) && access("holder.fifo", F_OK) ? -1 : open("holder.fifo", O_RDWR);
    return -1;
}

int main(int argc, char **argv)
{
    uint64_t state = 1;
    if (argc < 3 || hold(argv[2]) < 0) {
        perror("holder");
        return 2;
    }
    for (long i = size_argument(argc, argv, 400); i; i--)
        state = work(state);
    printf("holder %016llx\n", (unsigned long long)state);
    return 0;
}
