// SPDX-License-Identifier: Apache-2.0
//
// The application for real, without its data: every rank of MPI reads blocks past the page cache (O_DIRECT) from files of
// its own, sends them without waiting, and computes for as long as a block takes. A thread for each disk reads; all else
// is one thread. A rank has so many blocks under way as an epoch has; queries are asked one after the other.
//
//   native SETTING FOLDER      FOLDER/RANK-DISK are the files
//
// Rank 0 prints "measured ..." (a read alone, messages alone), then "done ..." with the slowest rank's seconds.

#define _GNU_SOURCE
#include "blocks.h"

#include <fcntl.h>
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PAGE = 4096, READS = 9, PINGS = 50 };

// own: was read here, and not received. The bytes begin with the block itself, so that its receivers know it.
typedef struct Entry {
	struct Entry *next;
	Block *block;
	char *bytes;
	int own;
} Entry;

typedef struct {
	pthread_mutex_t lock;
	pthread_cond_t filled;
	Entry *first, *last;
} Queue;

// A message under way: the block that it keeps busy.
typedef struct Sent {
	struct Sent *next;
	MPI_Request request;
	Entry *entry;
} Sent;

static Work work;
static Machine machine;
static Source *source;
static Queue *asked, news;
static int *files;
static int rank, room, peer, reading, under_way;
static size_t block_room;
static int64_t expected, received, blocks_total, messages;
static double computed;
static Sent *sent;

static void *pages_for(size_t size)
{
	void *found = NULL;
	if (posix_memalign(&found, PAGE, size ? size : 1) != 0) {
		fprintf(stderr, "no memory\n");
		MPI_Abort(MPI_COMM_WORLD, 3);
	}
	memset(found, 0, size);
	return found;
}

static void fail(const char *what)
{
	perror(what);
	MPI_Abort(MPI_COMM_WORLD, 4);
}

static void put(Queue *queue, Entry *entry)
{
	pthread_mutex_lock(&queue->lock);
	entry->next = NULL;
	if (queue->first == NULL)
		queue->first = entry;
	else
		queue->last->next = entry;
	queue->last = entry;
	pthread_cond_signal(&queue->filled);
	pthread_mutex_unlock(&queue->lock);
}

static Entry *take(Queue *queue, int wait)
{
	pthread_mutex_lock(&queue->lock);
	while (wait && queue->first == NULL)
		pthread_cond_wait(&queue->filled, &queue->lock);
	Entry *found = queue->first;
	if (found != NULL)
		queue->first = found->next;
	pthread_mutex_unlock(&queue->lock);
	return found;
}

static void read_block(int disk, double offset, char *into)
{
	const off_t from = (off_t)offset / PAGE * PAGE;
	size_t got = 0;
	while (got < block_room) {
		const ssize_t count = pread(files[disk], into + got, block_room - got, from + (off_t)got);
		if (count <= 0)
			fail("reading a block");
		got += (size_t)count;
	}
}

static void *be_disk(void *number)
{
	const int disk = (int)(intptr_t)number;
	for (;;) {
		Entry *entry = take(&asked[disk], 1);
		read_block(disk, entry->block->offset, entry->bytes);
		put(&news, entry);
	}
	return NULL;
}

// -- the program

static void read_on(void)
{
	if (!reading || (work.by_query && under_way > 0))
		return;
	int found = 1;
	while (found > 0 && under_way < room) {
		Block *fresh = pages_for((size_t)room * sizeof *fresh);
		found = next_epoch(source, rank, fresh, work.by_query ? room : 1);
		for (int n = 0; n < found; n++) {
			Entry *entry = pages_for(sizeof *entry);
			entry->block = pages_for(sizeof *entry->block);
			*entry->block = fresh[n];
			entry->block->pending = 1;
			entry->bytes = pages_for(block_room);
			entry->own = 1;
			under_way++;
			blocks_total++;
			put(&asked[fresh[n].disk], entry);
		}
		free(fresh);
		if (work.by_query && found > 0)
			return;
	}
	reading = found > 0;
}

static void let_go(Entry *entry)
{
	if (--entry->block->pending > 0)
		return;
	under_way -= entry->own;
	free(entry->block);
	free(entry->bytes);
	free(entry);
	read_on();
}

static void compute(void)
{
	const double until = MPI_Wtime() + work.compute;
	while (MPI_Wtime() < until)
		continue;
	computed += work.compute;
}

static int message_size(const Block *block)
{
	return block->bytes < (double)sizeof *block ? (int)sizeof *block : (int)block->bytes;
}

static void send_to(Entry *entry, int node, int to)
{
	Sent *made = pages_for(sizeof *made);
	made->entry = entry;
	made->next = sent;
	entry->block->pending++;
	messages++;
	MPI_Isend(entry->bytes, message_size(entry->block), MPI_BYTE, to, node, MPI_COMM_WORLD, &made->request);
	sent = made;
}

static void go_on(Entry *entry, int node)
{
	const Graph *graph = &work.graph;
	for (int next = 0; next < graph->nodes; next++)
		if ((graph->after[node] >> next & 1) && graph->operation[next] == OP_SEND && !is_to_client(graph, next))
			for (int k = next_consumer(&work, entry->block, rank, 0); k >= 0;
			     k = next_consumer(&work, entry->block, rank, k + 1))
				send_to(entry, next, consumer(&work, entry->block, k));
	for (int next = 0; next < graph->nodes; next++) {
		if (!(graph->after[node] >> next & 1) || graph->operation[next] != OP_COMPUTE)
			continue;
		if (peer && graph->operation[node] == OP_READ && !consumes(&work, entry->block, rank))
			continue;
		compute();
		go_on(entry, next);
	}
}

static void end_sends(void)
{
	for (Sent **at = &sent; *at != NULL;) {
		Sent *one = *at;
		int over = 0;
		MPI_Test(&one->request, &over, MPI_STATUS_IGNORE);
		if (!over) {
			at = &one->next;
			continue;
		}
		*at = one->next;
		Entry *entry = one->entry;
		free(one);
		let_go(entry);
		at = &sent;
	}
}

// A message that has begun to come, received whole. 0: none has.
static int receive(void)
{
	int there = 0, size = 0;
	MPI_Status status;
	MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &there, &status);
	if (!there)
		return 0;
	MPI_Get_count(&status, MPI_BYTE, &size);
	Entry *entry = pages_for(sizeof *entry);
	entry->bytes = pages_for((size_t)size);
	entry->block = pages_for(sizeof *entry->block);
	MPI_Recv(entry->bytes, size, MPI_BYTE, status.MPI_SOURCE, status.MPI_TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	memcpy(entry->block, entry->bytes, sizeof *entry->block);
	entry->block->pending = 1;
	received++;
	go_on(entry, receive_of(&work.graph, status.MPI_TAG));
	let_go(entry);
	return 1;
}

static void run(void)
{
	read_on();
	while (reading || under_way > 0 || sent != NULL || received < expected) {
		end_sends();
		const int came = receive();
		Entry *entry = take(&news, 0);
		if (entry != NULL) {
			memcpy(entry->bytes, entry->block, sizeof *entry->block);
			go_on(entry, 0);
			let_go(entry);
		} else if (!came) {
			usleep(50);
		}
	}
}

// -- before

// The messages that this rank will get of a block, when a processor has done an operation on it.
static void count_messages(const Block *block, int processor, int node)
{
	const Graph *graph = &work.graph;
	for (int next = 0; next < graph->nodes; next++) {
		if (!(graph->after[node] >> next & 1))
			continue;
		if (graph->operation[next] == OP_COMPUTE) {
			if (!(peer && graph->operation[node] == OP_READ) || consumes(&work, block, processor))
				count_messages(block, processor, next);
		} else if (!is_to_client(graph, next)) {
			for (int k = next_consumer(&work, block, processor, 0); k >= 0; k = next_consumer(&work, block, processor, k + 1)) {
				const int to = consumer(&work, block, k);
				expected += to == rank;
				count_messages(block, to, receive_of(graph, next));
			}
		}
	}
}

static int has_receive(const Graph *graph)
{
	int found = 0;
	for (int node = 0; node < graph->nodes; node++)
		found |= graph->operation[node] == OP_RECEIVE;
	return found;
}

// All blocks of all readers are asked who needs them.
static void count_expected(void)
{
	Source *all = open_source(&work, &machine);
	Block *epoch = pages_for((size_t)room * sizeof *epoch);
	for (int reader = 0; reader < work.readers && has_receive(&work.graph); reader++)
		for (int found = 1; found > 0;) {
			found = next_epoch(all, reader, epoch, room);
			for (int n = 0; n < found; n++)
				count_messages(&epoch[n], reader, 0);
		}
	free(epoch);
	close_source(all);
}

static double ping_seconds(char *bytes, int size)
{
	MPI_Barrier(MPI_COMM_WORLD);
	const double since = MPI_Wtime();
	for (int n = 0; n < PINGS && rank < 2; n++) {
		if (rank == n % 2)
			MPI_Send(bytes, size, MPI_BYTE, 1 - rank, 0, MPI_COMM_WORLD);
		else
			MPI_Recv(bytes, size, MPI_BYTE, 1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	}
	return (MPI_Wtime() - since) / PINGS;
}

static int ascending(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

// The median read, and a message of 1 byte and of a block, with nothing else going on.
static void measure(int ranks)
{
	char *bytes = pages_for(block_room);
	double reads[READS], latency = 0, message = 0;
	for (int n = 0; n < READS && rank == 0; n++) {
		const double since = MPI_Wtime();
		read_block(0, n * work.block_bytes, bytes);
		reads[n] = MPI_Wtime() - since;
	}
	if (ranks > 1) {
		latency = ping_seconds(bytes, 1);
		message = ping_seconds(bytes, (int)work.block_bytes);
	}
	if (rank == 0) {
		qsort(reads, READS, sizeof *reads, ascending);
		printf("measured read %.9f latency %.9f message %.9f\n", reads[READS / 2], latency, message);
		fflush(stdout);
	}
	free(bytes);
}

static void open_disks(const char *folder)
{
	files = pages_for((size_t)machine.disks * sizeof *files);
	asked = pages_for((size_t)machine.disks * sizeof *asked);
	pthread_mutex_init(&news.lock, NULL);
	pthread_cond_init(&news.filled, NULL);
	for (int disk = 0; disk < machine.disks && rank < work.readers; disk++) {
		char path[PAGE];
		pthread_t thread;
		snprintf(path, sizeof path, "%s/%d-%d", folder, rank, disk);
		files[disk] = open(path, O_RDONLY | O_DIRECT);
		if (files[disk] < 0)
			fail("opening a file for direct reads");
		pthread_mutex_init(&asked[disk].lock, NULL);
		pthread_cond_init(&asked[disk].filled, NULL);
		if (pthread_create(&thread, NULL, be_disk, (void *)(intptr_t)disk) != 0)
			fail("starting a thread");
	}
}

int main(int count, char **words)
{
	int ranks = 0, level = 0;
	double memory = 0;
	MPI_Init_thread(&count, &words, MPI_THREAD_FUNNELED, &level);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (count != 3 || freopen(words[1], "r", stdin) == NULL)
		fail("the setting");
	read_setting(&work, &machine, &memory);
	if (ranks != work.processors)
		fail("the number of ranks");
	room = largest_epoch(&work);
	peer = is_peer(&work.graph);
	block_room = ((size_t)work.block_bytes + 2 * PAGE - 1) / PAGE * PAGE;
	open_disks(words[2]);
	measure(ranks);
	count_expected();
	source = open_source(&work, &machine);
	reading = rank < work.readers;
	MPI_Barrier(MPI_COMM_WORLD);
	const double since = MPI_Wtime();
	run();
	const double own[2] = {MPI_Wtime() - since, computed};
	const int64_t counted[2] = {blocks_total, messages};
	double most[2];
	int64_t sums[2];
	MPI_Reduce(own, most, 2, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
	MPI_Reduce(counted, sums, 2, MPI_INT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
	if (rank == 0)
		printf("done seconds %.9f computed %.9f blocks %lld messages %lld\n", most[0], most[1], (long long)sums[0],
		       (long long)sums[1]);
	MPI_Finalize();
	return 0;
}
