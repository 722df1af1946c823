// SPDX-License-Identifier: Apache-2.0
// A region that uses files by their paths: reads the first argument; with a second one, writes and renames a file
// of that name, and with "socket" there asks for a network socket instead (exit status 7 if it gets one).
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "site.h"

__attribute__((noipa)) static void region_warm(void) { SITE(site_warm); }
__attribute__((noipa)) static void region_start(void) { SITE(site_start); }
__attribute__((noipa)) static void region_end(void) { SITE(site_end); }

int main(int argc, char **argv)
{
    char text[16] = "", other[4096];
    if (argc < 2) {
        puts("paths: INPUT [OUTPUT]");
        return 2;
    }
    region_warm();
    region_start();
    if (argc > 2 && !strcmp(argv[2], "socket")) {
        if (socket(AF_INET, SOCK_DGRAM, 0) >= 0)
            _exit(7);
    } else {
        int in = open(argv[1], O_RDONLY);
        if (in < 0 || read(in, text, 5) != 5 || memcmp(text, "hello", 5))
            _exit(3);
        close(in);
    }
    if (argc > 2 && strcmp(argv[2], "socket")) {
        int out = open(argv[2], O_WRONLY | O_CREAT | O_EXCL, 0600);
        if (out < 0 || write(out, text, 5) != 5)
            _exit(4);
        close(out);
        snprintf(other, sizeof(other), "%s.moved", argv[2]);
        if (rename(argv[2], other))
            _exit(5);
    }
    region_end();
    return 0;
}
