// SPDX-License-Identifier: Apache-2.0
// V-cycles for Poisson's equation in a cube: smoothing, residual, restriction, prolongation.
// Usage: multigrid [CYCLES [LEVELS]]     the finest grid has 2^LEVELS points a side; 8 take 460 MB
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { FEWEST = 3, MOST = 9, SWEEPS = 2 };

typedef struct {
    long n;
    double *u, *f, *r;
} Level;

static Level levels[MOST + 1];

#define AT(i, j, k) (((i) * n + (j)) * n + (k))

static double *cube(long n)
{
    double *made = calloc((size_t)(n * n * n), sizeof *made);
    if (!made) {
        fprintf(stderr, "multigrid: not enough memory\n");
        exit(1);
    }
    return made;
}

static void smooth(Level *l)
{
    long n = l->n;
    double *u = l->u, *f = l->f;
    for (long i = 1; i < n - 1; i++)
        for (long j = 1; j < n - 1; j++)
            for (long k = 1; k < n - 1; k++) {
                double around = u[AT(i - 1, j, k)] + u[AT(i + 1, j, k)] + u[AT(i, j - 1, k)] +
                                u[AT(i, j + 1, k)] + u[AT(i, j, k - 1)] + u[AT(i, j, k + 1)];
                u[AT(i, j, k)] = (around + f[AT(i, j, k)]) / 6.0;
            }
}

static void residual(Level *l)
{
    long n = l->n;
    double *u = l->u, *f = l->f, *r = l->r;
    for (long i = 1; i < n - 1; i++)
        for (long j = 1; j < n - 1; j++)
            for (long k = 1; k < n - 1; k++) {
                double around = u[AT(i - 1, j, k)] + u[AT(i + 1, j, k)] + u[AT(i, j - 1, k)] +
                                u[AT(i, j + 1, k)] + u[AT(i, j, k - 1)] + u[AT(i, j, k + 1)];
                r[AT(i, j, k)] = f[AT(i, j, k)] + around - 6.0 * u[AT(i, j, k)];
            }
}

static void restriction(const Level *fine, Level *coarse)
{
    long m = coarse->n;
    for (long i = 1; i < m - 1; i++)
        for (long j = 1; j < m - 1; j++)
            for (long k = 1; k < m - 1; k++) {
                long n = fine->n;
                double here = fine->r[AT(2 * i, 2 * j, 2 * k)] + fine->r[AT(2 * i + 1, 2 * j, 2 * k)] +
                              fine->r[AT(2 * i, 2 * j + 1, 2 * k)] + fine->r[AT(2 * i, 2 * j, 2 * k + 1)];
                n = m;
                coarse->f[AT(i, j, k)] = here;
                coarse->u[AT(i, j, k)] = 0.0;
            }
}

static void prolongation(const Level *coarse, Level *fine)
{
    long n = fine->n, m = coarse->n;
    for (long i = 1; i < n - 1; i++)
        for (long j = 1; j < n - 1; j++)
            for (long k = 1; k < n - 1; k++)
                fine->u[AT(i, j, k)] += coarse->u[((i / 2) * m + j / 2) * m + k / 2];
}

int main(int argc, char **argv)
{
    long cycles = argc > 1 ? atol(argv[1]) : 10, finest = argc > 2 ? atol(argv[2]) : 8;
    if (cycles < 1 || finest < FEWEST || finest > MOST) {
        fprintf(stderr, "usage: %s [CYCLES [LEVELS]], LEVELS from %d to %d\n", argv[0], FEWEST, MOST);
        return 2;
    }
    for (long l = FEWEST; l <= finest; l++)
        levels[l] = (Level){1L << l, cube(1L << l), cube(1L << l), cube(1L << l)};
    long n = levels[finest].n;
    for (long i = 0; i < n * n * n; i++)
        levels[finest].f[i] = sin(0.001 * (double)i);
    for (long cycle = 0; cycle < cycles; cycle++) {
        for (long l = finest; l > FEWEST; l--) {
            for (int sweep = 0; sweep < SWEEPS; sweep++)
                smooth(&levels[l]);
            residual(&levels[l]);
            restriction(&levels[l], &levels[l - 1]);
        }
        for (long l = FEWEST; l < finest; l++) {
            for (int sweep = 0; sweep < SWEEPS; sweep++)
                smooth(&levels[l]);
            prolongation(&levels[l], &levels[l + 1]);
        }
    }
    double sum = 0.0;
    for (long i = 0; i < n * n * n; i++)
        sum += levels[finest].u[i];
    printf("multigrid %ld %ld %.9e\n", cycles, finest, sum);
    return 0;
}
