/* SPDX-License-Identifier: Apache-2.0 */
/* Three kinds of work by turns, argv[1] rounds of them. With argv[2], a file, each run adds a byte to it; run argv[3],
 * counted from 1, prints something else than the others. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { CELLS = 1 << 16 };
static uint32_t cells[CELLS];

/* Calls of some microseconds each: what begins them is a place that a stamp costs nothing at. */
enum { PIECE = 4096 };

__attribute__((noinline)) static void mix(uint32_t seed)
{
	for (int i = 1; i < PIECE; i++)
		cells[i] = cells[i] * 2654435761u + (cells[i - 1] ^ seed);
}

__attribute__((noinline)) static void walk(uint32_t at)
{
	for (int i = 0; i < PIECE; i++)
		at = cells[at & (CELLS - 1)] + (uint32_t)i;
	cells[0] ^= at;
}

__attribute__((noinline)) static void divide(uint32_t piece)
{
	double sum = 0.5;

	for (int i = 1; i < PIECE; i++)
		sum = 1.0 / (sum + i);
	cells[1 + piece] ^= (uint32_t)(sum * 1e9);
}

static long count(const char *path)
{
	int file = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
	long runs;

	if (file < 0 || write(file, ".", 1) != 1)
		exit(1);
	runs = lseek(file, 0, SEEK_END);
	close(file);
	return runs;
}

int main(int argc, char **argv)
{
	long rounds = argc > 1 ? atol(argv[1]) : 1;
	long run = argc > 2 ? count(argv[2]) : 0;

	for (long i = 0; i < rounds; i++) {
		for (uint32_t piece = 0; piece < 1000; piece++)
			mix(piece);
		for (uint32_t piece = 0; piece < 800; piece++)
			walk(piece);
		for (uint32_t piece = 0; piece < 500; piece++)
			divide(piece);
	}
	puts(argc > 3 && run == atol(argv[3]) ? "another end" : "the end");
	printf("%u\n", cells[7]);
	return 0;
}
