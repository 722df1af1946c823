// SPDX-License-Identifier: Apache-2.0
// Compares its own code in memory with its file, again and again: a documented limit, it is
// expected to notice any patch. Says "intact" and succeeds, or "altered" and exits with 4.
// Usage: selfcheck [MILLISECONDS]
#define _GNU_SOURCE
#include <link.h>
#include <string.h>
#include "site.h"

static const char *code;
static size_t code_size;
static long code_offset;

static int find_code(struct dl_phdr_info *info, size_t size, void *unused)
{
    (void)size;
    (void)unused;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[i];
        if (header->p_type == PT_LOAD && header->p_flags & PF_X) {
            code = (const char *)(info->dlpi_addr + header->p_vaddr);
            code_size = header->p_filesz;
            code_offset = (long)header->p_offset;
            return 1; // the executable comes first
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    long milliseconds = size_argument(argc, argv, 300);
    uint64_t sum = 1;
    dl_iterate_phdr(find_code, NULL);
    char *expected = malloc(code_size);
    FILE *file = fopen("/proc/self/exe", "rb");
    if (!expected || !file || fseek(file, code_offset, SEEK_SET) ||
        fread(expected, 1, code_size, file) != code_size) {
        perror("selfcheck");
        return 2;
    }
    fclose(file);
    for (long i = 0; i < milliseconds; i++) {
        sum = work(sum);
        if (memcmp(code, expected, code_size)) {
            printf("selfcheck altered\n");
            return 4;
        }
    }
    printf("selfcheck intact %016llx\n", (unsigned long long)sum);
    print_count("site_work", (uint64_t)milliseconds * WORK_UNITS);
    free(expected);
    return 0;
}
