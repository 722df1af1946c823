// SPDX-License-Identifier: Apache-2.0
//
// End of a recording that could not be replayed.

// A new file of the recording; nobody's file in its place is overwritten, and no link is followed.
static int new_file(const char *name)
{
	return openat(recording, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
}

static void write_text(const char *name, const char *text)
{
	char own[100];
	if (recording < 0)
		return;
	snprintf(own, sizeof own, "%s.%d", name, world_rank);
	const int file = new_file(own);
	if (file < 0 ? errno != EEXIST : write(file, text, strlen(text)) < 0)
		fprintf(stderr, "probe: %s/%s cannot be written\n", folder, own);
	if (file >= 0)
		close(file);
}

// For the launcher to print, before the rank aborts. MPICH's drops what another node's ranks said right before it.
static void say_last(const char *reason)
{
	const struct timespec forwarded = {0, 200000000};
	fprintf(stderr, "probe: rank %d: %s\n", world_rank, reason);
	fflush(stderr);
	if (is_apart)
		nanosleep(&forwarded, NULL);
}

// Ends the program: what was recorded could not be replayed. The reason is in the file refused.N.
__attribute__((noreturn)) static void refuse(const char *reason)
{
	int running = 0;
	write_text("refused", reason);
	say_last(reason);
	PMPI_Initialized(&running);
	if (running)
		PMPI_Abort(MPI_COMM_WORLD, REFUSED_STATUS);
	_exit(REFUSED_STATUS);
}

// A call that the table does not have; its wrapper jumps here (probe/mpi/library/generate.py).
__attribute__((noreturn, used)) void probe_mpi_unknown(const char *name)
{
	char reason[200];
	snprintf(reason, sizeof reason, "this program calls %s, which is not recorded", name);
	refuse(reason);
}

static void *grown(void *old, size_t bytes)
{
	void *room = realloc(old, bytes);
	if (room == NULL)
		refuse("no memory for the recording");
	return room;
}
