/* SPDX-License-Identifier: Apache-2.0
 * The kernel dgemm: OpenBLAS, where the node has its library. Its header is not needed, nor anything when building. */
#define _GNU_SOURCE
#include "blas.h"

#include <errno.h>
#include <stdlib.h>

#ifndef WITHOUT_LIBRARIES
#include <dlfcn.h>

#define SIDE 128
enum { ROW_MAJOR = 101, AS_IS = 111 }; /* of cblas.h */

typedef void product(int order, int first, int second, int rows, int columns, int depth, double alpha,
                     const double *a, int a_row, const double *b, int b_row, double beta, double *c,
                     int c_row);

static product *dgemm;
static double factors[2][SIDE * SIDE];

int blas_prepare(const char *folder)
{
    (void)folder;
    /* The atoms are the threads. Read when the library is loaded. */
    setenv("OPENBLAS_NUM_THREADS", "1", 1);
    void *library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        library = dlopen("libopenblas.so", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return ELIBACC;
    /* POSIX lets a pointer of dlsym be that of a function, C does not. */
    *(void **)&dgemm = dlsym(library, "cblas_dgemm");
    if (!dgemm)
        return ELIBACC;
    for (int at = 0; at < SIDE * SIDE; at++) {
        factors[0][at] = 1.0 + at * 1e-6;
        factors[1][at] = 1.0 - at * 1e-6;
    }
    return 0;
}

void blas_run(uint64_t iterations)
{
    static _Thread_local double result[SIDE * SIDE];
    static _Thread_local volatile double kept;
    while (iterations--) {
        dgemm(ROW_MAJOR, AS_IS, AS_IS, SIDE, SIDE, SIDE, 1.0, factors[0], SIDE, factors[1], SIDE, 0.0, result,
              SIDE);
        kept = result[iterations % (SIDE * SIDE)];
    }
    (void)kept;
}

#else

int blas_prepare(const char *folder)
{
    (void)folder;
    return ELIBACC;
}

void blas_run(uint64_t iterations)
{
    (void)iterations;
}

#endif
