// SPDX-License-Identifier: Apache-2.0
// The blocks of an application, each from its number alone: no engine keeps more of them than an epoch.

#include "blocks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// A block that waits for its processor's next epoch, by its query.
typedef struct {
	int64_t query, id;
} Waiting;

typedef struct {
	Waiting *items;
	int first, count, room;
} Queue;

struct Source {
	const Work *work;
	const Machine *machine;
	int64_t *next; // by reader: its next block
	Queue *queues; // by reader, where there are queries
	int64_t query; // the next one to be asked
};

// Uniform in [0, 1): splitmix64 (Steele, Lea, Flood 2014) of seed, number and which of its values.
static double uniform(uint64_t seed, int64_t number, int which)
{
	uint64_t z = seed * 0x9e3779b97f4a7c15u + (uint64_t)number * 0xd1342543de82ef95u + (uint64_t)which * 0x2545f4914f6cdd1du;
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	z ^= z >> 31;
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z ^= z >> 31;
	return (double)(z >> 11) * 0x1p-53;
}

Source *open_source(const Work *work, const Machine *machine)
{
	Source *source = room_for(1, sizeof *source);
	source->work = work;
	source->machine = machine;
	source->next = room_for(work->readers, sizeof *source->next);
	if (work->by_query)
		source->queues = room_for(work->readers, sizeof *source->queues);
	for (int reader = 0; reader < work->readers; reader++)
		source->next[reader] = reader;
	return source;
}

void close_source(Source *source)
{
	for (int reader = 0; source->queues && reader < source->work->readers; reader++)
		free(source->queues[reader].items);
	free(source->queues);
	free(source->next);
	free(source);
}

int largest_epoch(const Work *work)
{
	if (!work->by_query)
		return work->epoch;
	// Blocks of a row lie side by side, on one processor after the other; rows may begin on the same one.
	return work->query_rows * ((work->query_columns + work->readers - 1) / work->readers);
}

// Where a reader's block number `local` is.
static void place(const Source *source, Block *block, int owner, int64_t local)
{
	const Machine *machine = source->machine;
	block->owner = owner;
	block->disk = (int)(local % machine->disks);
	block->bytes = source->work->block_bytes;
	block->offset = fmod((double)(local / machine->disks) * block->bytes, fmax(machine->capacity - block->bytes, 1));
}

// Columns of the grid between two longitudes relative to what is asked for, 0 <= from < 360; 0 where there are none.
static int columns_between(const Work *work, double from, double width, int *first)
{
	const double asked = work->east - work->west, column = asked / work->columns;
	const double begin = floor(from / column);
	if (asked >= 360) {
		const double count = floor((from + width) / column) - begin + 1;
		*first = (int)begin % work->columns;
		return count < work->columns ? (int)count : work->columns;
	}
	const int wraps = from + width >= 360;
	if (from >= asked && !wraps)
		return 0;
	const double last = wraps && from >= asked ? from + width - 360 : from + width;
	*first = wraps ? 0 : (int)begin;
	const int until = wraps && from < asked ? work->columns - 1 : (int)fmin(floor(last / column), work->columns - 1);
	return until - *first + 1;
}

// The bounding rectangle of a block, as the processors whose part of the output it meets. 0: it meets none.
static int spread(const Work *work, Block *block)
{
	double latitude, width = 360, longitude = uniform(work->seed, block->number, 2) * 360 - 180;
	if (uniform(work->seed, block->number, 0) < work->polar) {
		latitude = uniform(work->seed, block->number, 1) < 0.5 ? -90 + work->height / 2 : 90 - work->height / 2;
	} else {
		latitude = asin(1 - 2 * uniform(work->seed, block->number, 1)) * (180 / M_PI);
		width = fmin(360, work->width / fmax(cos(latitude * (M_PI / 180)), 1e-9));
	}
	const double south = fmax(latitude - work->height / 2, -90), north = fmin(latitude + work->height / 2, 90);
	if (south >= work->north || north <= work->south)
		return 0;
	const double row = (work->north - work->south) / work->rows;
	const int lowest = (int)fmax(floor((south - work->south) / row), 0);
	const int highest = (int)fmin(ceil((north - work->south) / row) - 1, work->rows - 1);
	const double from = fmod(longitude - width / 2 - work->west + 720, 360);
	block->columns = columns_between(work, from, width, &block->column);
	block->row = lowest;
	block->rows = highest - lowest + 1;
	return block->columns * block->rows > 0;
}

// The surface: block i is read by processor i mod readers (round-robin declustering).
static int epoch_of_surface(Source *source, int reader, Block *out, int room)
{
	const Work *work = source->work;
	int found = 0;
	while (found < room && found < work->epoch && source->next[reader] < work->blocks) {
		Block *block = &out[found];
		memset(block, 0, sizeof *block);
		block->number = source->next[reader];
		source->next[reader] += work->readers;
		block->first = work->processors - work->columns * work->rows;
		if (!spread(work, block))
			continue;
		place(source, block, reader, block->number / work->readers);
		found++;
	}
	return found;
}

static void append(Queue *queue, Waiting item)
{
	if (queue->first + queue->count == queue->room) {
		if (queue->first > queue->count) {
			memmove(queue->items, queue->items + queue->first, (size_t)queue->count * sizeof item);
		} else {
			queue->room = queue->room ? 2 * queue->room : 16;
			Waiting *grown = room_for(queue->room, sizeof item);
			if (queue->count)
				memcpy(grown, queue->items + queue->first, (size_t)queue->count * sizeof item);
			free(queue->items);
			queue->items = grown;
		}
		queue->first = 0;
	}
	queue->items[queue->first + queue->count++] = item;
}

static int64_t below(const Work *work, int64_t query, int which, int64_t count)
{
	return (int64_t)(uniform(work->seed, query, which) * (double)count);
}

// Asks the next query: its blocks go to the queues of those that have them.
static void ask(Source *source)
{
	const Work *work = source->work;
	const int64_t query = source->query++;
	const int64_t sheet = below(work, query, 0, (int64_t)work->slides * work->planes);
	const int64_t left = below(work, query, 1, work->slide_columns - work->query_columns + 1);
	const int64_t top = below(work, query, 2, work->slide_rows - work->query_rows + 1);
	for (int row = 0; row < work->query_rows; row++)
		for (int column = 0; column < work->query_columns; column++) {
			const int64_t id = (sheet * work->slide_rows + top + row) * work->slide_columns + left + column;
			append(&source->queues[id % work->readers], (Waiting){query, id});
		}
}

static int epoch_of_queries(Source *source, int reader, Block *out, int room)
{
	const Work *work = source->work;
	Queue *queue = &source->queues[reader];
	while (queue->count == 0 && source->query < work->queries)
		ask(source);
	int found = 0;
	const int64_t query = queue->count ? queue->items[queue->first].query : 0;
	while (queue->count > 0 && found < room && queue->items[queue->first].query == query) {
		Block *block = &out[found++];
		memset(block, 0, sizeof *block);
		block->number = queue->items[queue->first].id;
		block->first = reader;
		block->columns = block->rows = 1;
		place(source, block, reader, block->number / work->readers);
		queue->first++;
		queue->count--;
	}
	return found;
}

int next_epoch(Source *source, int processor, Block *out, int room)
{
	if (processor >= source->work->readers)
		return 0;
	return source->work->by_query ? epoch_of_queries(source, processor, out, room)
				      : epoch_of_surface(source, processor, out, room);
}

int next_consumer(const Work *work, const Block *block, int processor, int k)
{
	while (k < consumers(block) && consumer(work, block, k) == processor)
		k++;
	return k < consumers(block) ? k : -1;
}

int receive_of(const Graph *graph, int send)
{
	int node = 0;
	while (!(graph->after[send] & (1u << node)))
		node++;
	return node;
}

int is_peer(const Graph *graph)
{
	int found = 0;
	for (int node = 0; node < graph->nodes; node++)
		for (int next = 0; graph->operation[node] == OP_READ && next < graph->nodes; next++)
			found |= (graph->after[node] >> next & 1) && graph->operation[next] == OP_SEND && !is_to_client(graph, next);
	return found;
}

int consumes(const Work *work, const Block *block, int processor)
{
	const int place = processor - block->first;
	if (work->by_query)
		return place == 0;
	if (place < 0 || place >= work->columns * work->rows)
		return 0;
	const int row = place / work->columns, column = (place % work->columns - block->column + work->columns) % work->columns;
	return row >= block->row && row < block->row + block->rows && column < block->columns;
}

double disk_seconds(const Machine *machine, Disk *disk, double now, const Block *block)
{
	const double distance = fabs(block->offset - disk->end) / machine->capacity;
	double at = now + machine->controller;
	if (distance > 0)
		at += machine->seek_least + (machine->seek_most - machine->seek_least) * distance;
	if (machine->turn > 0) {
		// A track holds what passes the head in one turn. The platter has turned all the time since 0.
		const double angle = fmod(at / machine->turn, 1);
		const double wanted = fmod(block->offset / (machine->disk_rate * machine->turn), 1);
		at += fmod(wanted - angle + 1, 1) * machine->turn;
	}
	disk->end = block->offset + block->bytes;
	return at + block->bytes / machine->disk_rate - now;
}
