// SPDX-License-Identifier: Apache-2.0
// The library that belongs to `household` alone.
#include <stdint.h>

uint64_t own_mix(uint64_t state)
{
    return (state ^ (state >> 29)) * 0xbf58476d1ce4e5b9u + 1;
}
