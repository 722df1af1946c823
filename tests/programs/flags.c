// SPDX-License-Identifier: Apache-2.0
// All combinations of CF, PF, AF, ZF, SF, DF and OF live across displaced instructions.
// Usage: flags [ROUNDS]
#include "site.h"

typedef uint64_t function(uint64_t flags);
extern function flags_over_store, flags_over_call, flags_over_jump, flags_set;
extern function *const flags_jumps[16], *const flags_moves[16];
extern volatile uint8_t flags_set_bytes[16];
uint64_t flags_add(uint64_t *to, const uint64_t *from, uint64_t words);

static const char *const names[16] = {"o", "no", "b",  "ae", "e", "ne", "be", "a",
                                      "s", "ns", "p", "np", "l", "ge", "le", "g"};
static const uint64_t bits[] = {0x001, 0x004, 0x010, 0x040, 0x080, 0x400, 0x800};
enum { FLAGS = sizeof bits / sizeof *bits, PATTERNS = 1 << FLAGS, MASK = 0xcd5, WORDS = 64 };
static uint64_t wrong;

static uint64_t pattern_flags(unsigned pattern)
{
    uint64_t flags = 0x202;
    for (int i = 0; i < FLAGS; i++)
        if (pattern >> i & 1)
            flags |= bits[i];
    return flags;
}

static unsigned holds(unsigned condition, uint64_t flags)
{
    unsigned cf = flags & 1, pf = flags >> 2 & 1, zf = flags >> 6 & 1, sf = flags >> 7 & 1,
             of = flags >> 11 & 1;
    unsigned even[8] = {of, cf, zf, cf | zf, sf, pf, sf ^ of, zf | (sf ^ of)};
    return even[condition / 2] ^ (condition & 1);
}

static void check(uint64_t got, uint64_t expected)
{
    wrong += got != expected;
}

static uint64_t add_chain(void)
{
    uint64_t to[WORDS], from[WORDS], sum = 0, carry = 0;
    for (uint64_t i = 0; i < WORDS; i++) {
        to[i] = i % 3 ? ~(uint64_t)0 : i;
        from[i] = i % 5 ? i * 0x0123456789abcdefu : ~(uint64_t)0;
    }
    uint64_t expected[WORDS];
    for (int i = 0; i < WORDS; i++) {
        uint64_t first = to[i] + from[i], second = first + carry;
        carry = (first < to[i]) | (second < first);
        expected[i] = second;
    }
    check(flags_add(to, from, WORDS), carry);
    for (int i = 0; i < WORDS; i++) {
        check(to[i], expected[i]);
        sum = sum * 31 + to[i];
    }
    return sum;
}

int main(int argc, char **argv)
{
    uint64_t rounds = (uint64_t)size_argument(argc, argv, 3000), sum = 0, taken[16] = {0};
    for (uint64_t round = 0; round < rounds; round++) {
        for (unsigned pattern = 0; pattern < PATTERNS; pattern++) {
            uint64_t flags = pattern_flags(pattern);
            check(flags_over_store(flags) & MASK, flags & MASK);
            check(flags_over_call(flags) & MASK, flags & MASK);
            check(flags_over_jump(flags) & MASK, flags & MASK);
            flags_set(flags);
            for (unsigned i = 0; i < 16; i++) {
                unsigned expected = holds(i, flags);
                taken[i] += expected;
                check(flags_jumps[i](flags), expected);
                check(flags_moves[i](flags), expected);
                check(flags_set_bytes[i], expected);
            }
        }
        sum = sum * 31 + add_chain();
    }
    printf("flags %016llx wrong %llu\n", (unsigned long long)sum, (unsigned long long)wrong);
    print_count("site_flags_store", rounds * PATTERNS);
    print_count("site_flags_call", rounds * PATTERNS);
    print_count("site_flags_jump", rounds * PATTERNS);
    print_count("site_flags_add", rounds * WORDS);
    for (int i = 0; i < 16; i++) {
        printf("count site_jump_%s %llu\n", names[i], (unsigned long long)rounds * PATTERNS);
        printf("count taken_jump_%s %llu\n", names[i], (unsigned long long)taken[i]);
        printf("count site_move_%s %llu\n", names[i], (unsigned long long)rounds * PATTERNS);
    }
    return wrong != 0;
}
