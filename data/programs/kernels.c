// SPDX-License-Identifier: Apache-2.0
// Array kernels of one to three loop nests, as one writes them: hardly anything but hot inner loops.
// Usage: kernels NAME [REPEATS]
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KERNEL static __attribute__((noinline)) double

enum {
    EDGE = 64,
    LONG = 1 << 20,
    ORDER = 192,
    POINTS = 1 << 15,
    BINS = 4096,
    ROWS = 40000,
    NEAR = 7,
    WIDE = 1000
};

static double room[2][EDGE][EDGE][EDGE];

// A seven-point stencil and the copy back: two loop nests.
KERNEL stencil7(long repeats)
{
    for (int i = 0; i < EDGE * EDGE * EDGE; i++)
        room[0][i / EDGE / EDGE][i / EDGE % EDGE][i % EDGE] = i % 7;
    for (long r = 0; r < repeats; r++) {
        for (int i = 1; i < EDGE - 1; i++)
            for (int j = 1; j < EDGE - 1; j++)
                for (int k = 1; k < EDGE - 1; k++)
                    room[1][i][j][k] =
                        0.1 * (room[0][i - 1][j][k] + room[0][i + 1][j][k] + room[0][i][j - 1][k] +
                               room[0][i][j + 1][k] + room[0][i][j][k - 1] + room[0][i][j][k + 1]) +
                        0.4 * room[0][i][j][k];
        for (int i = 1; i < EDGE - 1; i++)
            for (int j = 1; j < EDGE - 1; j++)
                for (int k = 1; k < EDGE - 1; k++)
                    room[0][i][j][k] = room[1][i][j][k];
    }
    return room[0][5][5][5];
}

static double line[3][LONG];

// The triad of the memory benchmark: one loop.
KERNEL triad(long repeats)
{
    for (long i = 0; i < LONG; i++)
        line[1][i] = 1.0 + i;
    for (long r = 0; r < repeats; r++)
        for (long i = 0; i < LONG; i++)
            line[0][i] = line[1][i] + 3.0 * line[2][i];
    return line[0][LONG / 2];
}

static double matrix[3][ORDER][ORDER];

// Rows times columns, in the order of the textbook.
KERNEL product(long repeats)
{
    for (int i = 0; i < ORDER; i++)
        for (int j = 0; j < ORDER; j++)
            matrix[0][i][j] = matrix[1][i][j] = 1.0 / (1 + i + j);
    for (long r = 0; r < repeats; r++)
        for (int i = 0; i < ORDER; i++)
            for (int j = 0; j < ORDER; j++) {
                double sum = 0.0;
                for (int k = 0; k < ORDER; k++)
                    sum += matrix[0][i][k] * matrix[1][k][j];
                matrix[2][i][j] = sum;
            }
    return matrix[2][3][4];
}

static double re[POINTS], im[POINTS], turn_re[POINTS / 2], turn_im[POINTS / 2];

// Radix 2, in place: places swapped, then butterflies of spans that double.
KERNEL fft(long repeats)
{
    for (int i = 0; i < POINTS / 2; i++) {
        turn_re[i] = cos(2 * M_PI * i / POINTS);
        turn_im[i] = sin(2 * M_PI * i / POINTS);
    }
    for (int i = 0; i < POINTS; i++)
        re[i] = i % 17, im[i] = 0.0;
    for (long r = 0; r < repeats; r++) {
        for (int i = 1, j = 0; i < POINTS; i++) {
            int bit = POINTS >> 1;
            for (; j & bit; bit >>= 1)
                j ^= bit;
            j ^= bit;
            if (i < j) {
                double a = re[i], b = im[i];
                re[i] = re[j], im[i] = im[j];
                re[j] = a, im[j] = b;
            }
        }
        for (int span = 1; span < POINTS; span *= 2)
            for (int first = 0; first < POINTS; first += 2 * span)
                for (int k = 0; k < span; k++) {
                    int a = first + k, b = a + span, t = k * (POINTS / 2 / span);
                    double x = re[b] * turn_re[t] - im[b] * turn_im[t],
                           y = re[b] * turn_im[t] + im[b] * turn_re[t];
                    re[b] = M_SQRT1_2 * (re[a] - x), im[b] = M_SQRT1_2 * (im[a] - y);
                    re[a] = M_SQRT1_2 * (re[a] + x), im[a] = M_SQRT1_2 * (im[a] + y);
                }
    }
    return re[1];
}

static unsigned bins[BINS];
static unsigned short values[LONG];

// Counts of values made by a congruential generator, and their sum once a round.
KERNEL histogram(long repeats)
{
    unsigned long seed = 1, sum = 0;
    for (long r = 0; r < repeats; r++) {
        for (long i = 0; i < LONG; i++) {
            seed = seed * 6364136223846793005ul + 1442695040888963407ul;
            values[i] = seed >> 52;
        }
        for (long i = 0; i < LONG; i++)
            bins[values[i]]++;
        for (int b = 0; b < BINS; b++)
            sum += bins[b] * (unsigned long)b;
    }
    return (double)sum;
}

static int columns[ROWS * NEAR], row_start[ROWS + 1];
static double entries[ROWS * NEAR], left[ROWS], right[ROWS];

// A sparse matrix of a few entries a row times a vector.
KERNEL sparse(long repeats)
{
    unsigned seed = 1;
    for (int i = 0, n = 0; i < ROWS; i++) {
        for (int k = 0; k < 3 + i % (NEAR - 2); k++) {
            seed = seed * 1664525u + 1013904223u;
            columns[n] = seed % ROWS, entries[n] = 1.0 / (1 + k), n++;
        }
        row_start[i + 1] = n, right[i] = i % 5;
    }
    for (long r = 0; r < repeats; r++)
        for (int i = 0; i < ROWS; i++) {
            double sum = 0.0;
            for (int n = row_start[i]; n < row_start[i + 1]; n++)
                sum += entries[n] * right[columns[n]];
            left[i] = sum;
        }
    return left[7];
}

static double factors[WIDE / 4][WIDE / 4];

// Elimination without pivots of a matrix that needs none.
KERNEL elimination(long repeats)
{
    int n = WIDE / 4;
    for (long r = 0; r < repeats; r++) {
        for (int i = 0; i < n; i++)
            for (int j = 0; j < n; j++)
                factors[i][j] = i == j ? n : 1.0 / (1 + abs(i - j));
        for (int k = 0; k < n; k++)
            for (int i = k + 1; i < n; i++) {
                double share = factors[i][k] /= factors[k][k];
                for (int j = k + 1; j < n; j++)
                    factors[i][j] -= share * factors[k][j];
            }
    }
    return factors[n - 1][n - 1];
}

static char one[WIDE], other[WIDE];
static int score[2][WIDE + 1];

// Scores of a local alignment: the best of three neighbours, cell by cell.
KERNEL alignment(long repeats)
{
    int best = 0;
    for (int i = 0; i < WIDE; i++)
        one[i] = "ACGT"[i * 7 % 11 % 4], other[i] = "ACGT"[i * 5 % 13 % 4];
    for (long r = 0; r < repeats; r++)
        for (int i = 0; i < WIDE; i++)
            for (int j = 0; j < WIDE; j++) {
                int now = score[~i & 1][j] + (one[i] == other[j] ? 2 : -1);
                if (score[~i & 1][j + 1] - 1 > now)
                    now = score[~i & 1][j + 1] - 1;
                if (score[i & 1][j] - 1 > now)
                    now = score[i & 1][j] - 1;
                score[i & 1][j + 1] = now < 0 ? 0 : now;
                if (now > best)
                    best = now;
            }
    return best;
}

static const struct {
    const char *name;
    double (*run)(long repeats);
    long repeats;
} kernels[] = {
    {"stencil7", stencil7, 8000},       {"triad", triad, 3000},
    {"product", product, 900},          {"fft", fft, 4000},
    {"histogram", histogram, 2000},     {"sparse", sparse, 20000},
    {"elimination", elimination, 2500}, {"alignment", alignment, 3000},
};

int main(int argc, char **argv)
{
    for (size_t i = 0; argc > 1 && i < sizeof kernels / sizeof *kernels; i++)
        if (!strcmp(argv[1], kernels[i].name)) {
            long repeats = argc > 2 ? atol(argv[2]) : kernels[i].repeats;
            printf("%s %ld %.9e\n", argv[1], repeats, kernels[i].run(repeats));
            return 0;
        }
    fprintf(stderr, "usage: %s NAME [REPEATS]\n", argv[0]);
    return 2;
}
