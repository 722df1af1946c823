// SPDX-License-Identifier: Apache-2.0
// Jacobi relaxation of a heated plate: five-point steps, and every so often the residual.
// Usage: stencil [STEPS]
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { N = 1000, RESIDUAL_EVERY = 100 };

static double plate[2][N][N];

static void heat_edges(void)
{
    for (int copy = 0; copy < 2; copy++)
        for (int i = 0; i < N; i++) {
            plate[copy][0][i] = 100.0;
            plate[copy][N - 1][i] = 100.0 * i / N;
            plate[copy][i][0] = 25.0;
        }
}

static void relax(double (*restrict to)[N], double (*restrict from)[N])
{
    for (int i = 1; i < N - 1; i++)
        for (int j = 1; j < N - 1; j++)
            to[i][j] = 0.25 * (from[i - 1][j] + from[i + 1][j] + from[i][j - 1] + from[i][j + 1]);
}

static double residual(double (*a)[N], double (*b)[N])
{
    double sum = 0.0;
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++)
            sum += fabs(a[i][j] - b[i][j]);
    return sum;
}

int main(int argc, char **argv)
{
    long steps = argc > 1 ? atol(argv[1]) : 20000;
    if (steps < 1) {
        fprintf(stderr, "usage: %s [STEPS]\n", argv[0]);
        return 2;
    }
    double sum = 0.0;
    heat_edges();
    for (long step = 0; step < steps; step++) {
        relax(plate[~step & 1], plate[step & 1]);
        if (step % RESIDUAL_EVERY == 0)
            sum += residual(plate[0], plate[1]);
    }
    printf("stencil %ld %.9e\n", steps, sum);
    return 0;
}
