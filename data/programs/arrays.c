// SPDX-License-Identifier: Apache-2.0
// Eight numerical kernels over arrays, each bound by another part of a machine.
// Usage: arrays triad|transpose|gather|histogram|fft|lu|spmv|smooth [ROUNDS]
#include <complex.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *room(size_t bytes)
{
    void *found = malloc(bytes);
    if (!found) {
        perror("arrays");
        exit(1);
    }
    memset(found, 0, bytes);
    return found;
}

static unsigned next_random(void)
{
    static unsigned state = 2011;
    return state = state * 1664525u + 1013904223u;
}

static double triad(long rounds)
{
    enum { COUNT = 2 << 20 };
    double *a = room(COUNT * sizeof *a), *b = room(COUNT * sizeof *b), *c = room(COUNT * sizeof *c);
    for (int i = 0; i < COUNT; i++)
        b[i] = i;
    for (long round = 0; round < rounds; round++) {
        for (int i = 0; i < COUNT; i++)
            a[i] = b[i] + 0.5 * c[i];
        for (int i = 0; i < COUNT; i++)
            c[i] = a[i] - 0.25 * b[i];
    }
    return a[COUNT / 2] + c[COUNT / 3];
}

static double transpose(long rounds)
{
    enum { N = 1024 };
    double (*a)[N] = room(sizeof(double[N][N])), (*b)[N] = room(sizeof(double[N][N]));
    for (int i = 0; i < N; i++)
        a[i][i / 2] = i;
    for (long round = 0; round < rounds; round++) {
        for (int i = 0; i < N; i++)
            for (int j = 0; j < N; j++)
                b[j][i] = a[i][j] + 1.0;
        for (int i = 0; i < N; i++)
            for (int j = 0; j < N; j++)
                a[i][j] = 0.5 * b[i][j];
    }
    return a[N / 2][N / 3];
}

static double gather(long rounds)
{
    enum { COUNT = 1 << 21 };
    double *from = room(COUNT * sizeof *from), sum = 0.0;
    unsigned *where = room(COUNT * sizeof *where);
    for (int i = 0; i < COUNT; i++) {
        from[i] = i % 7;
        where[i] = (next_random() >> 8) % COUNT;
    }
    for (long round = 0; round < rounds; round++)
        for (int i = 0; i < COUNT; i++)
            sum += from[where[i]];
    return sum;
}

static double histogram(long rounds)
{
    enum { COUNT = 1 << 20, BINS = 1 << 16 };
    unsigned *value = room(COUNT * sizeof *value), *bin = room(BINS * sizeof *bin);
    for (int i = 0; i < COUNT; i++)
        value[i] = next_random();
    for (long round = 0; round < rounds; round++)
        for (int i = 0; i < COUNT; i++)
            bin[(value[i] + round) >> 16]++;
    return bin[BINS / 2];
}

static void fft(double complex *a, double complex *other, int count, int step)
{
    if (step >= count)
        return;
    fft(other, a, count, 2 * step);
    fft(other + step, a + step, count, 2 * step);
    for (int i = 0; i < count; i += 2 * step) {
        double complex turned = cexp(-I * M_PI * i / count) * other[i + step];
        a[i / 2] = other[i] + turned;
        a[(i + count) / 2] = other[i] - turned;
    }
}

static double transform(long rounds)
{
    enum { COUNT = 1 << 15 };
    double complex *a = room(COUNT * sizeof *a), *other = room(COUNT * sizeof *other);
    double sum = 0.0;
    for (long round = 0; round < rounds; round++) {
        for (int i = 0; i < COUNT; i++)
            other[i] = a[i] = (i * (round + 1)) % 13;
        fft(a, other, COUNT, 1);
        sum += cabs(a[COUNT / 5]);
    }
    return sum;
}

static double lu(long rounds)
{
    enum { N = 400 };
    static double a[N][N];
    double sum = 0.0;
    for (long round = 0; round < rounds; round++) {
        for (int i = 0; i < N; i++)
            for (int j = 0; j < N; j++)
                a[i][j] = i == j ? 2 * N : (i * j + round) % 11;
        for (int k = 0; k < N; k++)
            for (int i = k + 1; i < N; i++) {
                a[i][k] /= a[k][k];
                for (int j = k + 1; j < N; j++)
                    a[i][j] -= a[i][k] * a[k][j];
            }
        sum += a[N - 1][N - 1];
    }
    return sum;
}

static double spmv(long rounds)
{
    enum { ROWS = 200000, EACH = 8 };
    double *x = room(ROWS * sizeof *x), *y = room(ROWS * sizeof *y),
           *value = room(ROWS * EACH * sizeof *value);
    int *column = room(ROWS * EACH * sizeof *column);
    for (int i = 0; i < ROWS * EACH; i++) {
        value[i] = 1.0 / (1 + i % 5);
        column[i] = (int)((next_random() >> 8) % ROWS);
    }
    for (int i = 0; i < ROWS; i++)
        x[i] = 1.0;
    for (long round = 0; round < rounds; round++) {
        for (int i = 0; i < ROWS; i++) {
            double sum = 0.0;
            for (int k = i * EACH; k < (i + 1) * EACH; k++)
                sum += value[k] * x[column[k]];
            y[i] = sum;
        }
        for (int i = 0; i < ROWS; i++)
            x[i] = y[i] / 4.0;
    }
    return x[ROWS / 2];
}

static double smooth(long rounds)
{
    enum { N = 96 };
    double (*a)[N][N] = room(sizeof(double[N][N][N])), (*b)[N][N] = room(sizeof(double[N][N][N]));
    a[N / 2][N / 2][N / 2] = 1e6;
    for (long round = 0; round < rounds; round++) {
        double (*from)[N][N] = round % 2 ? b : a, (*to)[N][N] = round % 2 ? a : b;
        for (int i = 1; i < N - 1; i++)
            for (int j = 1; j < N - 1; j++)
                for (int k = 1; k < N - 1; k++)
                    to[i][j][k] = (from[i - 1][j][k] + from[i + 1][j][k] + from[i][j - 1][k] +
                                   from[i][j + 1][k] + from[i][j][k - 1] + from[i][j][k + 1]) /
                                  6.0;
    }
    return a[N / 2][N / 2][N / 2];
}

static const struct {
    const char *name;
    double (*run)(long rounds);
    long rounds;
} kernels[] = {
    {"triad", triad, 300},   {"transpose", transpose, 150},
    {"gather", gather, 200}, {"histogram", histogram, 1500},
    {"fft", transform, 600}, {"lu", lu, 240},
    {"spmv", spmv, 500},     {"smooth", smooth, 1500},
};

int main(int argc, char **argv)
{
    for (size_t i = 0; argc > 1 && i < sizeof kernels / sizeof *kernels; i++) {
        if (strcmp(argv[1], kernels[i].name))
            continue;
        long rounds = argc > 2 ? atol(argv[2]) : kernels[i].rounds;
        printf("arrays %s %ld %.9e\n", argv[1], rounds, kernels[i].run(rounds));
        return 0;
    }
    fprintf(stderr, "usage: %s triad|transpose|gather|histogram|fft|lu|spmv|smooth [ROUNDS]\n", argv[0]);
    return 2;
}
