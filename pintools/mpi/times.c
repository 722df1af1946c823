// SPDX-License-Identifier: Apache-2.0
//
// Seconds and bytes of MPI calls, and seconds of I/O, for each rank: preloaded, it stands before the MPI library
// (the profiling interface, MPI 4.0 chapter 15) and the C library's calls that read and write.
//
// PROBE_MPI_TIMES names a folder. Every rank writes the file rank-N.json there when it finalizes MPI. Times are those of
// PMPI_Wtime, so that a simulated MPI counts simulated seconds. A call inside another one is part of that one.
//
// A call is counted by the thread that makes it, in turn: programs of MPI_THREAD_MULTIPLE are not meant.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <mpi.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

typedef struct {
	const char *name;
	unsigned long calls;
	double seconds;
	double bytes;
} Call;

enum { MOST_CALLS = 64, PATH_BYTES = 4096 };

static Call calls[MOST_CALLS];
static unsigned used;
static int depth;
static int alive;
static double begun;
static double mpi_seconds, mpi_bytes, io_seconds, io_bytes;
static unsigned long io_calls;

static Call *call_of(const char *name)
{
	for (unsigned n = 0; n < used; n++)
		if (calls[n].name == name)
			return &calls[n];
	if (used == MOST_CALLS)
		return &calls[MOST_CALLS - 1];
	calls[used].name = name;
	return &calls[used++];
}

// Bytes of `count` elements; 0 where the type says nothing.
static double size_of(double count, MPI_Datatype type)
{
	int size = 0;
	if (type == MPI_DATATYPE_NULL || PMPI_Type_size(type, &size) != MPI_SUCCESS || size < 0)
		return 0;
	return count * size;
}

static double enter(void)
{
	return depth++ == 0 && alive ? PMPI_Wtime() : -1;
}

static void leave(double since, const char *name, double bytes)
{
	depth--;
	if (since < 0)
		return;
	const double took = PMPI_Wtime() - since;
	Call *call = call_of(name);
	call->calls++;
	call->seconds += took;
	call->bytes += bytes;
	mpi_seconds += took;
	mpi_bytes += bytes;
}

// A call of MPI with the bytes that this rank hands over.
#define WRAP(name, parameters, arguments, bytes)                                                                       \
	int MPI_##name parameters                                                                                      \
	{                                                                                                              \
		const double since = enter();                                                                          \
		const int result = PMPI_##name arguments;                                                              \
		leave(since, #name, since < 0 ? 0 : (bytes));                                                          \
		return result;                                                                                         \
	}

static int ranks_of(MPI_Comm comm)
{
	int size = 0;
	PMPI_Comm_size(comm, &size);
	return size;
}

static double sum_of(const int counts[], MPI_Comm comm)
{
	double sum = 0;
	for (int n = 0, size = ranks_of(comm); counts != NULL && n < size; n++)
		sum += counts[n];
	return sum;
}

WRAP(Send, (const void *b, int n, MPI_Datatype t, int d, int g, MPI_Comm c), (b, n, t, d, g, c), size_of(n, t))
WRAP(Ssend, (const void *b, int n, MPI_Datatype t, int d, int g, MPI_Comm c), (b, n, t, d, g, c), size_of(n, t))
WRAP(Bsend, (const void *b, int n, MPI_Datatype t, int d, int g, MPI_Comm c), (b, n, t, d, g, c), size_of(n, t))
WRAP(Rsend, (const void *b, int n, MPI_Datatype t, int d, int g, MPI_Comm c), (b, n, t, d, g, c), size_of(n, t))
WRAP(Isend, (const void *b, int n, MPI_Datatype t, int d, int g, MPI_Comm c, MPI_Request *r), (b, n, t, d, g, c, r),
     size_of(n, t))
WRAP(Issend, (const void *b, int n, MPI_Datatype t, int d, int g, MPI_Comm c, MPI_Request *r), (b, n, t, d, g, c, r),
     size_of(n, t))
WRAP(Recv, (void *b, int n, MPI_Datatype t, int s, int g, MPI_Comm c, MPI_Status *i), (b, n, t, s, g, c, i), 0)
WRAP(Irecv, (void *b, int n, MPI_Datatype t, int s, int g, MPI_Comm c, MPI_Request *r), (b, n, t, s, g, c, r), 0)
WRAP(Sendrecv,
     (const void *b, int n, MPI_Datatype t, int d, int g, void *rb, int rn, MPI_Datatype rt, int s, int rg, MPI_Comm c,
      MPI_Status *i),
     (b, n, t, d, g, rb, rn, rt, s, rg, c, i), size_of(n, t))
WRAP(Start, (MPI_Request * r), (r), 0)
WRAP(Startall, (int n, MPI_Request r[]), (n, r), 0)
WRAP(Wait, (MPI_Request * r, MPI_Status *i), (r, i), 0)
WRAP(Waitall, (int n, MPI_Request r[], MPI_Status i[]), (n, r, i), 0)
WRAP(Waitany, (int n, MPI_Request r[], int *x, MPI_Status *i), (n, r, x, i), 0)
WRAP(Waitsome, (int n, MPI_Request r[], int *m, int x[], MPI_Status i[]), (n, r, m, x, i), 0)
WRAP(Test, (MPI_Request * r, int *f, MPI_Status *i), (r, f, i), 0)
WRAP(Testall, (int n, MPI_Request r[], int *f, MPI_Status i[]), (n, r, f, i), 0)
WRAP(Probe, (int s, int g, MPI_Comm c, MPI_Status *i), (s, g, c, i), 0)
WRAP(Iprobe, (int s, int g, MPI_Comm c, int *f, MPI_Status *i), (s, g, c, f, i), 0)
WRAP(Barrier, (MPI_Comm c), (c), 0)
WRAP(Bcast, (void *b, int n, MPI_Datatype t, int o, MPI_Comm c), (b, n, t, o, c), size_of(n, t))
WRAP(Reduce, (const void *b, void *rb, int n, MPI_Datatype t, MPI_Op p, int o, MPI_Comm c), (b, rb, n, t, p, o, c),
     size_of(n, t))
WRAP(Allreduce, (const void *b, void *rb, int n, MPI_Datatype t, MPI_Op p, MPI_Comm c), (b, rb, n, t, p, c),
     size_of(n, t))
WRAP(Scan, (const void *b, void *rb, int n, MPI_Datatype t, MPI_Op p, MPI_Comm c), (b, rb, n, t, p, c), size_of(n, t))
WRAP(Reduce_scatter, (const void *b, void *rb, const int n[], MPI_Datatype t, MPI_Op p, MPI_Comm c),
     (b, rb, n, t, p, c), size_of(sum_of(n, c), t))
WRAP(Gather, (const void *b, int n, MPI_Datatype t, void *rb, int rn, MPI_Datatype rt, int o, MPI_Comm c),
     (b, n, t, rb, rn, rt, o, c), b == MPI_IN_PLACE ? 0 : size_of(n, t))
WRAP(Gatherv,
     (const void *b, int n, MPI_Datatype t, void *rb, const int rn[], const int x[], MPI_Datatype rt, int o,
      MPI_Comm c),
     (b, n, t, rb, rn, x, rt, o, c), b == MPI_IN_PLACE ? 0 : size_of(n, t))
WRAP(Scatter, (const void *b, int n, MPI_Datatype t, void *rb, int rn, MPI_Datatype rt, int o, MPI_Comm c),
     (b, n, t, rb, rn, rt, o, c), rb == MPI_IN_PLACE ? 0 : size_of(rn, rt))
WRAP(Allgather, (const void *b, int n, MPI_Datatype t, void *rb, int rn, MPI_Datatype rt, MPI_Comm c),
     (b, n, t, rb, rn, rt, c), size_of(rn, rt))
WRAP(Allgatherv,
     (const void *b, int n, MPI_Datatype t, void *rb, const int rn[], const int x[], MPI_Datatype rt, MPI_Comm c),
     (b, n, t, rb, rn, x, rt, c), b == MPI_IN_PLACE ? 0 : size_of(n, t))
WRAP(Alltoall, (const void *b, int n, MPI_Datatype t, void *rb, int rn, MPI_Datatype rt, MPI_Comm c),
     (b, n, t, rb, rn, rt, c), size_of((double)rn *ranks_of(c), rt))
WRAP(Alltoallv,
     (const void *b, const int n[], const int x[], MPI_Datatype t, void *rb, const int rn[], const int rx[],
      MPI_Datatype rt, MPI_Comm c),
     (b, n, x, t, rb, rn, rx, rt, c), b == MPI_IN_PLACE ? 0 : size_of(sum_of(n, c), t))
WRAP(Comm_split, (MPI_Comm c, int l, int k, MPI_Comm *o), (c, l, k, o), 0)
WRAP(Comm_dup, (MPI_Comm c, MPI_Comm *o), (c, o), 0)

// -- I/O: the C library's calls, as a program makes them

#define IO(type, name, parameters, arguments, bytes)                                                                   \
	type name parameters                                                                                           \
	{                                                                                                              \
		static type(*next) parameters;                                                                         \
		if (next == NULL)                                                                                      \
			*(void **)(&next) = dlsym(RTLD_NEXT, #name);                                                   \
		if (!alive || depth > 0)                                                                               \
			return next arguments;                                                                         \
		depth++;                                                                                               \
		const double since = PMPI_Wtime();                                                                     \
		const type result = next arguments;                                                                    \
		io_seconds += PMPI_Wtime() - since;                                                                    \
		io_calls++;                                                                                            \
		io_bytes += (bytes);                                                                                   \
		depth--;                                                                                               \
		return result;                                                                                         \
	}

#ifndef PROBE_NO_IO
IO(ssize_t, read, (int f, void *b, size_t n), (f, b, n), result > 0 ? (double)result : 0)
IO(ssize_t, write, (int f, const void *b, size_t n), (f, b, n), result > 0 ? (double)result : 0)
IO(ssize_t, pread, (int f, void *b, size_t n, off_t o), (f, b, n, o), result > 0 ? (double)result : 0)
IO(ssize_t, pwrite, (int f, const void *b, size_t n, off_t o), (f, b, n, o), result > 0 ? (double)result : 0)
IO(int, fsync, (int f), (f), 0)
IO(int, fdatasync, (int f), (f), 0)
IO(size_t, fread, (void *b, size_t s, size_t n, FILE *f), (b, s, n, f), (double)s *(double)result)
IO(size_t, fwrite, (const void *b, size_t s, size_t n, FILE *f), (b, s, n, f), (double)s *(double)result)
IO(int, fflush, (FILE * f), (f), 0)
IO(int, fclose, (FILE * f), (f), 0)
#endif

// -- beginning and end

static void begin(void)
{
	begun = PMPI_Wtime();
	alive = 1;
}

int MPI_Init(int *argc, char ***argv)
{
	const int result = PMPI_Init(argc, argv);
	begin();
	return result;
}

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
	const int result = PMPI_Init_thread(argc, argv, required, provided);
	begin();
	return result;
}

static void report(FILE *out, int rank, int size, double seconds)
{
	fprintf(out, "{\"rank\": %d, \"ranks\": %d, \"seconds\": %.9f, \"mpi\": %.9f, \"mpi_bytes\": %.0f, ", rank,
		size, seconds, mpi_seconds, mpi_bytes);
	fprintf(out, "\"io\": %.9f, \"io_bytes\": %.0f, \"io_calls\": %lu, \"calls\": [", io_seconds, io_bytes,
		io_calls);
	for (unsigned n = 0; n < used; n++)
		fprintf(out, "%s{\"name\": \"%s\", \"calls\": %lu, \"seconds\": %.9f, \"bytes\": %.0f}", n ? ", " : "",
			calls[n].name, calls[n].calls, calls[n].seconds, calls[n].bytes);
	fprintf(out, "]}\n");
}

int MPI_Finalize(void)
{
	const double seconds = PMPI_Wtime() - begun;
	const char *folder = getenv("PROBE_MPI_TIMES");
	int rank = 0, size = 0;
	alive = 0;
	PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
	PMPI_Comm_size(MPI_COMM_WORLD, &size);
	if (folder != NULL) {
		char path[PATH_BYTES];
		const int length = snprintf(path, sizeof path, "%s/rank-%d.json", folder, rank);
		FILE *out = length > 0 && length < PATH_BYTES ? fopen(path, "w") : NULL;
		if (out != NULL) {
			report(out, rank, size, seconds);
			fclose(out);
		}
	}
	return PMPI_Finalize();
}
