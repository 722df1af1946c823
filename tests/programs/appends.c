// SPDX-License-Identifier: Apache-2.0
// Writes 300,000 bytes to FILE, and in its region ten more, in the way of MODE. Dies of an illegal instruction where it
// does not find there what it has written. Usage: appends MODE FILE
//   end       behind the last, to a descriptor for writing alone
//   always    the same, opened with O_APPEND, which stands at the beginning
//   within    in the middle
//   both      behind the last, to a descriptor for reading, too
//   reads     behind the last, and reads it by the file's name
//   again     the same, by the name of the descriptor
//   renames   the same, by a name that it has got since
//   empties   behind the last, and opens it once more, for both, without what was there
#include <fcntl.h>
#include <string.h>
#include <unistd.h>
#include "site.h"

enum { BYTES = 300000 };

__attribute__((noipa)) static void region_warm(void)
{
    SITE(site_warm);
}
__attribute__((noipa)) static void region_start(void)
{
    SITE(site_start);
}
__attribute__((noipa)) static void region_end(void)
{
    SITE(site_end);
}

static void require(int condition)
{
    if (!condition)
        __builtin_trap();
}

static void read_back(const char *name)
{
    static char found[BYTES];
    int file = open(name, O_RDONLY);
    require(file >= 0 && read(file, found, BYTES) == BYTES && !close(file));
    for (int i = 0; i < BYTES; i++)
        require(found[i] == 'x');
}

int main(int count, char **words)
{
    static char piece[BYTES];
    const char *mode = count == 3 ? words[1] : "";
    int always = !strcmp(mode, "always"), both = !strcmp(mode, "both");
    int file = open(words[2], O_CREAT | O_TRUNC | (always ? O_APPEND : 0) | (both ? O_RDWR : O_WRONLY), 0644);
    char own[32], other[4096];
    memset(piece, 'x', BYTES);
    require(file >= 0 && write(file, piece, BYTES) == BYTES);
    if (always || !strcmp(mode, "within"))
        require(lseek(file, always ? 0 : BYTES / 2, SEEK_SET) >= 0);
    snprintf(own, sizeof own, "/proc/self/fd/%d", file);
    region_warm();
    region_start();
    require(write(file, "0123456789", 10) == 10);
    if (!strcmp(mode, "reads"))
        read_back(words[2]);
    if (!strcmp(mode, "again"))
        read_back(own);
    if (!strcmp(mode, "renames")) {
        snprintf(other, sizeof other, "%s.other", words[2]);
        require(!rename(words[2], other));
        read_back(other);
    }
    if (!strcmp(mode, "empties"))
        require(open(words[2], O_RDWR | O_TRUNC) >= 0);
    region_end();
    puts(mode);
    return 0;
}
