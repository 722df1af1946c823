// SPDX-License-Identifier: Apache-2.0
// Matrix multiplication: one phase carries nearly all of the time, as in the thesis.
// Usage: matmul [ORDER]
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static double *matrix(size_t order, uint32_t seed)
{
    double *cells = malloc(order * order * sizeof *cells);
    if (!cells) {
        perror("matmul");
        exit(2);
    }
    // Small integers keep every sum exact: the checksum is the same on every machine.
    for (size_t i = 0; i < order * order; i++) {
        seed = seed * 1664525u + 1013904223u;
        cells[i] = (double)(seed >> 28);
    }
    return cells;
}

// The right factor comes transposed: both inner streams are sequential, so the
// multiplication is bound by arithmetic and not by the neighbours' cache traffic.
static void multiply(const double *left, const double *right_t, double *product, size_t order)
{
    for (size_t i = 0; i < order; i++)
        for (size_t j = 0; j < order; j++) {
            double sum = 0.0;
            for (size_t k = 0; k < order; k++)
                sum += left[i * order + k] * right_t[j * order + k];
            product[i * order + j] = sum;
        }
}

int main(int argc, char **argv)
{
    long size = argc > 1 ? atol(argv[1]) : 2300;
    if (size < 1) {
        fprintf(stderr, "usage: %s [ORDER]\n", argv[0]);
        return 2;
    }
    size_t order = (size_t)size;
    double *left = matrix(order, 1), *right_t = matrix(order, 2), *product = matrix(order, 3);
    multiply(left, right_t, product, order);
    uint64_t sum = 0;
    for (size_t i = 0; i < order * order; i++)
        sum = sum * 31 + (uint64_t)product[i];
    printf("matmul %zu %016llx\n", order, (unsigned long long)sum);
    free(left);
    free(right_t);
    free(product);
    return 0;
}
