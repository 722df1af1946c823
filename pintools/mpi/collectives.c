// SPDX-License-Identifier: Apache-2.0
//
// Collective calls that the player makes, and the requests that are open.

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#ifdef PROBE_SIMULATED
#include <smpi/smpi.h>
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
	int **amounts; // of collectives that are open, by their requests; NULL for others
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
		player->amounts = needed(realloc(player->amounts, room * sizeof *player->amounts),
					 room * sizeof *player->amounts);
		for (uint32_t n = player->request_room; n < room; n++) {
			player->requests[n] = MPI_REQUEST_NULL;
			player->amounts[n] = NULL;
		}
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
	for (int n = 0; n < count; n++) {
		free(player->amounts[requests[n]]);
		player->amounts[requests[n]] = NULL;
	}
	free(open);
}

// Counts in bytes of a collective whose ranks give different amounts, and behind them the places. They stay while the
// call is open: `extras` are gone with the next step.
static int *amounts_of(const int32_t *extras, int rows, int size)
{
	const size_t numbers = (size_t)rows * (size_t)size, bytes = 2 * numbers * sizeof(int);
	int *counts = needed(malloc(bytes), bytes), *places = counts + numbers;
	for (size_t n = 0; n < numbers; n++) {
		counts[n] = extras[n];
		places[n] = n % (size_t)size == 0 ? 0 : places[n - 1] + counts[n - 1];
	}
	return counts;
}

static void collective(Player *player, const Step *step, const int32_t *extras)
{
	const MPI_Comm comm = player->comms[step->comm];
	const int width = step->element > 0 ? step->element : 1, wide = width == 8 || width == 4 || width == 1;
	const int count = wide ? (int)step->count : (int)(step->count * width);
	const MPI_Datatype sum = wide ? type_of(player, width) : MPI_BYTE, type = type_of(player, width);
	const MPI_Op op = player->sum != MPI_OP_NULL ? player->sum : sum == MPI_BYTE ? MPI_BAND : MPI_SUM;
	const MPI_Op in_bytes = player->sum != MPI_OP_NULL ? player->sum : MPI_BAND;
	const int some = (int)step->count, all = (int)(step->count * width);
	void *out = player->out, *in = player->in;
	int size, me;
	MPI_Request *request = request_of(player, step->request);
	MPI_Comm_size(comm, &size);
	MPI_Comm_rank(comm, &me);
	// A collective of one rank costs nothing; SimGrid 3.32 aborts in some ("Actor pid=-1 is gone").
	if (size == 1)
		return;
	const double own = (double)step->count * width;
	double bytes = own;
	// Only the root of some knows them.
	const int rows = step->extras / size;
	int *counts = NULL, *places = NULL, *got = NULL, *more = NULL;
	if (rows > 0) {
		counts = amounts_of(extras, rows, size);
		places = counts + rows * size;
	}
	if (rows == 2) {
		got = counts + size;
		more = places + size;
		bytes = ((double)more[size - 1] + got[size - 1]) / size;
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
	case F_Iscan:
		MPI_Iscan(out, in, count, sum, op, comm, request);
		break;
	case F_Iexscan:
		MPI_Iexscan(out, in, count, sum, op, comm, request);
		break;
	case F_Exscan:
		MPI_Exscan(out, in, count, sum, op, comm);
		break;
	case F_Reduce_scatter:
		MPI_Reduce_scatter(out, in, counts, MPI_BYTE, in_bytes, comm);
		break;
	case F_Ireduce_scatter:
		MPI_Ireduce_scatter(out, in, counts, MPI_BYTE, in_bytes, comm, request);
		break;
	case F_Reduce_scatter_block:
		MPI_Reduce_scatter_block(out, in, count, sum, op, comm);
		break;
	case F_Ireduce_scatter_block:
		MPI_Ireduce_scatter_block(out, in, count, sum, op, comm, request);
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
		MPI_Gatherv(out, all, MPI_BYTE, in, counts, places, MPI_BYTE, step->other, comm);
		break;
	case F_Igatherv:
		MPI_Igatherv(out, all, MPI_BYTE, in, counts, places, MPI_BYTE, step->other, comm, request);
		break;
	case F_Scatterv:
		MPI_Scatterv(out, counts, places, MPI_BYTE, in, all, MPI_BYTE, step->other, comm);
		break;
	case F_Iscatterv:
		MPI_Iscatterv(out, counts, places, MPI_BYTE, in, all, MPI_BYTE, step->other, comm, request);
		break;
	case F_Allgather:
		MPI_Allgather(out, some, type, in, some, type, comm);
		break;
	case F_Iallgather:
		MPI_Iallgather(out, some, type, in, some, type, comm, request);
		break;
	case F_Allgatherv:
		MPI_Allgatherv(out, counts[me], MPI_BYTE, in, counts, places, MPI_BYTE, comm);
		break;
	case F_Iallgatherv:
		MPI_Iallgatherv(out, counts[me], MPI_BYTE, in, counts, places, MPI_BYTE, comm, request);
		break;
	case F_Alltoall:
		MPI_Alltoall(out, some, type, in, some, type, comm);
		break;
	case F_Ialltoall:
		MPI_Ialltoall(out, some, type, in, some, type, comm, request);
		break;
	case F_Alltoallv:
	case F_Alltoallw:
		MPI_Alltoallv(out, counts, places, MPI_BYTE, in, got, more, MPI_BYTE, comm);
		break;
	case F_Ialltoallv:
	case F_Ialltoallw:
		MPI_Ialltoallv(out, counts, places, MPI_BYTE, in, got, more, MPI_BYTE, comm, request);
		break;
	default:
		fprintf(stderr, "probe: %s cannot be played\n", function_names[step->function]);
		exit(2);
	}
	if (step->request > 0)
		player->amounts[step->request] = counts;
	else
		free(counts);
}
