// SPDX-License-Identifier: Apache-2.0
//
// What a played rank takes by itself: computing, and under SimGrid what SimGrid has no time for.

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#ifdef PROBE_SIMULATED
#include <simgrid/engine.h>
#include <simgrid/host.h>
#include <smpi/smpi.h>
#else
#include <time.h>
#endif

enum { PATH_SIZE = 4096 };

static void compute(double seconds)
{
	if (seconds <= 0)
		return;
#ifdef PROBE_SIMULATED
	smpi_execute_flops(seconds * sg_host_get_speed(sg_host_self()));
#else
	struct timespec now;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	const double end = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec + seconds;
	while ((double)now.tv_sec + 1e-9 * (double)now.tv_nsec < end)
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
#endif
}

#ifdef PROBE_SIMULATED
static char *contents(const char *path, size_t *bytes)
{
	FILE *file = fopen(path, "rb");
	if (file == NULL || fseek(file, 0, SEEK_END) != 0) {
		fprintf(stderr, "probe: %s cannot be read\n", path);
		exit(2);
	}
	*bytes = (size_t)ftell(file);
	rewind(file);
	char *found = malloc(*bytes + 1);
	if (found == NULL || fread(found, 1, *bytes, file) != *bytes) {
		fprintf(stderr, "probe: %s cannot be read\n", path);
		exit(2);
	}
	fclose(file);
	return found;
}

// Seconds that a rank takes for something of `from` bytes and more: `fixed`, and `each` for a byte.
typedef struct {
	double from, fixed, each;
} Line;

// What SimGrid has no time for, of all ranks: receives that begin, and operations of reductions.
static Line *begun_lines, *reduced_lines;
static size_t begun_count, reduced_count;
static double eager_bytes;

static double cost_of(const Line *lines, size_t count, double bytes)
{
	const Line *found = NULL;
	for (size_t n = 0; n < count && lines[n].from <= bytes; n++)
		found = &lines[n];
	return found == NULL ? 0 : found->fixed + found->each * bytes;
}

// The operation of all reductions: SimGrid's algorithms call it where the library's would compute.
static void reduce(void *in, void *out, int *count, MPI_Datatype *type)
{
	int width;
	(void)in;
	(void)out;
	MPI_Type_size(*type, &width);
	compute(cost_of(reduced_lines, reduced_count, (double)*count * width));
}
#endif

// Whether the message is on its way before its receive begins.
static int is_eager(double bytes)
{
#ifdef PROBE_SIMULATED
	return bytes < eager_bytes;
#else
	return bytes >= 0;
#endif
}

// The receives that a call begins, which the rank makes one after the other.
static void begin_receives(double bytes, int count)
{
#ifdef PROBE_SIMULATED
	if (begun_count > 0)
		compute(count * cost_of(begun_lines, begun_count, bytes));
#else
	(void)bytes;
	(void)count;
#endif
}

// Receives that a rank begins behind each other in a collective call: of trees or doublings, but for all-to-all, where
// each rank receives from all others, and SimGrid's scans, where it does from all before it.
static int receives_of(int32_t function, int size, int me, int root, double bytes)
{
	const int is_root = me == root;
	int steps = 0;
	while (size >> steps > 1)
		steps++;
	switch (function) {
	case F_Bcast:
	case F_Ibcast:
	case F_Scatter:
	case F_Iscatter:
	case F_Scatterv:
	case F_Iscatterv:
		return !is_root && is_eager(bytes);
	case F_Reduce:
	case F_Ireduce:
	case F_Gather:
	case F_Igather:
	case F_Gatherv:
	case F_Igatherv:
		return is_root && is_eager(bytes) ? steps : 0;
	case F_Alltoall:
	case F_Ialltoall:
	case F_Alltoallv:
	case F_Ialltoallv:
	case F_Alltoallw:
	case F_Ialltoallw:
		return size - 1;
	case F_Scan:
	case F_Exscan:
	case F_Iscan:
	case F_Iexscan:
		return me;
	default:
		return steps;
	}
}

#ifdef PROBE_SIMULATED
// `costs`, if it is there: bytes of the least message that is not eager, two counts, and so many lines, all numbers
// doubles (probe/mpi/platforms.py).
static void read_costs(const char *folder)
{
	char path[PATH_SIZE];
	size_t bytes;
	snprintf(path, sizeof path, "%s/costs", folder);
	FILE *file = fopen(path, "rb");
	if (file == NULL)
		return;
	fclose(file);
	double *found = (double *)(void *)contents(path, &bytes);
	eager_bytes = found[0];
	begun_count = (size_t)found[1];
	reduced_count = (size_t)found[2];
	begun_lines = (Line *)(void *)(found + 3);
	reduced_lines = begun_lines + begun_count;
}
#endif
