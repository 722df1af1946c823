// SPDX-License-Identifier: Apache-2.0
//
// Replayer of MPI: it stands in for the MPI library, and answers every call of one rank from its recording.
//
// PROBE_MPI_INBOX is the beginning of the names of the inbox's parts (pintools/mpi/recorder). The rank alone is an
// ordinary process: one thread, no sockets, a part of the recording mapped at a time. PROBE_MPI_CHECK=1: what it sends is
// compared with what was sent. PROBE_MPI_SUMMARY: a file for the numbers of calls, and of messages and bytes that differ.
//
// The files of this folder are one source (REPLAYER in probe/mpi/library/generate.py has their order). The functions'
// numbers F_*, their names, and recording.h stand before them, most calls behind them.

#include <fcntl.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_SIZE = 4096, LEFT_STATUS = 70, FIRST_LAYOUTS = 16 };

static char *part;
static size_t part_bytes, part_at;
static int part_number = -1;
static const char *at, *end;
static uint64_t repeats;
static const RecordHeader *current;
static unsigned long calls_made, messages_sent, messages_differ, first_differing, bytes_sent, bytes_differ;
static int is_checking, is_begun, is_over;

// What the library gave the program at its beginning: the level of threads, and Fortran's numbers of its handles.
enum {
	LEVEL,
	NULL_COMM,
	NULL_REQUEST,
	NULL_TYPE,
	NULL_GROUP,
	NULL_OP,
	NULL_INFO,
	NULL_ERRHANDLER,
	NULL_MESSAGE,
	WORLD,
	SELF,
	FIRST_COUNT
};
static int64_t first[FIRST_COUNT];
