/* SPDX-License-Identifier: Apache-2.0
 *
 * Counts what kinds of numbers pages hold. numpy takes ten passes over the memory for it. */

#include <stdint.h>

/* Below it, a word is taken for a pointer, an integer or a flag, and not for a number near zero. */
#define LEAST (1ULL << 48)

/* Four words at a time where the processor can. */
#if defined(__GNUC__) && !defined(__clang__)
#define FOR_ALL __attribute__((target_clones("avx2", "default")))
#else
#define FOR_ALL
#endif

static inline int64_t ordinary_float(uint64_t word)
{
    uint64_t exponent = word >> 23 & 0xff;
    return (exponent > 67) & (exponent < 187);
}

/* For each of `pages` times `words` words: how many are not zero; look like doubles or like pairs of floats; look like
 * pairs of floats; are NaN, infinite, denormal, zero. Each of these three as a double, or as the second of two floats:
 * doubles that look like such a float are above 2^1016 or below 2^-1015. */
FOR_ALL void look(const uint64_t *word, long pages, long words, int64_t (*found)[7])
{
    for (long page = 0; page < pages; page++, word += words) {
        int64_t filled = 0, numbers = 0, floats = 0, nan = 0, infinite = 0, denormal = 0, zero = 0;
        for (long k = 0; k < words; k++) {
            uint64_t size = word[k] & ~(1ULL << 63), exponent = size >> 52;
            int64_t is_double = (exponent > 773) & (exponent < 1273);
            int64_t are_floats = ordinary_float(word[k]) & ordinary_float(word[k] >> 32);
            int64_t is_infinite = (size == 0x7ffULL << 52) | (size >> 32 == 0x7f800000);
            filled += word[k] != 0;
            numbers += is_double | are_floats;
            floats += are_floats;
            infinite += is_infinite;
            nan += (exponent >= 0x7f8) & !is_infinite;
            denormal += (exponent < 8) & (size >= LEAST);
            zero += !size;
        }
        int64_t counted[7] = {filled, numbers, floats, nan, infinite, denormal, zero};
        for (int k = 0; k < 7; k++)
            found[page][k] = counted[k];
    }
}
