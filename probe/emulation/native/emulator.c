/* SPDX-License-Identifier: Apache-2.0
 * Consume resources as a plan on standard input says: `emulator run`. Measure a kernel: `emulator calibrate NAME FOLDER`.
 * Execute one: `emulator repeat NAME FOLDER SECONDS`. See whether there is one: `emulator has NAME FOLDER`.
 *
 * A plan is text: `emulation 1`, then a line for each setting, then a line for each sample, then `end`. Atoms are
 * threads: one reads, one writes, one has memory, the others compute; one sends and one receives where
 * an endpoint is named. All of a sample begins at once; the next sample
 * begins when the last atom is done. The order of samples keeps what depends on what; their times are not kept, but for
 * the waits that the plan names. Ranks are processes, each with all atoms: they share what is computed, and each of them
 * does all else. Files have no name, so that nothing is left behind, however this program ends. */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "kernels.h"
#include "network.h"
#include "python_kernel.h"
#include "ranks.h"

#define MOST_SAMPLES (1u << 18)
#define MOST_THREADS 1024
#define MOST_RANKS 1024
#define MOST_FILES 1024
#define MOST_KERNELS 8
#define MOST_BLOCK (1u << 30)
#define READ_FILE ((uint64_t)16 << 20)
#define EVERY_SECONDS 0.2

struct sample {
    uint64_t iterations[MOST_KERNELS], system_calls, read, written, resident, sent, received;
    double cpu,
        wait; /* CPU seconds from the beginning to its end (equal seconds); seconds of sleep behind it */
};

/* What came of a sample in one rank: seconds since the beginning, CPU seconds. */
struct ended {
    double end, used;
};

/* What came of a rank: seconds; kilobytes. */
struct rank {
    double wall, user, kernel;
    long peak;
};

static struct {
    char kernels[MOST_KERNELS][64], folder[4097];
    char send_to[80], receive_from[80];    /* empty: nobody */
    int seconds;                           /* equal CPU seconds; else equal work */
    unsigned threads, ranks, files, mixed; /* mixed: how many kernels there are */
    uint64_t read_block, write_block, count;
} plan = {.threads = 1, .ranks = 1, .files = 1, .read_block = MOVED, .write_block = MOVED};

static struct sample *samples;
/* Shared by all ranks: of each rank all samples, then each rank, then when they began. */
static struct ended *ended;
static struct rank *ranks;
static double *began;
static unsigned own_rank;
static const struct kernel *computing[MOST_KERNELS], *calling;
static pthread_barrier_t begins, ends;
static volatile int stopped; /* written between barriers alone */
static int sending = -1, receiving = -1;
static int read_file = -1, write_files[MOST_FILES];
static uint64_t read_size;
static char *memory;
static uint64_t memory_size, own_resident;

static _Noreturn void fail(const char *what, int number)
{
    fprintf(stderr, "error %d %s\n", number, what);
    exit(3);
}

static double clock_of(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static const struct kernel *kernel_named(const char *name)
{
    for (const struct kernel *one = kernels; one->name; one++)
        if (!strcmp(one->name, name))
            return one;
    fail("no kernel of that name", EINVAL);
}

static void prepare_kernel(const struct kernel *one, const char *folder)
{
    char what[100];
    int failed = one->prepare(folder);
    snprintf(what, sizeof what, "preparing the kernel %s", one->name);
    if (failed)
        fail(what, failed);
}

/* ---- atoms */

/* CPU seconds of this process so far, and of the interpreters that compute for it. */
static double used_so_far(void)
{
    return clock_of(CLOCK_PROCESS_CPUTIME_ID) + python_seconds();
}

/* Of so much the part of one thread out of all threads of all ranks. */
static uint64_t part(uint64_t whole, unsigned which)
{
    uint64_t all = (uint64_t)plan.threads * plan.ranks;
    return whole / all + (own_rank * plan.threads + which < whole % all);
}

static void compute(const struct sample *now, unsigned which)
{
    if (plan.seconds) {
        /* By the clock of the whole process: what it took to begin, and what the other atoms take, counts, too. */
        while (used_so_far() < now->cpu / plan.ranks)
            computing[0]->run(1);
        return;
    }
    for (unsigned at = 0; at < plan.mixed; at++)
        if (now->iterations[at])
            computing[at]->run(part(now->iterations[at], which));
    calling->run(part(now->system_calls, which));
}

static void read_some(uint64_t bytes)
{
    static uint64_t at;
    static char *block;
    if (!block && !(block = malloc(plan.read_block)))
        fail("no memory for a block", ENOMEM);
    while (bytes) {
        uint64_t wanted = bytes < plan.read_block ? bytes : plan.read_block;
        if (at + wanted > read_size)
            at = 0;
        ssize_t got = pread(read_file, block, wanted, (off_t)at);
        if (got <= 0)
            fail("reading", got < 0 ? errno : EIO);
        bytes -= (uint64_t)got;
        at += (uint64_t)got;
    }
}

static void write_some(uint64_t bytes)
{
    static unsigned which;
    static char *block;
    if (!block && !(block = calloc(1, plan.write_block)))
        fail("no memory for a block", ENOMEM);
    while (bytes) {
        uint64_t wanted = bytes < plan.write_block ? bytes : plan.write_block;
        ssize_t put = write(write_files[which], block, wanted);
        if (put <= 0)
            fail("writing", put < 0 ? errno : EIO);
        bytes -= (uint64_t)put;
        which = (which + 1) % plan.files;
    }
}

/* Have `resident` bytes in memory, this program's own included. */
static void hold(uint64_t resident)
{
    static uint64_t held;
    uint64_t wanted = resident > own_resident ? resident - own_resident : 0;
    wanted = (wanted + 4095) & ~(uint64_t)4095;
    if (wanted < held)
        madvise(memory + wanted, held - wanted, MADV_DONTNEED);
    for (uint64_t at = held; at < wanted; at += 4096)
        ((volatile char *)memory)[at] = 1;
    held = wanted;
}

enum { READS, WRITES, HOLDS, COMPUTES };
/* Behind those that compute. */
enum { SENDS, RECEIVES, NETWORK };

static void carry(const struct sample *now, unsigned which)
{
    int failed = which == SENDS ? send_bytes(sending, now->sent) : receive_bytes(receiving, now->received);
    if (failed)
        fail(which == SENDS ? "sending" : "receiving", failed);
}

static uint64_t current; /* the sample; written between barriers alone */

static void *atom(void *number)
{
    unsigned which = (unsigned)(uintptr_t)number;
    kernel_thread = which >= COMPUTES && which < COMPUTES + plan.threads ? which - COMPUTES : 0;
    for (;;) {
        pthread_barrier_wait(&begins);
        if (stopped)
            return NULL;
        const struct sample *now = &samples[current];
        if (which == READS)
            read_some(now->read);
        else if (which == WRITES)
            write_some(now->written);
        else if (which == HOLDS)
            hold(now->resident);
        else if (which < COMPUTES + plan.threads)
            compute(now, kernel_thread);
        else
            carry(now, which - COMPUTES - plan.threads);
        pthread_barrier_wait(&ends);
    }
}

/* ---- the plan */

static uint64_t number(const char *text, uint64_t most)
{
    char *end;
    errno = 0;
    unsigned long long found = strtoull(text, &end, 10);
    if (errno || end == text || *end || *text == '-' || *text == '+' || *text == ' ' || found > most)
        fail("a number of the plan", EINVAL);
    return found;
}

static void set(const char *name, const char *value)
{
    if (!strcmp(name, "kernel")) {
        if (plan.mixed == MOST_KERNELS)
            fail("too many kernels", EINVAL);
        snprintf(plan.kernels[plan.mixed++], sizeof plan.kernels[0], "%s", value);
    } else if (!strcmp(name, "folder"))
        snprintf(plan.folder, sizeof plan.folder, "%s", value);
    else if (!strcmp(name, "send_to"))
        snprintf(plan.send_to, sizeof plan.send_to, "%s", value);
    else if (!strcmp(name, "receive_from"))
        snprintf(plan.receive_from, sizeof plan.receive_from, "%s", value);
    else if (!strcmp(name, "equal"))
        plan.seconds = !strcmp(value, "seconds");
    else if (!strcmp(name, "threads"))
        plan.threads = (unsigned)number(value, MOST_THREADS);
    else if (!strcmp(name, "ranks"))
        plan.ranks = (unsigned)number(value, MOST_RANKS);
    else if (!strcmp(name, "files"))
        plan.files = (unsigned)number(value, MOST_FILES);
    else if (!strcmp(name, "read_block"))
        plan.read_block = number(value, MOST_BLOCK);
    else if (!strcmp(name, "write_block"))
        plan.write_block = number(value, MOST_BLOCK);
    else if (!strcmp(name, "samples"))
        plan.count = number(value, MOST_SAMPLES);
    else
        fail("an unknown line of the plan", EINVAL);
}

static char *next_line(char *line, int size)
{
    if (!fgets(line, size, stdin))
        fail("the plan ends early", EINVAL);
    size_t length = strlen(line);
    if (!length || line[length - 1] != '\n')
        fail("a line of the plan", EINVAL);
    line[length - 1] = 0;
    return line;
}

static void read_plan(void)
{
    char line[5000];
    if (strcmp(next_line(line, sizeof line), "emulation 1"))
        fail("not a plan of this version", EINVAL);
    while (!plan.count) {
        char *value = strchr(next_line(line, sizeof line), ' ');
        if (!value)
            fail("a line of the plan", EINVAL);
        *value++ = 0;
        set(line, value);
    }
    if (!plan.threads || !plan.ranks || !plan.files || !plan.mixed || !plan.read_block || !plan.write_block)
        fail("a number of the plan", EINVAL);
    samples = calloc(plan.count, sizeof *samples);
    if (!samples)
        fail("no memory for the plan", ENOMEM);
    for (uint64_t at = 0; at < plan.count; at++) {
        struct sample *one = &samples[at];
        int used = 0;
        char *rest = next_line(line, sizeof line);
        /* A number of iterations for each kernel, then all else. */
        for (unsigned kernel = 0; kernel < plan.mixed; kernel++, rest += used)
            if (sscanf(rest, "%" SCNu64 " %n", &one->iterations[kernel], &used) != 1)
                fail("a sample of the plan", EINVAL);
        int found =
            sscanf(rest, "%" SCNu64 " %lf %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %lf%n",
                   &one->system_calls, &one->cpu, &one->read, &one->written, &one->resident, &one->sent,
                   &one->received, &one->wait, &used);
        if (found != 8 || rest[used] || !(one->cpu >= 0) || !(one->wait >= 0 && one->wait < 1e9))
            fail("a sample of the plan", EINVAL);
        if (one->resident > memory_size)
            memory_size = one->resident;
        if (one->read)
            read_size = READ_FILE;
    }
    if (strcmp(next_line(line, sizeof line), "end"))
        fail("the plan does not end", EINVAL);
}

static uint64_t resident_now(void)
{
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%*u %lu", &pages) != 1)
        pages = 0;
    if (file)
        fclose(file);
    return (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static unsigned atoms;
static pthread_t *threads;

static void start_atoms(void)
{
    /* Without endpoints there is nothing for the last two to do, and no time shall go into meeting them. */
    atoms = COMPUTES + plan.threads + (sending >= 0 || receiving >= 0 ? NETWORK : 0);
    threads = calloc(atoms, sizeof *threads);
    if (!threads || pthread_barrier_init(&begins, NULL, atoms + 1) ||
        pthread_barrier_init(&ends, NULL, atoms + 1))
        fail("no memory for threads", ENOMEM);
    for (unsigned which = 0; which < atoms; which++) {
        int failed = pthread_create(&threads[which], NULL, atom, (void *)(uintptr_t)which);
        if (failed)
            fail("starting threads", failed);
    }
}

static void prepare(unsigned rank)
{
    own_rank = rank;
    kernel_threads = plan.threads;
    calling = kernel_named("syscalls");
    for (unsigned at = 0; at < plan.mixed; at++) {
        computing[at] = kernel_named(plan.kernels[at]);
        prepare_kernel(computing[at], plan.folder);
    }
    if (read_size) {
        if (read_size < plan.read_block)
            read_size = plan.read_block;
        /* A hole: read from memory, as most of what programs read, and nothing has to be written first. */
        read_file = nameless_file(plan.folder);
        if (read_file < 0 || ftruncate(read_file, (off_t)read_size))
            fail("making the file to read", errno);
        /* Into memory by mapping it: that counts as no read. */
        void *mapped = mmap(NULL, read_size, PROT_READ, MAP_SHARED | MAP_POPULATE, read_file, 0);
        if (mapped != MAP_FAILED)
            munmap(mapped, read_size);
    }
    for (unsigned which = 0; which < plan.files; which++) {
        write_files[which] = nameless_file(plan.folder);
        if (write_files[which] < 0)
            fail("making the files to write", errno);
    }
    if (*plan.send_to && (sending = connected(plan.send_to)) < 0)
        fail("connecting to where bytes are sent", errno);
    if (*plan.receive_from && (receiving = connected(plan.receive_from)) < 0)
        fail("connecting to where bytes are received from", errno);
    memory_size = (memory_size + 8191) & ~(uint64_t)4095;
    memory =
        mmap(NULL, memory_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        fail("reserving memory", errno);
    start_atoms();
    own_resident = resident_now();
}

static void begin(void)
{
    puts("begin");
    fflush(stdout);
    *began = clock_of(CLOCK_MONOTONIC);
}

static void sleep_for(double seconds)
{
    struct timespec left = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    while (nanosleep(&left, &left) && errno == EINTR)
        ;
}

/* All samples, in one rank. */
static void work(unsigned rank)
{
    double said = *began;
    for (current = 0; current < plan.count; current++) {
        pthread_barrier_wait(&begins);
        pthread_barrier_wait(&ends);
        if (samples[current].wait > 0)
            sleep_for(samples[current].wait);
        double now = clock_of(CLOCK_MONOTONIC);
        ended[rank * plan.count + current] = (struct ended){now - *began, used_so_far()};
        if (!rank && now - said > EVERY_SECONDS) {
            printf("at %" PRIu64 "\n", current + 1);
            fflush(stdout);
            said = now;
        }
    }
    double wall = clock_of(CLOCK_MONOTONIC) - *began;
    struct rusage after;
    getrusage(RUSAGE_SELF, &after);
    double user = (double)after.ru_utime.tv_sec + (double)after.ru_utime.tv_usec * 1e-6;
    double kernel = (double)after.ru_stime.tv_sec + (double)after.ru_stime.tv_usec * 1e-6;
    ranks[rank] = (struct rank){wall, user + python_seconds(), kernel, after.ru_maxrss};
    stopped = 1;
    pthread_barrier_wait(&begins);
    for (unsigned which = 0; which < atoms; which++)
        pthread_join(threads[which], NULL);
    munmap(memory, memory_size);
    free(threads);
}

/* What is shared by the ranks; the last of them says when a sample, and all, has ended. */
static void *shared(uint64_t bytes)
{
    void *found = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (found == MAP_FAILED)
        fail("no memory for what ranks say", errno);
    return found;
}

static void report(void)
{
    struct rank all = {0, 0, 0, 0};
    for (uint64_t at = 0; at < plan.count; at++) {
        struct ended last = {0, 0};
        for (unsigned rank = 0; rank < plan.ranks; rank++) {
            const struct ended *one = &ended[rank * plan.count + at];
            last.end = one->end > last.end ? one->end : last.end;
            last.used += one->used;
        }
        printf("sample %.6f %.6f\n", last.end, last.used);
    }
    for (unsigned rank = 0; rank < plan.ranks; rank++) {
        all.wall = ranks[rank].wall > all.wall ? ranks[rank].wall : all.wall;
        all.user += ranks[rank].user;
        all.kernel += ranks[rank].kernel;
        all.peak += ranks[rank].peak;
    }
    printf("done %.6f %.6f %.6f %ld\n", all.wall, all.user, all.kernel, all.peak);
}

static void run(void)
{
    read_plan();
    ended = shared(plan.count * plan.ranks * sizeof *ended);
    ranks = shared(plan.ranks * sizeof *ranks);
    began = shared(sizeof *began);
    int failed = run_ranks(plan.ranks, prepare, begin, work);
    if (failed > 0)
        fail("starting ranks", failed);
    if (failed)
        exit(3);
    report();
    free(samples);
}

/* ---- calibration */

/* Whether this thread has computed with denormal numbers, or made one, since the last time it was asked. */
static int denormals(void)
{
#if defined __x86_64__
    /* MXCSR: DE and UE stay set until they are cleared. */
    unsigned now = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(now & ~0x3fu);
    return (now & 0x12) != 0;
#elif defined __aarch64__
    /* FPSR: UFC and IDC, likewise. */
    uint64_t now;
    __asm__ volatile("mrs %0, fpsr" : "=r"(now));
    __asm__ volatile("msr fpsr, %0" : : "r"(now & ~(uint64_t)0x9f));
    return (now & 0x88) != 0;
#else
    return 0;
#endif
}

static double used_by_kernel(void)
{
    return clock_of(CLOCK_THREAD_CPUTIME_ID) + python_own_seconds();
}

/* CPU seconds of that many iterations. */
static double taken(const struct kernel *one, uint64_t iterations)
{
    double before = used_by_kernel();
    one->run(iterations);
    return used_by_kernel() - before;
}

/* Prints rounds: `round ITERATIONS CPU_SECONDS`, each of some milliseconds; then how many of them had denormals. */
static void calibrate(const char *name, const char *folder)
{
    const struct kernel *one = kernel_named(name);
    prepare_kernel(one, folder);
    uint64_t iterations = 1;
    while (taken(one, iterations) < 0.005 && iterations < ((uint64_t)1 << 40))
        iterations *= 2;
    int with = 0;
    denormals();
    for (int round = 0; round < 12; round++) {
        printf("round %" PRIu64 " %.9f\n", iterations, taken(one, iterations));
        with += denormals();
    }
    printf("denormals %d\n", with);
}

/* Says `ready` when all is prepared, waits for a line, and then does nothing but the kernel for so many CPU seconds. */
static void repeat(const char *name, const char *folder, const char *seconds)
{
    const struct kernel *one = kernel_named(name);
    prepare_kernel(one, folder);
    puts("ready");
    fflush(stdout);
    if (getchar() != '\n')
        fail("nobody says when to begin", EINVAL);
    double limit = strtod(seconds, NULL), end = clock_of(CLOCK_THREAD_CPUTIME_ID) + limit;
    if (!(limit > 0 && limit <= 1000))
        fail("no sensible time", EINVAL);
    while (clock_of(CLOCK_THREAD_CPUTIME_ID) < end)
        one->run(100);
}

int main(int count, char **words)
{
    /* Nothing goes on when the program that started this one is gone. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (count == 2 && !strcmp(words[1], "run"))
        run();
    else if (count == 4 && !strcmp(words[1], "calibrate"))
        calibrate(words[2], words[3]);
    else if (count == 4 && !strcmp(words[1], "has"))
        prepare_kernel(kernel_named(words[2]), words[3]);
    else if (count == 5 && !strcmp(words[1], "repeat"))
        repeat(words[2], words[3], words[4]);
    else if (count == 2 && !strcmp(words[1], "kernels"))
        for (const struct kernel *one = kernels; one->name; one++)
            puts(one->name);
    else
        fail("not called as it should be", EINVAL);
    return fflush(stdout) ? 3 : 0;
}
