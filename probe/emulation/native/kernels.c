/* SPDX-License-Identifier: Apache-2.0
 * The kernels of this project, and a place for a user's own: `void kernel(unsigned long)` (-DUSER_KERNEL), or Python
 * (-DPYTHON_KERNEL). */
#define _GNU_SOURCE
#include "kernels.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "blas.h"
#include "fail.h"
#include "python_kernel.h"

unsigned kernel_threads = 1;
_Thread_local unsigned kernel_thread;

/* What a kernel computes goes here, or the compiler would leave the computation out. One for each thread. */
static _Thread_local volatile double sink;
static _Thread_local volatile uint64_t whole_sink;

static int nothing(const char *folder)
{
    (void)folder;
    return 0;
}

/* 1000 dependent multiplications and additions; the value stays near 2, far from denormals. */
static void scalar(uint64_t iterations)
{
    double x = 1.0 + sink * 1e-300;
    while (iterations--)
        for (int step = 0; step < 1000; step++)
            x = x * 0.5 + 1.0;
    sink = x;
}

#define SIDE 32

/* A product of matrices that fit into the first cache. */
static void matrix(uint64_t iterations)
{
    /* On lines of the cache, or the speed would depend on where this thread's stack happens to lie. */
    _Alignas(64) double a[SIDE][SIDE];
    _Alignas(64) double b[SIDE][SIDE];
    _Alignas(64) double c[SIDE][SIDE] = {{0}};
    for (int i = 0; i < SIDE; i++)
        for (int j = 0; j < SIDE; j++) {
            a[i][j] = 1.0 + i * 0.001;
            b[i][j] = 1.0 + j * 0.001;
        }
    double whole = 0;
    while (iterations--) {
        for (int i = 0; i < SIDE; i++)
            for (int k = 0; k < SIDE; k++)
                for (int j = 0; j < SIDE; j++)
                    c[i][j] += a[i][k] * b[k][j];
        /* Each product depends on the one before: none can be left out. */
        a[iterations % SIDE][0] = 1.0 + c[0][0] * 1e-12;
        if (c[0][0] > 1e9) {
            whole += c[SIDE - 1][SIDE - 1];
            for (int i = 0; i < SIDE; i++)
                for (int j = 0; j < SIDE; j++)
                    c[i][j] = 0;
        }
    }
    sink = whole + c[1][1];
}

/* 500 branches that no predictor learns, on xorshift's numbers. */
static void branches(uint64_t iterations)
{
    uint64_t x = 88172645463325252u ^ (whole_sink & 1), found = 0;
    while (iterations--)
        for (uint64_t step = 0; step < 500; step++) {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            /* The empty statement keeps the compiler from computing both and choosing one. */
            if (x & 1) {
                found += x >> 60;
                __asm__ volatile("");
            } else {
                found ^= step;
            }
        }
    whole_sink = found;
}

#define STREAM (2u << 20)
static double *stream_arrays[3];

static int stream_prepare(const char *folder)
{
    (void)folder;
    for (int which = 0; which < 3; which++) {
        stream_arrays[which] = malloc(STREAM * sizeof(double));
        if (!stream_arrays[which])
            return ENOMEM;
        for (size_t at = 0; at < STREAM; at++)
            stream_arrays[which][at] = 1.0;
    }
    return 0;
}

/* 4096 elements of two arrays, larger together than caches are, into this thread's own. */
static void stream(uint64_t iterations)
{
    static _Thread_local size_t at;
    static _Thread_local double own[4096];
    while (iterations--) {
        const double *one = stream_arrays[0] + at, *other = stream_arrays[1] + at,
                     *third = stream_arrays[2] + at;
        for (int step = 0; step < 4096; step++)
            own[step] = one[step] + 3.0 * other[step] + third[step];
        sink = own[iterations % 4096];
        at = (at + 4096) % STREAM;
    }
}

#define CHASE (1u << 22)
static uint32_t *chase_next;

/* One cycle through all entries in random order (Sattolo): each load waits for the one before. */
static int chase_prepare(const char *folder)
{
    (void)folder;
    chase_next = malloc(CHASE * sizeof(*chase_next));
    if (!chase_next)
        return ENOMEM;
    for (uint32_t at = 0; at < CHASE; at++)
        chase_next[at] = at;
    uint64_t x = 88172645463325252u;
    for (uint32_t at = CHASE - 1; at > 0; at--) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        uint32_t other = (uint32_t)(x % at), kept = chase_next[at];
        chase_next[at] = chase_next[other];
        chase_next[other] = kept;
    }
    return 0;
}

static void chase(uint64_t iterations)
{
    static _Thread_local uint32_t at;
    while (iterations--)
        for (int step = 0; step < 100; step++)
            at = chase_next[at];
    whole_sink = at;
}

static void syscalls(uint64_t iterations)
{
    while (iterations--)
        for (int step = 0; step < 10; step++)
            syscall(SYS_getppid);
}

int nameless_file(const char *folder)
{
    int file = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT))
        return file;
    char path[4200];
    if (snprintf(path, sizeof path, "%s/.probe-emulation-XXXXXX", folder) >= (int)sizeof path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    file = mkostemp(path, O_CLOEXEC);
    if (file >= 0)
        unlink(path);
    return file;
}

#define PLACES 256
static int moved_file = -1;

static int moved_prepare(const char *folder)
{
    moved_file = nameless_file(folder);
    if (moved_file < 0)
        return errno;
    return ftruncate(moved_file, (off_t)PLACES * MOVED) ? errno : 0;
}

static void reads(uint64_t iterations)
{
    static _Thread_local char block[MOVED];
    for (; iterations; iterations--)
        if (pread(moved_file, block, MOVED, (off_t)(iterations % PLACES) * MOVED) != MOVED)
            return;
}

/* Into fresh pages of a file: overwriting is much cheaper, and not what programs do. */
static void writes(uint64_t iterations)
{
    static _Thread_local char block[MOVED];
    for (; iterations; iterations--) {
        uint64_t place = iterations % PLACES;
        if (!place && ftruncate(moved_file, 0))
            return;
        if (pwrite(moved_file, block, MOVED, (off_t)place * MOVED) != MOVED)
            return;
    }
}

#define TOUCHED ((size_t)1024 * MOVED)

/* Fresh pages from the kernel. They are given back all at once, so that the kernel hands out none that caches still
 * hold: a program that grows gets none of those either. Few rounds of a calibration give pages back, and the median
 * leaves them out. */
static void touch(uint64_t iterations)
{
    static _Thread_local char *pages;
    static _Thread_local size_t at;
    while (iterations--) {
        if (pages && at == TOUCHED) {
            munmap(pages, TOUCHED);
            pages = NULL;
        }
        if (!pages) {
            pages = mmap(NULL, TOUCHED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            at = 0;
            if (pages == MAP_FAILED) {
                pages = NULL;
                return;
            }
        }
        for (size_t end = at + MOVED; at < end; at += 4096)
            ((volatile char *)pages)[at] = 1;
    }
}

#ifdef USER_KERNEL
void kernel(unsigned long iterations);

static void user(uint64_t iterations)
{
    kernel((unsigned long)iterations);
}
#endif

const struct kernel kernels[] = {
    {"scalar", nothing, scalar},
    {"matrix", nothing, matrix},
    {"dgemm", blas_prepare, blas_run},
    {"branches", nothing, branches},
    {"stream", stream_prepare, stream},
    {"chase", chase_prepare, chase},
    {"syscalls", nothing, syscalls},
    {"read", moved_prepare, reads},
    {"write", moved_prepare, writes},
    {"touch", nothing, touch},
#ifdef USER_KERNEL
    {"user", nothing, user},
#elif defined PYTHON_KERNEL
    {"user", python_prepare, python_run},
#endif
    {NULL, NULL, NULL},
};

const struct kernel *emulator_kernel_named(const char *name)
{
    for (const struct kernel *one = kernels; one->name; one++)
        if (!strcmp(one->name, name))
            return one;
    emulator_fail("no kernel of that name", EINVAL);
}

void emulator_prepare_kernel(const struct kernel *one, const char *folder)
{
    char what[100];
    int failed = one->prepare(folder);
    snprintf(what, sizeof what, "preparing the kernel %s", one->name);
    if (failed)
        emulator_fail(what, failed);
}
