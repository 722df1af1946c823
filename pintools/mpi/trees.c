// SPDX-License-Identifier: Apache-2.0
//
// Broadcasts over a tree of radix four, as Open MPI 4.1 makes them of short messages among many ranks. SimGrid's own
// does the same. But in each communicator's first one SimGrid sends numbers of nodes around two rings of all ranks: two
// messages for each pair of ranks, with their simulated time. Open MPI sends none of them.

#include <limits.h>
#include <mpi.h>

// A tag that programs do not use: the largest that Open MPI allows, more than MPICH does.
enum { RADIX = 4, TREE_TAG = INT_MAX };

// Whether Open MPI 4.1 broadcasts so many bytes to so many ranks over that tree. The numbers are those of its decision
// function, as SimGrid 3.32 to 4.1 have them.
static int is_over_tree(int size, double bytes)
{
#ifdef PROBE_SIMULATED
	if (size < 4)
		return bytes >= 512 && bytes < 1024;
	if (size < 8)
		return 0;
	if (size < 16)
		return bytes < 8 || (bytes >= 64 && bytes < 4096);
	if (size < 32)
		return bytes < 4096;
	if (size < 64)
		return bytes >= 2048;
	if (size < 128)
		return 1;
	if (size < 256)
		return bytes >= 65536;
	if (size < 1024)
		return bytes < 16384 || bytes >= 32768;
	if (size < 4096)
		return bytes < (size < 2048 ? 524288 : 262144);
	return bytes < 8192 || (bytes >= 16384 && bytes < 262144);
#else
	(void)size;
	(void)bytes;
	return 0;
#endif
}

// Whether Open MPI 4.1 sums so many bytes on rank 0 and broadcasts the sum, where the operation commutes.
static int is_sum_sent(int size, double bytes)
{
	if (size < 128)
		return 0;
	if (size < 256)
		return bytes < 131072;
	return bytes < (size < 512 ? 4096 : 2048);
}

// Children far away first, and all of one distance before the next, as SimGrid has it.
static void over_tree(void *data, int count, MPI_Datatype type, int root, MPI_Comm comm)
{
	MPI_Request sent[RADIX - 1];
	int size, me, mask = 1;
	MPI_Comm_size(comm, &size);
	MPI_Comm_rank(comm, &me);
	const int place = (me - root + size) % size;
	while (mask < size && place % (RADIX * mask) == 0)
		mask *= RADIX;
	if (mask < size) {
		const int above = place - place % (RADIX * mask);
		MPI_Recv(data, count, type, (above + root) % size, TREE_TAG, comm, MPI_STATUS_IGNORE);
	}
	for (mask /= RADIX; mask > 0; mask /= RADIX) {
		int begun = 0;
		for (int below = place + mask; below < place + RADIX * mask && below < size; below += mask)
			MPI_Isend(data, count, type, (below + root) % size, TREE_TAG, comm, &sent[begun++]);
		MPI_Waitall(begun, sent, MPI_STATUSES_IGNORE);
	}
}

static void broadcast(void *data, int count, MPI_Datatype type, double bytes, int root, MPI_Comm comm)
{
	int size;
	MPI_Comm_size(comm, &size);
	if (is_over_tree(size, bytes))
		over_tree(data, count, type, root, comm);
	else
		MPI_Bcast(data, count, type, root, comm);
}

static void sum_for_all(const void *out, void *in, int count, MPI_Datatype type, double bytes, MPI_Op op, MPI_Comm comm)
{
	int size;
	MPI_Comm_size(comm, &size);
	if (is_sum_sent(size, bytes) && is_over_tree(size, bytes)) {
		MPI_Reduce(out, in, count, type, op, 0, comm);
		over_tree(in, count, type, 0, comm);
	} else
		MPI_Allreduce(out, in, count, type, op, comm);
}
