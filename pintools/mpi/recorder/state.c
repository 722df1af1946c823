// SPDX-License-Identifier: Apache-2.0
//
// Recorder of MPI: preloaded, it stands before the MPI library and writes down what every call returned.
//
// PROBE_MPI_RECORD names a folder. Rank N writes calls.N there (each call with its computing time, for the simulation),
// inbox.N.PPP (all that calls returned, for the rank alone: pintools/mpi/replayer) and rank.N (what it ran).
// PROBE_MPI_RANKS: the ranks that write an inbox, as "0,3,"; all without it. PROBE_MPI_MOST: bytes of an inbox at most.
// PROBE_MPI_TOKEN: what the file `token` of the folder holds. Ranks that do not find it there keep what they write in a
// file in PROBE_MPI_PLACE, and send it to one that does (gathering.c).
//
// The files of this folder are one source (RECORDER in probe/mpi/library/generate.py has their order). recording.h, the
// functions' numbers F_* and their names `function_names` stand before them. Wrappers made from a table
// (probe/mpi/library/calls.py) stand behind them; the files have the calls that no table describes.
// Nothing of MPI is told apart by its handle's value: the same source serves every library that has MPI 3.1.

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <mpi.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PATH_SIZE = 4096, REFUSED_STATUS = 71, BUCKETS = 1024, MOST_SPAN = 1 << 30, MOST_PACKED = 1 << 28 };

static int active, depth, contents, world_rank, world_size, is_apart;
static const char *folder;
static int recording = -1; // the folder, where this process sees it
static const void *fortran_site, *call_site;
static uint64_t entered_wall, returned_wall, entered_cpu, left_cpu, burst;
static uint64_t most_bytes = UINT64_MAX, written_bytes;

static uint64_t clock_of(clockid_t which)
{
	struct timespec now;
	clock_gettime(which, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

// CPU time of the first thread, at this time of the wall's clock. To ask for it is a system call, which takes longer than
// many a call of MPI. Soon after one it has had a processor all the time, or waited for less than MOST_UNSEEN.
static uint64_t own_time(uint64_t wall)
{
	enum { MOST_UNSEEN = 20000 };
	static uint64_t asked_wall, asked_cpu, told;
	if (told == 0 || wall - asked_wall >= MOST_UNSEEN) {
		asked_cpu = clock_of(CLOCK_THREAD_CPUTIME_ID);
		asked_wall = wall;
	}
	const uint64_t now = asked_cpu + (wall - asked_wall);
	return told = now > told ? now : told;
}
