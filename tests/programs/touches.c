// SPDX-License-Identifier: Apache-2.0
// Regions that touch known pages. A scenario prepares its memory, then passes region_warm, region_start and
// region_end once each; between the last two it touches what its comment says, and dies of an illegal instruction
// where memory does not hold what it should. Pages hold pattern(page, word), so no two are equal.
// Prints "at SCENARIO NAME ADDRESS" for every area, before the region.
// Usage: touches [SCENARIO]      all of them, in the order of the table at the end
#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
#include "site.h"

enum { PAGE = 4096, WORDS = PAGE / 8, PAGES = 96 };

typedef uint64_t unaligned __attribute__((aligned(1), may_alias));

static const char *scenario;
static char *area;

__attribute__((noipa)) static void region_warm(void) { SITE(site_warm); }
__attribute__((noipa)) static void region_start(void) { SITE(site_start); }
__attribute__((noipa)) static void region_end(void) { SITE(site_end); }

static void begin(void)
{
    fflush(stdout);
    region_warm();
    region_start();
}

static void require(int condition)
{
    if (!condition)
        __builtin_trap();
}

static uint64_t pattern(uint64_t page, uint64_t word)
{
    return (page + 1) * 0x9e3779b97f4a7c15u + word;
}

static void fill(char *from, uint64_t page)
{
    uint64_t *words = (uint64_t *)(from + page * PAGE);
    for (uint64_t i = 0; i < WORDS; i++)
        words[i] = pattern(page, i);
}

static void named(const char *name, const void *address)
{
    printf("at %s %s %lx\n", scenario, name, (unsigned long)address);
}

static char *map_at(uint64_t offset, uint64_t pages, int flags)
{
    void *wanted = (void *)(0x200000000u + offset);
    flags |= MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    char *got = mmap(wanted, pages * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (got == MAP_FAILED) {
        perror("touches: mmap");
        exit(2);
    }
    return got;
}

static char *filled(uint64_t offset, uint64_t pages)
{
    char *made = map_at(offset, pages, 0);
    for (uint64_t page = 0; page < pages; page++)
        fill(made, page);
    return made;
}

static volatile uint64_t *word_at(char *from, uint64_t page)
{
    return (volatile uint64_t *)(from + page * PAGE + 128);
}

static void see(char *from, uint64_t page, uint64_t as)
{
    require(*word_at(from, page) == pattern(as, 16));
}

static void see_zero(char *from, uint64_t page)
{
    require(*word_at(from, page) == 0);
}

static void put(char *from, uint64_t page)
{
    *word_at(from, page) = 1;
}

// What an unaligned load at `offset` of `page` finds, byte by byte as on any x86.
static uint64_t expected(uint64_t page, uint64_t offset)
{
    uint64_t both[2] = {pattern(page, offset / 8), pattern(page + (offset / 8 + 1) / WORDS, (offset / 8 + 1) % WORDS)};
    uint64_t value;
    memcpy(&value, (char *)both + offset % 8, 8);
    return value;
}

// Reads 3, 1, 7; writes 5, and 3 once more. Behind the region's end: reads 40.
static void plain(void)
{
    begin();
    see(area, 3, 3);
    see(area, 1, 1);
    put(area, 5);
    see(area, 7, 7);
    put(area, 3);
    region_end();
    see(area, 40, 40);
}

__attribute__((noipa, target("avx"))) static void avx_load(const char *from, uint64_t *to)
{
    __asm__ volatile("vmovdqu %1, %%ymm0; vmovdqu %%ymm0, %0; vzeroupper"
                     : "=m"(*(char(*)[32])to) : "m"(*(const char(*)[32])from) : "xmm0");
}

// Across the border behind each first page: reads of 10, 30, 36, 50, 80; writes of 20, 33, 39, 60, 76.
// Up to the border and not across: reads of 70 and 73.
static void border(void)
{
    uint64_t four[4] = {1, 2, 3, 4};
    begin();
    require(*(volatile unaligned *)(area + 10 * PAGE + 4092) == expected(10, 4092));
    *(volatile unaligned *)(area + 20 * PAGE + 4092) = 1;
    __asm__ volatile("movdqu %1, %%xmm0; movdqu %%xmm0, %0"
                     : "=m"(*(char(*)[16])four) : "m"(*(char(*)[16])(area + 30 * PAGE + 4088)) : "xmm0");
    require(four[0] == pattern(30, 511) && four[1] == pattern(31, 0));
    __asm__ volatile("movdqu %1, %%xmm0; movdqu %%xmm0, %0"
                     : "=m"(*(char(*)[16])(area + 33 * PAGE + 4095)) : "m"(*(char(*)[16])four) : "xmm0");
    if (__builtin_cpu_supports("avx")) {
        avx_load(area + 36 * PAGE + 4072, four);
        require(four[2] == pattern(36, 511) && four[3] == pattern(37, 0));
        avx_load((char *)four, (uint64_t *)(area + 39 * PAGE + 4065));
    } else {
        require(*(volatile unaligned *)(area + 36 * PAGE + 4089) == expected(36, 4089));
        *(volatile unaligned *)(area + 39 * PAGE + 4089) = 1;
    }
    char *from = area + 50 * PAGE + 4000, *to = area + 60 * PAGE + 4000;
    uint64_t count = 200;
    __asm__ volatile("rep movsb" : "+S"(from), "+D"(to), "+c"(count) : : "memory");
    require(*(volatile uint64_t *)(area + 61 * PAGE) == pattern(51, 0));
    require(*(volatile uint64_t *)(area + 70 * PAGE + 4088) == pattern(70, 511));
    __asm__ volatile("movdqu %1, %%xmm0; movdqu %%xmm0, %0"
                     : "=m"(*(char(*)[16])four) : "m"(*(char(*)[16])(area + 73 * PAGE + 4080)) : "xmm0");
    require(four[1] == pattern(73, 511));
    *(volatile uint16_t __attribute__((aligned(1))) *)(area + 76 * PAGE + 4095) = 0;
    __asm__ volatile("fldt %0; fstp %%st(0)" : : "m"(*(char(*)[10])(area + 80 * PAGE + 4090)));
    region_end();
}

// Through system calls alone. Kernel writes: 50 to 52, 62 and 63; reads: 60 and 61, 64 and 65 (struct iovec),
// 66 and 67, 70, 74 and 75 (a path). The program itself then reads 50, 51, 52, of them all.
static void kernel(void)
{
    struct timespec *pause = (struct timespec *)(area + 60 * PAGE + 4088);
    struct iovec *pieces = (struct iovec *)(area + 64 * PAGE + 4080);
    *pause = (struct timespec){0, 1000};
    pieces[0] = (struct iovec){area + 66 * PAGE + 4000, 200};
    pieces[1] = (struct iovec){area + 70 * PAGE, PAGE};
    strcpy(area + 74 * PAGE + 4090, "/dev/null");
    begin();
    int zero = open("/dev/zero", O_RDONLY), ends[2];
    require(pipe(ends) == 0);
    require(read(zero, area + 50 * PAGE + 100, 2 * PAGE) == 2 * PAGE);
    see_zero(area, 50);
    see_zero(area, 51);
    require(*(volatile uint64_t *)(area + 52 * PAGE) == 0);
    require(syscall(SYS_nanosleep, pause, NULL) == 0);
    require(syscall(SYS_clock_gettime, CLOCK_MONOTONIC, area + 62 * PAGE + 4088) == 0);
    require(writev(ends[1], pieces, 2) == 200 + PAGE);
    uint64_t back[(200 + 128) / 8 + 1];
    require(read(ends[0], back, sizeof(back)) == sizeof(back));
    require(back[96 / 8] == pattern(67, 0) && back[(200 + 128) / 8] == pattern(70, 16));
    int null = open(area + 74 * PAGE + 4090, O_RDONLY);
    require(null > 0);
    region_end();
    close(zero);
    close(ends[0]);
    close(ends[1]);
    close(null);
}

static uint64_t deepest;

__attribute__((noinline)) static uint64_t descend(uint64_t pages)
{
    volatile char frame[PAGE];
    frame[0] = (char)pages;
    deepest = (uint64_t)frame;
    return pages ? descend(pages - 1) + (uint64_t)frame[0] : 0;
}

// Recursion 20 pages deep, where there were 60 before. Areas: "deep" and "deepest" are the lowest frames of the two.
static void stack(void)
{
    uint64_t before = descend(20);
    named("deep", (void *)deepest);
    descend(60);
    named("deepest", (void *)deepest);
    begin();
    require(descend(20) == before);
    region_end();
}

static char blank[32 * PAGE] __attribute__((aligned(PAGE)));

// Of "blank", never used before: writes 2, reads 9. Of the area: reads 5, whose bytes are zeros.
static void zeros(void)
{
    memset(area + 5 * PAGE, 0, PAGE);
    named("blank", blank);
    begin();
    put(blank, 2);
    see_zero(blank, 9);
    see_zero(area, 5);
    region_end();
}

static char initialised[8 * PAGE] __attribute__((aligned(PAGE))) = {[0] = 1, [4 * PAGE + 128] = 7, [8 * PAGE - 1] = 1};

// Of "initialised": reads 1 (changed before), 2 and 4 (as in the file), writes 6. Page 3 was changed and is left alone.
static void data(void)
{
    fill(initialised, 1);
    fill(initialised, 3);
    named("initialised", initialised);
    begin();
    see(initialised, 1, 1);
    see_zero(initialised, 2);
    require(*word_at(initialised, 4) == 7);
    put(initialised, 6);
    region_end();
}

// Reads 2, writes 3, discards 2 to 9 and sees zeros there; discards 20 to 29 untouched, too. Reads 12 and 35.
static void discard(void)
{
    begin();
    see(area, 2, 2);
    put(area, 3);
    require(madvise(area + 2 * PAGE, 8 * PAGE, MADV_DONTNEED) == 0);
    see_zero(area, 3);
    see_zero(area, 5);
    put(area, 6);
    see(area, 12, 12);
    require(madvise(area + 20 * PAGE, 10 * PAGE, MADV_DONTNEED) == 0);
    put(area, 22);
    see_zero(area, 21);
    see(area, 35, 35);
    region_end();
}

// Reads 2; unmaps 4 to 11 and maps 4 to 7 afresh; maps 30 to 33 over what is there. Reads 12 and 34.
static void unmap(void)
{
    begin();
    see(area, 2, 2);
    require(munmap(area + 4 * PAGE, 8 * PAGE) == 0);
    map_at((uint64_t)area + 4 * PAGE - 0x200000000u, 4, 0);
    see_zero(area, 5);
    put(area, 6);
    see(area, 12, 12);
    map_at((uint64_t)area + 30 * PAGE - 0x200000000u, 4, 0);
    see_zero(area, 31);
    see(area, 34, 34);
    region_end();
}

// Moves the area's first 8 pages away and back: reads 2, writes 5, reads 6. "grown": reads 1, grows, shrinks, grows.
// "kept" is moved but stays mapped: reads 1.
static void move(void)
{
    char *away = (char *)0x280000000u;
    char *grown = filled(0x40000000u, 4), *kept = filled(0x50000000u, 4);
    named("grown", grown);
    named("kept", kept);
    begin();
    require(mremap(area, 8 * PAGE, 8 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, away) == away);
    see(away, 2, 2);
    put(away, 5);
    char *fresh = map_at((uint64_t)area - 0x200000000u, 8, 0);
    see_zero(fresh, 3);
    require(mremap(away, 8 * PAGE, 8 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, area) == area);
    see(area, 2, 2);
    see(area, 6, 6);
    see(grown, 1, 1);
    require(mremap(grown, 4 * PAGE, 8 * PAGE, 0) == grown);
    see_zero(grown, 6);
    require(mremap(grown, 8 * PAGE, 2 * PAGE, 0) == grown);
    require(mremap(grown, 2 * PAGE, 4 * PAGE, 0) == grown);
    see_zero(grown, 3);
    int flags = MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP;
    require(mremap(kept, 4 * PAGE, 4 * PAGE, flags, away) == away);
    see(away, 1, 1);
    see_zero(kept, 1);
    see_zero(kept, 2);
    region_end();
}

// A block of 1 MB becomes one of 3 MB, moved by the kernel: touches its first page (the size) and 100.
static void resize(void)
{
    char *block = malloc(1 << 20), *first = (char *)((uint64_t)block & ~(uint64_t)(PAGE - 1));
    for (uint64_t page = 1; page < 250; page++)
        fill(first, page);
    named("block", first);
    begin();
    char *bigger = realloc(block, 3 << 20);
    require(bigger != NULL);
    first = (char *)((uint64_t)bigger & ~(uint64_t)(PAGE - 1));
    see(first, 100, 100);
    put(first, 400);
    region_end();
    free(bigger);
}

// Grows the heap by 16 pages, shrinks it by 20, grows it by 20: of the 32 it had before, reads 3 and 27.
static void heap(void)
{
    sbrk((PAGE - (long)((uint64_t)sbrk(0) % PAGE)) % PAGE);
    char *old = sbrk(32 * PAGE);
    for (uint64_t page = 0; page < 32; page++)
        fill(old, page);
    named("heap", old);
    begin();
    require(sbrk(16 * PAGE) == old + 32 * PAGE);
    see_zero(old, 33);
    put(old, 34);
    see(old, 3, 3);
    sbrk(-20 * PAGE);
    sbrk(20 * PAGE);
    see_zero(old, 30);
    put(old, 29);
    see(old, 27, 27);
    region_end();
}

// "holes" has every third page: touches 0 to 3, 30, 31.
static void holes(void)
{
    char *some = map_at(0x60000000u, PAGES, 0);
    for (uint64_t page = 0; page < PAGES; page += 3)
        fill(some, page);
    named("holes", some);
    begin();
    see(some, 0, 0);
    see_zero(some, 1);
    put(some, 2);
    see(some, 3, 3);
    see(some, 30, 30);
    put(some, 31);
    region_end();
}

// "huge" asks for transparent huge pages: reads 5, across the border of 511 and 512 (the two huge pages), writes 700.
static void huge(void)
{
    enum { HUGE = 512 };
    char *large = map_at(0x70000000u, 2 * HUGE, 0);
    madvise(large, 2 * HUGE * PAGE, MADV_HUGEPAGE);
    for (uint64_t page = 0; page < 2 * HUGE; page++)
        fill(large, page);
    named("huge", large);
    begin();
    see(large, 5, 5);
    require(*(volatile unaligned *)(large + 511 * PAGE + 4092) == expected(511, 4092));
    put(large, 700);
    char *fresh = map_at(0x90000000u, HUGE, 0);
    madvise(fresh, HUGE * PAGE, MADV_HUGEPAGE);
    put(fresh, 3);
    see_zero(fresh, 4);
    region_end();
}

// "locked" into memory: reads 2.
static void locked(void)
{
    char *fixed = map_at(0xa0000000u, 8, MAP_LOCKED);
    for (uint64_t page = 0; page < 8; page++)
        fill(fixed, page);
    named("locked", fixed);
    begin();
    see(fixed, 2, 2);
    region_end();
}

static uint64_t step(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state >> 11;
}

// Accesses of all sizes at random places of a third of the area, most of them unaligned.
static void wander(void)
{
    uint64_t state = 88172645463325252u, sum = 0;
    char copy[64];
    begin();
    for (int i = 0; i < 60; i++) {
        char *place = area + step(&state) % (PAGES / 3 * PAGE) * 3 % ((PAGES - 1) * PAGE);
        switch (step(&state) % 6) {
        case 0:
            sum += *(volatile char *)place;
            break;
        case 1:
            sum += *(volatile unaligned *)place;
            break;
        case 2:
            *(volatile unaligned *)place = sum;
            break;
        case 3:
            memcpy(copy, place, step(&state) % 64);
            break;
        case 4:
            memset(place, i, step(&state) % 300);
            break;
        default:
            memmove(area + (PAGES / 2) * PAGE + i, place, 40);
        }
    }
    region_end();
    printf("wander %llx\n", (unsigned long long)sum);
}

static const struct {
    const char *name;
    void (*run)(void);
} SCENARIOS[] = {
    {"plain", plain}, {"border", border}, {"kernel", kernel}, {"stack", stack}, {"zeros", zeros},
    {"data", data}, {"discard", discard}, {"unmap", unmap}, {"move", move}, {"resize", resize},
    {"heap", heap}, {"holes", holes}, {"huge", huge}, {"locked", locked}, {"wander", wander},
};

int main(int argc, char **argv)
{
    for (uint64_t i = 0; i < sizeof SCENARIOS / sizeof *SCENARIOS; i++) {
        scenario = SCENARIOS[i].name;
        if (argc > 1 && strcmp(argv[1], scenario))
            continue;
        area = filled(0, PAGES);
        named("area", area);
        SCENARIOS[i].run();
        munmap(area, PAGES * PAGE);
    }
    return 0;
}
