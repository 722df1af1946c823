/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How fast the collector takes block events from memory, and what a run of 10^13 instructions costs it.
 *
 *	feed_collector                 nanoseconds per event
 *	feed_collector ENTRIES LONG    executes ENTRIES blocks per interval of 100 million instructions, LONG intervals
 *	                               with one event per block, and prints kilobytes of memory
 *	                               at the beginning, after a tenth and at the end, instructions, and bytes written
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "collector.h"

#define BLOCKS 4096
#define EVENTS (1 << 20)
#define ROUNDS 256
#define INTERVAL 100000000ULL
#define MOST_INTERVALS 20000

static struct collector collector;
static struct block *block[BLOCKS];
static struct block *event[EVENTS];
static u64 written;

static void *allocate(u64 bytes)
{
	return calloc(1, bytes);
}

static int count_bytes(const void *data, u64 bytes)
{
	(void)data;
	written += bytes;
	return 0;
}

static u64 nanoseconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (u64)now.tv_sec * 1000000000ULL + (u64)now.tv_nsec;
}

/* Of this program alone: getrusage() would count what was there before execve. */
static long peak_kilobytes(void)
{
	FILE *file = fopen("/proc/self/status", "r");
	char line[256];
	long found = -1;

	while (file && fgets(line, sizeof line, file) && sscanf(line, "VmHWM: %ld", &found) != 1)
		;
	if (file)
		fclose(file);
	return found;
}

static void make_blocks(u32 count, u32 instructions)
{
	static const struct host host = {allocate, count_bytes, nanoseconds};
	u32 image;

	collector_start(&collector, &host, INTERVAL, INTERVAL / 100, MOST_INTERVALS);
	image = collector_image(&collector, "/program", FILE_OFFSET);
	for (u32 i = 0; i < count; i++)
		block[i] = collector_block(&collector, image, 64 * i, 40, instructions ? instructions : 1 + i % 15, 1);
}

static int speed(void)
{
	u64 begun, took;
	u32 state = 1;

	make_blocks(BLOCKS, 0);
	for (u32 i = 0; i < EVENTS; i++) {
		/* Loops: most events are near the one before. */
		state = state * 1664525 + 1013904223;
		event[i] = block[(i / 512 * 16 + (state >> 24) % 16) % BLOCKS];
	}
	begun = nanoseconds();
	for (u32 round = 0; round < ROUNDS; round++)
		for (u32 i = 0; i < EVENTS; i++)
			collector_execute(&collector, event[i]);
	took = nanoseconds() - begun;
	collector_finish(&collector, PROGRAM_ENDED);
	printf("%.4f\n", (double)took / ((double)ROUNDS * EVENTS));
	return collector.failed;
}

static int length(u32 entries, u32 intervals)
{
	make_blocks(entries, (u32)(INTERVAL / entries));
	printf("%ld ", peak_kilobytes()); /* with it comes what printing itself takes */
	for (u32 i = 0; i < intervals; i++) {
		for (u32 k = 0; k < entries; k++)
			collector_execute(&collector, block[k]);
		if (i == intervals / 10)
			printf("%ld ", peak_kilobytes());
	}
	collector_finish(&collector, PROGRAM_ENDED);
	printf("%ld %llu %llu\n", peak_kilobytes(), collector.instructions, written);
	return collector.failed;
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return speed();
	if (atoi(argv[1]) < 1 || atoi(argv[1]) > BLOCKS)
		return 2;
	return length((u32)atoi(argv[1]), (u32)atoi(argv[2]));
}
