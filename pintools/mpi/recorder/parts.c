// SPDX-License-Identifier: Apache-2.0
//
// Files of a rank, written in parts with sums over their words.

typedef struct {
	const char *name, *magic;
	char *data;
	size_t used, room;
	uint32_t part;
	size_t last;
} Stream;

static Stream inbox = {.name = "inbox", .magic = PART_MAGIC, .last = SIZE_MAX};
static Stream calls = {.name = "calls", .magic = CALLS_MAGIC, .last = SIZE_MAX};

static void append(Stream *to, const void *data, size_t bytes)
{
	if (to->used + bytes > to->room)
		to->data = grown(to->data, to->room = (to->used + bytes) * 2 + PART_BYTES);
	memcpy(to->data + to->used, data, bytes);
	to->used += bytes;
}

static void write_part(Stream *from)
{
	PartHeader header = {.version = FORMAT_VERSION,
			     .rank = (uint32_t)world_rank,
			     .ranks = (uint32_t)world_size,
			     .part = from->part,
			     .bytes = from->used};
	char path[PATH_SIZE];
	memcpy(header.magic, from->magic, sizeof header.magic);
	for (size_t n = 0; n < from->used / WORD; n++) {
		uint64_t word;
		memcpy(&word, from->data + n * WORD, WORD);
		header.plain += word;
		header.weighted += word * (n + 1);
	}
	snprintf(path, sizeof path, "%s/%s.%d.%03u", folder, from->name, world_rank, from->part++);
	const int file = spool >= 0 ? spool : made_file(path);
	if (spool >= 0)
		spool_file(from == &calls ? CALLS_FILE : INBOX_FILE, header.part, sizeof header + from->used);
	write_all(file, &header, sizeof header, spool >= 0 ? spool_place() : path);
	write_all(file, from->data, from->used, spool >= 0 ? spool_place() : path);
	if (file != spool)
		close(file);
	written_bytes += sizeof header + from->used;
	if (written_bytes > most_bytes)
		refuse("the recording is larger than --max-inbox");
	from->used = 0;
	from->last = SIZE_MAX;
}
