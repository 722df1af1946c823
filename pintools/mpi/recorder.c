// SPDX-License-Identifier: Apache-2.0
//
// Recorder of MPI: preloaded, it stands before the MPI library and writes down what every call returned.
//
// PROBE_MPI_RECORD names a folder. Rank N writes calls.N there (each call with its computing time, for the simulation),
// inbox.N.PPP (all that calls returned, for the rank alone: pintools/mpi/replayer.c) and rank.N (what it ran).
// PROBE_MPI_RANKS: the ranks that write an inbox, as "0,3,"; all without it. PROBE_MPI_MOST: bytes of an inbox at most.
//
// The wrappers of most calls are made from a table (probe/mpi/calls.py) and stand behind this file; recording.h, the
// functions' numbers F_* and their names `function_names` before it. Here are the calls that no table describes.
// Nothing of MPI is told apart by its handle's value: the same source serves every library that has MPI 3.1.

#include <fcntl.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { PATH_SIZE = 4096, REFUSED_STATUS = 71, BUCKETS = 1024, MOST_SPAN = 1 << 30, MOST_PACKED = 1 << 28 };

static int active, depth, contents, world_rank, world_size;
static const char *folder;
static const void *fortran_site, *call_site;
static uint64_t entered_wall, returned_wall, entered_cpu, left_cpu, burst;
static uint64_t most_bytes = UINT64_MAX, written_bytes;

static uint64_t clock_of(clockid_t which)
{
	struct timespec now;
	clock_gettime(which, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

// -- what ends a recording

static void write_text(const char *name, const char *text)
{
	char path[PATH_SIZE];
	if (folder == NULL)
		return;
	snprintf(path, sizeof path, "%s/%s.%d", folder, name, world_rank);
	const int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (file < 0 || write(file, text, strlen(text)) < 0)
		fprintf(stderr, "probe: %s cannot be written\n", path);
	if (file >= 0)
		close(file);
}

// Ends the program: what was recorded could not be replayed. The reason is in the file refused.N.
__attribute__((noreturn)) static void refuse(const char *reason)
{
	int running = 0;
	write_text("refused", reason);
	fprintf(stderr, "probe: rank %d: %s\n", world_rank, reason);
	PMPI_Initialized(&running);
	if (running)
		PMPI_Abort(MPI_COMM_WORLD, REFUSED_STATUS);
	_exit(REFUSED_STATUS);
}

// A call that the table does not have; its wrapper jumps here (probe/mpi/generate.py).
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

// -- files in parts

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
	const int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	write_all(file, &header, sizeof header, path);
	write_all(file, from->data, from->used, path);
	close(file);
	written_bytes += from->used;
	if (written_bytes > most_bytes)
		refuse("the recording is larger than --max-inbox");
	from->used = 0;
	from->last = SIZE_MAX;
}

// -- one record of the inbox, made in `record` and appended when the call is over

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

// -- layouts: which bytes of memory a type covers

typedef struct {
	MPI_Datatype type;
	uint32_t number;
	int64_t size, extent;
	size_t runs;
	Run *run;
} Layout;

static Layout *layouts;
static size_t layouts_used;
static uint32_t layouts_made;

// Packs an instance whose bytes name their own places: four passes, one for each byte of the place. So MPI itself tells
// the layout of whatever constructors made the type.
static void find_runs(Layout *found, int64_t true_lower, int64_t span)
{
	char *place = grown(NULL, (size_t)span), *packed = grown(NULL, (size_t)found->size);
	uint32_t *offset = grown(NULL, (size_t)found->size * sizeof *offset);
	memset(offset, 0, (size_t)found->size * sizeof *offset);
	for (int pass = 0; pass < 4; pass++) {
		int at = 0;
		for (int64_t n = 0; n < span; n++)
			place[n] = (char)((uint64_t)n >> (8 * pass));
		PMPI_Pack(place - true_lower, 1, found->type, packed, (int)found->size, &at, MPI_COMM_SELF);
		for (int64_t n = 0; n < found->size; n++)
			offset[n] |= (uint32_t)(unsigned char)packed[n] << (8 * pass);
	}
	for (int64_t n = 0; n < found->size; n++) {
		Run *last = found->runs > 0 ? &found->run[found->runs - 1] : NULL;
		const int64_t at = (int64_t)offset[n] + true_lower;
		if (last != NULL && last->at + (int64_t)last->bytes == at) {
			last->bytes++;
			continue;
		}
		if ((found->runs & (found->runs - 1)) == 0)
			found->run = grown(found->run, (found->runs ? found->runs * 2 : 1) * sizeof *found->run);
		found->run[found->runs++] = (Run){at, 1};
	}
	free(place);
	free(packed);
	free(offset);
}

static void write_layout(const Layout *found)
{
	const uint64_t head[] = {found->number, (uint64_t)found->extent, found->runs};
	Stream made = {0};
	append(&made, head, sizeof head);
	append(&made, found->run, found->runs * sizeof *found->run);
	add_record(LAYOUT, made.data, made.used);
	free(made.data);
}

// number 0: `size` bytes from the address on, one instance behind the other.
static Layout *layout_of(MPI_Datatype type)
{
	MPI_Count size, lower, extent, true_lower, span;
	for (size_t n = 0; n < layouts_used; n++)
		if (layouts[n].type == type)
			return &layouts[n];
	PMPI_Type_size_x(type, &size);
	PMPI_Type_get_extent_x(type, &lower, &extent);
	PMPI_Type_get_true_extent_x(type, &true_lower, &span);
	if ((layouts_used & (layouts_used - 1)) == 0)
		layouts = grown(layouts, (layouts_used ? layouts_used * 2 : 1) * sizeof *layouts);
	Layout *found = &layouts[layouts_used++];
	*found = (Layout){.type = type, .size = size, .extent = extent};
	if (size == 0 || (size == extent && true_lower == 0 && span == size))
		return found;
	if (span > MOST_SPAN || size > MOST_PACKED)
		refuse("a datatype reaches over more than 1 GB (absolute addresses?), which is not recorded");
	find_runs(found, true_lower, span);
	found->number = ++layouts_made;
	if (contents)
		write_layout(found);
	return found;
}

static void forget_layout(MPI_Datatype type)
{
	for (size_t n = 0; n < layouts_used; n++)
		if (layouts[n].type == type) {
			free(layouts[n].run);
			layouts[n--] = layouts[--layouts_used];
		}
}

static int64_t size_of(MPI_Datatype type)
{
	int size = 0;
	if (type != MPI_DATATYPE_NULL)
		PMPI_Type_size(type, &size);
	return size;
}

static int64_t extent_of(MPI_Datatype type)
{
	MPI_Aint lower, extent;
	PMPI_Type_get_extent(type, &lower, &extent);
	return extent;
}

// -- data that a call brings: pieces behind the address that it was given

typedef struct {
	int64_t at, count;
	MPI_Datatype type;
} Piece;

typedef struct {
	const char *base;
	int count, room;
	Piece *pieces;
} Plan;

static Plan plan;

static void add(int64_t at, int64_t count, MPI_Datatype type)
{
	if (plan.count == plan.room)
		plan.pieces = grown(plan.pieces, (size_t)(plan.room = plan.room * 2 + 8) * sizeof *plan.pieces);
	plan.pieces[plan.count++] = (Piece){at, count, type};
}

static void begin_plan(const void *base)
{
	plan.base = base;
	plan.count = 0;
}

// bytes: at most so many, as a status says.
static void put_piece(const char *base, const Piece *piece, int64_t most)
{
	if (piece->count <= 0 || piece->type == MPI_DATATYPE_NULL) {
		const int64_t none[] = {0, 0, 0};
		put_bytes(none, sizeof none);
		return;
	}
	const Layout found = *layout_of(piece->type);
	int64_t bytes = piece->count * found.size;
	bytes = most >= 0 && most < bytes ? most : bytes;
	const char *from = base + piece->at;
	put_int(piece->at);
	put_int(bytes);
	put_int(found.number);
	if (bytes > 0 && base == NULL)
		refuse("a message comes to MPI_BOTTOM, which is not recorded");
	if (found.number == 0) {
		put_bytes(from, (size_t)bytes);
		return;
	}
	const size_t begun = record.used;
	for (int64_t left = bytes; left > 0; from += found.extent)
		for (size_t n = 0; n < found.runs && left > 0; n++) {
			const int64_t some = (int64_t)found.run[n].bytes < left ? (int64_t)found.run[n].bytes : left;
			append(&record, from + found.run[n].at, (size_t)some);
			left -= some;
		}
	append(&record, "\0\0\0\0\0\0\0", padded(record.used - begun) - (record.used - begun));
}

static void put_plan(const Plan *from, int64_t most)
{
	if (!contents)
		return;
	put_int(from->count);
	for (int n = 0; n < from->count; n++)
		put_piece(from->base, &from->pieces[n], most);
}

// What a call sends: its place is known where it is replayed, so a hash and the layout are enough.
static void put_sent(const void *data, int64_t count, MPI_Datatype type)
{
	if (!contents)
		return;
	const int nothing = data == MPI_IN_PLACE || data == NULL || count <= 0 || type == MPI_DATATYPE_NULL;
	const Layout found = nothing ? (Layout){0} : *layout_of(type);
	int64_t left = nothing ? 0 : count * found.size;
	uint64_t hash = 0;
	put_int(left);
	put_int(found.number);
	if (found.number == 0)
		hash = mixed(hash, data, (uint64_t)left);
	else
		for (const char *from = data; left > 0; from += found.extent)
			for (size_t n = 0; n < found.runs && left > 0; n++) {
				hash = mixed(hash, from + found.run[n].at, found.run[n].bytes);
				left -= (int64_t)found.run[n].bytes;
			}
	put_int((int64_t)hash);
}

// -- communicators: their members' ranks in MPI_COMM_WORLD

typedef struct {
	MPI_Comm comm;
	int number, size, rank;
	int *members;
} Comm;

static Comm *comms;
static int comms_used, comms_made;

static Comm *comm_of(MPI_Comm comm)
{
	for (int n = 0; n < comms_used; n++)
		if (comms[n].comm == comm)
			return &comms[n];
	refuse("a communicator is used that was not seen when it was made");
}

static Comm *add_comm(MPI_Comm comm)
{
	MPI_Group own, world;
	comms = grown(comms, (size_t)(comms_used + 1) * sizeof *comms);
	Comm *made = &comms[comms_used++];
	*made = (Comm){.comm = comm, .number = comms_made++};
	PMPI_Comm_size(comm, &made->size);
	PMPI_Comm_rank(comm, &made->rank);
	int *ranks = grown(NULL, (size_t)made->size * sizeof *ranks);
	made->members = grown(NULL, (size_t)made->size * sizeof *made->members);
	for (int n = 0; n < made->size; n++)
		ranks[n] = n;
	PMPI_Comm_group(comm, &own);
	PMPI_Comm_group(MPI_COMM_WORLD, &world);
	PMPI_Group_translate_ranks(own, made->size, ranks, world, made->members);
	PMPI_Group_free(&own);
	PMPI_Group_free(&world);
	free(ranks);
	return made;
}

static int world_of(MPI_Comm comm, int rank)
{
	const Comm *found = comm_of(comm);
	return rank >= 0 && rank < found->size ? found->members[rank] : -1;
}

// -- calls, for the simulation

static CallRecord noted;
static int32_t *extras;
static uint32_t extras_room;
static int is_noted;

static void note(int peer, int tag, MPI_Comm comm, int64_t count, MPI_Datatype type, int other)
{
	noted = (CallRecord){.peer = peer, .tag = tag, .comm = comm_of(comm)->number, .other = other};
	noted.count = count > 0 ? (uint64_t)count : 0;
	noted.element = (uint32_t)size_of(type);
	is_noted = 1;
}

static void note_extra(int64_t value)
{
	if (noted.extras == extras_room)
		extras = grown(extras, (extras_room = extras_room * 2 + 16) * sizeof *extras);
	extras[noted.extras++] = value > INT32_MAX ? INT32_MAX : (int32_t)value;
}

static void note_bytes(const int *counts, MPI_Comm comm, MPI_Datatype type)
{
	const int size = comm_of(comm)->size;
	for (int n = 0; n < size; n++)
		note_extra(counts == NULL ? 0 : counts[n] * size_of(type));
}

static void note_members(MPI_Comm parent, MPI_Comm made)
{
	noted = (CallRecord){.peer = -1, .comm = comm_of(parent)->number, .other = -1};
	is_noted = 1;
	if (made == MPI_COMM_NULL)
		return;
	const Comm *found = add_comm(made);
	noted.other = found->number;
	for (int n = 0; n < found->size; n++)
		note_extra(found->members[n]);
}

// -- begin and end of a wrapper

static int enter(const void *site)
{
	if (!active || depth > 0)
		return 0;
	depth = 1;
	call_site = fortran_site != NULL ? fortran_site : site;
	fortran_site = NULL;
	record.used = 0;
	is_noted = 0;
	entered_wall = returned_wall = clock_of(CLOCK_MONOTONIC);
	entered_cpu = clock_of(CLOCK_THREAD_CPUTIME_ID);
	burst += entered_cpu - left_cpu;
	return 1;
}

// like: the call that the simulation makes in its place.
static void leave_as(unsigned function, unsigned like)
{
	if (is_noted) {
		noted.function = (uint16_t)like;
		noted.computing = burst;
		noted.inside = returned_wall - entered_wall;
		noted.site = (uint64_t)call_site;
		append(&calls, &noted, sizeof noted);
		append(&calls, extras, noted.extras * sizeof *extras);
		append(&calls, "\0\0\0\0", noted.extras % 2 * sizeof *extras);
		if (calls.used >= PART_BYTES)
			write_part(&calls);
		burst = 0;
	}
	if (contents)
		add_record(function, record.data, record.used);
	depth = 0;
	left_cpu = clock_of(CLOCK_THREAD_CPUTIME_ID);
}

static void leave(unsigned function)
{
	leave_as(function, function);
}

// -- requests

typedef enum { SENDING, RECEIVING, COLLECTIVE } Kind;

typedef struct Open {
	MPI_Request request;
	Kind kind;
	uint32_t number;
	int persistent, started;
	Plan plan;
	struct Open *next;
	// Of persistent ones, what each start does.
	CallRecord call;
} Open;

static Open *opened[BUCKETS];
static uint32_t requests_made;

static Open **bucket_of(MPI_Request request)
{
	uint64_t key = 0;
	memcpy(&key, &request, sizeof request);
	return &opened[(key * 0x9e3779b97f4a7c15u) >> 54];
}

// Appended: equal handles, which libraries use for requests that are complete at once, are completed in their order.
static Open *track(MPI_Request request, Kind kind)
{
	Open *made = grown(NULL, sizeof *made), **at = bucket_of(request);
	*made = (Open){.request = request, .kind = kind, .number = requests_made++, .started = 1, .call = noted};
	if (kind != SENDING) {
		made->plan = (Plan){.base = plan.base, .count = plan.count};
		made->plan.pieces = grown(NULL, (size_t)plan.count * sizeof *plan.pieces + 1);
		memcpy(made->plan.pieces, plan.pieces, (size_t)plan.count * sizeof *plan.pieces);
	}
	while (*at != NULL)
		at = &(*at)->next;
	*at = made;
	noted.request = made->number;
	return made;
}

static Open *open_of(MPI_Request request)
{
	for (Open *one = request == MPI_REQUEST_NULL ? NULL : *bucket_of(request); one != NULL; one = one->next)
		if (one->request == request)
			return one;
	return NULL;
}

static void forget(Open *gone)
{
	for (Open **at = bucket_of(gone->request); *at != NULL; at = &(*at)->next)
		if (*at == gone) {
			*at = gone->next;
			break;
		}
	free(gone->plan.pieces);
	free(gone);
}

static int64_t bytes_of(const MPI_Status *status)
{
	MPI_Count bytes = 0;
	int cancelled = 0;
	PMPI_Test_cancelled(status, &cancelled);
	if (cancelled || status->MPI_SOURCE == MPI_PROC_NULL)
		return 0;
	PMPI_Get_elements_x(status, MPI_BYTE, &bytes);
	return bytes > 0 ? bytes : 0;
}

// Rank in MPI_COMM_WORLD that a receive was answered by; -1 where nobody did.
static int source_of(const Open *was, const MPI_Status *status)
{
	// Not every library fills the status of a receive from nobody.
	int nobody = was->call.other == MPI_PROC_NULL;
	if (!nobody)
		PMPI_Test_cancelled(status, &nobody);
	for (int n = 0; !nobody && n < comms_used; n++)
		if (comms[n].number == was->call.comm && status->MPI_SOURCE >= 0)
			return comms[n].members[status->MPI_SOURCE];
	return -1;
}

// What completing the request `was` brought. `request`: as it is now, of which a persistent one remains.
static void complete(Open *was, const MPI_Status *status)
{
	if (was == NULL || !was->started) {
		if (contents)
			put_int(0);
		return;
	}
	note_extra((int64_t)was->number);
	note_extra(was->kind == RECEIVING ? source_of(was, status) : -1);
	note_extra(was->kind == RECEIVING ? status->MPI_TAG : -1);
	if (was->kind == SENDING) {
		if (contents)
			put_int(0);
	} else {
		put_plan(&was->plan, was->kind == COLLECTIVE ? -1 : source_of(was, status) < 0 ? 0 : bytes_of(status));
	}
	if (was->persistent)
		was->started = 0;
	else
		forget(was);
}

// A persistent request: what is noted is done by each start, nothing by making it.
static void persist(Open *made)
{
	made->persistent = 1;
	made->started = 0;
	made->call = noted;
	is_noted = 0;
}

static void note_waiting(void)
{
	noted = (CallRecord){.peer = -1, .comm = -1, .other = -1};
	is_noted = 1;
}

#define SITE __builtin_return_address(0)

int MPI_Recv(void *data, int count, MPI_Datatype type, int source, int tag, MPI_Comm comm, MPI_Status *status)
{
	MPI_Status own, *seen = status == MPI_STATUS_IGNORE ? &own : status;
	if (!enter(SITE))
		return PMPI_Recv(data, count, type, source, tag, comm, status);
	const int result = PMPI_Recv(data, count, type, source, tag, comm, seen);
	put_result(result);
	note(world_of(comm, seen->MPI_SOURCE), seen->MPI_TAG, comm, bytes_of(seen), MPI_BYTE, source);
	put_status(seen);
	begin_plan(data);
	add(0, count, type);
	put_plan(&plan, bytes_of(seen));
	leave(F_Recv);
	return result;
}

int MPI_Sendrecv(const void *data, int count, MPI_Datatype type, int dest, int tag, void *into, int most,
		 MPI_Datatype into_type, int source, int into_tag, MPI_Comm comm, MPI_Status *status)
{
	MPI_Status own, *seen = status == MPI_STATUS_IGNORE ? &own : status;
	if (!enter(SITE))
		return PMPI_Sendrecv(data, count, type, dest, tag, into, most, into_type, source, into_tag, comm,
				     status);
	put_int(0);
	put_sent(data, count, type);
	const int result =
		PMPI_Sendrecv(data, count, type, dest, tag, into, most, into_type, source, into_tag, comm, seen);
	returned_wall = clock_of(CLOCK_MONOTONIC);
	note(world_of(comm, dest), tag, comm, count, type, world_of(comm, seen->MPI_SOURCE));
	note_extra(seen->MPI_TAG);
	note_extra(bytes_of(seen));
	put_status(seen);
	begin_plan(into);
	add(0, most, into_type);
	put_plan(&plan, bytes_of(seen));
	leave(F_Sendrecv);
	return result;
}

int MPI_Sendrecv_replace(void *data, int count, MPI_Datatype type, int dest, int tag, int source, int into_tag,
			 MPI_Comm comm, MPI_Status *status)
{
	MPI_Status own, *seen = status == MPI_STATUS_IGNORE ? &own : status;
	if (!enter(SITE))
		return PMPI_Sendrecv_replace(data, count, type, dest, tag, source, into_tag, comm, status);
	put_int(0);
	put_sent(data, count, type);
	const int result = PMPI_Sendrecv_replace(data, count, type, dest, tag, source, into_tag, comm, seen);
	returned_wall = clock_of(CLOCK_MONOTONIC);
	note(world_of(comm, dest), tag, comm, count, type, world_of(comm, seen->MPI_SOURCE));
	note_extra(seen->MPI_TAG);
	note_extra(bytes_of(seen));
	put_status(seen);
	begin_plan(data);
	add(0, count, type);
	put_plan(&plan, bytes_of(seen));
	leave(F_Sendrecv_replace);
	return result;
}

int MPI_Irecv(void *data, int count, MPI_Datatype type, int source, int tag, MPI_Comm comm, MPI_Request *request)
{
	if (!enter(SITE))
		return PMPI_Irecv(data, count, type, source, tag, comm, request);
	const int result = PMPI_Irecv(data, count, type, source, tag, comm, request);
	put_result(result);
	note(world_of(comm, source), tag, comm, count, type, source);
	begin_plan(data);
	add(0, count, type);
	track(*request, RECEIVING);
	leave(F_Irecv);
	return result;
}

int MPI_Recv_init(void *data, int count, MPI_Datatype type, int source, int tag, MPI_Comm comm, MPI_Request *request)
{
	if (!enter(SITE))
		return PMPI_Recv_init(data, count, type, source, tag, comm, request);
	const int result = PMPI_Recv_init(data, count, type, source, tag, comm, request);
	put_result(result);
	begin_plan(data);
	add(0, count, type);
	note(world_of(comm, source), tag, comm, count, type, source);
	noted.function = F_Irecv;
	persist(track(*request, RECEIVING));
	leave(F_Recv_init);
	return result;
}

int MPI_Start(MPI_Request *request)
{
	if (!enter(SITE))
		return PMPI_Start(request);
	Open *one = open_of(*request);
	const int result = PMPI_Start(request);
	put_result(result);
	unsigned like = F_Start;
	if (one != NULL) {
		noted = one->call;
		like = noted.function;
		is_noted = one->started = 1;
	}
	leave_as(F_Start, like);
	return result;
}

int MPI_Startall(int count, MPI_Request requests[])
{
	for (int n = 0; n < count; n++) {
		fortran_site = fortran_site != NULL ? fortran_site : SITE;
		const int result = MPI_Start(&requests[n]);
		if (result != MPI_SUCCESS)
			return result;
	}
	return MPI_SUCCESS;
}

int MPI_Request_free(MPI_Request *request)
{
	if (!enter(SITE))
		return PMPI_Request_free(request);
	Open *one = open_of(*request);
	if (one != NULL && one->kind != SENDING && one->started && !one->persistent)
		refuse("MPI_Request_free frees a receive that is not complete, which is not recorded");
	if (one != NULL)
		forget(one);
	const int result = PMPI_Request_free(request);
	put_result(result);
	leave(F_Request_free);
	return result;
}

int MPI_Wait(MPI_Request *request, MPI_Status *status)
{
	MPI_Status own, *seen = status == MPI_STATUS_IGNORE ? &own : status;
	if (!enter(SITE))
		return PMPI_Wait(request, status);
	Open *was = open_of(*request);
	const int result = PMPI_Wait(request, seen);
	put_result(result);
	note_waiting();
	put_status(seen);
	complete(was, seen);
	leave(F_Wait);
	return result;
}

int MPI_Test(MPI_Request *request, int *flag, MPI_Status *status)
{
	MPI_Status own = {0}, *seen = status == MPI_STATUS_IGNORE ? &own : status;
	if (!enter(SITE))
		return PMPI_Test(request, flag, status);
	Open *was = open_of(*request);
	const int result = PMPI_Test(request, flag, seen);
	put_result(result);
	put_int(*flag);
	if (*flag) {
		note_waiting();
		put_status(seen);
		complete(was, seen);
	}
	leave(F_Test);
	return result;
}

// Room for the requests as they were, and for statuses that the program does not want.
static Open **before;
static MPI_Status *ignored;

// An Open for each request. Equal handles are different requests: the n-th of them is the n-th opened.
static MPI_Status *remember(int count, MPI_Request requests[], MPI_Status statuses[])
{
	before = grown(before, (size_t)count * sizeof *before + 1);
	ignored = grown(ignored, (size_t)count * sizeof *ignored + 1);
	memset(ignored, 0, (size_t)count * sizeof *ignored);
	for (int n = 0; n < count; n++) {
		Open *one = open_of(requests[n]);
		for (int m = 0; one != NULL && m < n; m++)
			if (before[m] == one) {
				do
					one = one->next;
				while (one != NULL && one->request != requests[n]);
				m = -1;
			}
		before[n] = one;
	}
	return statuses == MPI_STATUSES_IGNORE ? ignored : statuses;
}

int MPI_Waitall(int count, MPI_Request requests[], MPI_Status statuses[])
{
	if (!enter(SITE))
		return PMPI_Waitall(count, requests, statuses);
	MPI_Status *seen = remember(count, requests, statuses);
	const int result = PMPI_Waitall(count, requests, seen);
	put_result(result);
	note_waiting();
	for (int n = 0; n < count; n++) {
		put_status(&seen[n]);
		complete(before[n], &seen[n]);
	}
	leave(F_Waitall);
	return result;
}

int MPI_Testall(int count, MPI_Request requests[], int *flag, MPI_Status statuses[])
{
	if (!enter(SITE))
		return PMPI_Testall(count, requests, flag, statuses);
	MPI_Status *seen = remember(count, requests, statuses);
	const int result = PMPI_Testall(count, requests, flag, seen);
	put_result(result);
	put_int(*flag);
	if (*flag) {
		note_waiting();
		for (int n = 0; n < count; n++) {
			put_status(&seen[n]);
			complete(before[n], &seen[n]);
		}
	}
	leave(F_Testall);
	return result;
}

static void completed_any(int index, const MPI_Status *seen)
{
	put_int(index);
	put_status(seen);
	note_waiting();
	complete(index == MPI_UNDEFINED ? NULL : before[index], seen);
}

int MPI_Waitany(int count, MPI_Request requests[], int *index, MPI_Status *status)
{
	MPI_Status own = {0}, *seen = status == MPI_STATUS_IGNORE ? &own : status;
	if (!enter(SITE))
		return PMPI_Waitany(count, requests, index, status);
	remember(count, requests, MPI_STATUSES_IGNORE);
	const int result = PMPI_Waitany(count, requests, index, seen);
	put_result(result);
	completed_any(*index, seen);
	leave(F_Waitany);
	return result;
}

int MPI_Testany(int count, MPI_Request requests[], int *index, int *flag, MPI_Status *status)
{
	MPI_Status own = {0}, *seen = status == MPI_STATUS_IGNORE ? &own : status;
	if (!enter(SITE))
		return PMPI_Testany(count, requests, index, flag, status);
	remember(count, requests, MPI_STATUSES_IGNORE);
	const int result = PMPI_Testany(count, requests, index, flag, seen);
	put_result(result);
	put_int(*flag);
	if (*flag)
		completed_any(*index, seen);
	leave(F_Testany);
	return result;
}

static void completed_some(int count, const int indices[], const MPI_Status seen[])
{
	put_int(count);
	for (int n = 0; n < count && count != MPI_UNDEFINED; n++) {
		put_int(indices[n]);
		put_status(&seen[n]);
		complete(before[indices[n]], &seen[n]);
	}
}

int MPI_Waitsome(int count, MPI_Request requests[], int *done, int indices[], MPI_Status statuses[])
{
	if (!enter(SITE))
		return PMPI_Waitsome(count, requests, done, indices, statuses);
	MPI_Status *seen = remember(count, requests, statuses);
	const int result = PMPI_Waitsome(count, requests, done, indices, seen);
	put_result(result);
	note_waiting();
	completed_some(*done, indices, seen);
	leave(F_Waitsome);
	return result;
}

int MPI_Testsome(int count, MPI_Request requests[], int *done, int indices[], MPI_Status statuses[])
{
	if (!enter(SITE))
		return PMPI_Testsome(count, requests, done, indices, statuses);
	MPI_Status *seen = remember(count, requests, statuses);
	const int result = PMPI_Testsome(count, requests, done, indices, seen);
	put_result(result);
	if (*done > 0)
		note_waiting();
	completed_some(*done, indices, seen);
	leave(F_Testsome);
	return result;
}

int MPI_Comm_free(MPI_Comm *comm)
{
	if (!enter(SITE))
		return PMPI_Comm_free(comm);
	for (int n = 0; n < comms_used; n++)
		if (comms[n].comm == *comm) {
			free(comms[n].members);
			comms[n] = comms[--comms_used];
			break;
		}
	const int result = PMPI_Comm_free(comm);
	put_result(result);
	leave(F_Comm_free);
	return result;
}

int MPI_Type_free(MPI_Datatype *type)
{
	if (!enter(SITE))
		return PMPI_Type_free(type);
	forget_layout(*type);
	const int result = PMPI_Type_free(type);
	put_result(result);
	leave(F_Type_free);
	return result;
}

int MPI_Pack(const void *data, int count, MPI_Datatype type, void *into, int room, int *at, MPI_Comm comm)
{
	if (!enter(SITE))
		return PMPI_Pack(data, count, type, into, room, at, comm);
	const int from = *at, result = PMPI_Pack(data, count, type, into, room, at, comm);
	put_result(result);
	put_int(*at);
	begin_plan(into);
	add(from, *at - from, MPI_BYTE);
	put_plan(&plan, -1);
	leave(F_Pack);
	return result;
}

int MPI_Unpack(const void *data, int room, int *at, void *into, int count, MPI_Datatype type, MPI_Comm comm)
{
	if (!enter(SITE))
		return PMPI_Unpack(data, room, at, into, count, type, comm);
	const int result = PMPI_Unpack(data, room, at, into, count, type, comm);
	put_result(result);
	put_int(*at);
	begin_plan(into);
	add(0, count, type);
	put_plan(&plan, -1);
	leave(F_Unpack);
	return result;
}

double MPI_Wtime(void)
{
	if (!enter(SITE))
		return PMPI_Wtime();
	const double now = PMPI_Wtime();
	put_double(now);
	leave(F_Wtime);
	return now;
}

double MPI_Wtick(void)
{
	if (!enter(SITE))
		return PMPI_Wtick();
	const double tick = PMPI_Wtick();
	put_double(tick);
	leave(F_Wtick);
	return tick;
}

// -- beginning and end

static void copy_file(const char *from, Stream *to)
{
	char piece[PATH_SIZE];
	const int file = open(from, O_RDONLY | O_CLOEXEC);
	for (ssize_t got; file >= 0 && (got = read(file, piece, sizeof piece)) > 0;)
		append(to, piece, (size_t)got);
	if (file >= 0)
		close(file);
}

// Executable, folder, library, whether the answers are kept; then the arguments, each ended by a zero.
static void write_rank(void)
{
	char path[PATH_SIZE], text[PATH_SIZE], library[MPI_MAX_LIBRARY_VERSION_STRING];
	Stream made = {0};
	int length;
	PMPI_Get_library_version(library, &length);
	const ssize_t named = readlink("/proc/self/exe", text, sizeof text - 1);
	text[named > 0 ? named : 0] = 0;
	append(&made, text, strlen(text) + 1);
	if (getcwd(text, sizeof text) == NULL)
		text[0] = 0;
	append(&made, text, strlen(text) + 1);
	library[strcspn(library, "\n")] = 0;
	append(&made, library, strlen(library) + 1);
	append(&made, contents ? "1" : "0", 2);
	copy_file("/proc/self/cmdline", &made);
	snprintf(path, sizeof path, "%s/rank.%d", folder, world_rank);
	const int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	write_all(file, made.data, made.used, path);
	close(file);
	free(made.data);
}

static int is_wanted(const char *list)
{
	char wanted[16];
	if (list == NULL)
		return 1;
	snprintf(wanted, sizeof wanted, "%d,", world_rank);
	for (const char *at = list; (at = strstr(at, wanted)) != NULL; at++)
		if (at == list || at[-1] == ',')
			return 1;
	return 0;
}

static void begin(int provided)
{
	int level = provided;
	folder = getenv("PROBE_MPI_RECORD");
	if (active || folder == NULL)
		return;
	PMPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
	PMPI_Comm_size(MPI_COMM_WORLD, &world_size);
	PMPI_Query_thread(&level);
	if (level == MPI_THREAD_MULTIPLE)
		refuse("this program asks for MPI_THREAD_MULTIPLE: calls of several threads are not recorded");
	contents = is_wanted(getenv("PROBE_MPI_RANKS"));
	if (getenv("PROBE_MPI_MOST") != NULL)
		most_bytes = strtoull(getenv("PROBE_MPI_MOST"), NULL, 10);
	write_rank();
	add_comm(MPI_COMM_WORLD);
	add_comm(MPI_COMM_SELF);
	if (contents) {
		// Fortran's null handles, which are the library's own.
		const int64_t first[] = {level,
					 PMPI_Comm_c2f(MPI_COMM_NULL),
					 PMPI_Request_c2f(MPI_REQUEST_NULL),
					 PMPI_Type_c2f(MPI_DATATYPE_NULL),
					 PMPI_Group_c2f(MPI_GROUP_NULL),
					 PMPI_Op_c2f(MPI_OP_NULL),
					 PMPI_Info_c2f(MPI_INFO_NULL),
					 PMPI_Errhandler_c2f(MPI_ERRHANDLER_NULL)};
		add_record(BEGIN, first, sizeof first);
	}
	active = 1;
	left_cpu = clock_of(CLOCK_THREAD_CPUTIME_ID);
}

int MPI_Init(int *argc, char ***argv)
{
	const int result = PMPI_Init(argc, argv);
	begin(MPI_THREAD_SINGLE);
	return result;
}

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
	// A program that can do with less gets less.
	const int asked = required == MPI_THREAD_MULTIPLE ? MPI_THREAD_MULTIPLE : required;
	const int result = PMPI_Init_thread(argc, argv, asked, provided);
	begin(*provided);
	return result;
}

int MPI_Finalize(void)
{
	if (enter(SITE)) {
		noted = (CallRecord){.peer = -1, .comm = 0, .other = -1};
		is_noted = 1;
		put_int(MPI_SUCCESS);
		leave(F_Finalize);
		if (contents) {
			add_record(END, "", 0);
			write_part(&inbox);
		}
		const CallRecord end = {.function = END};
		append(&calls, &end, sizeof end);
		write_part(&calls);
		active = 0;
	}
	return PMPI_Finalize();
}

int MPI_Abort(MPI_Comm comm, int status)
{
	char reason[100];
	if (active) {
		snprintf(reason, sizeof reason, "called MPI_Abort with status %d", status);
		write_text("aborted", reason);
	}
	return PMPI_Abort(comm, status);
}

// -- Fortran: handles, sentinels

extern char mpi_fortran_in_place_[] __attribute__((weak)), mpi_fortran_bottom_[] __attribute__((weak));
extern char mpi_fortran_status_ignore_[] __attribute__((weak)), mpi_fortran_statuses_ignore_[] __attribute__((weak));
extern MPI_Fint mpipriv1_[] __attribute__((weak)), mpipriv2_[] __attribute__((weak));

static int is_one(const void *given, const void *first, const void *second)
{
	return given != NULL && (given == first || given == second);
}

static void *choice(void *data)
{
	if (is_one(data, mpi_fortran_in_place_, mpipriv1_ == NULL ? NULL : mpipriv1_ + 1))
		return MPI_IN_PLACE;
	if (is_one(data, mpi_fortran_bottom_, mpipriv1_))
		return MPI_BOTTOM;
	return data;
}

static int ignores_status(const MPI_Fint *status)
{
	return is_one(status, mpi_fortran_status_ignore_, mpipriv1_ == NULL ? NULL : mpipriv1_ + 2);
}

static int ignores_statuses(const MPI_Fint *statuses)
{
	return is_one(statuses, mpi_fortran_statuses_ignore_, mpipriv2_);
}

#define FROM_COMM PMPI_Comm_f2c
#define FROM_TYPE PMPI_Type_f2c
#define FROM_GROUP PMPI_Group_f2c
#define FROM_OP PMPI_Op_f2c
#define FROM_INFO PMPI_Info_f2c
#define FROM_ERRHANDLER PMPI_Errhandler_f2c
#define FROM_REQUEST PMPI_Request_f2c
#define TO_COMM PMPI_Comm_c2f
#define TO_TYPE PMPI_Type_c2f
#define TO_GROUP PMPI_Group_c2f
#define TO_OP PMPI_Op_c2f
#define TO_INFO PMPI_Info_c2f
#define TO_ERRHANDLER PMPI_Errhandler_c2f
#define TO_REQUEST PMPI_Request_c2f
#define FROM_FORTRAN() (fortran_site = SITE)

// The library's own, which also tell it where the program keeps Fortran's constants.
extern void pmpi_init_(MPI_Fint *error) __attribute__((weak));
extern void pmpi_init_thread_(MPI_Fint *required, MPI_Fint *provided, MPI_Fint *error) __attribute__((weak));

void mpi_init_(MPI_Fint *error)
{
	pmpi_init_(error);
	begin(MPI_THREAD_SINGLE);
}

void mpi_init_thread_(MPI_Fint *required, MPI_Fint *provided, MPI_Fint *error)
{
	pmpi_init_thread_(required, provided, error);
	begin(*provided);
}
