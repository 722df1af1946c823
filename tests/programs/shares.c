// SPDX-License-Identifier: Apache-2.0
// Holds shared memory that nobody else has, and signals that are pending, set up before its region, and checks in the
// region that they are as they were. A check that fails ends the process with its own exit status.
// Usage: shares KIND [MILLISECONDS]      a name of KINDS; then it works, and uses them, so long
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "site.h"

enum { PAGE_BYTES = 4096, PAGES = 64, WORDS = PAGES * PAGE_BYTES / 8, PER_PAGE = PAGE_BYTES / 8 };

static uint64_t *one, *other, *later, *zero, *code, *only, *hidden, *shown, *tail, *shm, *own;
static int file, sealed, opened, again, reader, second, deleted, named;
static uint64_t expected;
static volatile sig_atomic_t got[8], values[8], count;

__attribute__((noipa)) static void region_warm(void) { SITE(site_warm); }
__attribute__((noipa)) static void region_start(void) { SITE(site_start); }
__attribute__((noipa)) static void region_end(void) { SITE(site_end); }

static void *map(int pages, int prot, int flags, int fd, int first)
{
    void *at = mmap(NULL, (size_t)pages * PAGE_BYTES, prot, flags, fd, (off_t)first * PAGE_BYTES);
    CHECK(3, at != MAP_FAILED);
    return at;
}

static void fill(uint64_t *words, uint64_t seed)
{
    for (int page = 0; page < PAGES; page += 3)
        for (int i = 0; i < PER_PAGE; i++)
            words[page * PER_PAGE + i] = seed = seed * 6364136223846793005u + 1442695040888963407u;
}

static uint64_t sum(const uint64_t *words, int pages)
{
    uint64_t found = 7;
    for (int i = 0; i < pages * PER_PAGE; i++)
        found = found * 31 + words[i];
    return found;
}

// Two mappings of the same pages, one of the middle, one whose beginning is gone, and pages beyond any mapping.
static void hold_anonymous(void)
{
    one = map(PAGES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    fill(one, 1);
    other = mremap(one, 0, PAGES * PAGE_BYTES, MREMAP_MAYMOVE);
    CHECK(4, other != MAP_FAILED && !munmap(other, 8 * PAGE_BYTES));
    other += 8 * PER_PAGE;
    CHECK(5, !mprotect(other + 8 * PER_PAGE, 16 * PAGE_BYTES, PROT_READ));
    later = map(PAGES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    fill(later, 2);
    CHECK(6, !munmap(later, 21 * PAGE_BYTES) && !munmap(later + 42 * PER_PAGE, 22 * PAGE_BYTES));
    later += 21 * PER_PAGE;
    CHECK(7, !mprotect(later, PAGE_BYTES, PROT_NONE));
    int device = open("/dev/zero", O_RDWR);
    zero = map(PAGES, PROT_READ | PROT_WRITE, MAP_SHARED, device, 0);
    close(device);
    fill(zero, 3);
    expected = sum(one, PAGES);
}

static void check_anonymous(void)
{
    CHECK(10, sum(one, PAGES) == expected && sum(other, 16) == sum(one + 8 * PER_PAGE, 16));
    one[9 * PER_PAGE] ^= 1;
    CHECK(11, other[PER_PAGE] == one[9 * PER_PAGE]);
    other[40 * PER_PAGE] ^= 1;
    CHECK(12, one[48 * PER_PAGE] == other[40 * PER_PAGE]);
    one[9 * PER_PAGE] ^= 1, other[40 * PER_PAGE] ^= 1;
    CHECK(13, !mprotect(later, PAGE_BYTES, PROT_READ) && later[0] && !mprotect(later, PAGE_BYTES, PROT_NONE));
    // What is behind the end of the mapping was never given back.
    uint64_t *grown = mremap(later + PER_PAGE, 0, 42 * PAGE_BYTES, MREMAP_MAYMOVE);
    CHECK(15, grown != MAP_FAILED && grown[20 * PER_PAGE] && grown[41 * PER_PAGE] && !grown[21 * PER_PAGE]);
    CHECK(16, !munmap(grown, 42 * PAGE_BYTES) && zero[0] && zero[63 * PER_PAGE]);
}

// A memfd that is mapped twice, once to be executed; one that is sealed; one that is open alone, twice; one that is
// mapped alone, from its middle; a private mapping.
static void hold_memfd(void)
{
    file = memfd_create("shares file", MFD_CLOEXEC);
    CHECK(4, file >= 0 && !ftruncate(file, PAGES * PAGE_BYTES - 100));
    one = map(PAGES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    fill(one, 4);
    code = map(4, PROT_READ | PROT_EXEC, MAP_SHARED, file, 12);
    own = map(8, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 12);
    own[PER_PAGE] = 12345;
    CHECK(5, lseek(file, 777, SEEK_SET) == 777);
    sealed = memfd_create("", MFD_ALLOW_SEALING);
    CHECK(6, sealed >= 0 && pwrite(sealed, "sealed words", 12, PAGE_BYTES) == 12);
    CHECK(7, !fcntl(sealed, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL));
    hidden = map(2, PROT_READ, MAP_PRIVATE, sealed, 0);
    shown = map(2, PROT_READ, MAP_SHARED, sealed, 0);
    opened = memfd_create("opened", 0);
    CHECK(8, opened >= 0 && write(opened, "0123456789", 10) == 10 && lseek(opened, 4, SEEK_SET) == 4);
    again = dup(opened);
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", opened);
    reader = open(path, O_RDONLY);
    CHECK(9, reader >= 0 && !fchmod(opened, 0600) && lseek(reader, 2, SEEK_SET) == 2);
    second = open(path, O_RDWR);
    CHECK(9, second >= 0 && lseek(second, 6, SEEK_SET) == 6);
    int closed = memfd_create("closed", 0);
    CHECK(3, !ftruncate(closed, PAGES * PAGE_BYTES));
    only = map(PAGES - 16, PROT_READ | PROT_WRITE, MAP_SHARED, closed, 16);
    tail = map(PAGES + 4, PROT_READ | PROT_WRITE, MAP_SHARED, closed, 0);
    close(closed);
    fill(tail, 5);
    expected = sum(one, PAGES);
}

static void check_memfd(void)
{
    char text[64] = "";
    struct stat status;
    CHECK(20, sum(one, PAGES) == expected && sum(code, 4) == sum(one + 12 * PER_PAGE, 4));
    one[12 * PER_PAGE] ^= 1;
    CHECK(21, code[0] == one[12 * PER_PAGE] && pread(file, text, 8, 12 * PAGE_BYTES) == 8 && !memcmp(text, code, 8));
    one[12 * PER_PAGE] ^= 1;
    CHECK(22, own[PER_PAGE] == 12345 && own[0] == one[12 * PER_PAGE] && !one[13 * PER_PAGE]);
    CHECK(23, !fstat(file, &status) && status.st_size == PAGES * PAGE_BYTES - 100 && lseek(file, 0, SEEK_CUR) == 777);
    CHECK(24, fcntl(file, F_GETFD) == FD_CLOEXEC && fcntl(file, F_GET_SEALS) == F_SEAL_SEAL);
    CHECK(25, pread(sealed, text, 12, PAGE_BYTES) == 12 && !memcmp(text, "sealed words", 12));
    CHECK(26, pwrite(sealed, "x", 1, 0) == -1 && errno == EPERM && ftruncate(sealed, 0) == -1);
    CHECK(27, fcntl(sealed, F_GET_SEALS) == (F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL));
    CHECK(28, !memcmp(hidden + PER_PAGE, "sealed words", 12) && !memcmp(shown + PER_PAGE, "sealed words", 12));
    CHECK(35, mprotect(shown, PAGE_BYTES, PROT_READ | PROT_WRITE) == -1);
    CHECK(29, read(again, text, 3) == 3 && !memcmp(text, "456", 3) && lseek(opened, 0, SEEK_CUR) == 7);
    CHECK(30, read(reader, text, 3) == 3 && !memcmp(text, "234", 3) && write(reader, "x", 1) == -1);
    CHECK(31, !fstat(opened, &status) && (status.st_mode & 0777) == 0600 && status.st_size == 10);
    CHECK(34, read(second, text, 3) == 3 && !memcmp(text, "678", 3) && lseek(second, 6, SEEK_SET) == 6);
    CHECK(32, lseek(opened, 4, SEEK_SET) == 4 && lseek(reader, 2, SEEK_SET) == 2);
    CHECK(33, sum(only, PAGES - 16) == sum(tail + 16 * PER_PAGE, PAGES - 16) && tail[0]);
}

// As by shm_open and shm_unlink.
static void hold_deleted(void)
{
    char path[64];
    snprintf(path, sizeof(path), "/dev/shm/shares-%d", getpid());
    deleted = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
    CHECK(4, deleted >= 0 && !ftruncate(deleted, PAGES * PAGE_BYTES) && !unlink(path));
    shm = map(PAGES, PROT_READ | PROT_WRITE, MAP_SHARED, deleted, 0);
    fill(shm, 6);
    CHECK(5, lseek(deleted, 3 * PAGE_BYTES, SEEK_SET) == 3 * PAGE_BYTES);
}

static void check_deleted(void)
{
    uint64_t word;
    CHECK(40, pread(deleted, &word, 8, 3 * PAGE_BYTES) == 8 && word == shm[3 * PER_PAGE] && word);
    shm[3 * PER_PAGE] ^= 1;
    CHECK(41, read(deleted, &word, 8) == 8 && word == shm[3 * PER_PAGE]);
    shm[3 * PER_PAGE] ^= 1;
    CHECK(42, lseek(deleted, -8, SEEK_CUR) == 3 * PAGE_BYTES);
}

// A segment of System V that was removed, attached twice, once for reading.
static void hold_segment(void)
{
    int segment = shmget(IPC_PRIVATE, PAGES * PAGE_BYTES - 100, 0600);
    CHECK(4, segment >= 0);
    one = shmat(segment, NULL, 0);
    shown = shmat(segment, NULL, SHM_RDONLY);
    CHECK(5, one != (void *)-1 && shown != (void *)-1 && !shmctl(segment, IPC_RMID, NULL));
    fill(one, 7);
    expected = sum(one, PAGES);
}

static void check_segment(void)
{
    CHECK(70, sum(one, PAGES) == expected && sum(shown, PAGES) == expected);
    one[5] ^= 1;
    CHECK(71, shown[5] == one[5]);
    one[5] ^= 1;
}

// As databases do: a file by a name that stays, written by a mapping and by descriptors.
static void hold_file(void)
{
    named = open("shares.file", O_RDWR | O_CREAT | O_TRUNC, 0640);
    CHECK(4, named >= 0 && !ftruncate(named, PAGES * PAGE_BYTES - 100));
    one = map(PAGES, PROT_READ | PROT_WRITE, MAP_SHARED, named, 0);
    fill(one, 8);
    shown = map(4, PROT_READ, MAP_SHARED, named, 12);
    own = map(8, PROT_READ | PROT_WRITE, MAP_PRIVATE, named, 12);
    own[PER_PAGE] = 12345;
    reader = open("shares.file", O_RDONLY);
    CHECK(5, reader >= 0 && lseek(named, 777, SEEK_SET) == 777);
    // What is behind the end of a file on a disk is zeroed when it is written there.
    expected = sum(one, PAGES - 1);
}

static void check_file(void)
{
    uint64_t word;
    struct stat status;
    CHECK(60, sum(one, PAGES - 1) == expected && sum(shown, 4) == sum(one + 12 * PER_PAGE, 4));
    one[12 * PER_PAGE] ^= 1;
    CHECK(61, shown[0] == one[12 * PER_PAGE] && pread(reader, &word, 8, 12 * PAGE_BYTES) == 8 && word == shown[0]);
    word ^= 1;
    CHECK(62, pwrite(named, &word, 8, 12 * PAGE_BYTES) == 8 && one[12 * PER_PAGE] == word && !one[13 * PER_PAGE]);
    CHECK(63, own[PER_PAGE] == 12345 && own[0] == one[12 * PER_PAGE] && lseek(named, 0, SEEK_CUR) == 777);
    CHECK(64, !fstat(named, &status) && status.st_size == PAGES * PAGE_BYTES - 100);
    CHECK(65, (status.st_mode & 0777) == 0640 && write(reader, "x", 1) == -1 && !msync(one, PAGE_BYTES, MS_SYNC));
}

static void handle(int number, siginfo_t *said, void *context)
{
    (void)context;
    if (count < 8)
        got[count] = number, values[count] = said->si_value.sival_int;
    count++;
}

// To the process: one that is ignored, and real-time ones in their order; to the thread: one.
static void hold_signals(void)
{
    struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO};
    sigset_t all;
    sigfillset(&all);
    sigaction(SIGUSR1, &action, NULL);
    sigaction(SIGRTMIN + 1, &action, NULL);
    sigaction(SIGRTMIN + 2, &action, NULL);
    sigprocmask(SIG_BLOCK, &all, NULL);
    CHECK(4, !sigqueue(getpid(), SIGRTMIN + 1, (union sigval){.sival_int = 11}));
    CHECK(5, !sigqueue(getpid(), SIGRTMIN + 2, (union sigval){.sival_int = 12}));
    CHECK(6, !sigqueue(getpid(), SIGRTMIN + 1, (union sigval){.sival_int = 13}));
    CHECK(7, !syscall(SYS_tgkill, getpid(), gettid(), SIGUSR1) && !kill(getpid(), SIGWINCH) && !kill(getpid(), SIGHUP));
}

static void check_signals(void)
{
    sigset_t waiting, before;
    siginfo_t said;
    CHECK(50, !sigpending(&waiting) && sigismember(&waiting, SIGUSR1) && sigismember(&waiting, SIGWINCH));
    sigemptyset(&waiting);
    sigaddset(&waiting, SIGUSR1);
    sigaddset(&waiting, SIGHUP);
    // What was sent to the thread comes first.
    CHECK(51, sigwaitinfo(&waiting, &said) == SIGUSR1 && said.si_code == SI_USER);
    CHECK(59, sigwaitinfo(&waiting, &said) == SIGHUP);
    CHECK(52, !raise(SIGUSR1));
    count = 0;
    sigprocmask(SIG_SETMASK, NULL, &before);
    sigemptyset(&waiting);
    sigprocmask(SIG_SETMASK, &waiting, NULL);
    sigprocmask(SIG_SETMASK, &before, NULL);
    CHECK(53, count == 4);
    // A handler interrupts the one before: the last begun is the first to note.
    int seen[3] = {0};
    for (int i = 0; i < 4; i++)
        for (int n = 0; n < 3; n++)
            seen[n] += values[i] == 11 + n && got[i] == (n == 1 ? SIGRTMIN + 2 : SIGRTMIN + 1);
    CHECK(54, seen[0] == 1 && seen[1] == 1 && seen[2] == 1);
    CHECK(55, !sigqueue(getpid(), SIGRTMIN + 1, (union sigval){.sival_int = 11}));
    CHECK(56, !sigqueue(getpid(), SIGRTMIN + 2, (union sigval){.sival_int = 12}));
    CHECK(57, !sigqueue(getpid(), SIGRTMIN + 1, (union sigval){.sival_int = 13}));
    CHECK(58, !syscall(SYS_tgkill, getpid(), gettid(), SIGUSR1) && !kill(getpid(), SIGWINCH) && !kill(getpid(), SIGHUP));
}

static const struct {
    const char *name;
    void (*hold)(void), (*check)(void);
} KINDS[] = {
    {"anonymous", hold_anonymous, check_anonymous},
    {"memfd", hold_memfd, check_memfd},
    {"deleted", hold_deleted, check_deleted},
    {"segment", hold_segment, check_segment},
    {"file", hold_file, check_file},
    {"signals", hold_signals, check_signals},
};
enum { COUNT = sizeof(KINDS) / sizeof(*KINDS) };

int main(int argc, char **argv)
{
    uint64_t state = 1;
    if (argc < 2) {
        puts("shares: KIND [MILLISECONDS]");
        return 2;
    }
    for (int n = 0; n < COUNT; n++)
        if (!strcmp(argv[1], KINDS[n].name))
            KINDS[n].hold();
    long milliseconds = argc < 3 ? 0 : size_argument(argc - 1, argv + 1, 1);
    region_warm();
    region_start();
    for (long i = 0; i < milliseconds + !milliseconds; i++) {
        state = milliseconds ? work(state) : state;
        for (int n = 0; n < COUNT; n++)
            if (!strcmp(argv[1], KINDS[n].name))
                KINDS[n].check();
    }
    region_end();
    printf("shares %016llx\n", (unsigned long long)state);
    return 0;
}
