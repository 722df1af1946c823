// SPDX-License-Identifier: Apache-2.0
// Holds a connected socket pair and a socket that leads elsewhere, to a port of the loopback, while it works.
// Usage: socket [MILLISECONDS]
#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>
#include "site.h"

int main(int argc, char **argv)
{
    long milliseconds = size_argument(argc, argv, 500);
    int pair[2], outside = socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(9),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    uint64_t state = 1, received = 0;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) || outside < 0 ||
        connect(outside, (struct sockaddr *)&address, sizeof address)) {
        perror("socket");
        return 2;
    }
    for (long i = 0; i < milliseconds; i++) {
        state = work(state);
        if (write(pair[0], &state, sizeof state) != sizeof state ||
            read(pair[1], &received, sizeof received) != sizeof received) {
            perror("socket");
            return 2;
        }
    }
    printf("socket %016llx %s\n", (unsigned long long)received, received == state ? "ok" : "WRONG");
    print_count("site_work", (uint64_t)milliseconds * WORK_UNITS);
    close(outside);
    return received != state;
}
