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

// Whether a folder of this name is here, and is the recording's.
static int sees_folder(const char *token)
{
	char path[PATH_SIZE], found[100] = {0};
	snprintf(path, sizeof path, "%s/token", folder);
	const int file = open(path, O_RDONLY | O_CLOEXEC);
	const ssize_t got = file < 0 ? -1 : read(file, found, sizeof found - 1);
	if (file >= 0)
		close(file);
	return got > 0 && strcmp(found, token) == 0;
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
	if (token == NULL)
		return;
	const int own = sees_folder(token);
	is_apart = !own;
	make_quiet();
	seeing = grown(NULL, (size_t)world_size * sizeof *seeing);
	PMPI_Allgather(&own, 1, MPI_INT, seeing, 1, MPI_INT, quiet);
	while (writer < world_size && !seeing[writer])
		writer++;
	if (writer == world_size)
		refuse("no rank runs on a node that has the recording's folder: record on a node where one runs");
	if (is_apart)
		open_spool();
}

// -- a rank that does not see the folder

static size_t read_whole(void *data, size_t bytes)
{
	size_t done = 0;
	for (ssize_t got; done < bytes && (got = read(spool, (char *)data + done, bytes - done)) > 0;)
		done += (size_t)got;
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

enum { MOST_DESCRIPTION = 1 << 23 };

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
	if (header->bytes - sizeof(PartHeader) > *room)
		refuse_sent(rank, "more than --max-inbox");
	*room -= header->bytes - sizeof(PartHeader);
}

static void take_file(int rank, const FileHeader *header, char *piece)
{
	char path[PATH_SIZE], reason[PATH_SIZE + 40];
	if (header->kind == RANK_FILE)
		snprintf(path, sizeof path, "%s/rank.%d", folder, rank);
	else
		snprintf(path, sizeof path, "%s/%s.%d.%03u", folder, header->kind == CALLS_FILE ? "calls" : "inbox",
			 rank, header->part);
	const int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (file < 0) {
		snprintf(reason, sizeof reason, "%s cannot be written: %m", path);
		refuse(reason);
	}
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
	PMPI_Comm_free(&quiet);
}
