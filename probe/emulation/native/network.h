/* SPDX-License-Identifier: Apache-2.0
 * Plain TCP to the two endpoints that the user names: one takes all bytes, the other gives as many as are asked for. */
#ifndef PROBE_NETWORK_H
#define PROBE_NETWORK_H

#include <stdint.h>

/* Connects to `ADDRESS PORT` (IPv4 or IPv6, no name). Returns the socket, or -1 and errno. */
int connected(const char *endpoint);

/* Each returns 0, or an errno; ETIMEDOUT where the other end does nothing for a minute. */
int send_bytes(int socket, uint64_t bytes);
int receive_bytes(int socket, uint64_t bytes);

#endif
