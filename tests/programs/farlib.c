// SPDX-License-Identifier: Apache-2.0
// A library of its own, mapped more than 2 GB from the executable: no displacement of 32 bits
// reaches from one to the other.
// Usage: farlib [MILLISECONDS]
#include "site.h"

uint64_t far_work(uint64_t state);
const void *far_place(void);

int main(int argc, char **argv)
{
    uint64_t units = (uint64_t)size_argument(argc, argv, 300) * 1000, state = 1;
    static char here;
    // Asked of the library: here far_work may mean this executable's own linkage stub.
    long long gap = (long long)((uintptr_t)far_place() - (uintptr_t)&here);
    for (uint64_t i = 0; i < units; i++)
        state = far_work(state);
    printf("farlib %016llx %s\n", (unsigned long long)state,
           gap > INT32_MAX || gap < INT32_MIN ? "far" : "NEAR");
    print_count("libfar.so:site_far", units);
    return 0;
}
