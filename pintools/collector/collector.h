/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The collector: counts basic blocks, cuts the run into intervals of equal numbers of instructions, and writes what it
 * counted as a stream (stream.h). It knows neither Pin nor Valgrind and needs no C library: a tracing tool gives it
 * memory, a place to write to and a clock (struct host), tells it each block once, and counts executions in place:
 *
 *	block->executions += 1;
 *	collector->remaining -= block->instructions;
 *	if (collector->remaining <= 0)
 *		collector_reached(collector, block);
 *
 * before the block's first instruction. Tools compile the first three lines into the program; collector_execute() is
 * the same for everybody else.
 *
 * Intervals. A block belongs to the interval in which it begins, so interval k holds the blocks whose first instruction
 * is one of number k * interval to (k + 1) * interval - 1 of the run. What a block has too many is taken from the next
 * interval: boundaries do not drift. A block longer than an interval leaves empty intervals behind. The last, partial
 * interval is kept.
 *
 * Markers. Behind each boundary the first `slack` instructions are watched. Of the blocks that begin there for the
 * first time in the interval some are written down as candidates: the first few, and after them each that is rarer
 * than all before it, so the rarest is the last. A candidate's distance from the boundary is exact.
 *
 * Memory is bounded by the number of different blocks, whatever the length of the run. So is the stream, nearly: after
 * `most_intervals` intervals their length doubles, and the boundaries stay multiples of it.
 */
#ifndef PROBE_COLLECTOR_H
#define PROBE_COLLECTOR_H

#ifdef __cplusplus
extern "C" {
#endif

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define NO_IMAGE 0 /* code that lies in no file: made at run time, the vDSO */
#define BUFFER_BYTES 65536
#define BUCKETS 65536 /* a power of two */
#define MOST_CANDIDATES 32

/* What a tool lends to the collector. */
struct host {
	void *(*allocate)(u64 bytes);              /* zeroed, never freed; NULL: there is none left */
	int (*write)(const void *data, u64 bytes); /* everything, or a value other than 0 */
	u64 (*clock)(void);                        /* nanoseconds, from any beginning, never backwards */
};

/* One basic block. Its address never changes: tools compile it into the program. */
struct block {
	u64 executions; /* in the interval under way */
	u64 before;     /* in all finished ones */
	u32 instructions;
	u32 number; /* 0.. in the order of appearance */
	u64 offset; /* of its first byte in the image */
	u32 image;
	u32 size; /* bytes */
	u32 markable;
	struct block *next; /* with the same hash */
};

struct candidate {
	u32 block;
	u64 distance; /* instructions from the boundary to the block's first one */
};

struct collector {
	i64 remaining; /* instructions until collector_reached() must be called */
	struct host host;
	u64 interval, slack;
	u64 most_intervals, intervals; /* of the present length */
	u64 instructions, begun;       /* of the run before the interval under way; its beginning on the clock */
	u32 watching;                  /* inside a slack window: `remaining` is 0, the true value is `held` */
	i64 held;
	u64 distance; /* instructions from the boundary */
	u64 rarest;   /* executions of the rarest candidate */
	u32 candidates;
	struct candidate candidate[MOST_CANDIDATES];
	u32 blocks, images;
	struct chunk *first, *last;
	struct image *image;
	struct block *bucket[BUCKETS];
	u32 failed; /* enum failure; nothing is written any more */
	u32 buffered;
	u8 buffer[BUFFER_BYTES];
};

enum failure { NOT_FAILED, NO_MEMORY, NOT_WRITTEN };

/* Why a stream ends. CODE_WRITABLE: the tool was not told to look whether a file's code has changed. */
enum ending { PROGRAM_ENDED, THREAD_STARTED, CHILD_STARTED, CODE_WRITABLE };

/* Which instructions a block's offset counts from. */
enum origin { FILE_OFFSET, LINK_ADDRESS };

/*
 * Begin. `c` is zeroed memory. `interval` in instructions, at least 1; `slack` is less than it; `most_intervals` is even,
 * or 0 for no limit. The clock starts here.
 */
void collector_start(struct collector *c, const struct host *host, u64 interval, u64 slack, u64 most_intervals);

/* The number of the image with that path, the same for each call. 0 (and `failed`) where there is no memory. */
u32 collector_image(struct collector *c, const char *path, enum origin origin);

/*
 * The block at `offset` of `image`, the same for equal arguments: tools translate code more than once. NULL (and
 * `failed`) where there is no memory. `markable`: whether a marker may lie in it (block_offers_marker()).
 */
struct block *collector_block(struct collector *c, u32 image, u64 offset, u32 size, u32 instructions, u32 markable);

/* The slow path, `block` just counted and `remaining` not above 0. */
void collector_reached(struct collector *c, struct block *block);

/* The end: the interval under way is written however short, and the stream closed. */
void collector_finish(struct collector *c, enum ending ending);

/* Whether `code` is a string instruction with a REP prefix: translated as a loop, but one instruction. */
int is_repeated_string(const u8 *code, u32 size);

/*
 * Whether native code can count a block: an instruction of five bytes or more that is no transfer, or a direct call or
 * jump of five. `lengths`: of its instructions; `last`: the code of the last one, a transfer if `transfers`.
 */
int block_offers_marker(const u8 *lengths, u32 instructions, const u8 *last, int transfers);

static inline void collector_execute(struct collector *c, struct block *block)
{
	block->executions += 1;
	c->remaining -= block->instructions;
	if (c->remaining <= 0)
		collector_reached(c, block);
}

#ifdef __cplusplus
}
#endif

#endif
