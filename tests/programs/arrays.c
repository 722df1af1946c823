// SPDX-License-Identifier: Apache-2.0
// Array code whose control flow or addresses do, or do not, depend on what is in the arrays. Each round passes
// region_warm, region_start and region_end, and works on the arrays between the last two.
// The arrays of numbers lie at 0x200000000 and 0x210000000, the column numbers at 0x220000000.
// Usage: arrays KIND [ROUNDS]
//   plate     five-point relaxation: numbers alone
//   sparse    product of a sparse matrix and a vector: column numbers are addresses
//   roots     square roots of differences: small numbers turn into NaN
//   sorted    bubbles through an array: numbers are control flow
//   checksum  compares the sum of an array's bits with the one kept before
//   writes    computes, and writes an array to standard output
//   denormal  numbers below the smallest normal one
//   special   a plate with NaN, infinities and pages of zeros in it
//   node      takes the logarithm on the machine it began on, and the exponential elsewhere
//   clock     a loop whose length the clock says
//   floats    a plate in single precision
//   mixed     pages of doubles, floats and pointers to follow
//   gather    sums what vector registers address; needs AVX2
//   huge      a plate of 8 MB for which huge pages are advised
//   number    ends itself where its process number is another
//   strings   compares bytes until they differ
//   patches   changes its own code, making it writable meanwhile
//   jit       changes code in memory of its own, without a system call
//   faults    handles its own segmentation faults
//   ways      every way from a block to the next, strings, and flags read behind other blocks
#define _GNU_SOURCE
#include <immintrin.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>
#include "site.h"

enum { HUGE = 4 << 20 };

// A cache line of everything.
struct cell {
    double d[4];
    float f[6];
    struct cell *next;
};

enum { SIDE = 128, CELLS = SIDE * SIDE, PER_ROW = 8, TURNS = 20, SORTED = 1024 };

static double *a, *b;
static int *column;
static uint64_t kept;
static struct utsname first;
static pid_t number;
static double *large[2];
static unsigned char *made;

// Loads 8 bytes from its argument on; their place may be changed.
__attribute__((aligned(4096))) void loading(void *from);
extern unsigned char loading_place[];
__asm__(".text\n\t.balign 4096\n\t.globl loading, loading_place\n\t.type loading, @function\n"
        "loading:\tmov $7, %eax\n\t.skip 16, 0x90\n\t.byte 0x48, 0x8b, 0x87\n"
        "loading_place:\t.long 0\n\tret\n\t.size loading, . - loading\n\t.balign 4096");

__attribute__((noipa)) static void region_warm(void) { SITE(site_warm); }
__attribute__((noipa)) static void region_start(void) { SITE(site_start); }
__attribute__((noipa)) static void region_end(void) { SITE(site_end); }

// A mapping of its own: neighbours would become one.
static void *pages(size_t size, uintptr_t wanted)
{
    void *found = mmap((void *)wanted, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (found == MAP_FAILED)
        exit(2);
    return found;
}

// Passes over the load that faulted, of 3 bytes.
static void pass_over(int number, siginfo_t *said, void *at)
{
    (void)number, (void)said;
    ((ucontext_t *)at)->uc_mcontext.gregs[REG_RIP] += 3;
}

static void prepare(const char *kind)
{
    a = pages(CELLS * sizeof *a, 0x200000000);
    b = pages(CELLS * sizeof *b, 0x210000000);
    column = pages(CELLS * sizeof *column, 0x220000000);
    uint64_t state = 1;
    for (int i = 0; i < CELLS; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        double unit = (double)(state >> 11) / 9007199254740992.0;
        a[i] = !strcmp(kind, "denormal") ? unit * 1e-308 : 1.0 + unit;
        b[i] = a[i] * 0.75;
        column[i] = (int)(unit * CELLS);
    }
    for (int i = 0; !strcmp(kind, "floats") && i < 2 * CELLS; i++)
        ((float *)a)[i] = ((float *)b)[i] = 1.0f + (float)(i % 97) / 97.0f;
    static const unsigned char load[] = { 0x48, 0x8b, 0x87, 0, 0, 0, 0, 0xc3 };
    made = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(made, load, sizeof load);
    struct sigaction action = { .sa_sigaction = pass_over, .sa_flags = SA_SIGINFO };
    if (!strcmp(kind, "faults") && (sigaction(SIGSEGV, &action, NULL) || mprotect(column, 4096, PROT_NONE)))
        exit(2);
    struct cell *cells = (struct cell *)a;
    for (int i = 0; !strcmp(kind, "mixed") && i < CELLS / 8; i++) {
        cells[i].next = &cells[(i + 1234) % (CELLS / 8)];
        for (int k = 0; k < 6; k++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            cells[i].f[k] = 0.5f + (float)(state >> 40) / 16777216.0f;
        }
    }
    for (int k = 0; !strcmp(kind, "huge") && k < 2; k++) {
        large[k] = pages(HUGE, 0x230000000 + (uintptr_t)k * 0x10000000);
        madvise(large[k], HUGE, MADV_HUGEPAGE);
        for (size_t i = 0; i < HUGE / sizeof *a; i++)
            large[k][i] = 1.0 + (double)i / HUGE;
    }
    if (!strcmp(kind, "special"))
        for (int i = 0; i < CELLS / 2; i++)
            a[i] = i < CELLS / 4 ? 0.0 : i % 2 ? NAN : INFINITY;
    for (int i = 0; i < CELLS; i++) {
        uint64_t bits;
        memcpy(&bits, &a[i], sizeof bits);
        kept += bits;
    }
}

__attribute__((noipa)) static void plate(void)
{
    for (int turn = 0; turn < TURNS; turn++) {
        for (int y = 1; y < SIDE - 1; y++)
            for (int x = 1; x < SIDE - 1; x++) {
                int i = y * SIDE + x;
                b[i] = 0.25 * (a[i - 1] + a[i + 1] + a[i - SIDE] + a[i + SIDE]);
            }
        double *swap = a;
        a = b;
        b = swap;
    }
}

__attribute__((noipa)) static void sparse(void)
{
    for (int turn = 0; turn < TURNS; turn++)
        for (int row = 0; row < CELLS / PER_ROW; row++) {
            double sum = 0.0;
            for (int k = row * PER_ROW; k < (row + 1) * PER_ROW; k++)
                sum += a[k] * b[column[k]];
            a[row] = sum / PER_ROW;
        }
}

// The instruction: the library's function looks for negative numbers.
static double root(double x)
{
    return _mm_cvtsd_f64(_mm_sqrt_sd(_mm_setzero_pd(), _mm_set_sd(x)));
}

__attribute__((noipa)) static void roots(void)
{
    for (int turn = 0; turn < TURNS; turn++)
        for (int i = 0; i < CELLS; i++)
            b[i] = root(a[i] - 0.5);
}

__attribute__((noipa)) static void sorted(void)
{
    for (int i = 0; i < SORTED; i++)
        for (int k = 0; k + 1 < SORTED - i; k++)
            if (a[k] > a[k + 1]) {
                double swap = a[k];
                a[k] = a[k + 1];
                a[k + 1] = swap;
            }
}

__attribute__((noipa)) static void checksum(void)
{
    uint64_t sum = 0;
    for (int i = 0; i < CELLS; i++) {
        uint64_t bits;
        memcpy(&bits, &a[i], sizeof bits);
        sum += bits;
    }
    if (sum != kept)
        _exit(3);
    for (int turn = 0; turn < TURNS; turn++)
        for (int i = 0; i < CELLS; i++)
            b[i] = b[i] * 0.5 + a[i];
}

__attribute__((noipa)) static void writes(void)
{
    roots();
    if (write(STDOUT_FILENO, b, CELLS * sizeof *b) < 0)
        _exit(3);
}

__attribute__((noipa)) static void node(void)
{
    struct utsname now;
    uname(&now);
    for (int turn = 0; turn < TURNS; turn++)
        for (int i = 0; i < CELLS; i++)
            b[i] = strcmp(now.nodename, first.nodename) ? exp(a[i]) : log(a[i]);
}

__attribute__((noipa)) static void by_clock(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    for (long turn = now.tv_nsec % 1000; turn >= 0; turn--)
        b[turn % CELLS] += a[turn % CELLS];
}

__attribute__((noipa)) static void floats(void)
{
    float *from = (float *)a, *to = (float *)b;
    for (int turn = 0; turn < TURNS; turn++) {
        for (int i = SIDE; i < 2 * CELLS - SIDE; i++)
            to[i] = 0.25f * (from[i - 1] + from[i + 1] + from[i - SIDE] + from[i + SIDE]);
        float *swap = from;
        from = to;
        to = swap;
    }
}

__attribute__((noipa)) static void mixed(void)
{
    struct cell *at = (struct cell *)a;
    for (int turn = 0; turn < TURNS * CELLS; turn++, at = at->next) {
        at->d[0] = 0.5 * at->d[1] + at->d[2];
        at->f[0] = 0.25f * (at->f[1] + at->f[2]);
    }
}

__attribute__((noipa, target("avx2"))) static void gather(void)
{
    __m256d sum = _mm256_setzero_pd();
    for (int turn = 0; turn < TURNS; turn++)
        for (int i = 0; i < CELLS; i += 4)
            sum = _mm256_add_pd(sum, _mm256_i32gather_pd(a, _mm_loadu_si128((__m128i *)&column[i]), 8));
    _mm256_storeu_pd(b, sum);
}

__attribute__((noipa)) static void huge(void)
{
    for (int turn = 0; turn < 2; turn++)
        for (size_t i = 1; i + 1 < HUGE / sizeof *a; i++)
            large[1 - turn][i] = 0.5 * (large[turn][i - 1] + large[turn][i + 1]);
}

__attribute__((noipa)) static void same_number(void)
{
    if (getpid() != number)
        abort();
}

__attribute__((noipa)) static void strings(void)
{
    for (int turn = 0; turn < TURNS; turn++)
        for (int i = 0; i + 8 < CELLS; i += 8) {
            uint64_t left = 64;
            double *mine = a + i, *other = b + i;
            __asm__ volatile("repe cmpsb" : "+c"(left), "+S"(mine), "+D"(other) : : "memory", "cc");
        }
}

__attribute__((noipa)) static void patches(void)
{
    for (int turn = 0; turn < 500; turn++) {
        int place = turn * 8;
        if (mprotect(loading, 4096, PROT_READ | PROT_WRITE | PROT_EXEC))
            _exit(3);
        memcpy(loading_place, &place, sizeof place);
        if (mprotect(loading, 4096, PROT_READ | PROT_EXEC))
            _exit(3);
        for (int i = 0; i < 10; i++)
            loading(a);
    }
}

__attribute__((noipa)) static void jit(void)
{
    for (int turn = 0; turn < 1000; turn++) {
        int place = turn * 8;
        memcpy(made + 3, &place, sizeof place);
        for (int i = 0; i < 10; i++)
            ((void (*)(void *))(uintptr_t)made)(a);
    }
}

__attribute__((noipa)) static void faults(void)
{
    for (int turn = 0; turn < 500; turn++) {
        for (int i = 0; i < 20; i++)
            b[i] = root(a[i] + turn);
        __asm__ volatile("mov (%0), %%rax" : : "D"(column) : "rax", "memory");
    }
}

__attribute__((noipa)) static uint64_t fewer(uint64_t n)
{
    return n - 1;
}

__attribute__((noipa)) static void ways(void)
{
    static uint64_t (*volatile by_pointer)(uint64_t) = fewer;
    uint64_t sum = 0;
    for (uint64_t turn = 4000; turn; turn = by_pointer(turn)) {
        uint64_t left = turn % 7 + 1, carried = 0;
        char *from = (char *)a, *to = (char *)b;
        __asm__ volatile("1:\tadd %%rcx, %1\n\tloop 1b\n\t"
                         "jrcxz 2f\n\tud2\n"
                         "2:\tmov $5, %%ecx\n\trep movsq\n\t"
                         "stc\n\tjmp 3f\n\t.skip 40, 0x90\n"
                         "3:\tadc $0, %1\n\t"
                         "push %1\n\tcall 4f\n\tjmp 5f\n"
                         "4:\tincq 8(%%rsp)\n\tret $0\n"
                         "5:\tpop %1\n\tlea 6f(%%rip), %%rax\n\tjmp *%%rax\n\tud2\n"
                         "6:\tmov %%fs:0, %%rax\n\tmovabs 0x200000000, %%rax\n"
                         : "+c"(left), "+r"(carried), "+S"(from), "+D"(to)
                         :
                         : "rax", "memory", "cc");
        sum += carried;
    }
    kept = sum;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*work)(void);
    } kinds[] = {
        { "plate", plate }, { "sparse", sparse }, { "roots", roots }, { "sorted", sorted }, { "checksum", checksum },
        { "writes", writes }, { "denormal", plate }, { "special", plate }, { "node", node }, { "clock", by_clock },
        { "floats", floats }, { "mixed", mixed }, { "gather", gather }, { "huge", huge }, { "number", same_number },
        { "ways", ways }, { "strings", strings }, { "patches", patches }, { "jit", jit }, { "faults", faults },
    };
    const char *kind = argc > 1 ? argv[1] : "plate";
    long rounds = size_argument(argc - 1, argv + 1, 1);
    uname(&first);
    number = getpid();
    prepare(kind);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (long round = 0; round < rounds && !strcmp(kind, kinds[k].name); round++) {
            region_warm();
            region_start();
            kinds[k].work();
            region_end();
        }
    printf("arrays %s %g\n", kind, b[CELLS - 1]);
    return 0;
}
