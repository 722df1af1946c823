// SPDX-License-Identifier: Apache-2.0
// Everything a process has, set to something unusual before its region and checked in it. A check that fails ends
// the process with its own exit status.
// Usage: state INPUT OUTPUT      a file to read and map, a file to write
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
#include "site.h"

enum { POSITION = 1000, HIGH = 150, ALTERNATE = 1 << 16, DEEP = 1 << 20 };

static char alternate[ALTERNATE];
// struct rseq of linux/rseq.h: cpu_id_start, cpu_id, rseq_cs, flags, to 32 bytes
static volatile uint32_t rseq_area[8] __attribute__((aligned(32)));
enum { RSEQ_SIGNATURE = 0x53053053, RSEQ_UNREGISTER = 1 };
static volatile sig_atomic_t usr1, alarms, on_alternate;
static _Thread_local int local = 17;

__attribute__((noipa)) static void region_warm(void) { SITE(site_warm); }
__attribute__((noipa)) static void region_start(void) { SITE(site_start); }
__attribute__((noipa)) static void region_end(void) { SITE(site_end); }

static void on_usr1(int number)
{
    char here;
    (void)number;
    usr1++;
    on_alternate = &here >= alternate && &here < alternate + ALTERNATE;
}

static void on_alarm(int number)
{
    (void)number;
    alarms++;
}

__attribute__((noipa)) static int deep(int bytes)
{
    volatile char room[4096];
    room[0] = (char)bytes;
    return bytes <= 0 ? room[0] : deep(bytes - 4096) + room[0];
}

static uint64_t now(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        puts("state: INPUT OUTPUT");
        return 2;
    }
    char folder[4096], text[64];
    int in = open(argv[1], O_RDONLY), same = dup(in), out = open(argv[2], O_RDWR | O_CREAT, 0640);
    int high = dup2(out, HIGH);
    CHECK(3, in >= 0 && out >= 0 && high == HIGH);
    fcntl(same, F_SETFD, FD_CLOEXEC);
    lseek(in, POSITION, SEEK_SET);
    char *map = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, in, 0);
    CHECK(4, write(out, "before ", 7) == 7);
    char *closed = mmap(NULL, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    umask(027);
    CHECK(5, getcwd(folder, sizeof(folder)) != NULL);
    stack_t stack = {.ss_sp = alternate, .ss_size = sizeof(alternate)};
    sigaltstack(&stack, NULL);
    struct sigaction usr = {.sa_handler = on_usr1, .sa_flags = SA_ONSTACK}, alarm_action = {.sa_handler = on_alarm};
    sigaddset(&usr.sa_mask, SIGHUP);
    sigaction(SIGUSR1, &usr, NULL);
    sigaction(SIGALRM, &alarm_action, NULL);
    signal(SIGWINCH, SIG_IGN);
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR2);
    sigprocmask(SIG_BLOCK, &blocked, NULL);
    struct rlimit files = {200, 300};
    setrlimit(RLIMIT_NOFILE, &files);
    prctl(PR_SET_NAME, "unusual");
    uint32_t mxcsr = 0x3f80, control;
    uint16_t word = 0x0c7f, x87;
    __asm__ volatile("ldmxcsr %0; fldcw %1" : : "m"(mxcsr), "m"(word));
    deep(DEEP);
    char *top = sbrk(0);
    // Far enough away not to be pending in the checkpoint, which is refused.
    struct itimerval timer = {{0, 20000}, {1, 500000}};
    setitimer(ITIMER_REAL, &timer, NULL);
    uint64_t before = now(CLOCK_MONOTONIC);
    local = 18;
    // The tool keeps the C library from doing this itself.
    int registered = syscall(SYS_rseq, rseq_area, 32, 0, RSEQ_SIGNATURE) == 0;
    errno = 33;

    region_warm();
    region_start();

    CHECK(10, errno == 33 && local == 18);
    __asm__ volatile("stmxcsr %0; fnstcw %1" : "=m"(control), "=m"(x87));
    CHECK(11, control == mxcsr && x87 == word);
    CHECK(12, sbrk(1 << 20) == top && (memset(top, 1, 1 << 20), sbrk(0)) == top + (1 << 20));
    CHECK(13, lseek(in, 0, SEEK_CUR) == POSITION && read(same, text, 10) == 10);
    CHECK(14, !memcmp(text, map + POSITION, 10) && lseek(in, 0, SEEK_CUR) == POSITION + 10);
    CHECK(15, fcntl(same, F_GETFD) == FD_CLOEXEC && fcntl(in, F_GETFD) == 0 && fcntl(3 + 20, F_GETFD) == -1);
    CHECK(16, write(HIGH, "after", 5) == 5 && pread(out, text, 12, 0) == 12 && !memcmp(text, "before after", 12));
    CHECK(17, write(out, closed, 1) == -1 && errno == EFAULT);
    CHECK(18, umask(0) == 027);
    CHECK(19, getcwd(text, 0) == NULL && access(".", X_OK) == 0);
    struct sigaction found;
    sigaction(SIGUSR1, NULL, &found);
    CHECK(20, found.sa_handler == on_usr1 && (found.sa_flags & SA_ONSTACK) && sigismember(&found.sa_mask, SIGHUP));
    sigaction(SIGWINCH, NULL, &found);
    CHECK(21, found.sa_handler == SIG_IGN);
    raise(SIGUSR1);
    CHECK(22, usr1 == 1 && on_alternate);
    sigprocmask(SIG_BLOCK, NULL, &blocked);
    CHECK(23, sigismember(&blocked, SIGUSR2) && !sigismember(&blocked, SIGUSR1));
    getrlimit(RLIMIT_NOFILE, &files);
    CHECK(24, files.rlim_cur == 200 && files.rlim_max <= 300);
    prctl(PR_GET_NAME, text);
    CHECK(25, !strcmp(text, "unusual"));
    CHECK(26, now(CLOCK_MONOTONIC) > before && now(CLOCK_REALTIME) > before / 2 && time(NULL) > 1000000000);
    struct timeval day;
    CHECK(27, gettimeofday(&day, NULL) == 0 && day.tv_sec > 1000000000);
    void *list;
    size_t size;
    CHECK(28, syscall(SYS_get_robust_list, 0, &list, &size) == 0 && size == 24 && list);
    CHECK(29, sched_getcpu() >= 0);
    CHECK(30, (personality(0xffffffff) & ADDR_NO_RANDOMIZE) != 0);
    CHECK(31, deep(2 * DEEP) != 12345);
    for (uint64_t until = now(CLOCK_MONOTONIC) + 4000000000u; alarms < 3 && now(CLOCK_MONOTONIC) < until;)
        ;
    CHECK(32, alarms >= 3);
    if (registered && rseq_area[1] != (uint32_t)-2)
        CHECK(33, rseq_area[1] < 4096 && syscall(SYS_rseq, rseq_area, 32, RSEQ_UNREGISTER, RSEQ_SIGNATURE) == 0);
    region_end();
    return 0;
}
