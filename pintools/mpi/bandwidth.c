// SPDX-License-Identifier: Apache-2.0
//
// Bandwidth of an MPI network by the size of messages: a window of messages under way at once, between two ranks.
//
//   mpicc -O2 -o bandwidth bandwidth.c && mpirun -n 2 ./bandwidth > network.txt
//
// prints lines "BYTES MB/S" (10^6 bytes a second), as osu_bw does, for sizes from 1 byte to 4 MiB, two in each doubling.
// The two ranks belong on two nodes. `probe scale predict --network network.txt` reads the lines.

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { WINDOW = 32, LARGEST = 4 << 20, ROUNDS = 5 };

static MPI_Request requests[WINDOW];

// Seconds for a window of messages of rank 0 to rank 1, and the answer that all have come.
static double window_seconds(int rank, char *bytes, int size)
{
	const double since = MPI_Wtime();
	for (int n = 0; n < WINDOW; n++)
		if (rank == 0)
			MPI_Isend(bytes, size, MPI_BYTE, 1, n, MPI_COMM_WORLD, &requests[n]);
		else
			MPI_Irecv(bytes + (size_t)n * (size_t)size, size, MPI_BYTE, 0, n, MPI_COMM_WORLD, &requests[n]);
	MPI_Waitall(WINDOW, requests, MPI_STATUSES_IGNORE);
	if (rank == 0)
		MPI_Recv(bytes, 1, MPI_BYTE, 1, WINDOW, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	else
		MPI_Send(bytes, 1, MPI_BYTE, 0, WINDOW, MPI_COMM_WORLD);
	return MPI_Wtime() - since;
}

// Prints the best of some rounds: other load only takes time.
static void measure(int rank, char *bytes, int size)
{
	double best = window_seconds(rank, bytes, size);
	for (int round = 1; round < ROUNDS; round++) {
		const double took = window_seconds(rank, bytes, size);
		best = took < best ? took : best;
	}
	if (rank == 0)
		printf("%d %.6g\n", size, 1e-6 * WINDOW * size / best);
}

int main(int argc, char **argv)
{
	int rank = 0, ranks = 0;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	char *bytes = calloc(WINDOW, LARGEST);
	if (ranks != 2 || bytes == NULL) {
		fprintf(stderr, "bandwidth: needs two ranks, and memory for %d messages\n", WINDOW);
		MPI_Abort(MPI_COMM_WORLD, 2);
		return 2;
	}
	for (int size = 1; size <= LARGEST; size *= 2) {
		measure(rank, bytes, size);
		if (size > 1 && size < LARGEST)
			measure(rank, bytes, size + size / 2);
	}
	free(bytes);
	MPI_Finalize();
	return 0;
}
