// SPDX-License-Identifier: Apache-2.0
// Generate, quicksort, verify; rounds of different sizes, so that the working set and with it
// the cost per element changes from round to round.
// Usage: sorter [ROUNDS]
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { LARGEST = 4 << 20, SMALL = 16 };
static const uint32_t sizes[] = {LARGEST, 20000, 300000, LARGEST / 4, 1000};
static const uint32_t repeats[] = {1, 160, 10, 4, 3000};

static void generate(uint32_t *values, uint32_t count, uint32_t seed)
{
    for (uint32_t i = 0; i < count; i++) {
        seed ^= seed << 13;
        seed ^= seed >> 17;
        seed ^= seed << 5;
        values[i] = seed;
    }
}

static void insertion_sort(uint32_t *values, int64_t count)
{
    for (int64_t i = 1; i < count; i++) {
        uint32_t value = values[i];
        int64_t j = i;
        for (; j > 0 && values[j - 1] > value; j--)
            values[j] = values[j - 1];
        values[j] = value;
    }
}

static uint32_t median(uint32_t a, uint32_t b, uint32_t c)
{
    if (a < b)
        return b < c ? b : a < c ? c : a;
    return a < c ? a : b < c ? c : b;
}

static void quicksort(uint32_t *values, int64_t count)
{
    while (count > SMALL) {
        uint32_t pivot = median(values[0], values[count / 2], values[count - 1]);
        int64_t low = 0, high = count - 1;
        while (low <= high) {
            while (values[low] < pivot)
                low++;
            while (values[high] > pivot)
                high--;
            if (low <= high) {
                uint32_t kept = values[low];
                values[low++] = values[high];
                values[high--] = kept;
            }
        }
        // Recursing into the smaller part bounds the stack.
        if (high + 1 < count - low) {
            quicksort(values, high + 1);
            values += low;
            count -= low;
        } else {
            quicksort(values + low, count - low);
            count = high + 1;
        }
    }
    insertion_sort(values, count);
}

static uint64_t verify(const uint32_t *values, uint32_t count)
{
    uint64_t sum = values[0];
    for (uint32_t i = 1; i < count; i++) {
        if (values[i - 1] > values[i]) {
            fprintf(stderr, "sorter: out of order at %u\n", i);
            exit(1);
        }
        sum = sum * 31 + values[i];
    }
    return sum;
}

int main(int argc, char **argv)
{
    long rounds = argc > 1 ? atol(argv[1]) : 10;
    if (rounds < 1) {
        fprintf(stderr, "usage: %s [ROUNDS]\n", argv[0]);
        return 2;
    }
    uint32_t *values = malloc(LARGEST * sizeof *values);
    if (!values) {
        perror("sorter");
        return 2;
    }
    uint64_t sum = 0;
    for (long round = 0; round < rounds; round++)
        for (unsigned part = 0; part < sizeof sizes / sizeof *sizes; part++)
            for (uint32_t repeat = 0; repeat < repeats[part]; repeat++) {
                generate(values, sizes[part], 1 + (uint32_t)round * 7919u + part * 104729u + repeat);
                quicksort(values, sizes[part]);
                sum = sum * 31 + verify(values, sizes[part]);
            }
    printf("sorter %ld %016llx\n", rounds, (unsigned long long)sum);
    free(values);
    return 0;
}
