// SPDX-License-Identifier: Apache-2.0
// Opens a library in the middle of the run, works in it, closes it and opens it again.
// Usage: dlopen [MILLISECONDS_PER_PART]
#include <dlfcn.h>
#include "site.h"

typedef uint64_t worker(uint64_t state, uint64_t units);

int main(int argc, char **argv)
{
    long part = size_argument(argc, argv, 150);
    enum { OPENINGS = 2 };
    uint64_t state = 1;
    for (int opening = 0; opening < OPENINGS; opening++) {
        for (long i = 0; i < part; i++)
            state = work(state);
        void *library = dlopen("plugin.so", RTLD_NOW);
        worker *plugin_work = NULL;
        if (library)
            *(void **)&plugin_work = dlsym(library, "plugin_work");
        if (!plugin_work) {
            fprintf(stderr, "dlopen: %s\n", dlerror());
            return 2;
        }
        state = plugin_work(state, (uint64_t)part * WORK_UNITS);
        printf("opening %d %016llx\n", opening + 1, (unsigned long long)state);
        dlclose(library);
    }
    print_count("site_work", (uint64_t)part * WORK_UNITS * OPENINGS);
    print_count("plugin.so:site_plugin", (uint64_t)part * WORK_UNITS * OPENINGS);
    return 0;
}
