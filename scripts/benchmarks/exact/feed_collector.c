/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How fast the collector takes block events from memory, and what a run of 10^13 instructions costs it.
 *
 *	feed_collector                            nanoseconds per event
 *	feed_collector RECORDED INSTRUCTIONS      executes what was recorded of a run, interval after interval and again
 *	                                          from the first, until there were so many instructions; prints kilobytes of
 *	                                          memory at the beginning, after a tenth and at the end, instructions,
 *	                                          bytes written, and passes over the recording
 *
 * RECORDED: numbers of blocks and of intervals (u32), struct recorded_block of each block, then of each interval the
 * number of its entries (u32) and its entries (struct entry of stream.h). Little-endian, nothing aligned.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "collector.h"
#include "stream.h"

#define BLOCKS 4096
#define EVENTS (1 << 20)
#define ROUNDS 256
#define INTERVAL 100000000ULL
#define MOST_INTERVALS 20000

static struct collector collector;
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

static void start(void)
{
	static const struct host host = {allocate, count_bytes, nanoseconds};

	collector_start(&collector, &host, INTERVAL, INTERVAL / 100, MOST_INTERVALS);
}

static int speed(void)
{
	static struct block *block[BLOCKS];
	u64 begun, took;
	u32 state = 1, image;

	start();
	image = collector_image(&collector, "/program", FILE_OFFSET);
	for (u32 i = 0; i < BLOCKS; i++)
		block[i] = collector_block(&collector, image, 64 * i, 40, 1 + i % 15, 1);
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

struct recorded_block {
	u32 image; /* 0: of no file */
	u64 offset;
	u32 size, instructions;
} __attribute__((packed));

/* A recorded run, in memory. */
struct recording {
	u32 blocks, intervals;
	struct block **block;
	u32 *entries; /* of each interval */
	struct entry **entry;
};

static void *take(FILE *file, u64 bytes)
{
	void *data = malloc(bytes ? bytes : 1);

	if (!data || fread(data, 1, bytes, file) != bytes) {
		fprintf(stderr, "feed_collector: the recording breaks off, or there is no memory for it\n");
		exit(2);
	}
	return data;
}

static struct block *recorded_block(const struct recorded_block *b)
{
	char path[32];
	u32 image = NO_IMAGE;

	if (b->image) {
		snprintf(path, sizeof path, "/image-%u", b->image);
		image = collector_image(&collector, path, FILE_OFFSET);
	}
	return collector_block(&collector, image, b->offset, b->size, b->instructions, 1);
}

static struct recording read_recording(FILE *file)
{
	u32 *head = take(file, 2 * sizeof *head);
	struct recording r = {head[0], head[1], 0, 0, 0};
	struct recorded_block *blocks = take(file, r.blocks * sizeof *blocks);

	r.block = calloc(r.blocks, sizeof *r.block);
	r.entries = calloc(r.intervals, sizeof *r.entries);
	r.entry = calloc(r.intervals, sizeof *r.entry);
	if (!r.block || !r.entries || !r.entry)
		exit(2);
	for (u32 i = 0; i < r.blocks; i++)
		r.block[i] = recorded_block(&blocks[i]);
	free(blocks);
	free(head);
	for (u32 i = 0; i < r.intervals; i++) {
		u32 *count = take(file, sizeof *count);

		r.entries[i] = *count;
		r.entry[i] = take(file, *count * sizeof **r.entry);
		free(count);
		for (u32 k = 0; k < r.entries[i]; k++)
			if (r.entry[i][k].block >= r.blocks)
				exit(2);
	}
	return r;
}

/* As collector_execute() so many times: at once up to the next boundary, one by one in the window behind it. */
static void execute_often(struct block *block, u64 times)
{
	while (times) {
		u64 once = 1;

		if (collector.remaining > 0)
			once = ((u64)collector.remaining + block->instructions - 1) / block->instructions;
		if (once > times)
			once = times;
		block->executions += once;
		collector.remaining -= (i64)(once * block->instructions);
		if (collector.remaining <= 0)
			collector_reached(&collector, block);
		times -= once;
	}
}

static int length(const char *path, u64 wanted)
{
	FILE *file = fopen(path, "rb");
	struct recording r;
	u64 passes = 0;
	int tenth = 0;

	if (!file)
		return 2;
	start();
	r = read_recording(file);
	fclose(file);
	if (!r.intervals)
		return 2;
	printf("%ld ", peak_kilobytes()); /* with it comes what printing itself takes */
	for (; collector.instructions < wanted && !collector.failed; passes++)
		for (u32 i = 0; i < r.intervals && collector.instructions < wanted; i++) {
			for (u32 k = 0; k < r.entries[i]; k++)
				execute_often(r.block[r.entry[i][k].block], r.entry[i][k].executions);
			if (!tenth && collector.instructions >= wanted / 10) {
				printf("%ld ", peak_kilobytes());
				tenth = 1;
			}
		}
	collector_finish(&collector, PROGRAM_ENDED);
	printf("%ld %llu %llu %llu\n", peak_kilobytes(), collector.instructions, written, passes);
	return collector.failed;
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return speed();
	return length(argv[1], strtoull(argv[2], 0, 10));
}
