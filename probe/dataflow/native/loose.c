// SPDX-License-Identifier: Apache-2.0
//
// Loosely coupled simulation (Uysal et al., section 4.3): the work flow of a block is in the simulator, blocks come in
// epochs, a processor's next one when all is done with those of its last one, wherever. Disks, buses, both ends of the
// network and processors are servers that serve in order; an event is the end of what a server does. Memory is that of
// processors times an epoch. Nothing depends on the clock: events at one time have the order in which they were made.
//
// Setting on standard input (setting.c). Prints "needs BYTES", then "at BLOCKS SECONDS" now and then, at last "done ...".
// Exits with 3 before it starts where `memory` would not do.

#include "blocks.h"
#include "events.h"

#include <math.h>
#include <stdio.h>

// What waits at a server: an operation on a block. At a port, with whom; there `end` is when it will have come.
typedef struct Entry {
	struct Entry *next;
	Block *block;
	int node, other;
	double end;
} Entry;

// A line of the cache. Has one event at most: the end of its first entry.
typedef struct {
	Event event;
	Entry *first, *last;
	double begun, busy; // begun: of the first entry; at a receiving port: until when it is taken
	Disk disk;          // of a disk
} Server;

enum { CHUNK = 4096, LARGE = 1 << 18, SAMPLE = 2000, OUT = 0, IN = 1, CPU = 2, PORTS = 3 };

static Work work;
static Machine machine;
static Source *source;
static Server *servers; // of each processor: out, in, cpu, disks, buses
static Block *blocks;    // of each reader: room for an epoch
static int64_t *waiting; // by reader: blocks that are not done
static int each, epoch_room;
static Entry *spare, *fresh;
static int64_t fresh_left, made;
static double now;
static int64_t blocks_done, blocks_total, messages, epochs, events;
static int peer; // reads are sent to consumers: a reader computes only what concerns it

// -- entries

static Entry *entry(Block *block, int node, int other)
{
	Entry *found = spare;
	if (found != NULL) {
		spare = found->next;
	} else {
		if (fresh_left == 0) {
			fresh_left = made < LARGE ? CHUNK : LARGE;
			fresh = large_room((double)fresh_left, sizeof *fresh);
			made += fresh_left;
		}
		found = fresh++;
		fresh_left--;
	}
	*found = (Entry){NULL, block, node, other, 0};
	return found;
}

// -- servers

static uint32_t server_of(int processor, int which)
{
	return (uint32_t)processor * (uint32_t)each + (uint32_t)which;
}

// When what is first at a server ends, if it begins now.
static double end_of(uint32_t number, Server *server)
{
	const int which = (int)(number % (uint32_t)each);
	Entry *first = server->first;
	if (which == IN)
		return fmax(first->end, now);
	server->begun = now;
	if (which == OUT)
		return now + message_bytes(&work, first->block, first->node) / machine.net_rate;
	if (which == CPU)
		return now + work.compute;
	if (which < PORTS + machine.disks)
		return now + disk_seconds(&machine, &server->disk, now, first->block);
	return now + machine.bus_latency + first->block->bytes / machine.bus_rate;
}

static void enqueue(uint32_t number, Entry *what)
{
	Server *server = &servers[number];
	what->block->pending++;
	if (server->first == NULL) {
		server->first = server->last = what;
		add_event(number, end_of(number, server));
	} else {
		server->last->next = what;
		server->last = what;
	}
}

// -- the life of blocks

static void begin_epoch(int reader)
{
	Block *mine = blocks + (int64_t)reader * epoch_room;
	const int count = next_epoch(source, reader, mine, epoch_room);
	waiting[reader] = count;
	blocks_total += count;
	epochs += count > 0;
	for (int n = 0; n < count; n++)
		enqueue(server_of(reader, PORTS + mine[n].disk), entry(&mine[n], 0, 0));
}

static void start(Block *block, int node, int from, int processor)
{
	switch (work.graph.operation[node]) {
	case OP_COMPUTE:
		if (!(peer && work.graph.operation[from] == OP_READ) || consumes(&work, block, processor))
			enqueue(server_of(processor, CPU), entry(block, node, 0));
		break;
	case OP_SEND: {
		const int k = is_to_client(&work.graph, node) ? 0 : next_consumer(&work, block, processor, 0);
		if (k >= 0)
			enqueue(server_of(processor, OUT), entry(block, node, k));
		break;
	}
	default:
		break;
	}
}

static void finished(Block *block, int node, int processor)
{
	for (int next = 0; next < work.graph.nodes; next++)
		if (work.graph.after[node] & (1u << next))
			start(block, next, node, processor);
}

// A message has left: it takes the receiver's end of the network in turn, from when its first byte came.
static void arrive(Block *block, int send, int receiver, double sent_at)
{
	const uint32_t number = server_of(receiver, IN);
	Server *server = &servers[number];
	const double hold = block->bytes / machine.net_rate;
	const double begin = fmax(sent_at + machine.net_latency, server->begun);
	Entry *what = entry(block, receive_of(&work.graph, send), 0);
	what->end = server->begun = begin + hold;
	server->busy += hold;
	messages++;
	enqueue(number, what);
}

static void release(Block *block)
{
	if (--block->pending > 0)
		return;
	blocks_done++;
	if (--waiting[block->owner] == 0)
		begin_epoch(block->owner);
}

// What a server's first entry does at its end. 1: it has more to do and stays (a send to several).
static int end_entry(uint32_t number, Entry *what)
{
	const int processor = (int)(number / (uint32_t)each), which = (int)(number % (uint32_t)each);
	Block *block = what->block;
	if (which == OUT && !is_to_client(&work.graph, what->node)) {
		arrive(block, what->node, consumer(&work, block, what->other), now - block->bytes / machine.net_rate);
		what->other = next_consumer(&work, block, processor, what->other + 1);
		return what->other >= 0;
	}
	if (which == OUT)
		messages++;
	else if (which >= PORTS && which < PORTS + machine.disks)
		enqueue(server_of(processor, PORTS + machine.disks + block->disk % machine.buses), entry(block, 0, 0));
	else
		finished(block, what->node, processor);
	return 0;
}

static void turn(uint32_t number)
{
	Server *server = &servers[number];
	Entry *what = server->first;
	const int which = (int)(number % (uint32_t)each);
	if (which != IN)
		server->busy += now - server->begun;
	events++;
	const int stays = end_entry(number, what);
	if (!stays)
		server->first = what->next;
	if (server->first != NULL)
		add_event(number, end_of(number, server));
	if (!stays) {
		Block *block = what->block;
		what->next = spare;
		spare = what;
		release(block);
	}
}

// What an event will need is brought into the cache while others are served.
static void expect(uint32_t number, int time)
{
	const Entry *first = servers[number].first;
	const int which = (int)(number % (uint32_t)each);
	if (time == 0) {
		__builtin_prefetch(first);
	} else if (time == 1) {
		__builtin_prefetch(first->block);
		if (which == IN || which >= PORTS)
			__builtin_prefetch(&servers[number + CPU - IN]);
	} else if (which == OUT && !is_to_client(&work.graph, first->node)) {
		__builtin_prefetch(&servers[server_of(consumer(&work, first->block, first->other), IN)]);
	}
}

// -- memory, told before anything starts

static double mean_consumers(void)
{
	if (work.by_query)
		return 1;
	double sum = 0;
	int seen = 0;
	Block block;
	Source *sample = open_source(&work, &machine);
	for (int n = 0; n < SAMPLE; n++) {
		const int reader = (int)((int64_t)n * work.readers / SAMPLE);
		if (next_epoch(sample, reader, &block, 1) == 1) {
			sum += consumers(&block);
			seen++;
		}
	}
	close_source(sample);
	return seen ? sum / seen : 0;
}

static double needed(double spread)
{
	const double on_each = each * ((double)sizeof *servers + event_bytes());
	const double of_reader = epoch_room * ((double)sizeof *blocks + (1 + spread) * (double)sizeof(Entry)) + 64;
	return work.processors * on_each + work.readers * of_reader;
}

static void report(void)
{
	double busy[5] = {0}, most = 0, end = now > 0 ? now : 1;
	for (int p = 0; p < work.processors; p++)
		for (int which = 0; which < each; which++) {
			const double one = servers[server_of(p, which)].busy;
			busy[which < PORTS ? which : which < PORTS + machine.disks ? 3 : 4] += one;
			most = which == CPU && one > most ? one : most;
		}
	printf("done seconds %.9g blocks %lld messages %lld epochs %lld events %lld cost %.6f memory %ld ", now,
	       (long long)blocks_total, (long long)messages, (long long)epochs, (long long)events, processor_seconds(), memory_kb());
	printf("disk %.9g bus %.9g out %.9g in %.9g cpu %.9g busiest_cpu %.9g\n",
	       busy[3] / work.readers / machine.disks / end, busy[4] / work.readers / machine.buses / end,
	       busy[OUT] / work.processors / end, busy[IN] / work.processors / end, busy[CPU] / work.processors / end,
	       most / end);
}

int main(void)
{
	double memory = 0;
	read_setting(&work, &machine, &memory);
	each = PORTS + machine.disks + machine.buses;
	// An odd number of lines of the cache: else the first blocks of all epochs would have to share few of its places.
	epoch_room = largest_epoch(&work) | 1;
	peer = is_peer(&work.graph);
	const double bytes = needed(mean_consumers());
	printf("needs %.0f\n", bytes);
	fflush(stdout);
	if (memory > 0 && bytes > memory)
		return 3;
	source = open_source(&work, &machine);
	servers = large_room((double)work.processors * each, sizeof *servers);
	open_events(&servers[0].event, sizeof *servers, server_of(work.processors, 0), expect);
	blocks = large_room((double)work.readers * epoch_room, sizeof *blocks);
	waiting = room_for(work.readers, sizeof *waiting);
	for (int reader = 0; reader < work.readers; reader++)
		begin_epoch(reader);
	double said = clock_seconds();
	for (uint32_t server; next_event(&server, &now);) {
		turn(server);
		if ((events & 0xfffff) == 0 && clock_seconds() - said > 1) {
			said = clock_seconds();
			printf("at %lld %.9g\n", (long long)blocks_done, now);
			fflush(stdout);
		}
	}
	report();
	return 0;
}
