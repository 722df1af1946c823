// SPDX-License-Identifier: Apache-2.0
// Marks one region while it has a mapping that no probe can hold.
// Usage: mappings hugetlb|shared|memfd|sysv|file     file: mapped shared and writable, "mappings.file" in the folder
#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <unistd.h>
#include "site.h"

enum { SIZE = 2 << 20 };

__attribute__((noipa)) static void region_warm(void) { SITE(site_warm); }
__attribute__((noipa)) static void region_start(void) { SITE(site_start); }
__attribute__((noipa)) static void region_end(void) { SITE(site_end); }

static char *of_file(int file)
{
    if (file < 0 || ftruncate(file, SIZE))
        return MAP_FAILED;
    char *at = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return at;
}

static char *of_segment(void)
{
    int segment = shmget(IPC_PRIVATE, SIZE, IPC_CREAT | 0600);
    char *at = shmat(segment, NULL, 0);
    shmctl(segment, IPC_RMID, NULL);
    return at;
}

static char *hold(const char *what)
{
    int anonymous = MAP_ANONYMOUS, both = PROT_READ | PROT_WRITE;
    // Without a reservation the mapping is made whether huge pages are free or not.
    if (!strcmp(what, "hugetlb"))
        return mmap(NULL, SIZE, both, MAP_PRIVATE | anonymous | MAP_HUGETLB | MAP_NORESERVE, -1, 0);
    if (!strcmp(what, "shared"))
        return mmap(NULL, SIZE, both, MAP_SHARED | anonymous, -1, 0);
    if (!strcmp(what, "memfd"))
        return of_file(memfd_create("mappings", 0));
    if (!strcmp(what, "sysv"))
        return of_segment();
    if (!strcmp(what, "file"))
        return of_file(open("mappings.file", O_RDWR | O_CREAT, 0600));
    return MAP_FAILED;
}

int main(int argc, char **argv)
{
    char *held = argc > 1 ? hold(argv[1]) : NULL;
    if (held == MAP_FAILED) {
        perror("mappings");
        return 2;
    }
    if (held && strcmp(argv[1], "hugetlb"))
        held[0] = 1;
    region_warm();
    region_start();
    region_end();
    printf("mappings %d\n", argc);
    return 0;
}
