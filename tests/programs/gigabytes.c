/* SPDX-License-Identifier: Apache-2.0 */
/* Prints argv[1] megabytes of text, made by two loops by turns, much faster than a disk takes it. */
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

enum { PART = 1 << 16, PARTS = 16, TURN = 128 };
static char text[PART];

__attribute__((noinline)) static void draw(uint32_t seed)
{
	for (int i = 0; i < PART; i++) {
		seed = seed * 1664525u + 1013904223u;
		text[i] = 'a' + (char)((seed >> 24) & 15);
	}
}

__attribute__((noinline)) static void follow(uint32_t at)
{
	for (int i = 0; i < PART; i++) {
		at = (at + (unsigned char)text[at] * 977u + 1) % PART;
		text[i] = i % 64 ? (char)('A' + at % 16) : '\n';
	}
}

static int print(void)
{
	for (int done = 0; done < PART;) {
		ssize_t now = write(1, text + done, PART - done);

		if (now <= 0)
			return 1;
		done += (int)now;
	}
	return 0;
}

int main(int argc, char **argv)
{
	long megabytes = argc > 1 ? atol(argv[1]) : 1;

	for (long at = 0; at < megabytes; at++) {
		(at / TURN % 2 ? follow : draw)((uint32_t)at);
		for (int part = 0; part < PARTS; part++)
			if (print())
				return 1;
	}
	return 0;
}
