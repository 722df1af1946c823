// SPDX-License-Identifier: Apache-2.0
// Computes while it holds something that no probe can carry.
// Usage: holder MILLISECONDS early|large|timerfd|inotify|memfd|fifo|posix
// early: a connected socket, closed halfway; large: a deleted file of 65 MB; posix: a timer of timer_create(2)
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>
#include "site.h"

static int large_file(void)
{
    char path[] = "holder-XXXXXX";
    int file = mkstemp(path);
    return file < 0 || unlink(path) || ftruncate(file, 65 << 20) ? -1 : file;
}

static int cancelled_timer(void)
{
    struct itimerspec later = {{0, 0}, {time(NULL) + 600, 0}};
    int timer = timerfd_create(CLOCK_REALTIME, 0);
    return timerfd_settime(timer, TFD_TIMER_ABSTIME | TFD_TIMER_CANCEL_ON_SET, &later, NULL) ? -1 : timer;
}

static int posix_timer(void)
{
    struct sigevent silent = {.sigev_notify = SIGEV_NONE};
    timer_t made;
    return timer_create(CLOCK_MONOTONIC, &silent, &made);
}

static int connected(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int made = socket(AF_INET, SOCK_DGRAM, 0);
    return connect(made, (struct sockaddr *)&address, sizeof(address)) ? -1 : made;
}

static int hold(const char *what)
{
    if (!strcmp(what, "early"))
        return connected();
    if (!strcmp(what, "large"))
        return large_file();
    if (!strcmp(what, "timerfd"))
        return cancelled_timer();
    if (!strcmp(what, "inotify"))
        return inotify_init();
    if (!strcmp(what, "memfd"))
        return memfd_create("holder", 0);
    if (!strcmp(what, "posix"))
        return posix_timer();
    if (!strcmp(what, "fifo"))
        return mkfifo("holder.fifo", 0600) && access("holder.fifo", F_OK) ? -1 : open("holder.fifo", O_RDWR);
    return -1;
}

int main(int argc, char **argv)
{
    uint64_t state = 1;
    long milliseconds = size_argument(argc, argv, 400);
    int held = argc < 3 ? -1 : hold(argv[2]);
    if (held < 0) {
        perror("holder");
        return 2;
    }
    for (long i = 0; i < milliseconds; i++) {
        if (i == milliseconds / 2 && !strcmp(argv[2], "early"))
            close(held);
        state = work(state);
    }
    printf("holder %016llx\n", (unsigned long long)state);
    return 0;
}
