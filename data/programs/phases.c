// SPDX-License-Identifier: Apache-2.0
// A mixture: kernels whose cycles per instruction differ a hundredfold (about 0.2 to 40)
// take turns, their order and share changing a little from one outer iteration to the next.
// Usage: phases [OUTER_ITERATIONS]
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { ORDER = 192, GRID = 512, KEYS = 1 << 19, CELLS = 8 << 20, TEXT = 1 << 16 };

static double left[ORDER][ORDER], right[ORDER][ORDER], product[ORDER][ORDER];
static double grid[2][GRID][GRID];
static uint32_t keys[KEYS], cycle[CELLS];
static char text[TEXT];
static uint64_t checksum;

static uint32_t next_number(void)
{
    static uint32_t state = 2463534242u;
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    return state;
}

static void note(uint64_t value)
{
    checksum = (checksum ^ value) * 1099511628211u;
}

// Four independent chains: as many instructions per cycle as the machine will retire.
static void arithmetic(long rounds)
{
    uint64_t a = 1, b = 2, c = 3, d = 4;
    for (long i = 0; i < rounds; i++) {
        a += b ^ (uint64_t)i;
        b += 0x9e3779b97f4a7c15u;
        c ^= c << 7;
        d += c >> 3;
    }
    note(a + b + c + d);
}

static void multiply(int rounds)
{
    for (int round = 0; round < rounds; round++)
        for (int i = 0; i < ORDER; i++)
            for (int k = 0; k < ORDER; k++)
                for (int j = 0; j < ORDER; j++)
                    product[i][j] += left[i][k] * right[k][j];
    note((uint64_t)product[ORDER / 2][ORDER / 3]);
}

// Each division waits for the one before: few instructions, many cycles.
static void divisions(long rounds)
{
    uint64_t value = 0xfedcba9876543210u, divisor = 3;
    for (long i = 0; i < rounds; i++) {
        value = 0xffffffffffff0000u / (value % divisor + 2) + (uint64_t)i;
        divisor = (value & 0xffff) + 3;
    }
    note(value);
}

// Time inside libm, whose code is chosen for the CPU.
static void trigonometry(long rounds)
{
    double sum = 0.0;
    for (long i = 0; i < rounds; i++)
        sum += sin((double)i * 0.001) * cos((double)i * 0.0007);
    note((uint64_t)(int64_t)llround(sum * 1000.0));
}

static void relax(int rounds)
{
    for (int round = 0; round < rounds; round++) {
        double (*from)[GRID] = grid[round & 1], (*to)[GRID] = grid[~round & 1];
        for (int i = 1; i < GRID - 1; i++)
            for (int j = 1; j < GRID - 1; j++)
                to[i][j] = 0.25 * (from[i - 1][j] + from[i + 1][j] + from[i][j - 1] + from[i][j + 1]);
    }
    note((uint64_t)(grid[0][GRID / 2][GRID / 2] * 1e6));
}

static void sift(uint32_t *heap, uint32_t at, uint32_t count)
{
    uint32_t value = heap[at];
    for (uint32_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && heap[child + 1] > heap[child])
            child++;
        if (heap[child] <= value)
            break;
        heap[at] = heap[child];
    }
    heap[at] = value;
}

static void heapsort_keys(uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        keys[i] = next_number();
    for (uint32_t i = count / 2; i-- > 0;)
        sift(keys, i, count);
    for (uint32_t last = count - 1; last > 0; last--) {
        uint32_t kept = keys[0];
        keys[0] = keys[last];
        keys[last] = kept;
        sift(keys, 0, last);
    }
    note(keys[count / 2]);
}

static void chase(long steps)
{
    uint32_t at = 0;
    for (long i = 0; i < steps; i++)
        at = cycle[at];
    note(at);
}

// Byte-wise states with unpredictable branches.
static void scan(int rounds)
{
    uint64_t words = 0, digits = 0;
    for (int round = 0; round < rounds; round++) {
        int inside = 0;
        for (int i = 0; i < TEXT; i++) {
            char c = text[i];
            if (c == ' ') {
                inside = 0;
            } else if (c >= '0' && c <= '9') {
                digits += (uint64_t)(c - '0') + (uint64_t)round;
            } else if (!inside) {
                inside = 1;
                words++;
            }
        }
    }
    note(words * 31 + digits);
}

static void prepare(void)
{
    for (int i = 0; i < ORDER; i++)
        for (int j = 0; j < ORDER; j++) {
            left[i][j] = (double)(next_number() >> 28);
            right[i][j] = (double)(next_number() >> 28);
        }
    for (int i = 0; i < GRID; i++)
        grid[0][0][i] = grid[1][0][i] = 100.0;
    for (uint32_t i = 0; i < CELLS; i++)
        cycle[i] = i;
    for (uint32_t i = CELLS - 1; i > 0; i--) {
        uint32_t j = next_number() % i, kept = cycle[i];
        cycle[i] = cycle[j];
        cycle[j] = kept;
    }
    static const char alphabet[] = "  aeiourstln0123";
    for (int i = 0; i < TEXT; i++)
        text[i] = alphabet[next_number() % (sizeof alphabet - 1)];
}

int main(int argc, char **argv)
{
    long outer = argc > 1 ? atol(argv[1]) : 9;
    if (outer < 1) {
        fprintf(stderr, "usage: %s [OUTER_ITERATIONS]\n", argv[0]);
        return 2;
    }
    prepare();
    for (long n = 0; n < outer; n++) {
        arithmetic(250000000 + 20000000 * (n % 3));
        multiply(60);
        divisions(16000000);
        trigonometry(8000000);
        chase(3000000 + 500000 * (n % 2));
        if (n % 2)
            scan(100);
        relax(1000);
        heapsort_keys(KEYS);
        if (n % 2 == 0)
            scan(100);
    }
    printf("phases %ld %016llx\n", outer, (unsigned long long)checksum);
    return 0;
}
