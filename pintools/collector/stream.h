/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stream a collector writes and probe/tracers/stream.py reads. Little-endian, nothing aligned. A head, then records,
 * each with its kind before it. Numbers count from 0 in the order of appearance; what a record names came before it.
 */
#ifndef PROBE_STREAM_H
#define PROBE_STREAM_H

#include "collector.h"

#define STREAM_MAGIC_BYTES {'P', 'R', 'B', 'T', 'R', 'A', 'C', 'E'}
#define STREAM_VERSION 1

enum kind { IMAGE = 1, BLOCK, INTERVAL, CANDIDATES, END };

struct stream_head {
	u8 magic[8];
	u32 version;
	u64 interval, slack;
} __attribute__((packed));

/* Its path follows. Numbers from 1: image 0 is code without a file. */
struct image_record {
	u32 kind, origin, length;
} __attribute__((packed));

struct block_record {
	u32 kind, image;
	u64 offset;
	u32 size, instructions;
} __attribute__((packed));

/* `length` is the interval's nominal one, `instructions` what is in it. `entries` pairs of block and executions follow. */
struct interval_record {
	u32 kind, entries;
	u64 length, instructions, nanoseconds;
} __attribute__((packed));

struct entry {
	u32 block;
	u64 executions;
} __attribute__((packed));

/* For the boundary behind the last interval written. `entries` times block and distance follow, ordered by distance. */
struct candidates_record {
	u32 kind, entries;
} __attribute__((packed));

struct candidate_entry {
	u32 block;
	u64 distance;
} __attribute__((packed));

struct end_record {
	u32 kind, ending;
	u64 instructions;
} __attribute__((packed));

#endif
