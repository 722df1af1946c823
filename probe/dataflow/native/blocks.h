// SPDX-License-Identifier: Apache-2.0
//
// Blocks of a data-intensive application: which processor reads them from where, and which ones they concern. All
// engines take blocks from here, in epochs, so that they simulate, or really run, the same work.

#ifndef PROBE_DATAFLOW_BLOCKS_H
#define PROBE_DATAFLOW_BLOCKS_H

#include <stddef.h>
#include <stdint.h>

enum Operation { OP_READ, OP_SEND, OP_RECEIVE, OP_COMPUTE };

enum { MOST_NODES = 16 };

// The life of one block (Uysal et al., section 4.3.1). after[n] has bit m set where operation m follows operation n.
typedef struct {
	int nodes;
	enum Operation operation[MOST_NODES];
	uint32_t after[MOST_NODES];
} Graph;

// Seconds, bytes, bytes a second.
typedef struct {
	int disks, buses;
	double controller, seek_least, seek_most, turn, disk_rate, capacity;
	double bus_latency, bus_rate;
	double net_latency, net_rate;
} Machine;

// Work. Readers are the processors 0 to readers - 1; where others compute, these follow.
typedef struct {
	int processors, readers, epoch;
	int by_query; // blocks belong to queries over slides, else to the surface of the earth
	int64_t blocks;
	double block_bytes, result_bytes, compute;
	uint64_t seed;
	double width, height, polar;         // degrees; share of the blocks that hold a pole
	double west, east, south, north;     // what is asked for
	int columns, rows;                   // of processors, over what is asked for
	int64_t queries;
	int slides, planes, slide_columns, slide_rows, query_columns, query_rows;
	Graph graph;
} Work;

// A block that `owner` reads. Its consumers are a rectangle of the grid of processors; columns wrap around.
typedef struct {
	int owner, disk;
	int first, column, columns, row, rows; // first: processor of the grid's corner
	int64_t number;
	double offset, bytes;
	int64_t pending; // of the engine
} Block;

typedef struct Source Source;

// Reads work and machine from lines "KEY VALUE ..." on standard input, until "end". Exits with 2 and a message.
void read_setting(Work *work, Machine *machine, double *memory);

// Zeroes. Exits with 3 and a message where there is no memory.
void *room_for(double count, size_t size);

// The same on lines of the cache and, where it is large, in huge pages. It is never given back.
void *large_room(double count, size_t size);

double clock_seconds(void);

// Of this program, in user code and in the kernel.
double processor_seconds(void);

// What this program had at most. getrusage() would say what its parent had before it began.
long memory_kb(void);

Source *open_source(const Work *work, const Machine *machine);
void close_source(Source *source);

// The next epoch of a processor into `out`, which has room for `room` blocks: at most that many. 0: no more.
int next_epoch(Source *source, int processor, Block *out, int room);

// Largest epoch there may be, blocks.
int largest_epoch(const Work *work);

static inline int consumers(const Block *block)
{
	return block->columns * block->rows;
}

static inline int consumer(const Work *work, const Block *block, int k)
{
	const int column = (block->column + k % block->columns) % work->columns;
	return block->first + (block->row + k / block->columns) * work->columns + column;
}

// The first consumer from number k on that is not `processor`; -1 where there is none.
int next_consumer(const Work *work, const Block *block, int processor, int k);

// A send that no receive follows goes to a client, outside the machine.
static inline int is_to_client(const Graph *graph, int node)
{
	return graph->after[node] == 0;
}

static inline double message_bytes(const Work *work, const Block *block, int send)
{
	return is_to_client(&work->graph, send) ? work->result_bytes : block->bytes;
}

// The receive that follows a send.
int receive_of(const Graph *graph, int send);

// Whether reads are sent to consumers: then a reader computes only what concerns it.
int is_peer(const Graph *graph);

int consumes(const Work *work, const Block *block, int processor);

// Where a disk's arm is: behind the last byte that it read.
typedef struct {
	double end;
} Disk;

// Serves a read that comes at `now` to a free disk: seconds it takes (controller, seek, rotation, transfer).
double disk_seconds(const Machine *machine, Disk *disk, double now, const Block *block);

#endif
