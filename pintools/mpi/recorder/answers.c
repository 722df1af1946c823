// SPDX-License-Identifier: Apache-2.0
//
// Answers of the library: made in `record`, and appended to the inbox when the call is over.

static Stream record;

static void put_bytes(const void *data, size_t bytes)
{
	static const char zeros[WORD];
	append(&record, data, bytes);
	append(&record, zeros, padded(bytes) - bytes);
}

static void put_int(int64_t value)
{
	append(&record, &value, sizeof value);
}

// The first thing of a record, at once when the library returns.
static void put_result(int64_t result)
{
	returned_wall = clock_of(CLOCK_MONOTONIC);
	put_int(result);
}

static void put_double(double value)
{
	append(&record, &value, sizeof value);
}

static void put_ints(const int *values, int64_t count)
{
	put_int(count);
	put_bytes(values, (size_t)count * sizeof *values);
}

static void put_text(const char *text)
{
	put_int((int64_t)strlen(text) + 1);
	put_bytes(text, strlen(text) + 1);
}

static void put_status(const MPI_Status *status)
{
	put_bytes(status, sizeof *status);
}

static void add_record(unsigned function, const void *data, size_t bytes)
{
	RecordHeader header = {.function = (uint16_t)function, .bytes = (uint32_t)bytes};
	RecordHeader *last = inbox.last == SIZE_MAX ? NULL : (RecordHeader *)(inbox.data + inbox.last);
	if (bytes > UINT32_MAX - WORD)
		refuse("one call returned more than 4 GB, which is not recorded");
	if (last != NULL && last->function == function && last->bytes == bytes && function < LAYOUT &&
	    memcmp(last + 1, data, bytes) == 0) {
		last->repeats++;
		return;
	}
	if (inbox.used >= PART_BYTES)
		write_part(&inbox);
	inbox.last = inbox.used;
	append(&inbox, &header, sizeof header);
	append(&inbox, data, bytes);
}
