// SPDX-License-Identifier: Apache-2.0
// Conjugate gradients on a sparse symmetric matrix: column numbers say which element of a vector is read.
// Usage: conjugate [ITERATIONS]
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 100000, PER_ROW = 16 };

static double value[ROWS * PER_ROW], x[ROWS], r[ROWS], p[ROWS], q[ROWS];
static int column[ROWS * PER_ROW];

static void make_matrix(void)
{
    unsigned long long state = 1;
    for (long row = 0; row < ROWS; row++)
        for (long k = 0; k < PER_ROW; k++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            // The diagonal outweighs the rest of its row: the iteration stays stable.
            column[row * PER_ROW + k] = k ? (int)((state >> 33) % ROWS) : (int)row;
            value[row * PER_ROW + k] = k ? 0.02 : 1.0;
        }
}

static void multiply(void)
{
    for (long row = 0; row < ROWS; row++) {
        double sum = 0.0;
        for (long k = row * PER_ROW; k < (row + 1) * PER_ROW; k++)
            sum += value[k] * p[column[k]];
        q[row] = sum;
    }
}

static double dot(const double *a, const double *b)
{
    double sum = 0.0;
    for (long i = 0; i < ROWS; i++)
        sum += a[i] * b[i];
    return sum;
}

int main(int argc, char **argv)
{
    long iterations = argc > 1 ? atol(argv[1]) : 2000;
    if (iterations < 1) {
        fprintf(stderr, "usage: %s [ITERATIONS]\n", argv[0]);
        return 2;
    }
    make_matrix();
    double norm = 0.0;
    for (long turn = 0; turn < iterations; turn++) {
        // A new right-hand side before the old one is solved to the last digit.
        if (turn % 10 == 0)
            for (long i = 0; i < ROWS; i++) {
                x[i] = 0.0;
                r[i] = p[i] = 1.0 + 0.5 * sin((double)(i + turn));
            }
        multiply();
        double before = dot(r, r), step = before / dot(p, q);
        for (long i = 0; i < ROWS; i++) {
            x[i] += step * p[i];
            r[i] -= step * q[i];
        }
        double after = dot(r, r);
        for (long i = 0; i < ROWS; i++)
            p[i] = r[i] + after / before * p[i];
        norm += after;
    }
    printf("conjugate %ld %.9e %.9e\n", iterations, norm, dot(x, x));
    return 0;
}
