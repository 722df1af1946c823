// SPDX-License-Identifier: Apache-2.0
//
// Spool of a rank whose node does not see the recording's folder: a file without a name in a folder of that node, so
// that nothing stays there, however the rank ends. It holds the recording's files of the rank, each behind a header.

typedef enum { CALLS_FILE, INBOX_FILE, RANK_FILE, NO_FILE } FileKind;

typedef struct {
	uint32_t kind, part;
	uint64_t bytes;
} FileHeader;

static int spool = -1;

static void write_all(int file, const void *data, size_t bytes, const char *path)
{
	for (const char *at = data; bytes > 0;) {
		const ssize_t done = write(file, at, bytes);
		if (done <= 0) {
			char reason[PATH_SIZE + 40];
			snprintf(reason, sizeof reason, "%s cannot be written: %m", path);
			refuse(reason);
		}
		at += done;
		bytes -= (size_t)done;
	}
}

// A new file of the recording, by the path of the folder and its name.
static int made_file(const char *path)
{
	char reason[PATH_SIZE + 40];
	const int file = new_file(strrchr(path, '/') + 1);
	if (file < 0) {
		snprintf(reason, sizeof reason, "%s cannot be written: %m", path);
		refuse(reason);
	}
	return file;
}

static const char *spool_place(void)
{
	const char *place = getenv("PROBE_MPI_PLACE");
	return place != NULL ? place : "/tmp";
}

static void open_spool(void)
{
	char path[PATH_SIZE], reason[PATH_SIZE + 100];
	snprintf(path, sizeof path, "%s/probe-mpi-XXXXXX", spool_place());
	spool = mkostemp(path, O_CLOEXEC);
	if (spool < 0) {
		snprintf(reason, sizeof reason, "%s cannot be written (%m): set TMPDIR to a folder of the node",
			 spool_place());
		refuse(reason);
	}
	unlink(path);
}

static void spool_file(FileKind kind, uint32_t part, uint64_t bytes)
{
	const FileHeader header = {kind, part, bytes};
	write_all(spool, &header, sizeof header, spool_place());
}
