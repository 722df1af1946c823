// SPDX-License-Identifier: Apache-2.0
//
// Exchanges of two ranks by the size of messages: what a simulated network has to give back.
//
//   mpicc -O2 -o exchange exchange.c && mpirun -n 2 ./exchange
//
// prints "hosts A B"; for sizes from 1 byte to 4 MiB, two in each doubling, "size BYTES HALF BOTH MANY": seconds of half a round trip, of two messages that pass each other, and of one among many under way; for
// sums of some bytes of doubles "reduced BYTES SECONDS"; "eager BYTES": the largest message whose send returns before it
// is received; "overlap SHARE": of a large message's time, hidden behind computing.
//
// What counts is the mean of a batch, as in a program: the luckiest single message is up to a third faster. Of many
// batches the lower quartile is printed, since other load only takes time. Each size stands there up to three times,
// seconds apart, and the least counts.

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { LARGEST = 4 << 20, BATCHES = 48, PASSES = 3, LEAST_BATCHES = 4, MOST_TRIPS = 50, LEAST_TRIPS = 4, WINDOW = 16 };
enum { REDUCED = 1 << 18, OVERLAPPED = 1 << 20, ROUNDS = 20 };

// Seconds that a size may take, and seconds after which no pass begins: on a busy node each message may wait for a
// processor.
static const double OF_A_SIZE = 0.1, OF_PASSES = 15.0;

// Seconds in which a send that needs no receive ends, on a busy node too: the other rank only has to move on.
static const double PATIENCE = 0.2;

static int rank;
static char *out, *in;

static void round_trip(int size)
{
	if (rank == 0) {
		MPI_Send(out, size, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
		MPI_Recv(in, size, MPI_BYTE, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	} else {
		MPI_Recv(in, size, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		MPI_Send(out, size, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
	}
}

static void both_ways(int size)
{
	MPI_Sendrecv(out, size, MPI_BYTE, 1 - rank, 1, in, size, MPI_BYTE, 1 - rank, 1, MPI_COMM_WORLD,
		     MPI_STATUS_IGNORE);
}

// A window of messages, and the answer that all have come. All come to one place, which nobody reads: what more memory
// costs is the program's, not the network's.
static void window(int size)
{
	MPI_Request requests[WINDOW];
	MPI_Status ends[WINDOW];
	for (int n = 0; n < WINDOW; n++)
		if (rank == 0)
			MPI_Isend(out, size, MPI_BYTE, 1, 6, MPI_COMM_WORLD, &requests[n]);
		else
			MPI_Irecv(in, size, MPI_BYTE, 0, 6, MPI_COMM_WORLD, &requests[n]);
	MPI_Waitall(WINDOW, requests, ends);
	if (rank == 0)
		MPI_Recv(in, 1, MPI_BYTE, 1, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	else
		MPI_Send(out, 1, MPI_BYTE, 0, 7, MPI_COMM_WORLD);
}

static void reduce(int size)
{
	MPI_Reduce_local(out, in, size / (int)sizeof(double), MPI_DOUBLE, MPI_SUM);
}

static int ascending(const void *one, const void *other)
{
	const double a = *(const double *)one, b = *(const double *)other;
	return (a > b) - (a < b);
}

// What the first rank says, for both.
static int both_say(int first)
{
	MPI_Bcast(&first, 1, MPI_INT, 0, MPI_COMM_WORLD);
	return first;
}

// Seconds of one of many: the lower quartile of batches. Both ranks make as many.
static double seconds_of(void (*what)(int), int size)
{
	double found[BATCHES];
	const int fitting = LARGEST / size;
	const int trips = fitting > MOST_TRIPS ? MOST_TRIPS : fitting < LEAST_TRIPS ? LEAST_TRIPS : fitting;
	int batches = 0;
	const double begun = MPI_Wtime();
	do {
		// Not the first behind the broadcast, which the other rank may have left earlier.
		what(size);
		const double since = MPI_Wtime();
		for (int trip = 0; trip < trips; trip++)
			what(size);
		found[batches++] = (MPI_Wtime() - since) / trips;
	} while (batches < BATCHES && both_say(batches < LEAST_BATCHES || MPI_Wtime() - begun < OF_A_SIZE));
	qsort(found, (size_t)batches, sizeof *found, ascending);
	return found[batches / 4];
}

static void compute(double seconds)
{
	for (const double end = MPI_Wtime() + seconds; MPI_Wtime() < end;)
		continue;
}

// Whether a send of that size ends before it is received: the receiver waits until it is told to.
static int is_eager(int size)
{
	int found = 0;
	MPI_Request request;
	if (rank == 0) {
		MPI_Isend(out, size, MPI_BYTE, 1, 2, MPI_COMM_WORLD, &request);
		for (const double end = MPI_Wtime() + PATIENCE; !found && MPI_Wtime() < end;)
			MPI_Test(&request, &found, MPI_STATUS_IGNORE);
		MPI_Send(&found, 1, MPI_INT, 1, 5, MPI_COMM_WORLD);
		MPI_Wait(&request, MPI_STATUS_IGNORE);
	} else {
		MPI_Recv(&found, 1, MPI_INT, 0, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		MPI_Recv(in, size, MPI_BYTE, 0, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	}
	return found;
}

static double hidden(double work)
{
	MPI_Request requests[2];
	MPI_Status ends[2];
	MPI_Barrier(MPI_COMM_WORLD);
	const double since = MPI_Wtime();
	MPI_Irecv(in, OVERLAPPED, MPI_BYTE, 1 - rank, 3, MPI_COMM_WORLD, &requests[0]);
	MPI_Isend(out, OVERLAPPED, MPI_BYTE, 1 - rank, 3, MPI_COMM_WORLD, &requests[1]);
	compute(work);
	MPI_Waitall(2, requests, ends);
	return MPI_Wtime() - since;
}

// Share of a large exchange that goes on while both ranks compute as long.
static double overlap(void)
{
	double alone = hidden(0);
	for (int round = 0; round < ROUNDS; round++) {
		const double took = hidden(0);
		alone = took < alone ? took : alone;
	}
	double both = hidden(alone);
	for (int round = 0; round < ROUNDS; round++) {
		const double took = hidden(alone);
		both = took < both ? took : both;
	}
	const double share = (2 * alone - both) / alone;
	return share < 0 ? 0 : share > 1 ? 1 : share;
}

static void measure(int size)
{
	const double half = seconds_of(round_trip, size) / 2, both = seconds_of(both_ways, size);
	const double many = seconds_of(window, size) / WINDOW;
	if (rank == 0)
		printf("size %d %.9g %.9g %.9g\n", size, half, both, many);
}

static void measure_reduced(int size)
{
	const double took = seconds_of(reduce, size);
	if (rank == 0)
		printf("reduced %d %.9g\n", size, took);
}

static void print_hosts(void)
{
	char own[MPI_MAX_PROCESSOR_NAME] = "", other[MPI_MAX_PROCESSOR_NAME] = "";
	int length;
	MPI_Get_processor_name(own, &length);
	MPI_Sendrecv(own, sizeof own, MPI_CHAR, 1 - rank, 4, other, sizeof other, MPI_CHAR, 1 - rank, 4, MPI_COMM_WORLD,
		     MPI_STATUS_IGNORE);
	if (rank == 0)
		printf("hosts %s %s\n", own, other);
}

int main(int argc, char **argv)
{
	int ranks = 0, eager = 0;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	out = calloc(1, LARGEST);
	in = calloc(1, LARGEST);
	if (ranks != 2 || out == NULL || in == NULL) {
		fprintf(stderr, "exchange: needs two ranks\n");
		MPI_Abort(MPI_COMM_WORLD, 2);
		return 2;
	}
	print_hosts();
	const double begun = MPI_Wtime();
	for (int pass = 0; pass < PASSES && both_say(pass == 0 || MPI_Wtime() - begun < OF_PASSES); pass++) {
		for (int size = 1; size <= LARGEST; size *= 2) {
			measure(size);
			if (size > 1 && size < LARGEST)
				measure(size + size / 2);
		}
		for (int size = sizeof(double); size <= REDUCED; size *= 2)
			measure_reduced(size);
	}
	// Libraries keep some bytes of the limit for a header: a quarter of a doubling is near enough.
	for (int size = 1; size <= LARGEST && is_eager(size); size *= 2)
		for (int part = 0; part < 4 && size + size / 4 * part <= LARGEST; part++)
			if (is_eager(size + size / 4 * part))
				eager = size + size / 4 * part;
			else
				break;
	const double share = overlap();
	if (rank == 0)
		printf("eager %d\noverlap %.3f\n", eager, share);
	free(out);
	free(in);
	MPI_Finalize();
	return 0;
}
