// SPDX-License-Identifier: Apache-2.0
//
// Parts of the inbox, mapped one at a time, and the values in their records.

static void next_part(void)
{
	char path[PATH_SIZE];
	struct stat found;
	const char *inbox = getenv("PROBE_MPI_INBOX");
	if (part != NULL)
		munmap(part, part_bytes);
	snprintf(path, sizeof path, "%s.%03d", inbox == NULL ? "inbox" : inbox, ++part_number);
	const int file = open(path, O_RDONLY | O_CLOEXEC);
	if (file < 0 || fstat(file, &found) != 0)
		stop("the recording ends before the rank does");
	part_bytes = (size_t)found.st_size;
	part = mmap(NULL, part_bytes, PROT_READ, MAP_PRIVATE | MAP_POPULATE, file, 0);
	close(file);
	PartHeader header;
	if (part == MAP_FAILED || part_bytes < sizeof header)
		stop("a part of the recording cannot be read");
	memcpy(&header, part, sizeof header);
	if (memcmp(header.magic, PART_MAGIC, sizeof header.magic) != 0 || header.version != FORMAT_VERSION ||
	    header.bytes != part_bytes - sizeof header || header.part != (uint32_t)part_number)
		stop("a part of the recording is not of this recording");
	part_at = sizeof header;
}

static void open_record(void)
{
	if (part == NULL || part_at == part_bytes)
		next_part();
	if (part_bytes - part_at < sizeof *current)
		stop("the recording is cut short");
	current = (const RecordHeader *)(part + part_at);
	part_at += sizeof *current;
	if (current->bytes > part_bytes - part_at || current->bytes % WORD)
		stop("the recording is cut short");
	at = part + part_at;
	end = at + current->bytes;
	part_at += current->bytes;
}

// Whether the next record is of this kind, which no call of MPI makes.
static int is_next(unsigned kind)
{
	RecordHeader header;
	if (repeats > 0)
		return 0;
	if (part == NULL || part_at == part_bytes)
		next_part();
	if (part_bytes - part_at < sizeof header)
		stop("the recording is cut short");
	memcpy(&header, part + part_at, sizeof header);
	return header.function == kind;
}

static const void *get_bytes(size_t bytes)
{
	const char *found = at;
	if (padded(bytes) > (size_t)(end - at))
		stop("an answer of the recording is too short");
	at += padded(bytes);
	return found;
}

static int64_t get_int(void)
{
	int64_t value;
	memcpy(&value, get_bytes(sizeof value), sizeof value);
	return value;
}

static double get_double(void)
{
	double value;
	memcpy(&value, get_bytes(sizeof value), sizeof value);
	return value;
}

static void get_ints(int *values, int64_t count)
{
	if (get_int() != count)
		stop("another number of values was recorded than the rank asks for");
	memcpy(values, get_bytes((size_t)count * sizeof *values), (size_t)count * sizeof *values);
}

static void get_text(char *into, int *length)
{
	const int64_t bytes = get_int();
	if (bytes < 1 || bytes > end - at)
		stop("an answer of the recording is too short");
	memcpy(into, get_bytes((size_t)bytes), (size_t)bytes);
	*length = (int)bytes - 1;
}

static void get_status(MPI_Status *status)
{
	const void *found = get_bytes(sizeof *status);
	if (status != MPI_STATUS_IGNORE)
		memcpy(status, found, sizeof *status);
}
