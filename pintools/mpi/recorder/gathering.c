// SPDX-License-Identifier: Apache-2.0
//
// Ranks on nodes that do not see the recording's folder: when all have finished, they send what they wrote to one that
// does, by messages of MPI on a communicator that the program does not have.

static MPI_Comm quiet;
static int writer, *seeing;

// The library was sent for this process alone: its file goes, and processes that this one starts do not look for it.
__attribute__((constructor)) static void hide_library(void)
{
	const char *path = getenv("PROBE_MPI_LIBRARY"), *others = getenv("PROBE_MPI_PRELOAD");
	char place[PATH_SIZE];
	if (path == NULL)
		return;
	unlink(path);
	snprintf(place, sizeof place, "%s", path);
	*strrchr(place, '/') = 0;
	rmdir(place);
	unsetenv("PROBE_MPI_LIBRARY");
	if (others != NULL && *others != 0)
		setenv("LD_PRELOAD", others, 1);
	else
		unsetenv("LD_PRELOAD");
}

// Whether this user alone can have put there what an open file or folder holds.
static int is_own(int file, mode_t kind)
{
	struct stat found;
	return fstat(file, &found) == 0 && (found.st_mode & S_IFMT) == kind && found.st_uid == geteuid() &&
	       (found.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

// Whether the folder of this name is the recording's. Everybody on a node can read path and token in the command line
// of its shell, and make such a folder there.
static int is_recordings(const char *token)
{
	char found[100] = {0};
	if (recording < 0 || !is_own(recording, S_IFDIR))
		return 0;
	const int file = openat(recording, "token", O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (file < 0)
		return 0;
	const ssize_t got = is_own(file, S_IFREG) ? read(file, found, sizeof found - 1) : -1;
	close(file);
	return got > 0 && strcmp(found, token) == 0;
}

__attribute__((noreturn)) static void refuse_folder(void)
{
	char reason[200];
	snprintf(reason, sizeof reason,
		 "its folder cannot be written (%m): all nodes must share it (or record with --gather)");
	refuse(reason);
}

static uint64_t patience(void)
{
	const char *seconds = getenv("PROBE_MPI_PATIENCE");
	return strtoull(seconds != NULL ? seconds : "60", NULL, 10) * 1000000000u;
}

// Not blocking: a rank without the recorder never takes part in it.
static void make_quiet(void)
{
	const uint64_t begun = clock_of(CLOCK_MONOTONIC);
	MPI_Request request;
	int done = 0;
	PMPI_Comm_idup(MPI_COMM_WORLD, &quiet, &request);
	while (PMPI_Test(&request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done) {
		if (clock_of(CLOCK_MONOTONIC) - begun > patience())
			refuse("another rank does not run under the recorder: its program is no word of the command, "
			       "or its node's TMPDIR forbids programs");
		usleep(1000);
	}
}

static void meet(void)
{
	const char *token = getenv("PROBE_MPI_TOKEN");
	recording = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (token == NULL && recording < 0)
		refuse_folder();
	if (token == NULL)
		return;
	const int own = is_recordings(token);
	is_apart = !own;
	if (is_apart && recording >= 0) {
		close(recording);
		recording = -1;
	}
	make_quiet();
	seeing = grown(NULL, (size_t)world_size * sizeof *seeing);
	PMPI_Allgather(&own, 1, MPI_INT, seeing, 1, MPI_INT, quiet);
	while (writer < world_size && !seeing[writer])
		writer++;
	if (writer == world_size)
		refuse("no rank runs on a node that has the recording's folder, as its owner's alone: "
		       "record on a node where one runs");
	if (is_apart)
		open_spool();
}

// -- a rank that does not see the folder

// All of the bytes, or none at the end.
static size_t read_whole(void *data, size_t bytes)
{
	size_t done = 0;
	ssize_t got = 1;
	for (; done < bytes && (got = read(spool, (char *)data + done, bytes - done)) > 0;)
		done += (size_t)got;
	if (got < 0 || (done > 0 && done < bytes))
		refuse("what it wrote on its node cannot be read again");
	return done;
}

static void send_spool(void)
{
	FileHeader header;
	char *piece = grown(NULL, PART_BYTES);
	PMPI_Recv(NULL, 0, MPI_BYTE, writer, 0, quiet, MPI_STATUS_IGNORE);
	lseek(spool, 0, SEEK_SET);
	while (read_whole(&header, sizeof header) == sizeof header) {
		PMPI_Send(&header, sizeof header, MPI_BYTE, writer, 0, quiet);
		for (uint64_t left = header.bytes; left > 0;) {
			const size_t now = left < PART_BYTES ? (size_t)left : PART_BYTES;
			if (read_whole(piece, now) != now)
				refuse("what it wrote on its node cannot be read again");
			PMPI_Send(piece, (int)now, MPI_BYTE, writer, 0, quiet);
			left -= now;
		}
	}
	header = (FileHeader){.kind = NO_FILE};
	PMPI_Send(&header, sizeof header, MPI_BYTE, writer, 0, quiet);
	free(piece);
}

// -- the rank that sees it

// As many parts are read (MOST_PARTS in probe/mpi/parts.py).
enum { MOST_DESCRIPTION = 1 << 23, MOST_PARTS = 1 << 16 };

__attribute__((noreturn)) static void refuse_sent(int rank, const char *what)
{
	char reason[200];
	snprintf(reason, sizeof reason, "rank %d sent %s in its recording", rank, what);
	refuse(reason);
}

static void receive(int rank, void *data, size_t bytes)
{
	MPI_Status status;
	int got = 0;
	PMPI_Recv(data, (int)bytes, MPI_BYTE, rank, 0, quiet, &status);
	PMPI_Get_count(&status, MPI_BYTE, &got);
	if ((size_t)got != bytes)
		refuse_sent(rank, "a piece of another size");
}

static void check_sent_file(int rank, const FileHeader *header, uint32_t next[], uint64_t *room)
{
	if (header->kind >= NO_FILE)
		refuse_sent(rank, "a file of no kind");
	if (header->part != next[header->kind]++ || (header->kind == RANK_FILE && header->part > 0))
		refuse_sent(rank, "a part out of its order");
	if (header->kind == RANK_FILE && header->bytes > MOST_DESCRIPTION)
		refuse_sent(rank, "a description larger than any");
	if (header->kind == RANK_FILE)
		return;
	if (header->bytes < sizeof(PartHeader))
		refuse_sent(rank, "a part without its header");
	if (header->bytes == sizeof(PartHeader))
		refuse_sent(rank, "an empty part");
	if (header->part >= MOST_PARTS)
		refuse_sent(rank, "more parts than are read");
	if (header->bytes > *room)
		refuse_sent(rank, "more than --max-inbox");
	*room -= header->bytes;
}

static void take_file(int rank, const FileHeader *header, char *piece)
{
	char path[PATH_SIZE];
	if (header->kind == RANK_FILE)
		snprintf(path, sizeof path, "%s/rank.%d", folder, rank);
	else
		snprintf(path, sizeof path, "%s/%s.%d.%03u", folder, header->kind == CALLS_FILE ? "calls" : "inbox",
			 rank, header->part);
	const int file = made_file(path);
	for (uint64_t left = header->bytes; left > 0;) {
		const size_t now = left < PART_BYTES ? (size_t)left : PART_BYTES;
		receive(rank, piece, now);
		write_all(file, piece, now, path);
		left -= now;
	}
	close(file);
}

static void take_from(int rank, char *piece)
{
	uint32_t next[NO_FILE] = {0};
	uint64_t room = most_bytes;
	PMPI_Send(NULL, 0, MPI_BYTE, rank, 0, quiet);
	for (FileHeader header;;) {
		receive(rank, &header, sizeof header);
		if (header.kind == NO_FILE)
			return;
		check_sent_file(rank, &header, next, &room);
		take_file(rank, &header, piece);
	}
}

// One rank after the other, in pieces: it needs no more memory than one.
static void gather(void)
{
	char text[40];
	if (seeing == NULL)
		return;
	PMPI_Barrier(quiet);
	const uint64_t begun = clock_of(CLOCK_MONOTONIC);
	if (world_rank == writer) {
		char *piece = grown(NULL, PART_BYTES);
		for (int rank = 0; rank < world_size; rank++)
			if (!seeing[rank])
				take_from(rank, piece);
		free(piece);
		snprintf(text, sizeof text, "%llu", (unsigned long long)(clock_of(CLOCK_MONOTONIC) - begun));
		write_text("gathered", text);
	} else if (is_apart) {
		send_spool();
	}
	// MPICH's UCX may hang where a rank finalizes while another still reads what it sent.
	PMPI_Barrier(quiet);
	PMPI_Comm_free(&quiet);
}
