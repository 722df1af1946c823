// SPDX-License-Identifier: Apache-2.0
// The library of dlopen.c.
#include "site.h"

uint64_t plugin_work(uint64_t state, uint64_t units);

__attribute__((noipa)) uint64_t plugin_work(uint64_t state, uint64_t units)
{
    for (uint64_t unit = 0; unit < units; unit++) {
        SITE(site_plugin);
        for (int i = 0; i < 600; i++) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
        }
    }
    return state;
}
