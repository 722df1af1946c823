/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Feeds a collector from standard input and writes its stream to a file.
 *
 *	feed STREAM [BYTES [BLOCKS_OF_MEMORY]]
 *
 * The disk is full after BYTES bytes, the memory after so many allocations. Lines: "start INTERVAL SLACK MOST",
 * "image ORIGIN PATH", "block IMAGE OFFSET SIZE INSTRUCTIONS MARKABLE" (prints its number), "run NUMBER TIMES",
 * "finish ENDING". Each call of the clock is a microsecond later. Prints the peak of its memory in bytes at the end.
 */
#include <stdio.h>
#include <stdlib.h>

#include "collector.h"

#define MOST_BLOCKS 4096

static FILE *stream;
static unsigned long room = ~0UL, allocations = ~0UL, allocated;
static u64 now;
static struct block *block[MOST_BLOCKS];

static void *allocate(u64 bytes)
{
	if (!allocations)
		return NULL;
	allocations--;
	allocated += bytes;
	return calloc(1, bytes);
}

static int write_all(const void *data, u64 bytes)
{
	if (bytes > room)
		return -1;
	room -= bytes;
	return fwrite(data, 1, bytes, stream) != bytes;
}

static u64 tick(void)
{
	return now += 1000;
}

int main(int argc, char **argv)
{
	static const struct host host = {allocate, write_all, tick};
	static struct collector state;
	struct collector *c = &state;
	char line[512], path[256];
	unsigned long a, b, d, e, f;

	if (argc < 2 || !(stream = fopen(argv[1], "wb")))
		return 2;
	if (argc > 2)
		room = strtoul(argv[2], NULL, 10);
	if (argc > 3)
		allocations = strtoul(argv[3], NULL, 10);
	while (fgets(line, sizeof line, stdin)) {
		if (sscanf(line, "start %lu %lu %lu", &a, &b, &d) == 3) {
			collector_start(c, &host, a, b, d);
		} else if (sscanf(line, "image %lu %255s", &a, path) == 2) {
			printf("image %u\n", collector_image(c, path, (enum origin)a));
		} else if (sscanf(line, "block %lu %lu %lu %lu %lu", &a, &b, &d, &e, &f) == 5) {
			struct block *made = collector_block(c, (u32)a, b, (u32)d, (u32)e, (u32)f);

			if (!made || made->number >= MOST_BLOCKS)
				break;
			block[made->number] = made;
			printf("block %u\n", made->number);
		} else if (sscanf(line, "run %lu %lu", &a, &b) == 2 && a < MOST_BLOCKS && block[a]) {
			while (b--)
				collector_execute(c, block[a]);
		} else if (sscanf(line, "finish %lu", &a) == 1) {
			collector_finish(c, (enum ending)a);
		} else {
			fprintf(stderr, "feed: what is %s", line);
			return 2;
		}
	}
	printf("failed %u\nallocated %lu\n", c->failed, allocated);
	return fclose(stream) ? 2 : 0;
}
