// SPDX-License-Identifier: Apache-2.0
//
// Tightly coupled simulation (Uysal et al., section 4.2): the application's program runs for every processor, as an actor
// of SimGrid's. It asks for reads and sends one by one, without waiting for them, and is told of each that ends; while it
// computes, nothing else of it goes on. Disks, buses and both ends of the network are actors, too, with the times of the
// loose engine. A processor has so many blocks under way as an epoch has, and asks for the next when one is done with;
// queries are asked one after the other.
//
// With a second argument, "flow", messages are SimGrid's: they share the links of its platform fairly, however many there
// are under way, and the ends of the network have no turns.
//
// Setting on standard input (setting.c), a platform as the argument: one host, or one for each node. Prints "at ..." and
// "done ..." as the loose engine.

#include "blocks.h"
#include "simgrid_calls.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

// A request to a server, or what a processor is told. Of a message: which receive follows, and when it will have come.
typedef struct Entry {
	struct Entry *next;
	Block *block;
	int node, receiver;
	double end;
} Entry;

typedef struct {
	Entry *first, *last;
	sg_sem_t filled;
	double busy, taken; // taken: until when a receiving port is
} Server;

// Of a processor: what it is told, its ports, its processor's time; then disks and buses. Numbers as in the loose engine,
// but that a processor has its news where the loose engine has its processor.
enum { OUT, IN, NEWS, PORTS };

enum { ACTOR = 73728 }; // bytes: of its stack and of what SimGrid keeps

static Work work;
static Machine machine;
static Source *source;
static Server *servers;
static Disk *disks;
static int *reading; // by reader: whether it has blocks left to ask for
static int *under_way;
static int each, room, peer, readers_left, flow;
static int64_t live, blocks_total, messages, requests;
static double said;

static Server *server_of(int processor, int which)
{
	return &servers[(int64_t)processor * each + which];
}

static void put(Server *server, Entry entry)
{
	Entry *made = room_for(1, sizeof *made);
	*made = entry;
	made->next = NULL;
	if (server->first == NULL)
		server->first = made;
	else
		server->last->next = made;
	server->last = made;
	requests++;
	sg_sem_release(server->filled);
}

static Entry take(Server *server)
{
	sg_sem_acquire(server->filled);
	Entry *first = server->first;
	const Entry found = *first;
	server->first = first->next;
	free(first);
	return found;
}

static void serve(Server *server, double seconds)
{
	server->busy += seconds;
	sg_actor_sleep_for(seconds);
}

// -- devices

static void be_disk(int processor, int which)
{
	Disk *disk = &disks[processor * machine.disks + which];
	for (;;) {
		const Entry asked = take(server_of(processor, PORTS + which));
		serve(server_of(processor, PORTS + which),
		      disk_seconds(&machine, disk, simgrid_get_clock(), asked.block));
		put(server_of(processor, PORTS + machine.disks + which % machine.buses), asked);
	}
}

static void be_bus(int processor, int which)
{
	Server *own = server_of(processor, PORTS + machine.disks + which);
	for (;;) {
		const Entry asked = take(own);
		serve(own, machine.bus_latency + asked.block->bytes / machine.bus_rate);
		put(server_of(processor, NEWS), asked);
	}
}

// A message takes the receiver's end in turn, from when its first byte has come.
static void arrive(const Entry *sent, double sent_at)
{
	Server *port = server_of(sent->receiver, IN);
	const double hold = sent->block->bytes / machine.net_rate;
	port->taken = fmax(sent_at + machine.net_latency, port->taken) + hold;
	port->busy += hold;
	Entry entry = *sent;
	entry.node = receive_of(&work.graph, sent->node);
	entry.end = port->taken;
	put(port, entry);
}

// A message over SimGrid's links, which takes part of them from now on.
static void let_flow(const Entry *sending)
{
	char name[16];
	Entry *coming = room_for(1, sizeof *coming);
	*coming = *sending;
	coming->node = receive_of(&work.graph, sending->node);
	server_of(sending->receiver, IN)->busy += sending->block->bytes / machine.net_rate;
	snprintf(name, sizeof name, "%d", sending->receiver);
	sg_comm_detach(sg_mailbox_put_init(sg_mailbox_by_name(name), coming, (long)sending->block->bytes), NULL);
}

static void done_with(Block *block);

static void be_sender(int processor)
{
	Server *own = server_of(processor, OUT);
	for (;;) {
		const Entry asked = take(own);
		const double begun = simgrid_get_clock();
		messages++;
		if (flow && !is_to_client(&work.graph, asked.node)) {
			own->busy += asked.block->bytes / machine.net_rate;
			let_flow(&asked);
			continue;
		}
		serve(own, message_bytes(&work, asked.block, asked.node) / machine.net_rate);
		if (is_to_client(&work.graph, asked.node))
			done_with(asked.block);
		else
			arrive(&asked, begun);
	}
}

static void be_receiver(int processor)
{
	char name[16];
	snprintf(name, sizeof name, "%d", processor);
	if (flow)
		sg_mailbox_set_receiver(name); // messages begin when they are sent
	for (;;) {
		if (flow) {
			Entry *came = sg_mailbox_get(sg_mailbox_by_name(name));
			put(server_of(processor, NEWS), *came);
			free(came);
			continue;
		}
		const Entry coming = take(server_of(processor, IN));
		sg_actor_sleep_for(fmax(coming.end - simgrid_get_clock(), 0));
		put(server_of(processor, NEWS), coming);
	}
}

// -- the program of a processor

static void tell_all_to_stop(void)
{
	for (int processor = 0; processor < work.processors; processor++)
		put(server_of(processor, NEWS), (Entry){.block = NULL});
}

static Block *ask_for(int reader, Block *block)
{
	block->pending = 1;
	live++;
	under_way[reader]++;
	blocks_total++;
	put(server_of(reader, PORTS + block->disk), (Entry){.block = block});
	return block;
}

// Asks for further blocks, as many as may be under way. Queries are not mixed.
static void read_on(int reader)
{
	if (reader >= work.readers || !reading[reader] || (work.by_query && under_way[reader] > 0))
		return;
	int found = 1;
	while (found > 0 && under_way[reader] < room) {
		Block *fresh = room_for(room, sizeof *fresh);
		const int wanted = work.by_query ? room : 1;
		found = next_epoch(source, reader, fresh, wanted);
		for (int n = 0; n < found; n++) {
			Block *own = room_for(1, sizeof *own);
			*own = fresh[n];
			ask_for(reader, own);
		}
		free(fresh);
		if (work.by_query && found > 0)
			return;
	}
	if (found == 0) {
		reading[reader] = 0;
		readers_left--;
	}
}

static void done_with(Block *block)
{
	if (--block->pending > 0)
		return;
	const int owner = block->owner;
	free(block);
	live--;
	under_way[owner]--;
	read_on(owner);
	if (live == 0 && readers_left == 0)
		tell_all_to_stop();
}

static void go_on(Block *block, int node, int processor, double *computed)
{
	for (int next = 0; next < work.graph.nodes; next++) {
		if (!(work.graph.after[node] >> next & 1))
			continue;
		if (work.graph.operation[next] == OP_SEND) {
			int k = is_to_client(&work.graph, next) ? 0 : next_consumer(&work, block, processor, 0);
			for (; k >= 0; k = is_to_client(&work.graph, next) ? -1 : next_consumer(&work, block, processor, k + 1)) {
				const int to = is_to_client(&work.graph, next) ? 0 : consumer(&work, block, k);
				block->pending++;
				put(server_of(processor, OUT), (Entry){.block = block, .node = next, .receiver = to});
			}
		}
	}
	for (int next = 0; next < work.graph.nodes; next++) {
		if (!(work.graph.after[node] >> next & 1) || work.graph.operation[next] != OP_COMPUTE)
			continue;
		if (peer && work.graph.operation[node] == OP_READ && !consumes(&work, block, processor))
			continue;
		sg_actor_sleep_for(work.compute);
		*computed += work.compute;
		go_on(block, next, processor, computed);
	}
}

static void be_program(int processor)
{
	Server *news = server_of(processor, NEWS);
	read_on(processor);
	if (live == 0 && readers_left == 0)
		tell_all_to_stop();
	for (;;) {
		const Entry told = take(news);
		if (told.block == NULL)
			return;
		go_on(told.block, told.node, processor, &news->busy);
		done_with(told.block);
		if (clock_seconds() - said > 1) {
			said = clock_seconds();
			printf("at %lld %.9g\n", (long long)(blocks_total - live), simgrid_get_clock());
			fflush(stdout);
		}
	}
}

static void be(int count, char **words)
{
	(void)count;
	const int processor = atoi(words[1]), which = atoi(words[2]);
	if (which == NEWS) {
		be_program(processor);
		return;
	}
	sg_actor_daemonize(sg_actor_self());
	if (which == OUT)
		be_sender(processor);
	else if (which == IN)
		be_receiver(processor);
	else if (which < PORTS + machine.disks)
		be_disk(processor, which - PORTS);
	else
		be_bus(processor, which - PORTS - machine.disks);
}

static void start(int processor, int which)
{
	char numbers[2][16], host[32] = "all";
	const char *words[] = {"actor", numbers[0], numbers[1], NULL};
	snprintf(numbers[0], sizeof numbers[0], "%d", processor);
	snprintf(numbers[1], sizeof numbers[1], "%d", which);
	if (flow)
		snprintf(host, sizeof host, "node%d", processor);
	sg_actor_create_(words[0], sg_host_by_name(host), be, 3, words);
}

static void report(void)
{
	const double now = simgrid_get_clock(), end = now > 0 ? now : 1;
	double busy[5] = {0}, most = 0;
	for (int p = 0; p < work.processors; p++)
		for (int which = 0; which < each; which++) {
			const double one = server_of(p, which)->busy;
			busy[which < PORTS ? which : which < PORTS + machine.disks ? 3 : 4] += one;
			most = which == NEWS && one > most ? one : most;
		}
	printf("done seconds %.9g blocks %lld messages %lld epochs 0 events %lld cost %.6f memory %ld ", now,
	       (long long)blocks_total, (long long)messages, (long long)requests, processor_seconds(), memory_kb());
	printf("disk %.9g bus %.9g out %.9g in %.9g cpu %.9g busiest_cpu %.9g\n",
	       busy[3] / work.readers / machine.disks / end, busy[4] / work.readers / machine.buses / end,
	       busy[OUT] / work.processors / end, busy[IN] / work.processors / end, busy[NEWS] / work.processors / end,
	       most / end);
}

int main(int count, char **words)
{
	double memory = 0;
	said = clock_seconds();
	simgrid_init(&count, words);
	if (count < 2)
		return 2;
	flow = count > 2;
	simgrid_load_platform(words[1]);
	read_setting(&work, &machine, &memory);
	each = PORTS + machine.disks + machine.buses;
	room = largest_epoch(&work);
	const double bytes = (double)work.processors * each * ACTOR + (double)work.readers * room * (double)sizeof(Block);
	printf("needs %.0f\n", bytes);
	fflush(stdout);
	if (memory > 0 && bytes > memory)
		return 3;
	peer = is_peer(&work.graph);
	source = open_source(&work, &machine);
	servers = room_for((double)work.processors * each, sizeof *servers);
	disks = room_for((double)work.readers * machine.disks, sizeof *disks);
	reading = room_for(work.readers, sizeof *reading);
	under_way = room_for(work.readers, sizeof *under_way);
	readers_left = work.readers;
	for (int reader = 0; reader < work.readers; reader++)
		reading[reader] = 1;
	for (int processor = 0; processor < work.processors; processor++)
		for (int which = 0; which < each; which++) {
			server_of(processor, which)->filled = sg_sem_init(0);
			if (processor < work.readers || which < PORTS)
				start(processor, which);
		}
	simgrid_run();
	report();
	return 0;
}
