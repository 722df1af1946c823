// SPDX-License-Identifier: Apache-2.0
//
// Player of recorded ranks: makes their calls of MPI again, with computing of a given length between them.
//
// Compiled with SimGrid's smpicc it runs on simulated networks, with an MPI's own compiler on a real one. Arguments: a
// folder with the files play.N (probe/mpi/play.py), bytes of the largest message, and what shall be written there:
// `times`, two doubles a call in times.N, seconds at which it was entered and left; or under SimGrid `links`, in one
// file a line for each link. All ranks are threads of one process under SimGrid: variables outside of functions would be
// everybody's. costs.c, steps.c and trees.c stand before this.

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef PROBE_SIMULATED
#include <simgrid/barrier.h>
#include <simgrid/engine.h>
#include <simgrid/host.h>
#include <simgrid/link.h>
#include <simgrid/plugins/load.h>
#include <smpi/smpi.h>
#else
#include <time.h>
#endif

enum { MOST_TYPES = 64, MOST_OPEN = 1 << 20 };

// One call. seconds: of computing before it. `request`, `other` as the recorder has them, peers within `comm`.
typedef struct {
	int32_t function, peer, tag, comm;
	int64_t count;
	int32_t element, request, other, extras;
	double seconds;
} Step;

typedef struct {
	MPI_Comm *comms;
	MPI_Request *requests;
	uint32_t comm_room, request_room;
	int widths[MOST_TYPES];
	MPI_Datatype types[MOST_TYPES];
	int type_count;
	char *out, *in;
	MPI_Op sum;
} Player;

#ifdef PROBE_SIMULATED
// Of all ranks, since nobody looks into them. A pair for each of 8,192 ranks would be more mappings than a process has.
static char *common_out, *common_in;
#endif

// Seconds since the program began. Asking takes no simulated time; MPI_Wtime would take 10 ns of it.
static double now_of(void)
{
#ifdef PROBE_SIMULATED
	return simgrid_get_clock();
#else
	return MPI_Wtime();
#endif
}

// A type of that many bytes: the algorithms of collectives depend on counts and sizes.
static MPI_Datatype type_of(Player *player, int width)
{
	MPI_Datatype made;
	if (width == 1 || width == 4 || width == 8)
		return width == 1 ? MPI_BYTE : width == 4 ? MPI_INT : MPI_DOUBLE;
	for (int n = 0; n < player->type_count; n++)
		if (player->widths[n] == width)
			return player->types[n];
	MPI_Type_contiguous(width, MPI_BYTE, &made);
	MPI_Type_commit(&made);
	if (player->type_count < MOST_TYPES) {
		player->widths[player->type_count] = width;
		player->types[player->type_count++] = made;
	}
	return made;
}

// By the place that play.py gave it: 0 is that of no request.
static MPI_Request *request_of(Player *player, int32_t number)
{
	const uint32_t wanted = (uint32_t)number;
	if (wanted > MOST_OPEN) {
		fprintf(stderr, "probe: a rank has more than %d requests open at once\n", MOST_OPEN);
		exit(2);
	}
	if (wanted >= player->request_room) {
		const uint32_t room = wanted * 2 + 64;
		player->requests = needed(realloc(player->requests, room * sizeof *player->requests),
					  room * sizeof *player->requests);
		for (uint32_t n = player->request_room; n < room; n++)
			player->requests[n] = MPI_REQUEST_NULL;
		player->request_room = room;
	}
	return &player->requests[wanted];
}

static void keep_comm(Player *player, int32_t number, MPI_Comm comm)
{
	if ((uint32_t)number >= player->comm_room) {
		player->comm_room = (uint32_t)number * 2 + 8;
		player->comms = needed(realloc(player->comms, player->comm_room * sizeof *player->comms),
				       player->comm_room * sizeof *player->comms);
	}
	player->comms[number] = comm;
}

static void wait_for(Player *player, const int32_t *requests, int count)
{
	const size_t bytes = (size_t)count * sizeof(MPI_Request) + 1;
	MPI_Request *open = needed(malloc(bytes), bytes);
	for (int n = 0; n < count; n++) {
		MPI_Request *one = request_of(player, requests[n]);
		open[n] = *one;
		*one = MPI_REQUEST_NULL;
	}
	MPI_Waitall(count, open, MPI_STATUSES_IGNORE);
	free(open);
}

// Counts and places in bytes of a collective whose ranks give different amounts.
static int *places_of(const int32_t *counts, int size)
{
	const size_t bytes = (size_t)size * sizeof(int) + 1;
	int *places = needed(malloc(bytes), bytes);
	for (int n = 0, at = 0; n < size; at += counts[n++])
		places[n] = at;
	return places;
}

static void collective(Player *player, const Step *step, const int32_t *extras)
{
	const MPI_Comm comm = player->comms[step->comm];
	const int width = step->element > 0 ? step->element : 1, wide = width == 8 || width == 4 || width == 1;
	const int count = wide ? (int)step->count : (int)(step->count * width);
	const MPI_Datatype sum = wide ? type_of(player, width) : MPI_BYTE, type = type_of(player, width);
	const MPI_Op op = player->sum != MPI_OP_NULL ? player->sum : sum == MPI_BYTE ? MPI_BAND : MPI_SUM;
	const int some = (int)step->count;
	void *out = player->out, *in = player->in;
	int size, me, *places = NULL, *more = NULL;
	MPI_Request *request = request_of(player, step->request);
	MPI_Comm_size(comm, &size);
	MPI_Comm_rank(comm, &me);
	// A collective of one rank costs nothing; SimGrid 3.32 aborts in some ("Actor pid=-1 is gone").
	if (size == 1)
		return;
	const double own = (double)step->count * width;
	double bytes = own;
	if (step->extras >= size)
		places = places_of(extras, size);
	if (step->extras >= 2 * size) {
		more = places_of(extras + size, size);
		bytes = ((double)more[size - 1] + extras[2 * size - 1]) / size;
	}
	begin_receives(bytes, receives_of(step->function, size, me, step->other, bytes));
	switch (step->function) {
	case F_Barrier:
		MPI_Barrier(comm);
		break;
	case F_Ibarrier:
		MPI_Ibarrier(comm, request);
		break;
	case F_Bcast:
		broadcast(out, some, type, own, step->other, comm);
		break;
	case F_Ibcast:
		MPI_Ibcast(out, some, type, step->other, comm, request);
		break;
	case F_Reduce:
		MPI_Reduce(out, in, count, sum, op, step->other, comm);
		break;
	case F_Ireduce:
		MPI_Ireduce(out, in, count, sum, op, step->other, comm, request);
		break;
	case F_Allreduce:
		sum_for_all(out, in, count, sum, own, op, comm);
		break;
	case F_Iallreduce:
		MPI_Iallreduce(out, in, count, sum, op, comm, request);
		break;
	case F_Scan:
		MPI_Scan(out, in, count, sum, op, comm);
		break;
	case F_Exscan:
		MPI_Exscan(out, in, count, sum, op, comm);
		break;
	case F_Reduce_scatter:
		MPI_Reduce_scatter(out, in, extras, MPI_BYTE, player->sum != MPI_OP_NULL ? player->sum : MPI_BAND,
				   comm);
		break;
	case F_Reduce_scatter_block:
		MPI_Reduce_scatter_block(out, in, count, sum, op, comm);
		break;
	case F_Gather:
		MPI_Gather(out, some, type, in, some, type, step->other, comm);
		break;
	case F_Igather:
		MPI_Igather(out, some, type, in, some, type, step->other, comm, request);
		break;
	case F_Scatter:
		MPI_Scatter(out, some, type, in, some, type, step->other, comm);
		break;
	case F_Iscatter:
		MPI_Iscatter(out, some, type, in, some, type, step->other, comm, request);
		break;
	case F_Gatherv:
		MPI_Gatherv(out, (int)(step->count * width), MPI_BYTE, in, extras, places, MPI_BYTE, step->other, comm);
		break;
	case F_Scatterv:
		MPI_Scatterv(out, extras, places, MPI_BYTE, in, (int)(step->count * width), MPI_BYTE, step->other,
			     comm);
		break;
	case F_Allgather:
		MPI_Allgather(out, some, type, in, some, type, comm);
		break;
	case F_Iallgather:
		MPI_Iallgather(out, some, type, in, some, type, comm, request);
		break;
	case F_Allgatherv:
		MPI_Allgatherv(out, extras[me], MPI_BYTE, in, extras, places, MPI_BYTE, comm);
		break;
	case F_Alltoall:
		MPI_Alltoall(out, some, type, in, some, type, comm);
		break;
	case F_Ialltoall:
		MPI_Ialltoall(out, some, type, in, some, type, comm, request);
		break;
	case F_Alltoallv:
		MPI_Alltoallv(out, extras, places, MPI_BYTE, in, extras + size, more, MPI_BYTE, comm);
		break;
	default:
		fprintf(stderr, "probe: %s cannot be played\n", function_names[step->function]);
		exit(2);
	}
	free(places);
	free(more);
}

static void split(Player *player, const Step *step)
{
	MPI_Comm made;
	int size;
	// tag: a number that the ranks of the new communicator have in common; peer: place in it; count: their number.
	MPI_Comm_split(player->comms[step->comm], step->other < 0 ? MPI_UNDEFINED : step->tag, step->peer, &made);
	if (step->other < 0)
		return;
	MPI_Comm_size(made, &size);
	// Room and counts are for so many ranks.
	if (size != step->count) {
		fprintf(stderr, "probe: a communicator has %d ranks in place of %lld: ranks contradict each other\n",
			size, (long long)step->count);
		exit(2);
	}
	keep_comm(player, step->other, made);
}

static void play(Player *player, const Step *step, const int32_t *extras)
{
	const MPI_Comm comm = step->comm < 0 ? MPI_COMM_WORLD : player->comms[step->comm];
	const MPI_Datatype type = step->element > 0 ? type_of(player, step->element) : MPI_BYTE;
	const int count = step->element > 0 ? (int)step->count : 0;
	const int peer = step->peer < 0 ? MPI_PROC_NULL : step->peer;
	const double bytes = (double)count * step->element;
	// A large message begins to move when its receive has begun: half a round trip holds that already.
	if (step->peer >= 0 && (step->function == F_Irecv || (step->function == F_Recv && is_eager(bytes))))
		begin_receives(bytes, 1);
	if (step->other >= 0 && (step->function == F_Sendrecv || step->function == F_Sendrecv_replace))
		begin_receives(extras[1], 1);
	switch (step->function) {
	case F_Send:
	case F_Bsend:
	case F_Rsend:
		MPI_Send(player->out, count, type, peer, step->tag, comm);
		break;
	case F_Ssend:
		MPI_Ssend(player->out, count, type, peer, step->tag, comm);
		break;
	case F_Isend:
	case F_Ibsend:
	case F_Irsend:
		MPI_Isend(player->out, count, type, peer, step->tag, comm, request_of(player, step->request));
		break;
	case F_Issend:
		MPI_Issend(player->out, count, type, peer, step->tag, comm, request_of(player, step->request));
		break;
	case F_Recv:
		MPI_Recv(player->in, count, type, peer, step->tag, comm, MPI_STATUS_IGNORE);
		break;
	case F_Irecv:
		MPI_Irecv(player->in, count, type, peer, step->tag, comm, request_of(player, step->request));
		break;
	case F_Sendrecv:
	case F_Sendrecv_replace:
		MPI_Sendrecv(player->out, count, type, peer, step->tag, player->in, extras[1], MPI_BYTE,
			     step->other < 0 ? MPI_PROC_NULL : step->other, extras[0], comm, MPI_STATUS_IGNORE);
		break;
	case F_Wait:
	case F_Waitall:
	case F_Waitany:
	case F_Waitsome:
	case F_Test:
	case F_Testall:
	case F_Testany:
	case F_Testsome:
		wait_for(player, extras, step->extras);
		break;
	case F_Comm_dup:
	case F_Comm_split:
	case F_Comm_split_type:
	case F_Comm_create:
	case F_Cart_create:
	case F_Cart_sub:
		split(player, step);
		break;
	case F_Finalize:
		break;
	default:
		collective(player, step, extras);
	}
}

// How many times its recorded time the rank's computing takes: a double for each rank in `scales`, if it is there.
static double scale_of(const char *folder, int rank)
{
	char path[PATH_SIZE];
	double found = 1;
	snprintf(path, sizeof path, "%s/scales", folder);
	FILE *file = fopen(path, "rb");
	if (file == NULL)
		return found;
	if (fseek(file, rank * (long)sizeof found, SEEK_SET) != 0 || fread(&found, sizeof found, 1, file) != 1) {
		fprintf(stderr, "probe: %s cannot be read\n", path);
		exit(2);
	}
	fclose(file);
	return found;
}

#ifdef PROBE_SIMULATED
// Ranks that have begun, and ended: of all.
static int begun_ranks, ended_ranks;

// A rank may not be gone while others send to it. MPI_Barrier would send messages that are not the program's: at 8,192
// ranks 106,000 at once.
static void wait_for_all(int ranks)
{
	static sg_bar_t all;
	if (all == NULL)
		all = sg_barrier_init((unsigned)ranks);
	sg_barrier_wait(all);
}

// SimGrid's plugin counts from here on.
static void track_links(void)
{
	sg_link_t *links = sg_link_list();
	const size_t count = sg_link_count();
	for (size_t n = 0; n < count; n++)
		sg_link_load_track(links[n]);
	free(links);
}

// Bytes a second, bytes carried, name.
static void write_links(const char *folder)
{
	char path[PATH_SIZE];
	snprintf(path, sizeof path, "%s/links", folder);
	FILE *file = made_file(path, "wb");
	sg_link_t *links = sg_link_list();
	const size_t count = sg_link_count();
	for (size_t n = 0; n < count; n++)
		fprintf(file, "%.17g %.17g %s\n", sg_link_get_bandwidth(links[n]), sg_link_get_cum_load(links[n]),
			sg_link_get_name(links[n]));
	free(links);
	close_whole(file, path);
}
#endif

int main(int argc, char **argv)
{
	Player player = {.sum = MPI_OP_NULL};
	Times *times = NULL;
	Window *window;
	const char *found;
	int rank;
	double computed = 0;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	window = begin_window(argv[1], rank);
	const size_t room = strtoull(argv[2], NULL, 10) + 16;
#ifdef PROBE_SIMULATED
	if (common_out == NULL) {
		common_out = SMPI_SHARED_MALLOC(room);
		common_in = SMPI_SHARED_MALLOC(room);
	}
	player.out = common_out;
	player.in = common_in;
#else
	player.out = calloc(1, room);
	player.in = calloc(1, room);
#endif
	keep_comm(&player, 0, MPI_COMM_WORLD);
	keep_comm(&player, 1, MPI_COMM_SELF);
	if (argc > 3 && strcmp(argv[3], "times") == 0)
		times = begin_times(argv[1], rank);
	// Simulated ranks begin together anyway.
#ifdef PROBE_SIMULATED
	const int is_tracked = argc > 3 && strcmp(argv[3], "links") == 0;
	if (rank == 0)
		read_costs(argv[1]);
	MPI_Op_create(reduce, 1, &player.sum);
	if (is_tracked && begun_ranks++ == 0)
		track_links();
#else
	MPI_Barrier(MPI_COMM_WORLD);
#endif
	const double scale = scale_of(argv[1], rank);
	const double begun = now_of();
	for (uint64_t at = 0; (found = seen(window, at, sizeof(Step))) != NULL;) {
		Step step;
		memcpy(&step, found, sizeof step);
		const uint64_t whole = sizeof step + padded((uint64_t)(uint32_t)step.extras * sizeof(int32_t));
		if ((found = seen(window, at, whole)) == NULL) {
			fprintf(stderr, "probe: the calls of rank %d became shorter\n", rank);
			exit(2);
		}
		const int32_t *extras = (const int32_t *)(const void *)(found + sizeof step);
		compute(step.seconds * scale);
		const double entered = now_of();
		play(&player, &step, extras);
		if (times != NULL)
			add_times(times, entered - begun, now_of() - begun);
		computed += step.seconds * scale;
		at += whole;
	}
	printf("played %d %.9f %.9f\n", rank, now_of() - begun, computed);
	fflush(stdout);
	if (times != NULL) {
		flush_times(times);
		free(times->seconds);
		free(times);
	}
#ifdef PROBE_SIMULATED
	int ranks;
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (is_tracked && ++ended_ranks == ranks)
		write_links(argv[1]);
	wait_for_all(ranks);
#else
	MPI_Barrier(MPI_COMM_WORLD);
#endif
	end_window(window);
	free(player.requests);
	free(player.comms);
	MPI_Finalize();
	return 0;
}
