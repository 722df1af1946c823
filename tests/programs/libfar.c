// SPDX-License-Identifier: Apache-2.0
// The library of farlib.c.
#include "site.h"

uint64_t far_work(uint64_t state);
const void *far_place(void);

const void *far_place(void)
{
    return &site_sink;
}

__attribute__((noipa)) uint64_t far_work(uint64_t state)
{
    SITE(site_far);
    for (int i = 0; i < 600; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
    }
    return state;
}
