// SPDX-License-Identifier: Apache-2.0
// Parallel kernels like those of the NAS benchmarks, small: ep (random numbers, a reduction a step), cg (a sparse matrix by a
// vector, reductions and gathers), ft (transposes by all-to-all).
//
//   mpi_kernel KIND SIZE STEPS [RANKS]      prints "KIND sum" on rank 0; the sum does not depend on the number of ranks
//
// Compiled with COUNTED_WORK under SimGrid's SMPI, the simulated processor is told how much work there was: with
// smpi/simulate-computation:no no time is measured at all, and every run takes equally long.
//
// With RANKS the memory is there before MPI_Init, so that a run between that and MPI_Finalize is steps and nothing else.

#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef COUNTED_WORK
#include <smpi/smpi.h>
#define WORK(count, operations) smpi_execute_flops((double)(count) * (operations))
#else
#define WORK(count, operations)
#endif

static int rank, ranks;

static double *first, *second;

// Memory that every page of is written, so that no step pays for that.
static double *ready(long count)
{
    double *made = malloc((size_t)count * sizeof *made);
    for (long n = 0; made != NULL && n < count; n++)
        made[n] = 1;
    return made;
}

// What a kernel needs on each rank of so many.
static void prepare(const char *kind, long size, int of)
{
    first = ready(!strcmp(kind, "cg") ? size : !strcmp(kind, "ft") ? size / of / of * of : 1);
    second = ready(!strcmp(kind, "cg") ? size / of + 1 : !strcmp(kind, "ft") ? size / of / of * of : 1);
}

static long from(long n, int r)
{
    return n * r / ranks;
}

static double ep(long size, int steps)
{
    double all = 0;
    for (int step = 0; step < steps; step++) {
        double sum = 0;
        for (long n = from(size, rank); n < from(size, rank + 1); n++) {
            unsigned long x = (unsigned long)(n + 1) * 6364136223846793005UL + (unsigned long)step;
            x ^= x >> 33;
            x *= 0xff51afd7ed558ccdUL;
            sum += sqrt((double)(x >> 11));
        }
        WORK(from(size, rank + 1) - from(size, rank), 17);
        MPI_Allreduce(&sum, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    }
    return all;
}

static double cg(long size, int steps)
{
    const long begin = from(size, rank), mine = from(size, rank + 1) - begin;
    double *x = first, *y = second;
    int *counts = malloc((size_t)ranks * sizeof *counts), *places = malloc((size_t)ranks * sizeof *places);
    for (int r = 0; r < ranks; r++) {
        counts[r] = (int)(from(size, r + 1) - from(size, r));
        places[r] = (int)from(size, r);
    }
    double norm = 0;
    for (int step = 0; step < steps; step++) {
        double own = 0;
        for (long n = 0; n < mine; n++) {
            double sum = 20 * x[begin + n];
            for (long k = 1; k <= 16; k++)
                sum -= x[(begin + n + k * k * 7) % size] / (double)k;
            y[n] = sum;
            own += sum * sum;
        }
        WORK(mine, 470);
        MPI_Allreduce(&own, &norm, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        for (long n = 0; n < mine; n++)
            y[n] /= sqrt(norm);
        WORK(mine, 20);
        MPI_Allgatherv(y, (int)mine, MPI_DOUBLE, x, counts, places, MPI_DOUBLE, MPI_COMM_WORLD);
    }
    free(counts);
    free(places);
    return norm;
}

static double ft(long size, int steps)
{
    const long block = size / ranks / ranks, mine = block * ranks;
    double *a = first, *b = second, sum = 0, all = 0;
    for (long n = 0; n < mine; n++)
        a[n] = (double)n / (double)mine;
    for (int step = 0; step < steps; step++) {
        for (long n = 0; n < mine; n++)
            for (int k = 0; k < 8; k++)
                a[n] = a[n] * 0.999 + 0.001 / (1 + a[n] * a[n]);
        WORK(mine, 130);
        MPI_Alltoall(a, (int)block, MPI_DOUBLE, b, (int)block, MPI_DOUBLE, MPI_COMM_WORLD);
        memcpy(a, b, (size_t)mine * sizeof *a);
    }
    for (long n = 0; n < mine; n++)
        sum += a[n];
    MPI_Allreduce(&sum, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return all;
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return 2;
    const long size = atol(argv[2]);
    if (argc > 4)
        prepare(argv[1], size, atoi(argv[4]));
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc == 4)
        prepare(argv[1], size, ranks);
    if (first == NULL || second == NULL || (argc > 4 && atoi(argv[4]) != ranks)) {
        MPI_Abort(MPI_COMM_WORLD, 2);
        return 2;
    }
    const int steps = atoi(argv[3]);
    const double found = !strcmp(argv[1], "ep")   ? ep(size, steps)
                         : !strcmp(argv[1], "cg") ? cg(size, steps)
                                                  : ft(size, steps);
    if (rank == 0)
        printf("%s %.6e\n", argv[1], found);
    MPI_Finalize();
    free(first);
    free(second);
    return 0;
}
