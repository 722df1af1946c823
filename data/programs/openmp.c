// SPDX-License-Identifier: Apache-2.0
// Kernels whose loops OpenMP shares out, as in the NAS Parallel Benchmarks (NAS-95-020) and others: random pairs, a
// sparse product, relaxation, a triangle, a fractal, sorting by counts, a tree of tasks.
// Usage: openmp KERNEL [ROUNDS]
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 200000, PER_ROW = 12, SIDE = 1200, KEYS = 1 << 21, BUCKETS = 1 << 12, LEAF = 4096 };

static double value[ROWS * PER_ROW], p[ROWS], q[ROWS], grid[2][SIDE][SIDE];
static int column[ROWS * PER_ROW];
static unsigned keys[KEYS], counts[BUCKETS];

static double random_of(unsigned long long *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 11) * 0x1p-53;
}

// Pairs of Gaussian deviates: no memory, a reduction at the end, equal shares.
static double pairs(long round)
{
    double sum = 0.0;
#pragma omp parallel for schedule(static) reduction(+ : sum)
    for (long block = 0; block < 512; block++) {
        unsigned long long state = (unsigned long long)(block + 512 * round + 1);
        for (int i = 0; i < 2000; i++) {
            double x = 2 * random_of(&state) - 1, y = 2 * random_of(&state) - 1, t = x * x + y * y;
            if (t > 0 && t <= 1)
                sum += fabs(x * sqrt(-2 * log(t) / t)) + fabs(y);
        }
    }
    return sum;
}

// One parallel region for a whole round: products and reductions parted by barriers.
static double sparse(long round)
{
    double dot = 0.0;
#pragma omp parallel
    for (int turn = 0; turn < 4; turn++) {
#pragma omp for schedule(static)
        for (long row = 0; row < ROWS; row++) {
            double sum = 0.0;
            for (long k = row * PER_ROW; k < (row + 1) * PER_ROW; k++)
                sum += value[k] * p[column[k]];
            q[row] = sum;
        }
#pragma omp for schedule(static) reduction(+ : dot)
        for (long row = 0; row < ROWS; row++)
            dot += p[row] * q[row];
#pragma omp for schedule(static)
        for (long row = 0; row < ROWS; row++)
            p[row] = 0.5 * p[row] + 0.01 * q[row] + 1e-9 * (double)round;
    }
    return dot;
}

static double relaxed(long round)
{
    for (int turn = 0; turn < 2; turn++) {
        double (*from)[SIDE] = grid[turn], (*to)[SIDE] = grid[1 - turn];
#pragma omp parallel for schedule(static)
        for (int i = 1; i < SIDE - 1; i++)
            for (int j = 1; j < SIDE - 1; j++)
                to[i][j] = 0.25 * (from[i - 1][j] + from[i + 1][j] + from[i][j - 1] + from[i][j + 1]);
    }
    return grid[0][SIDE / 2][SIDE / 2] + (double)(round & 1);
}

// Rows of a triangle: their lengths differ, so that equal shares of rows would be unequal work.
static double triangle(long round)
{
    double sum = 0.0;
#pragma omp parallel for schedule(guided) reduction(+ : sum)
    for (int i = 0; i < 2400; i++)
        for (int j = 0; j <= i; j++)
            sum += sqrt((double)((i ^ j) + round));
    return sum;
}

static double fractal(long round)
{
    long inside = 0;
#pragma omp parallel for schedule(dynamic, 4) reduction(+ : inside)
    for (int row = 0; row < 240; row++)
        for (int at = 0; at < 320; at++) {
            double a = at / 128.0 - 2.0 + (double)(round & 7) * 1e-3, b = row / 120.0 - 1.0, x = 0, y = 0;
            int turns = 0;
            for (; turns < 400 && x * x + y * y < 4; turns++) {
                double next = x * x - y * y + a;
                y = 2 * x * y + b;
                x = next;
            }
            inside += turns;
        }
    return (double)inside;
}

// Counts of each thread, added up one thread after the other.
static double sorted(long round)
{
    memset(counts, 0, sizeof(counts));
#pragma omp parallel
    {
        static unsigned mine[BUCKETS];
#pragma omp threadprivate(mine)
        memset(mine, 0, sizeof(mine));
#pragma omp for schedule(static)
        for (long i = 0; i < KEYS; i++)
            mine[(keys[i] + (unsigned)round) % BUCKETS]++;
#pragma omp critical
        for (int i = 0; i < BUCKETS; i++)
            counts[i] += mine[i];
    }
    return counts[BUCKETS / 2];
}

static double tree(long low, long high, long round)
{
    double left, right;

    if (high - low <= LEAF) {
        double sum = 0.0;
        for (long i = low; i < high; i++)
            sum += sqrt((double)(i + round)) * ((keys[i & (KEYS - 1)] & 3) + 1);
        return sum;
    }
#pragma omp task shared(left)
    left = tree(low, (low + high) / 2, round);
    right = tree((low + high) / 2, high, round);
#pragma omp taskwait
    return left + right;
}

static double tasks(long round)
{
    double sum = 0.0;
#pragma omp parallel
#pragma omp single
    sum = tree(0, 1 << 22, round);
    return sum;
}

static const struct {
    const char *name;
    double (*run)(long);
    long rounds;
} kernels[] = {
    {"pairs", pairs, 750},        {"sparse", sparse, 180},   {"relaxed", relaxed, 900},
    {"triangle", triangle, 1100}, {"fractal", fractal, 350}, {"sorted", sorted, 1500},
    {"tasks", tasks, 600},
};

int main(int argc, char **argv)
{
    unsigned long long state = 1;
    double sum = 0.0;

    for (long i = 0; i < ROWS * PER_ROW; i++) {
        column[i] = i % PER_ROW ? (int)(random_of(&state) * ROWS) : (int)(i / PER_ROW);
        value[i] = i % PER_ROW ? 0.02 : 1.0;
    }
    for (long i = 0; i < ROWS; i++)
        p[i] = 1.0;
    for (long i = 0; i < KEYS; i++)
        keys[i] = (unsigned)(random_of(&state) * 4e9);
    for (int i = 0; i < SIDE; i++)
        grid[0][i][0] = grid[1][i][0] = grid[0][0][i] = grid[1][0][i] = 1.0;
    for (size_t i = 0; i < sizeof(kernels) / sizeof(kernels[0]); i++)
        if (argc > 1 && !strcmp(argv[1], kernels[i].name)) {
            long rounds = argc > 2 ? atol(argv[2]) : kernels[i].rounds;
            for (long round = 0; round < rounds; round++)
                sum += kernels[i].run(round);
            // Reductions add in the order in which threads arrive.
            printf("%s %.5g\n", argv[1], sum);
            return 0;
        }
    fprintf(stderr, "openmp: no such kernel\n");
    return 2;
}
