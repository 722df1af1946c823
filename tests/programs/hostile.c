// SPDX-License-Identifier: Apache-2.0
// A region that does harm, once it is armed: where the file argv[1] is. Its two words are a process and a file to harm.
// Usage: hostile ARMED KIND [quiet]
// KIND is a name of KINDS. The first attempt that succeeds ends the program with its number in its kind plus 100, or
// with `quiet` is passed over. `hostile - KIND` prints the names of a kind's attempts, by number.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <mqueue.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
#include <utime.h>
#include "site.h"

enum { MANY = 60, FIRST = 100 };

static int victim, held;
static char file[4096], other[4200], word[64];

__attribute__((noipa)) static void region_warm(void) { SITE(site_warm); }
__attribute__((noipa)) static void region_start(void) { SITE(site_start); }
__attribute__((noipa)) static void region_end(void) { SITE(site_end); }

static long write_to(const char *path, const char *text)
{
    int to = open(path, O_WRONLY);
    return to < 0 ? -1 : write(to, text, strlen(text)) > 0 ? 0 : -1;
}

static const char *beside(const char *suffix)
{
    snprintf(other, sizeof(other), "%s.%s", file, suffix);
    return other;
}

static const char *of_victim(const char *name)
{
    snprintf(other, sizeof(other), "/proc/%d/%s", victim, name);
    return other;
}

static long wait_elsewhere(long pid)
{
    if (pid == 0) {
        setsid();
        prctl(PR_SET_PDEATHSIG, 0);
        for (;;)
            pause();
    }
    return pid;
}

// Processes that go on.
static long forks(void) { return wait_elsewhere(syscall(SYS_fork)); }
static long clones(void) { return wait_elsewhere(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)); }

static long clones_3(void)
{
    struct { uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls; } wanted = {0};
    wanted.exit_signal = SIGCHLD;
    return wait_elsewhere(syscall(SYS_clone3, &wanted, sizeof(wanted)));
}

static long forks_many(void)
{
    long made = -1;
    for (int i = 0; i < MANY; i++)
        if (forks() > 0)
            made = 0;
    return made;
}

static long executes(void)
{
    char *arguments[] = {"/bin/true", NULL};
    return syscall(SYS_execve, arguments[0], arguments, NULL);
}

static long executes_at(void)
{
    char *arguments[] = {"/bin/true", NULL};
    return syscall(SYS_execveat, AT_FDCWD, arguments[0], arguments, NULL, 0);
}

static long outlives_its_parent(void) { return prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0); }

// Files of others: metadata, by path and by a descriptor that may only read.
static const struct timespec long_ago[2] = {{1, 0}, {1, 0}};
static const struct timeval long_ago_too[2] = {{1, 0}, {1, 0}};
static const struct utimbuf very_long_ago = {1, 1};

static long by_chmod(void) { return syscall(SYS_chmod, file, 0777); }
static long by_fchmod(void) { return syscall(SYS_fchmod, held, 0777); }
static long by_fchmodat(void) { return syscall(SYS_fchmodat, AT_FDCWD, file, 0777); }
static long by_fchmodat2(void) { return syscall(452, held, "", 0777, AT_EMPTY_PATH); }
static long by_chown(void) { return syscall(SYS_chown, file, getuid(), getgid()); }
static long by_fchown(void) { return syscall(SYS_fchown, held, getuid(), getgid()); }
static long by_lchown(void) { return syscall(SYS_lchown, file, getuid(), getgid()); }
static long by_fchownat(void) { return syscall(SYS_fchownat, AT_FDCWD, file, getuid(), getgid(), 0); }
static long by_utime(void) { return syscall(SYS_utime, file, &very_long_ago); }
static long by_utimes(void) { return syscall(SYS_utimes, file, long_ago_too); }
static long by_futimesat(void) { return syscall(SYS_futimesat, AT_FDCWD, file, long_ago_too); }
static long by_utimensat(void) { return syscall(SYS_utimensat, AT_FDCWD, file, long_ago, 0); }
static long by_futimens(void) { return syscall(SYS_utimensat, held, NULL, long_ago, 0); }
static long by_setxattr(void) { return syscall(SYS_setxattr, file, "user.harm", "1", 1, 0); }
static long by_lsetxattr(void) { return syscall(SYS_lsetxattr, file, "user.harm", "1", 1, 0); }
static long by_fsetxattr(void) { return syscall(SYS_fsetxattr, held, "user.harm", "1", 1, 0); }
static long by_removexattr(void) { return syscall(SYS_removexattr, file, "user.mark"); }
static long by_lremovexattr(void) { return syscall(SYS_lremovexattr, file, "user.mark"); }
static long by_fremovexattr(void) { return syscall(SYS_fremovexattr, held, "user.mark"); }

static long by_setxattrat(void)
{
    struct { uint64_t value; uint32_t size, flags; } wanted = {(uint64_t) "1", 1, 0};
    return syscall(463, AT_FDCWD, file, 0, "user.harm", &wanted, sizeof(wanted));
}

static long by_removexattrat(void) { return syscall(466, AT_FDCWD, file, 0, "user.mark"); }

static long by_flags(void)
{
    long flags = FS_NODUMP_FL;
    return ioctl(held, FS_IOC_SETFLAGS, &flags);
}

static long by_attributes(void)
{
    struct fsxattr wanted = {.fsx_xflags = FS_XFLAG_NODUMP};
    return ioctl(held, FS_IOC_FSSETXATTR, &wanted);
}

static long by_file_setattr(void)
{
    struct { uint64_t flags; uint32_t extent, extents, project, cow; } wanted = {FS_XFLAG_NODUMP, 0, 0, 0, 0};
    return syscall(469, held, "", &wanted, sizeof(wanted), AT_EMPTY_PATH);
}

static long by_lease(void) { return fcntl(held, F_SETLEASE, F_RDLCK); }

// Files of others: contents and names.
static long by_writing(void) { return write_to(file, "harm"); }
static long by_truncate(void) { return syscall(SYS_truncate, file, 0); }
static long by_open_truncating(void) { return open(file, O_RDONLY | O_TRUNC); }
static long by_openat2(void)
{
    struct { uint64_t flags, mode, resolve; } how = {O_WRONLY, 0, 0};
    return syscall(SYS_openat2, AT_FDCWD, file, &how, sizeof(how));
}
static long by_creating(void) { return open(beside("new"), O_WRONLY | O_CREAT, 0600); }
static long by_creat(void) { return syscall(SYS_creat, beside("new"), 0600); }
static long by_temporary(void) { return open("/tmp", O_WRONLY | O_TMPFILE, 0600); }
static long by_rename(void) { return syscall(SYS_rename, file, beside("moved")); }
static long by_renameat2(void) { return syscall(SYS_renameat2, AT_FDCWD, file, AT_FDCWD, beside("moved"), 0); }
static long by_link(void) { return syscall(SYS_link, file, beside("link")); }
static long by_symlink(void) { return syscall(SYS_symlink, "/", beside("link")); }
static long by_mkdir(void) { return syscall(SYS_mkdir, beside("folder"), 0700); }
static long by_mknod(void) { return syscall(SYS_mknod, beside("pipe"), S_IFIFO | 0600, 0); }
static long by_renameat(void) { return syscall(SYS_renameat, AT_FDCWD, file, AT_FDCWD, beside("moved")); }
static long by_linkat(void) { return syscall(SYS_linkat, AT_FDCWD, file, AT_FDCWD, beside("link"), 0); }
static long by_symlinkat(void) { return syscall(SYS_symlinkat, "/", AT_FDCWD, beside("link")); }
static long by_mkdirat(void) { return syscall(SYS_mkdirat, AT_FDCWD, beside("folder"), 0700); }
static long by_unlinkat(void) { return syscall(SYS_unlinkat, AT_FDCWD, file, 0); }
static long by_unlink(void) { return syscall(SYS_unlink, file); }

// Other processes.
static long signals(void) { return syscall(SYS_kill, victim, SIGUSR1); }
// Signal 0, names and times as they are: where a guard is missing a test fails, and the machine goes on.
static long signals_everybody(void) { return syscall(SYS_kill, -1, 0); }
static long signals_its_group(void) { return syscall(SYS_kill, -victim, SIGUSR1); }
static long signals_thread(void) { return syscall(SYS_tgkill, victim, victim, SIGUSR1); }
static long signals_task(void) { return syscall(SYS_tkill, victim, SIGUSR1); }
static long stops_its_parent(void) { return syscall(SYS_kill, getppid(), SIGSTOP); }
static long ends_its_parent(void) { return syscall(SYS_kill, getppid(), SIGKILL); }

static long queues(void)
{
    siginfo_t about = {.si_code = SI_QUEUE};
    return syscall(SYS_rt_sigqueueinfo, victim, SIGUSR1, &about);
}

static long queues_thread(void)
{
    siginfo_t about = {.si_code = SI_QUEUE};
    return syscall(SYS_rt_tgsigqueueinfo, victim, victim, SIGUSR1, &about);
}

static long opens_process(void) { return syscall(SYS_pidfd_open, victim, 0); }

static long signals_descriptor(void)
{
    int folder = open(of_victim(""), O_RDONLY | O_DIRECTORY);
    return folder < 0 ? -1 : syscall(SYS_pidfd_send_signal, folder, SIGUSR1, NULL, 0);
}

static long takes_descriptor(void)
{
    return syscall(SYS_pidfd_getfd, syscall(SYS_pidfd_open, victim, 0), 0, 0);
}

static long owned_by_victim(void) { return fcntl(held, F_SETOWN, victim); }

static long limits(void)
{
    struct rlimit few = {9, 9};
    return syscall(SYS_prlimit64, victim, RLIMIT_NOFILE, &few, NULL);
}

static long priority(void) { return setpriority(PRIO_PROCESS, victim, 19); }
static long priority_of_group(void) { return setpriority(PRIO_PGRP, victim, 19); }
static long io_priority(void) { return syscall(SYS_ioprio_set, 1, victim, 3 << 13); }

static long processors(void)
{
    unsigned long one = 1;
    return syscall(SYS_sched_setaffinity, victim, sizeof(one), &one);
}

static long scheduler(void)
{
    struct sched_param none = {0};
    return syscall(SYS_sched_setscheduler, victim, SCHED_BATCH, &none);
}

static long parameters(void)
{
    struct sched_param none = {0};
    return syscall(SYS_sched_setparam, victim, &none);
}

static long attributes(void)
{
    struct { uint32_t size, policy; uint64_t flags; int32_t nice; uint32_t priority; uint64_t rest[3]; } wanted = {
        sizeof(wanted), SCHED_BATCH, 0, 5, 0, {0}};
    return syscall(SYS_sched_setattr, victim, &wanted, 0);
}

static long reads_memory(void)
{
    struct iovec here = {word, 8}, there = {word, 8};
    return syscall(SYS_process_vm_readv, victim, &here, 1, &there, 1, 0) > 0 ? 0 : -1;
}

static long writes_memory(void)
{
    struct iovec here = {word, 8}, there = {word, 8};
    return syscall(SYS_process_vm_writev, victim, &here, 1, &there, 1, 0) > 0 ? 0 : -1;
}

static long writes_memory_file(void) { return open(of_victim("mem"), O_RDWR); }
static long chooses_for_the_killer(void) { return write_to(of_victim("oom_score_adj"), "1000"); }
static long traces(void) { return syscall(SYS_ptrace, PTRACE_SEIZE, victim, 0, 0); }
static long moves_pages(void) { return syscall(SYS_move_pages, victim, 0, NULL, NULL, NULL, 0); }

static long migrates(void)
{
    unsigned long nodes = 1;
    return syscall(SYS_migrate_pages, victim, sizeof(nodes) * 8, &nodes, &nodes);
}

static long compares(void) { return syscall(SYS_kcmp, victim, victim, 0, 0, 0); }
static long shares_core(void) { return prctl(PR_SCHED_CORE, 1, 0, 0, 0); }

static long types_into_terminal(void)
{
    int terminal = open("/dev/ptmx", O_RDWR | O_NOCTTY);
    return ioctl(terminal < 0 ? 0 : terminal, TIOCSTI, "x");
}

// What stays behind.
static long shared_memory(void) { return syscall(SYS_shmget, 0x70726f62, 4096, 01000 | 0600); }
static long semaphores(void) { return syscall(SYS_semget, 0x70726f62, 1, 01000 | 0600); }
static long messages(void) { return syscall(SYS_msgget, 0x70726f62, 01000 | 0600); }
static long queue(void) { return syscall(SYS_mq_open, "probe-harm", O_RDWR | O_CREAT, 0600, NULL); }
// By a name of its own: all of a user see a key, whoever of the suite made it.
static long key(void) { return syscall(SYS_add_key, "user", file, "x", 1, -4); }
static long in_memory(void) { return syscall(SYS_memfd_create, "harm", 0); }
static long in_shm(void) { return open("/dev/shm/probe-harm", O_WRONLY | O_CREAT, 0600); }

// The network, and what is as good.
static long sends(void) { return socket(AF_INET, SOCK_DGRAM, 0); }
static long raw(void) { return socket(AF_PACKET, SOCK_RAW, 0); }
static long local(void) { return socket(AF_UNIX, SOCK_STREAM, 0); }

static long pair_of_sockets(void)
{
    int pair[2];
    return socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
}

static long ring(void)
{
    char parameters[120] = {0};
    return syscall(SYS_io_uring_setup, 4, parameters);
}

// The machine.
static long unshares(void) { return unshare(CLONE_NEWUSER); }
static long mounts(void) { return mount("/dev/null", file, NULL, MS_BIND, NULL); }
static long new_mount(void) { return syscall(SYS_fsopen, "tmpfs", 0); }
static long new_root(void) { return chroot("/"); }

static long joins(void)
{
    int space = open("/proc/1/ns/mnt", O_RDONLY);
    return space < 0 ? -1 : syscall(SYS_setns, space, 0);
}

static long watches_speed(void)
{
    uint32_t wanted[32] = {1, 128};
    return syscall(SYS_perf_event_open, wanted, 0, -1, -1, 0);
}

static long loads_program(void)
{
    char wanted[120] = {0};
    wanted[0] = 1, wanted[4] = 4, wanted[8] = 4, wanted[12] = 1;
    return syscall(SYS_bpf, 0, wanted, 72);
}

static long faults(void) { return syscall(SYS_userfaultfd, 1); }

static long sets_name(void)
{
    gethostname(other, sizeof(other));
    return sethostname(other, strlen(other));
}

static long sets_clock(void)
{
    uint32_t nothing_more[64] = {0x8001}; // ADJ_OFFSET_SINGLESHOT
    return syscall(SYS_clock_adjtime, CLOCK_REALTIME, nothing_more);
}

static long sets_kernel(void) { return open("/proc/sys/kernel/ns_last_pid", O_WRONLY); }
static long sets_device(void) { return open("/sys/kernel/mm/ksm/sleep_millisecs", O_WRONLY); }
static long opens_disk(void) { return open("/dev/vda", O_RDWR); }
static long opens_memory(void) { return open("/dev/mem", O_RDWR); }
// Opening alone wakes a watchdog, rewinds a tape, takes a terminal.
static long reads_disk(void) { return open("/dev/vda", O_RDONLY); }
static long reads_log(void) { return open("/dev/kmsg", O_RDONLY | O_NONBLOCK); }
static long makes_terminal(void) { return open("/dev/ptmx", O_RDONLY | O_NOCTTY); }

static long loses_plain_devices(void)
{
    static const char *const plain[] = {"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"};
    for (unsigned long i = 0; i < sizeof(plain) / sizeof(*plain); i++)
        if (open(plain[i], O_RDONLY) < 0)
            return 0;
    return -1;
}
static long opens_log(void) { return open("/dev/kmsg", O_WRONLY); }
static long nonlinear(void)
{
    void *page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return syscall(SYS_remap_file_pages, page, 4096, 0, 1, 0);
}

// The page in which the restorer told that it was done: whoever writes there has all the time that restoring may take.
static long finds_its_report(void)
{
    char line[512];
    long found = -1;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof(line), maps))
        if (strstr(line, "memfd:control") && strstr(line, " rw-s 00000000 "))
            found = 0;
    if (maps)
        fclose(maps);
    return found;
}

// Time: more of it than anybody has.
static long loops(void)
{
    for (volatile int on = 1; on;)
        ;
    return 0;
}

static long sleeps(void)
{
    while (victim)
        pause();
    return 0;
}

// Allowed in a view of its own, and gone with it.
static long fills(void)
{
    static char block[1 << 20];
    char path[64];
    for (int number = 0; number < 8; number++) {
        snprintf(path, sizeof(path), "/tmp/fill-%d", number);
        int to = open(path, O_WRONLY | O_CREAT, 0600);
        for (int megabyte = 0; megabyte < 128 && to >= 0; megabyte++)
            if (write(to, block, sizeof(block)) <= 0)
                return -1;
    }
    return 0;
}

// Through its own outputs into the run's folder.
static long into_its_folder(void)
{
    char path[4096], made[4200];
    ssize_t length = readlink("/proc/self/fd/1", path, sizeof(path) - 1);
    if (length < 0)
        return -1;
    path[length] = 0;
    *strrchr(path, '/') = 0;
    snprintf(made, sizeof(made), "%s/made", path);
    return open(made, O_WRONLY | O_CREAT, 0600);
}

// Every call that the filter refuses by its number, with arguments that no kernel takes: it would say something else.
// Absent ones cannot be told apart from what a kernel does not have.
static const short REFUSED_CALLS[] = {
    29, 30, 31, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 62, 64, 65, 66, 67, 68, 69,
    70, 71, 101, 103, 129, 134, 141, 142, 144, 153, 154, 155, 156, 161, 163, 164, 165, 166, 167, 168, 169, 170, 171,
    172, 173, 174, 175, 176, 177, 178, 179, 180, 181, 182, 183, 184, 185, 200, 203, 212, 216, 220, 227, 234, 236, 240,
    241, 242, 243, 244, 245, 246, 248, 249, 250, 251, 256, 272, 279, 288, 297, 298, 299, 300, 301, 302, 304, 305, 307,
    308, 310, 311, 312, 313, 314, 319, 320, 321, 322, 323, 424, 425, 426, 427, 428, 429, 430, 431, 432, 433, 434,
    435, 438, 440, 442, 443, 447, 448, 457, 458, 460, 467};
static const short REFUSED_FILE_CALLS[] = {76, 82, 83, 84, 85, 86, 87, 88, 90, 91, 92, 93, 94, 132, 133, 188, 189, 190,
    197, 198, 199, 235, 258, 259, 260, 261, 263, 264, 265, 266, 268, 280, 316, 452, 463, 466, 469};

static int is_refused(int number)
{
    int own = getpid();
    long result = syscall(number, -1L, -1L, -1L, -1L, -1L, -1L);
    if (result == 0 && getpid() != own)
        _exit(0); // a child that there should not be
    return result < 0 && errno == EACCES;
}

struct attempt {
    const char *name;
    long (*run)(void);
};

#define A(name) {#name, name}
static const struct attempt LIVING[] = {A(forks), A(clones), A(clones_3), A(forks_many), A(executes), A(executes_at),
    A(outlives_its_parent)};
static const struct attempt METADATA[] = {A(by_chmod), A(by_fchmod), A(by_fchmodat), A(by_fchmodat2), A(by_chown),
    A(by_fchown), A(by_lchown), A(by_fchownat), A(by_utime), A(by_utimes), A(by_futimesat), A(by_utimensat),
    A(by_futimens), A(by_setxattr), A(by_lsetxattr), A(by_fsetxattr), A(by_setxattrat), A(by_removexattr),
    A(by_lremovexattr), A(by_fremovexattr), A(by_removexattrat), A(by_flags), A(by_attributes), A(by_file_setattr),
    A(by_lease)};
static const struct attempt CONTENTS[] = {A(by_writing), A(by_open_truncating), A(by_openat2), A(by_creating),
    A(by_creat), A(by_temporary), A(by_link), A(by_symlink), A(by_mkdir), A(by_mknod), A(by_truncate), A(by_rename),
    A(by_renameat2), A(by_renameat), A(by_linkat), A(by_symlinkat), A(by_mkdirat), A(by_unlinkat), A(by_unlink),
    A(into_its_folder)};
static const struct attempt PROCESSES[] = {A(signals), A(signals_everybody), A(signals_its_group), A(signals_thread),
    A(signals_task), A(queues), A(queues_thread), A(opens_process), A(signals_descriptor), A(takes_descriptor),
    A(owned_by_victim), A(limits), A(priority), A(priority_of_group), A(io_priority), A(processors), A(scheduler),
    A(parameters), A(attributes), A(reads_memory), A(writes_memory), A(writes_memory_file), A(chooses_for_the_killer),
    A(traces), A(moves_pages), A(migrates), A(compares), A(shares_core), A(types_into_terminal)};
static const struct attempt PARENT[] = {A(stops_its_parent), A(ends_its_parent)};
static const struct attempt REMAINS[] = {A(shared_memory), A(semaphores), A(messages), A(queue), A(key), A(in_memory),
    A(in_shm)};
static const struct attempt NETWORK[] = {A(sends), A(raw), A(local), A(pair_of_sockets), A(ring)};
static const struct attempt MACHINE[] = {A(unshares), A(mounts), A(new_mount), A(new_root), A(joins),
    A(watches_speed), A(loads_program), A(faults), A(sets_name), A(sets_clock), A(sets_kernel), A(sets_device),
    A(opens_disk), A(opens_memory), A(opens_log), A(nonlinear),
    A(finds_its_report)};
static const struct attempt DEVICES[] = {A(reads_disk), A(reads_log), A(makes_terminal), A(loses_plain_devices)};
static const struct attempt RIGHTS[] = {A(mounts), A(new_mount), A(new_root), A(sets_name), A(sets_clock), A(joins)};
static const struct attempt LOOPS[] = {A(loops)};
static const struct attempt SLEEPS[] = {A(sleeps)};
static const struct attempt FILLS[] = {A(fills)};
static const struct attempt NOTHING[] = {{NULL, NULL}};

#define K(name, list) {name, list, sizeof(list) / sizeof(*list), NULL}
#define C(name, list) {name, NULL, sizeof(list) / sizeof(*list), list}
static const struct {
    const char *name;
    const struct attempt *first;
    unsigned long count;
    const short *calls; // instead of attempts
} KINDS[] = {
    K("living", LIVING), K("metadata", METADATA), K("contents", CONTENTS), K("processes", PROCESSES),
    K("parent", PARENT), K("remains", REMAINS), K("network", NETWORK), K("machine", MACHINE), K("devices", DEVICES), K("rights", RIGHTS), K("loops", LOOPS),
    K("sleeps", SLEEPS), K("fills", FILLS), C("calls", REFUSED_CALLS),
    C("file_calls", REFUSED_FILE_CALLS), {"nothing", NOTHING, 0, NULL},
};

static int succeeds(unsigned long kind, unsigned long attempt)
{
    return KINDS[kind].calls ? !is_refused(KINDS[kind].calls[attempt]) : KINDS[kind].first[attempt].run() >= 0;
}

static void arm(const char *path)
{
    char text[sizeof(file) + 32] = "";
    int from = open(path, O_RDONLY);
    if (from < 0 || read(from, text, sizeof(text) - 1) <= 0 || sscanf(text, "%d %4095s", &victim, file) != 2)
        victim = 0;
    close(from);
    held = victim ? open(file, O_RDONLY) : -1;
}

int main(int argc, char **argv)
{
    unsigned long kind = 0, kinds = sizeof(KINDS) / sizeof(*KINDS);
    while (argc > 2 && kind < kinds && strcmp(KINDS[kind].name, argv[2]))
        kind++;
    if (argc < 3 || kind == kinds) {
        puts("hostile ARMED KIND [quiet]");
        return 2;
    }
    if (!strcmp(argv[1], "-")) {
        for (unsigned long i = 0; i < KINDS[kind].count; i++)
            if (KINDS[kind].calls)
                printf("call_%d\n", KINDS[kind].calls[i]);
            else
                puts(KINDS[kind].first[i].name);
        return 0;
    }
    region_warm();
    region_start();
    arm(argv[1]);
    for (unsigned long i = 0; victim && i < KINDS[kind].count; i++)
        if (succeeds(kind, i) && argc < 4)
            _exit(FIRST + (int)i);
    region_end();
    return 0;
}
