/* SPDX-License-Identifier: Apache-2.0
 *
 * Counts what kinds of numbers pages hold. numpy takes ten passes over the memory for it. */

#include <stdint.h>

/* Below it, a word is taken for a pointer, an integer or a flag, and not for a number near zero. */
#define LEAST (1ULL << 48)
#define LEAST_FLOAT (1U << 16)

/* Four words at a time where the processor can. */
#if defined(__GNUC__) && !defined(__clang__)
#define FOR_ALL __attribute__((target_clones("avx2", "default")))
#else
#define FOR_ALL
#endif

enum { NAN_FLOAT = 0x7f800000, NORMAL_FLOAT = 0x00800000 };

static inline int64_t ordinary_float(uint64_t word)
{
    uint64_t exponent = word >> 23 & 0xff;
    return (exponent > 67) & (exponent < 187);
}

/* Two floats of one array are seldom further apart: 2^8. */
enum { NEAR = 8 };

static inline int64_t alike_sized(uint64_t word)
{
    int64_t low = word >> 23 & 0xff, high = word >> 55 & 0xff;
    return (low - high <= NEAR) & (high - low <= NEAR);
}

/* For each of `pages` times `words` words: how many are not zero; look like doubles or like pairs of floats; look like
 * pairs of floats of about one size; are NaN, infinite, denormal, zero; and whether the page holds floats. Each of NaN,
 * infinite and denormal as a double, or as one of two floats.
 *
 * Doubles whose upper half is such a float are above 2^1016 or below 2^-1015. The lower half of a double may be any
 * float, and one of 128 is NaN or denormal. So lower halves count only on pages of floats, beside an upper half that is
 * a float: else they belong to a pointer or an integer. Where `floats` does not tell (it is null), these are pages
 * - where at least nine of ten lower halves that are not zero are floats of an ordinary size or special ones: of those
 *   of doubles half are neither;
 * - and where a quarter of the words that are not zero are two ordinary floats of about one size, which are at least
 *   three quarters of those whose upper half is an ordinary float, and their lower half one or zero. On a page of one and
 *   the same double all lower halves are the same float, by chance; doubles with few digits have zeros there. */
FOR_ALL void look(const uint64_t *word, long pages, long words, const uint8_t *floats, int64_t (*found)[8])
{
    for (long page = 0; page < pages; page++, word += words) {
        int64_t filled = 0, numbers = 0, pairs = 0, alike = 0, nan = 0, infinite = 0, denormal = 0, zero = 0;
        int64_t low_filled = 0, low_floats = 0, low_nan = 0, low_infinite = 0, low_denormal = 0;
        for (long k = 0; k < words; k++) {
            uint64_t size = word[k] & ~(1ULL << 63), exponent = size >> 52, low = word[k] & 0x7fffffff;
            int64_t is_double = (exponent > 773) & (exponent < 1273);
            int64_t low_ordinary = ordinary_float(word[k]);
            int64_t are_floats = low_ordinary & ordinary_float(word[k] >> 32);
            int64_t is_infinite = (size == 0x7ffULL << 52) | (size >> 32 == NAN_FLOAT);
            int64_t is_nan = (exponent >= 0x7f8) & !is_infinite;
            int64_t is_denormal = (exponent < 8) & (size >= LEAST);
            int64_t beside_float = ordinary_float(word[k] >> 32) | is_infinite | is_nan | is_denormal;
            int64_t low_is_infinite = (low == NAN_FLOAT) & beside_float,
                    low_is_nan = (low > NAN_FLOAT) & beside_float;
            int64_t low_is_denormal = (low < NORMAL_FLOAT) & (low >= LEAST_FLOAT) & beside_float;
            filled += word[k] != 0;
            numbers += is_double | are_floats;
            pairs += ordinary_float(word[k] >> 32) & (low_ordinary | !low);
            alike += are_floats & alike_sized(word[k]);
            infinite += is_infinite;
            nan += is_nan;
            denormal += is_denormal;
            zero += !size;
            low_filled += (low != 0) & beside_float;
            low_floats += (low_ordinary & beside_float) | low_is_infinite | low_is_nan | low_is_denormal;
            low_infinite += low_is_infinite & !is_infinite;
            low_nan += low_is_nan & !is_nan;
            low_denormal += low_is_denormal & !is_denormal;
        }
        int64_t of_floats =
            low_floats * 10 >= low_filled * 9 && alike * 4 >= pairs * 3 && alike * 4 >= filled;
        if (floats)
            of_floats = floats[page];
        if (of_floats) {
            nan += low_nan;
            infinite += low_infinite;
            denormal += low_denormal;
        }
        int64_t counted[8] = {filled, numbers, alike, nan, infinite, denormal, zero, of_floats};
        for (int k = 0; k < 8; k++)
            found[page][k] = counted[k];
    }
}
