/* SPDX-License-Identifier: Apache-2.0
 * Consume resources as a plan on standard input says: `emulator run`. Measure a kernel: `emulator calibrate NAME FOLDER`.
 * Execute one: `emulator repeat NAME FOLDER SECONDS`. See whether there is one: `emulator has NAME FOLDER`.
 *
 * Atoms are threads: one reads, one writes, one has memory, the others compute; one sends and one receives where an
 * endpoint is named. All of a sample begins at once; the next sample begins when the last atom is done. The order of
 * samples keeps what depends on what; their times are not kept, but for the waits that the plan names. Ranks are
 * processes, each with all atoms: they share what is computed, and each of them does all else. Files have no name, so
 * that nothing is left behind, however this program ends. Names that other files see begin with `emulator_`, since a
 * user's kernel is linked with them. */
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

#include "calibration.h"
#include "clock.h"
#include "fail.h"
#include "kernels.h"
#include "network.h"
#include "plan.h"
#include "python_kernel.h"
#include "ranks.h"

#define READ_FILE ((uint64_t)16 << 20)
#define EVERY_SECONDS 0.2

/* What came of a sample in one rank: seconds since the beginning, CPU seconds. */
struct ended {
    double end, used;
};

/* What came of a rank: seconds; kilobytes. */
struct rank {
    double wall, user, kernel;
    long peak;
};

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

/* ---- atoms */

/* CPU seconds of this process so far, and of the interpreters that compute for it. */
static double used_so_far(void)
{
    return seconds_of(CLOCK_PROCESS_CPUTIME_ID) + python_seconds();
}

/* Of so much the part of one thread out of all threads of all ranks. */
static uint64_t part(uint64_t whole, unsigned which)
{
    uint64_t all = (uint64_t)emulator_plan.threads * emulator_plan.ranks;
    return whole / all + (own_rank * emulator_plan.threads + which < whole % all);
}

static void compute(const struct sample *now, unsigned which)
{
    if (emulator_plan.seconds) {
        /* By the clock of the whole process: what it took to begin, and what the other atoms take, counts, too. */
        while (used_so_far() < now->cpu / emulator_plan.ranks)
            computing[0]->run(1);
        return;
    }
    for (unsigned at = 0; at < emulator_plan.mixed; at++)
        if (now->iterations[at])
            computing[at]->run(part(now->iterations[at], which));
    calling->run(part(now->system_calls, which));
}

static void read_some(uint64_t bytes)
{
    static uint64_t at;
    static char *block;
    if (!block && !(block = malloc(emulator_plan.read_block)))
        emulator_fail("no memory for a block", ENOMEM);
    while (bytes) {
        uint64_t wanted = bytes < emulator_plan.read_block ? bytes : emulator_plan.read_block;
        if (at + wanted > read_size)
            at = 0;
        ssize_t got = pread(read_file, block, wanted, (off_t)at);
        if (got <= 0)
            emulator_fail("reading", got < 0 ? errno : EIO);
        bytes -= (uint64_t)got;
        at += (uint64_t)got;
    }
}

static void write_some(uint64_t bytes)
{
    static unsigned which;
    static char *block;
    if (!block && !(block = calloc(1, emulator_plan.write_block)))
        emulator_fail("no memory for a block", ENOMEM);
    while (bytes) {
        uint64_t wanted = bytes < emulator_plan.write_block ? bytes : emulator_plan.write_block;
        ssize_t put = write(write_files[which], block, wanted);
        if (put <= 0)
            emulator_fail("writing", put < 0 ? errno : EIO);
        bytes -= (uint64_t)put;
        which = (which + 1) % emulator_plan.files;
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
        emulator_fail(which == SENDS ? "sending" : "receiving", failed);
}

static uint64_t current; /* the sample; written between barriers alone */

static void *atom(void *number)
{
    unsigned which = (unsigned)(uintptr_t)number;
    kernel_thread = which >= COMPUTES && which < COMPUTES + emulator_plan.threads ? which - COMPUTES : 0;
    for (;;) {
        pthread_barrier_wait(&begins);
        if (stopped)
            return NULL;
        const struct sample *now = &emulator_plan.samples[current];
        if (which == READS)
            read_some(now->read);
        else if (which == WRITES)
            write_some(now->written);
        else if (which == HOLDS)
            hold(now->resident);
        else if (which < COMPUTES + emulator_plan.threads)
            compute(now, kernel_thread);
        else
            carry(now, which - COMPUTES - emulator_plan.threads);
        pthread_barrier_wait(&ends);
    }
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
    atoms = COMPUTES + emulator_plan.threads + (sending >= 0 || receiving >= 0 ? NETWORK : 0);
    threads = calloc(atoms, sizeof *threads);
    if (!threads || pthread_barrier_init(&begins, NULL, atoms + 1) ||
        pthread_barrier_init(&ends, NULL, atoms + 1))
        emulator_fail("no memory for threads", ENOMEM);
    for (unsigned which = 0; which < atoms; which++) {
        int failed = pthread_create(&threads[which], NULL, atom, (void *)(uintptr_t)which);
        if (failed)
            emulator_fail("starting threads", failed);
    }
}

static void prepare(unsigned rank)
{
    own_rank = rank;
    kernel_threads = emulator_plan.threads;
    calling = emulator_kernel_named("syscalls");
    for (unsigned at = 0; at < emulator_plan.mixed; at++) {
        computing[at] = emulator_kernel_named(emulator_plan.kernels[at]);
        emulator_prepare_kernel(computing[at], emulator_plan.folder);
    }
    if (emulator_plan.reads) {
        read_size = emulator_plan.read_block > READ_FILE ? emulator_plan.read_block : READ_FILE;
        /* A hole: read from memory, as most of what programs read, and nothing has to be written first. */
        read_file = nameless_file(emulator_plan.folder);
        if (read_file < 0 || ftruncate(read_file, (off_t)read_size))
            emulator_fail("making the file to read", errno);
        /* Into memory by mapping it: that counts as no read. */
        void *mapped = mmap(NULL, read_size, PROT_READ, MAP_SHARED | MAP_POPULATE, read_file, 0);
        if (mapped != MAP_FAILED)
            munmap(mapped, read_size);
    }
    for (unsigned which = 0; which < emulator_plan.files; which++) {
        write_files[which] = nameless_file(emulator_plan.folder);
        if (write_files[which] < 0)
            emulator_fail("making the files to write", errno);
    }
    if (*emulator_plan.send_to && (sending = connected(emulator_plan.send_to)) < 0)
        emulator_fail("connecting to where bytes are sent", errno);
    if (*emulator_plan.receive_from && (receiving = connected(emulator_plan.receive_from)) < 0)
        emulator_fail("connecting to where bytes are received from", errno);
    memory_size = (emulator_plan.most_resident + 8191) & ~(uint64_t)4095;
    memory =
        mmap(NULL, memory_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        emulator_fail("reserving memory", errno);
    start_atoms();
    own_resident = resident_now();
}

static void begin(void)
{
    puts("begin");
    fflush(stdout);
    *began = seconds_of(CLOCK_MONOTONIC);
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
    for (current = 0; current < emulator_plan.count; current++) {
        pthread_barrier_wait(&begins);
        pthread_barrier_wait(&ends);
        if (emulator_plan.samples[current].wait > 0)
            sleep_for(emulator_plan.samples[current].wait);
        double now = seconds_of(CLOCK_MONOTONIC);
        ended[rank * emulator_plan.count + current] = (struct ended){now - *began, used_so_far()};
        if (!rank && now - said > EVERY_SECONDS) {
            printf("at %" PRIu64 "\n", current + 1);
            fflush(stdout);
            said = now;
        }
    }
    double wall = seconds_of(CLOCK_MONOTONIC) - *began;
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
        emulator_fail("no memory for what ranks say", errno);
    return found;
}

static void report(void)
{
    struct rank all = {0, 0, 0, 0};
    for (uint64_t at = 0; at < emulator_plan.count; at++) {
        struct ended last = {0, 0};
        for (unsigned rank = 0; rank < emulator_plan.ranks; rank++) {
            const struct ended *one = &ended[rank * emulator_plan.count + at];
            last.end = one->end > last.end ? one->end : last.end;
            last.used += one->used;
        }
        printf("sample %.6f %.6f\n", last.end, last.used);
    }
    for (unsigned rank = 0; rank < emulator_plan.ranks; rank++) {
        all.wall = ranks[rank].wall > all.wall ? ranks[rank].wall : all.wall;
        all.user += ranks[rank].user;
        all.kernel += ranks[rank].kernel;
        all.peak += ranks[rank].peak;
    }
    printf("done %.6f %.6f %.6f %ld\n", all.wall, all.user, all.kernel, all.peak);
}

static void run(void)
{
    emulator_read_plan();
    ended = shared(emulator_plan.count * emulator_plan.ranks * sizeof *ended);
    ranks = shared(emulator_plan.ranks * sizeof *ranks);
    began = shared(sizeof *began);
    int failed = run_ranks(emulator_plan.ranks, prepare, begin, work);
    if (failed > 0)
        emulator_fail("starting ranks", failed);
    if (failed)
        exit(3);
    report();
    free(emulator_plan.samples);
}

int main(int count, char **words)
{
    /* Nothing goes on when the program that started this one is gone. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (count == 2 && !strcmp(words[1], "run"))
        run();
    else if (count == 4 && !strcmp(words[1], "calibrate"))
        emulator_calibrate(words[2], words[3]);
    else if (count == 4 && !strcmp(words[1], "has"))
        emulator_prepare_kernel(emulator_kernel_named(words[2]), words[3]);
    else if (count == 5 && !strcmp(words[1], "repeat"))
        emulator_repeat(words[2], words[3], words[4]);
    else if (count == 2 && !strcmp(words[1], "kernels"))
        for (const struct kernel *one = kernels; one->name; one++)
            puts(one->name);
    else
        emulator_fail("not called as it should be", EINVAL);
    return fflush(stdout) ? 3 : 0;
}
