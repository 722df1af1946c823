// SPDX-License-Identifier: Apache-2.0
//
// Player of recorded ranks: makes their calls of MPI again, with computing of a given length between them.
//
// Compiled with SimGrid's smpicc it runs on simulated networks, with an MPI's own compiler on a real one. Arguments: a
// folder with the files play.N (probe/mpi/play.py), bytes of the largest message, and what shall be written there:
// `times`, two doubles a call in times.N, seconds at which it was entered and left; or under SimGrid `links`, in one
// file a line for each link. All ranks are threads of one process under SimGrid: variables outside of functions would be
// everybody's. costs.c, steps.c, trees.c and collectives.c stand before this.

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
	case F_Comm_dup_with_info:
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
	free(player.amounts);
	free(player.comms);
	MPI_Finalize();
	return 0;
}
