/* SPDX-License-Identifier: Apache-2.0 */
/* See collector.h. */

#include "collector.h"

#include "stream.h"

#define CHUNK_BLOCKS 1024
#define FIRST_CANDIDATES 8
#define JUMP_BYTES 5
#define CALL_REL32 0xe8
#define JUMP_REL32 0xe9

/* Blocks never move, so they come in chunks. */
struct chunk {
	struct chunk *next;
	u32 used;
	struct block block[CHUNK_BLOCKS];
};

struct image {
	struct image *next;
	u32 number;
	char path[];
};

/* -- writing */

static void flush(struct collector *c)
{
	if (!c->failed && c->buffered && c->host.write(c->buffer, c->buffered))
		c->failed = NOT_WRITTEN;
	c->buffered = 0;
}

static void put(struct collector *c, const void *data, u64 bytes)
{
	const u8 *from = data;

	while (bytes && !c->failed) {
		u64 room = BUFFER_BYTES - c->buffered, part = bytes < room ? bytes : room;

		for (u64 i = 0; i < part; i++)
			c->buffer[c->buffered + i] = from[i];
		c->buffered += (u32)part;
		from += part;
		bytes -= part;
		if (c->buffered == BUFFER_BYTES)
			flush(c);
	}
}

static void *allocate(struct collector *c, u64 bytes)
{
	void *memory = c->failed ? 0 : c->host.allocate(bytes);

	if (!memory && !c->failed)
		c->failed = NO_MEMORY;
	return memory;
}

/* -- images and blocks */

static int same(const char *a, const char *b)
{
	while (*a && *a == *b)
		a++, b++;
	return *a == *b;
}

u32 collector_image(struct collector *c, const char *path, enum origin origin)
{
	struct image *image;
	u32 length = 0;

	for (image = c->image; image; image = image->next)
		if (same(image->path, path))
			return image->number;
	while (path[length])
		length++;
	image = allocate(c, sizeof *image + length + 1);
	if (!image)
		return NO_IMAGE;
	for (u32 i = 0; i <= length; i++)
		image->path[i] = path[i];
	image->number = ++c->images;
	image->next = c->image;
	c->image = image;

	struct image_record record = {IMAGE, origin, length};

	put(c, &record, sizeof record);
	put(c, path, length);
	return image->number;
}

static struct block *fresh_block(struct collector *c)
{
	if (!c->last || c->last->used == CHUNK_BLOCKS) {
		struct chunk *chunk = allocate(c, sizeof *chunk);

		if (!chunk)
			return 0;
		if (c->last)
			c->last->next = chunk;
		else
			c->first = chunk;
		c->last = chunk;
	}
	return &c->last->block[c->last->used++];
}

struct block *collector_block(struct collector *c, u32 image, u64 offset, u32 size, u32 instructions, u32 markable)
{
	u64 hash = (offset ^ offset >> 16 ^ (u64)image << 12) * 0x9e3779b97f4a7c15ULL;
	struct block **bucket = &c->bucket[hash >> 48 & (BUCKETS - 1)];
	struct block *b;

	for (b = *bucket; b; b = b->next)
		if (b->offset == offset && b->image == image && b->size == size && b->instructions == instructions)
			return b;
	b = fresh_block(c);
	if (!b)
		return 0;
	b->number = c->blocks++;
	b->image = image;
	b->offset = offset;
	b->size = size;
	b->instructions = instructions;
	b->markable = markable && image != NO_IMAGE;
	b->next = *bucket;
	*bucket = b;

	struct block_record record = {BLOCK, image, offset, size, instructions};

	put(c, &record, sizeof record);
	return b;
}

/* -- intervals */

void collector_start(struct collector *c, const struct host *host, u64 interval, u64 slack, u64 most_intervals)
{
	struct stream_head head = {STREAM_MAGIC_BYTES, STREAM_VERSION, interval, slack};

	c->host = *host;
	c->interval = interval;
	c->slack = slack;
	c->most_intervals = most_intervals;
	c->remaining = (i64)interval;
	c->begun = host->clock();
	put(c, &head, sizeof head);
}

static struct interval_record interval_so_far(const struct collector *c)
{
	struct interval_record record = {INTERVAL, 0, c->interval, 0, 0};

	for (const struct chunk *chunk = c->first; chunk; chunk = chunk->next)
		for (u32 i = 0; i < chunk->used; i++) {
			record.entries += chunk->block[i].executions != 0;
			record.instructions += chunk->block[i].executions * chunk->block[i].instructions;
		}
	return record;
}

static void end_interval(struct collector *c)
{
	struct interval_record record = interval_so_far(c);
	u64 now = c->host.clock();

	record.nanoseconds = now - c->begun;
	c->begun = now;
	c->instructions += record.instructions;
	put(c, &record, sizeof record);
	for (struct chunk *chunk = c->first; chunk; chunk = chunk->next)
		for (u32 i = 0; i < chunk->used; i++) {
			struct block *b = &chunk->block[i];
			struct entry entry = {b->number, b->executions};

			if (!b->executions)
				continue;
			put(c, &entry, sizeof entry);
			b->before += b->executions;
			b->executions = 0;
		}
}

/* Longer intervals from here on. The reader joins the earlier ones, so the boundary just written must be one of theirs. */
static void double_interval(struct collector *c)
{
	c->interval *= 2;
	c->slack *= 2;
	c->intervals /= 2;
}

/* A boundary lies at the end of the block just executed, or in it: end the interval and watch what follows. */
static void cross_boundary(struct collector *c)
{
	i64 left = c->remaining;

	c->distance = (u64)-left;
	while (left <= 0) {
		end_interval(c);
		if (c->most_intervals && ++c->intervals == c->most_intervals)
			double_interval(c);
		c->distance = (u64)-left;
		left += (i64)c->interval;
	}
	c->watching = c->distance < c->slack;
	c->candidates = 0;
	c->held = left;
	c->remaining = c->watching ? 0 : left;
}

static void write_candidates(struct collector *c)
{
	struct candidates_record record = {CANDIDATES, c->candidates};

	if (!c->candidates)
		return;
	put(c, &record, sizeof record);
	for (u32 i = 0; i < c->candidates; i++) {
		struct candidate_entry entry = {c->candidate[i].block, c->candidate[i].distance};

		put(c, &entry, sizeof entry);
	}
	c->candidates = 0;
}

static void note_candidate(struct collector *c, const struct block *b)
{
	/* Window and interval begin together: the interval's first execution is the window's. */
	if (!b->markable || b->executions != 1 || c->candidates == MOST_CANDIDATES)
		return;
	if (c->candidates >= FIRST_CANDIDATES && b->before >= c->rarest - c->rarest / 4)
		return;
	if (!c->candidates || b->before < c->rarest)
		c->rarest = b->before;
	c->candidate[c->candidates++] = (struct candidate){b->number, c->distance};
}

void collector_reached(struct collector *c, struct block *block)
{
	if (c->watching) {
		note_candidate(c, block);
		c->distance += block->instructions;
		c->held -= block->instructions;
		if (c->distance < c->slack && c->held > 0) {
			c->remaining = 0;
			return;
		}
		c->watching = 0;
		c->remaining = c->held;
		write_candidates(c);
		if (c->remaining > 0)
			return;
	}
	cross_boundary(c);
}

void collector_finish(struct collector *c, enum ending ending)
{
	write_candidates(c);
	if (interval_so_far(c).entries)
		end_interval(c);

	struct end_record record = {END, ending, c->instructions};

	put(c, &record, sizeof record);
	flush(c);
}

/* -- code */

int is_repeated_string(const u8 *code, u32 size)
{
	int repeated = 0;

	for (u32 i = 0; i < size; i++) {
		u8 byte = code[i];

		if (byte == 0xf2 || byte == 0xf3)
			repeated = 1;
		else if (byte != 0x66 && byte != 0x67 && (byte & 0xf0) != 0x40 && (byte & 0xe7) != 0x26 &&
			 (byte & 0xfe) != 0x64)
			/* INS, OUTS; MOVS, CMPS; STOS, LODS, SCAS */
			return repeated &&
			       ((byte & 0xfc) == 0x6c || (byte & 0xfc) == 0xa4 || (byte >= 0xaa && byte <= 0xaf));
	}
	return 0;
}

int block_offers_marker(const u8 *lengths, u32 instructions, const u8 *last, int transfers)
{
	for (u32 i = 0; i < instructions; i++)
		if (lengths[i] >= JUMP_BYTES && (!transfers || i + 1 < instructions))
			return 1;
	return lengths[instructions - 1] == JUMP_BYTES && (last[0] == CALL_REL32 || last[0] == JUMP_REL32);
}
