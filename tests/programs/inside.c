// SPDX-License-Identifier: Apache-2.0
// Holds descriptors that lead to itself, set up before its region, and checks in the region that they are as they were. A
// check that fails ends the process with its own exit status.
// Usage: inside KIND [MILLISECONDS]      a name of KINDS, or `all` but for the last five; then it works, and uses them, so long
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <unistd.h>
#include "site.h"

enum { BRIM = 65536, SMALL = 8192, LARGE = 300000, DATA = 0x1122334455667788 & 0x7fffffff };

static int out[2], brim[2], half[2], small[2], stream[2], letters[2], packets[2], event, set, inner, timer, signals;
static int gone, gone_read, own, high;
static char *map;

__attribute__((noipa)) static void region_warm(void) { SITE(site_warm); }
__attribute__((noipa)) static void region_start(void) { SITE(site_start); }
__attribute__((noipa)) static void region_end(void) { SITE(site_end); }

static int gets(int fd, const char *text)
{
    char found[64] = "";
    ssize_t length = read(fd, found, sizeof(found));
    return length == (ssize_t)strlen(text) && !memcmp(found, text, strlen(text));
}

static int puts_to(int fd, const char *text) { return write(fd, text, strlen(text)) == (ssize_t)strlen(text); }

static void hold_pipe(void)
{
    CHECK(3, !pipe2(out, O_CLOEXEC) && puts_to(out[1], "before"));
    // Numbers far apart, and the end that is written to first.
    high = dup2(out[1], 90);
    fcntl(out[0], F_SETFL, O_NONBLOCK);
}

static void check_pipe(void)
{
    CHECK(10, high == 90 && fcntl(out[0], F_GETFL) == (O_RDONLY | O_NONBLOCK) && fcntl(out[1], F_GETFL) == O_WRONLY);
    CHECK(11, fcntl(out[0], F_GETFD) == FD_CLOEXEC && fcntl(high, F_GETFD) == 0);
    CHECK(12, gets(out[0], "before") && read(out[0], map, 1) == -1 && errno == EAGAIN);
    CHECK(13, puts_to(high, "after") && puts_to(out[1], "wards") && gets(out[0], "afterwards"));
    CHECK(14, puts_to(out[1], "before"));
}

static void hold_brim(void)
{
    static unsigned char text[BRIM];
    for (int i = 0; i < BRIM; i++)
        text[i] = (unsigned char)i;
    CHECK(3, !pipe2(brim, O_NONBLOCK) && write(brim[1], text, BRIM) == BRIM);
    CHECK(4, !pipe(small) && fcntl(small[0], F_SETPIPE_SZ, SMALL) == SMALL && !pipe(half) && puts_to(half[1], "last words"));
    close(half[1]);
}

static void check_brim(void)
{
    static unsigned char found[BRIM + 1];
    CHECK(20, write(brim[1], "x", 1) == -1 && errno == EAGAIN);
    CHECK(21, read(brim[0], found, sizeof(found)) == BRIM && found[0] == 0 && found[257] == 1);
    CHECK(22, write(brim[1], found, BRIM) == BRIM && write(brim[1], "x", 1) == -1);
    CHECK(23, fcntl(small[1], F_GETPIPE_SZ) == SMALL);
}

static void check_half(void)
{
    char end;
    CHECK(24, gets(half[0], "last words") && read(half[0], &end, 1) == 0);
}

static void hold_sockets(void)
{
    CHECK(3, !socketpair(AF_UNIX, SOCK_STREAM, 0, stream) && !socketpair(AF_UNIX, SOCK_DGRAM, 0, letters));
    CHECK(4, !socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, packets) && puts_to(stream[0], "to one"));
    CHECK(5, puts_to(stream[1], "to nought") && puts_to(letters[0], "dear") && puts_to(letters[0], "reader"));
    CHECK(6, puts_to(packets[1], "parcel") && fcntl(letters[1], F_SETFL, O_NONBLOCK) == 0);
    int bytes = 100000;
    setsockopt(packets[0], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
}

static void check_sockets(void)
{
    struct iovec part;
    char text[64] = "";
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    part = (struct iovec){text, sizeof(text)};
    CHECK(30, gets(stream[1], "to one") && gets(stream[0], "to nought"));
    CHECK(31, gets(letters[1], "dear") && recvmsg(letters[1], &message, 0) == 6 && !memcmp(text, "reader", 6));
    CHECK(32, read(letters[1], text, 1) == -1 && errno == EAGAIN && gets(packets[0], "parcel"));
    CHECK(33, send(stream[0], "again", 5, MSG_NOSIGNAL) == 5 && recv(stream[1], text, 5, MSG_WAITALL) == 5);
    CHECK(34, fcntl(packets[0], F_GETFD) == FD_CLOEXEC && puts_to(stream[0], "to one") && puts_to(stream[1], "to nought"));
    CHECK(35, puts_to(letters[0], "dear") && puts_to(letters[0], "reader") && puts_to(packets[1], "parcel"));
    socklen_t size = sizeof(part.iov_len);
    int bytes = 0;
    CHECK(36, !getsockopt(packets[0], SOL_SOCKET, SO_SNDBUF, &bytes, &size) && bytes == 200000);
}

static void hold_events(void)
{
    struct epoll_event watched = {EPOLLIN | EPOLLET, {.u64 = DATA}};
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGUSR1);
    sigprocmask(SIG_BLOCK, &mask, NULL);
    event = eventfd(7, EFD_NONBLOCK);
    set = epoll_create1(EPOLL_CLOEXEC);
    inner = epoll_create1(0);
    timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    signals = signalfd(-1, &mask, SFD_NONBLOCK);
    CHECK(3, event >= 0 && set >= 0 && inner >= 0 && timer >= 0 && signals >= 0);
    CHECK(4, !epoll_ctl(set, EPOLL_CTL_ADD, event, &watched) && !epoll_ctl(inner, EPOLL_CTL_ADD, timer, &watched));
    watched = (struct epoll_event){EPOLLIN, {.u64 = 5}};
    CHECK(5, !epoll_ctl(set, EPOLL_CTL_ADD, inner, &watched) && !epoll_ctl(inner, EPOLL_CTL_ADD, signals, &watched));
}

static void check_events(void)
{
    struct epoll_event found[4];
    struct signalfd_siginfo information;
    uint64_t count = 0;
    CHECK(40, epoll_wait(set, found, 4, 0) == 1 && found[0].data.u64 == DATA && found[0].events == EPOLLIN);
    CHECK(41, read(event, &count, 8) == 8 && count == 7 && read(event, &count, 8) == -1 && errno == EAGAIN);
    CHECK(42, read(timer, &count, 8) == -1 && errno == EAGAIN && epoll_wait(set, found, 4, 0) == 0);
    struct itimerspec soon = {{0, 0}, {0, 1000}};
    CHECK(43, !timerfd_settime(timer, 0, &soon, NULL) && epoll_wait(set, found, 4, 1000) == 1 && found[0].data.u64 == 5);
    CHECK(44, epoll_wait(inner, found, 4, 0) == 1 && found[0].data.u64 == DATA && read(timer, &count, 8) == 8 && count == 1);
    CHECK(45, !raise(SIGUSR1) && epoll_wait(inner, found, 4, 0) == 1 && found[0].data.u64 == 5);
    CHECK(46, read(signals, &information, sizeof(information)) == sizeof(information));
    CHECK(47, information.ssi_signo == SIGUSR1 && fcntl(set, F_GETFD) == FD_CLOEXEC);
    count = 7;
    CHECK(48, write(event, &count, 8) == 8);
}

// One that ticks, one whose tick nobody has read, one that has yet to expire, one with ticks beside the time that is left.
enum { TICK = 20000000, FAR = 600 };
static int ticking, over, later, some;

static void hold_ticks(void)
{
    struct itimerspec ticks = {{0, TICK}, {0, TICK}}, soon = {{0, 0}, {0, 1000}}, far = {{FAR, 5}, {FAR, 0}}, left;
    struct pollfd ready;
    ticking = timerfd_create(CLOCK_MONOTONIC, 0);
    over = timerfd_create(CLOCK_REALTIME, TFD_NONBLOCK);
    later = timerfd_create(CLOCK_BOOTTIME, TFD_NONBLOCK);
    some = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    CHECK(3, ticking >= 0 && over >= 0 && later >= 0 && some >= 0);
    CHECK(4, !timerfd_settime(over, 0, &soon, NULL) && !timerfd_settime(later, 0, &far, NULL));
    ready = (struct pollfd){over, POLLIN, 0};
    CHECK(5, poll(&ready, 1, 1000) == 1);
    soon.it_interval.tv_sec = FAR;
    ready.fd = some;
    // Asked for its time, one that has expired goes on, and keeps what nobody has read.
    CHECK(6, !timerfd_settime(some, 0, &soon, NULL) && poll(&ready, 1, 1000) == 1 && !timerfd_gettime(some, &left));
    CHECK(7, !timerfd_settime(ticking, 0, &ticks, NULL));
}

static void check_ticks(void)
{
    struct itimerspec left;
    uint64_t count = 0, since;
    CHECK(80, read(ticking, &count, 8) == 8 && count >= 1 && read(ticking, &since, 8) == 8 && since >= 1);
    CHECK(81, !timerfd_gettime(ticking, &left) && left.it_interval.tv_nsec == TICK && left.it_value.tv_nsec <= TICK);
    CHECK(82, read(over, &count, 8) == 8 && count == 1 && !timerfd_gettime(over, &left) && !left.it_value.tv_nsec);
    CHECK(83, read(over, &count, 8) == -1 && errno == EAGAIN && read(later, &count, 8) == -1 && errno == EAGAIN);
    CHECK(84, !timerfd_gettime(later, &left) && left.it_interval.tv_sec == FAR && left.it_interval.tv_nsec == 5);
    CHECK(85, left.it_value.tv_sec < FAR && left.it_value.tv_sec > FAR - 120);
    CHECK(86, read(some, &count, 8) == 8 && count == 1 && read(some, &count, 8) == -1 && errno == EAGAIN);
    CHECK(87, !timerfd_gettime(some, &left) && left.it_value.tv_sec > FAR - 120 && left.it_interval.tv_sec == FAR);
}

// Sockets that nobody is connected to: one that listens for the network, one for this machine, one of no use yet.
static int network, machine, unused, alone_set;

static void hold_alone(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    struct epoll_event watched = {EPOLLIN, {.u64 = 6}};
    network = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    machine = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    unused = socket(AF_INET6, SOCK_DGRAM, 0);
    if (unused < 0) // a machine may have no such network
        unused = socket(AF_INET, SOCK_DGRAM, 0);
    CHECK(3, !bind(network, (struct sockaddr *)&address, sizeof(address)) && !listen(network, 5) && unused >= 0);
    CHECK(4, !bind(machine, (struct sockaddr *)&name, sizeof(name.sun_family)) && !listen(machine, 1));
    alone_set = epoll_create1(0);
    CHECK(5, alone_set >= 0 && !epoll_ctl(alone_set, EPOLL_CTL_ADD, network, &watched));
}

static void check_alone(void)
{
    struct pollfd asked[] = {{network, POLLIN | POLLOUT, 0}, {machine, POLLIN | POLLOUT, 0}, {unused, POLLIN, 0}};
    struct epoll_event found;
    CHECK(90, poll(asked, 3, 0) == 0 && epoll_wait(alone_set, &found, 1, 0) == 0);
    CHECK(91, fcntl(network, F_GETFL) == (O_RDWR | O_NONBLOCK) && fcntl(network, F_GETFD) == FD_CLOEXEC);
    CHECK(92, fcntl(machine, F_GETFL) == O_RDWR && fcntl(unused, F_GETFD) == 0);
}

static void hold_gone(void)
{
    char path[] = "inside-XXXXXX", name[64];
    static char text[LARGE];
    memset(text, 'g', sizeof(text));
    gone = mkstemp(path);
    snprintf(name, sizeof(name), "/proc/self/fd/%d", gone);
    gone_read = open(name, O_RDONLY);
    CHECK(3, gone >= 0 && gone_read >= 0 && write(gone, text, LARGE) == LARGE && lseek(gone, 100, SEEK_SET) == 100);
    CHECK(4, puts_to(gone, "mark") && !unlink(path));
    int mapped = mkstemp(strcpy(path, "inside-XXXXXX"));
    CHECK(5, mapped >= 0 && write(mapped, "mapped", 6) == 6 && !unlink(path));
    map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, mapped, 0);
    CHECK(6, map != MAP_FAILED && !close(mapped) && (map[5] = 'D', 1));
}

static void check_gone(void)
{
    struct stat status;
    char text[8] = "";
    CHECK(50, lseek(gone, 0, SEEK_CUR) == 104 && pread(gone_read, text, 5, 100) == 5 && !memcmp(text, "markg", 5));
    CHECK(51, !fstat(gone, &status) && status.st_size == LARGE && pwrite(gone, "new", 3, 200) == 3);
    CHECK(52, pread(gone_read, text, 4, 200) == 4 && !memcmp(text, "newg", 4) && !memcmp(map, "mappeD", 6));
}

static void hold_closed(void)
{
    close(0);
    close(1);
    close(2);
    hold_pipe();
}

static void hold_number(void)
{
    char path[64];
    snprintf(path, sizeof(path), "inside.%d", (int)getpid());
    own = open(path, O_RDWR | O_CREAT, 0600);
    CHECK(3, own >= 0 && puts_to(own, "mine"));
}

static void check_number(void)
{
    char text[4];
    CHECK(60, pread(own, text, 4, 0) == 4 && !memcmp(text, "mine", 4) && puts_to(own, "more"));
}

// What a confined region may not do, though it has sockets.
static void check_reach(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "/run/nobody-listens-here"};
    struct iovec part = {"out", 3};
    struct msghdr message = {.msg_name = &address, .msg_namelen = sizeof(address), .msg_iov = &part, .msg_iovlen = 1};
    int other[2], bytes = 4096;
    CHECK(70, gets(letters[1], "dear") && send(letters[0], "in", 2, 0) == 2);
    CHECK(71, sendto(letters[0], "out", 3, 0, (void *)&address, sizeof(address)) == -1 && errno == EACCES);
    CHECK(72, sendmsg(letters[0], &message, 0) == -1 && errno == EACCES);
    CHECK(73, connect(letters[0], (void *)&address, sizeof(address)) == -1 && errno == EACCES);
    CHECK(74, socketpair(AF_UNIX, SOCK_DGRAM, 0, other) == -1 && errno == EACCES);
    CHECK(75, setsockopt(letters[0], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes)) == -1 && errno == EACCES);
    CHECK(76, bind(letters[0], (void *)&address, sizeof(address)) == -1 && errno == EACCES);
}

static void check_reach_alone(void)
{
    struct sockaddr_un address;
    socklen_t size = sizeof(address);
    char text[8];
    CHECK(77, accept(network, NULL, NULL) == -1 && errno == EACCES);
    CHECK(78, getsockname(network, (void *)&address, &size) == -1 && errno == EACCES);
    CHECK(79, recv(unused, text, 1, MSG_DONTWAIT) == -1 && errno == EACCES && send(unused, "x", 1, 0) == -1 && errno == EACCES);
}

static const struct {
    const char *name;
    void (*hold)(void), (*check)(void), (*once)(void);
} KINDS[] = {
    {"gone", hold_gone, check_gone, NULL},       {"pipe", hold_pipe, check_pipe, NULL},
    {"brim", hold_brim, check_brim, check_half}, {"sockets", hold_sockets, check_sockets, NULL},
    {"events", hold_events, check_events, NULL}, {"number", hold_number, check_number, NULL},
    {"alone", hold_alone, check_alone, NULL},    {"ticks", hold_ticks, NULL, check_ticks},
    {"closed", hold_closed, check_pipe, NULL},
    {"reach", hold_sockets, check_reach, NULL},  {"reach alone", hold_alone, check_reach_alone, NULL},
};
enum { COUNT = sizeof(KINDS) / sizeof(*KINDS) };

static int asked(const char *kind, int n)
{
    return !strcmp(kind, KINDS[n].name) || (!strcmp(kind, "all") && n < COUNT - 5);
}

int main(int argc, char **argv)
{
    uint64_t state = 1;
    if (argc < 2) {
        puts("inside: KIND [MILLISECONDS]");
        return 2;
    }
    for (int n = 0; n < COUNT; n++)
        if (asked(argv[1], n))
            KINDS[n].hold();
    long milliseconds = argc < 3 ? 0 : size_argument(argc - 1, argv + 1, 1);
    region_warm();
    region_start();
    for (long i = 0; i < milliseconds + !milliseconds; i++) {
        state = milliseconds ? work(state) : state;
        for (int n = 0; n < COUNT; n++)
            if (asked(argv[1], n)) {
                if (KINDS[n].check)
                    KINDS[n].check();
                if (!milliseconds && KINDS[n].once)
                    KINDS[n].once();
            }
    }
    region_end();
    for (int n = 0; milliseconds && n < COUNT; n++)
        if (asked(argv[1], n) && KINDS[n].once)
            KINDS[n].once();
    printf("inside %016llx\n", (unsigned long long)state);
    return 0;
}
