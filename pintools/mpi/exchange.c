// SPDX-License-Identifier: Apache-2.0
//
// Exchanges of two ranks by the size of messages: what a simulated network has to give back.
//
//   mpicc -O2 -o exchange exchange.c && mpirun -n 2 ./exchange
//
// prints "hosts A B"; for sizes from 1 byte to 4 MiB, two in each doubling, "size BYTES HALF BOTH": seconds of half a
// round trip, and of two messages that pass each other; "eager BYTES": the largest message whose send returns before it is
// received; "overlap SHARE": of a large message's time, hidden behind computing. The least of many rounds is printed:
// other load only takes time. pintools/mpi/bandwidth.c measures many messages under way at once.

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { LARGEST = 4 << 20, ROUNDS = 400, LEAST_ROUNDS = 20, SMALL = 1 << 14, OVERLAPPED = 1 << 20 };

// Seconds in which a send that needs no receive ends, on a busy node too: the other rank only has to move on.
static const double PATIENCE = 0.2;

static int rank;
static char *out, *in;

static double round_trip(int size)
{
	const double since = MPI_Wtime();
	if (rank == 0) {
		MPI_Send(out, size, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
		MPI_Recv(in, size, MPI_BYTE, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	} else {
		MPI_Recv(in, size, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		MPI_Send(out, size, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
	}
	return MPI_Wtime() - since;
}

static double both_ways(int size)
{
	const double since = MPI_Wtime();
	MPI_Sendrecv(out, size, MPI_BYTE, 1 - rank, 1, in, size, MPI_BYTE, 1 - rank, 1, MPI_COMM_WORLD,
		     MPI_STATUS_IGNORE);
	return MPI_Wtime() - since;
}

static double least(double (*seconds)(int), int size)
{
	double best = seconds(size);
	for (int round = size > SMALL ? LEAST_ROUNDS : ROUNDS; round > 0; round--) {
		const double took = seconds(size);
		best = took < best ? took : best;
	}
	return best;
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
	MPI_Barrier(MPI_COMM_WORLD);
	const double since = MPI_Wtime();
	MPI_Irecv(in, OVERLAPPED, MPI_BYTE, 1 - rank, 3, MPI_COMM_WORLD, &requests[0]);
	MPI_Isend(out, OVERLAPPED, MPI_BYTE, 1 - rank, 3, MPI_COMM_WORLD, &requests[1]);
	compute(work);
	MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
	return MPI_Wtime() - since;
}

// Share of a large exchange that goes on while both ranks compute as long.
static double overlap(void)
{
	double alone = hidden(0);
	for (int round = 0; round < LEAST_ROUNDS; round++) {
		const double took = hidden(0);
		alone = took < alone ? took : alone;
	}
	double both = hidden(alone);
	for (int round = 0; round < LEAST_ROUNDS; round++) {
		const double took = hidden(alone);
		both = took < both ? took : both;
	}
	const double share = (2 * alone - both) / alone;
	return share < 0 ? 0 : share > 1 ? 1 : share;
}

static void measure(int size)
{
	const double half = least(round_trip, size) / 2, both = least(both_ways, size);
	if (rank == 0)
		printf("size %d %.9g %.9g\n", size, half, both);
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
	for (int size = 1; size <= LARGEST; size *= 2) {
		measure(size);
		if (size > 1 && size < LARGEST)
			measure(size + size / 2);
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
