/* SPDX-License-Identifier: Apache-2.0
 * The network atoms: bytes sent to, and received from, the endpoints that the user names. */
#define _GNU_SOURCE
#include "network.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "kernels.h"

#define PATIENCE 60

/* Fills in the address; returns its length, or 0. */
static socklen_t address_of(const char *text, uint16_t port, struct sockaddr_storage *address)
{
    struct sockaddr_in *four = (struct sockaddr_in *)address;
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)address;
    memset(address, 0, sizeof *address);
    if (inet_pton(AF_INET, text, &four->sin_addr) == 1) {
        four->sin_family = AF_INET;
        four->sin_port = htons(port);
        return sizeof *four;
    }
    if (inet_pton(AF_INET6, text, &six->sin6_addr) == 1) {
        six->sin6_family = AF_INET6;
        six->sin6_port = htons(port);
        return sizeof *six;
    }
    return 0;
}

int connected(const char *endpoint)
{
    char text[64];
    unsigned port;
    int used = 0;
    struct sockaddr_storage address;
    socklen_t length = 0;
    if (sscanf(endpoint, "%63s %5u%n", text, &port, &used) == 2 && !endpoint[used] && port && port < 65536)
        length = address_of(text, (uint16_t)port, &address);
    if (!length) {
        errno = EINVAL;
        return -1;
    }
    int made = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (made < 0)
        return -1;
    /* Of connecting, too. */
    struct timeval patience = {.tv_sec = PATIENCE};
    if (setsockopt(made, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience) ||
        setsockopt(made, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) ||
        connect(made, (struct sockaddr *)&address, length)) {
        int why = errno == EINPROGRESS ? ETIMEDOUT : errno;
        close(made);
        errno = why;
        return -1;
    }
    return made;
}

static int reason(ssize_t moved)
{
    if (!moved)
        return ECONNRESET;
    return errno == EAGAIN || errno == EWOULDBLOCK ? ETIMEDOUT : errno;
}

int send_bytes(int socket, uint64_t bytes)
{
    static char block[MOVED];
    while (bytes) {
        ssize_t moved = send(socket, block, bytes < sizeof block ? bytes : sizeof block, MSG_NOSIGNAL);
        if (moved <= 0)
            return reason(moved);
        bytes -= (uint64_t)moved;
    }
    return 0;
}

int receive_bytes(int socket, uint64_t bytes)
{
    static char block[MOVED];
    while (bytes) {
        ssize_t moved = recv(socket, block, bytes < sizeof block ? bytes : sizeof block, 0);
        if (moved <= 0)
            return reason(moved);
        bytes -= (uint64_t)moved;
    }
    return 0;
}
