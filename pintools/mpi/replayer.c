// SPDX-License-Identifier: Apache-2.0
//
// Replayer of MPI: it stands in for the MPI library, and answers every call of one rank from its recording.
//
// PROBE_MPI_INBOX is the beginning of the names of the inbox's parts (pintools/mpi/recorder.c). The rank alone is an
// ordinary process: one thread, no sockets, a part of the recording mapped at a time. PROBE_MPI_CHECK=1: what it sends is
// compared with what was sent. PROBE_MPI_SUMMARY: a file for the number of calls and of differing messages.
//
// The functions' numbers F_*, their names, and recording.h stand before this file, most calls behind it.

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
static unsigned long calls_made, messages_sent, messages_differ, first_differing;
static int is_checking, is_begun, is_over;
static int64_t nulls[8];
enum { LEVEL, NULL_COMM, NULL_REQUEST, NULL_TYPE, NULL_GROUP, NULL_OP, NULL_INFO, NULL_ERRHANDLER };

static const char *name_of(unsigned function)
{
	return function < F_COUNT ? function_names[function] : function == END ? "the end" : "something else";
}

__attribute__((noreturn)) static void stop(const char *reason)
{
	fprintf(stderr, "probe: call %lu: %s\n", calls_made, reason);
	_exit(LEFT_STATUS);
}

__attribute__((noreturn)) static void left(unsigned recorded, const char *made)
{
	char reason[200];
	snprintf(reason, sizeof reason, "this rank left its recording (recorded %s, made %s)", name_of(recorded), made);
	stop(reason);
}

__attribute__((noreturn, used)) void probe_mpi_unknown(const char *name)
{
	char reason[200];
	snprintf(reason, sizeof reason, "this program calls %s, which is not recorded", name);
	stop(reason);
}

// -- parts and records

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

// -- layouts

typedef struct {
	int64_t extent;
	size_t runs;
	Run *run;
} Layout;

static Layout *layouts;
static size_t layouts_room;

static void learn_layout(void)
{
	const uint64_t number = (uint64_t)get_int();
	const int64_t extent = get_int();
	const uint64_t runs = (uint64_t)get_int();
	if (number > UINT32_MAX || runs > (size_t)(end - at) / sizeof(Run))
		stop("a layout of the recording is damaged");
	if (number >= layouts_room) {
		const size_t room = number * 2 + FIRST_LAYOUTS;
		layouts = realloc(layouts, room * sizeof *layouts);
		if (layouts == NULL)
			stop("no memory for the layouts of the recording");
		memset(layouts + layouts_room, 0, (room - layouts_room) * sizeof *layouts);
		layouts_room = room;
	}
	Layout *made = &layouts[number];
	*made = (Layout){extent, runs, malloc(runs * sizeof(Run) + 1)};
	if (made->run == NULL)
		stop("no memory for the layouts of the recording");
	memcpy(made->run, at, runs * sizeof(Run));
	for (size_t n = 0; n < runs; n++)
		if (made->run[n].bytes == 0)
			stop("a layout of the recording is damaged");
}

static const Layout *layout(int64_t number)
{
	if (number <= 0 || (uint64_t)number >= layouts_room || layouts[number].runs == 0)
		stop("the recording names a layout that it does not have");
	return &layouts[number];
}

// -- calls

static int take(unsigned function)
{
	calls_made++;
	if (!is_begun || is_over)
		left(is_over ? END : BEGIN, name_of(function));
	if (repeats > 0) {
		repeats--;
		at = (const char *)(current + 1);
	} else {
		do {
			open_record();
			if (current->function == LAYOUT)
				learn_layout();
		} while (current->function == LAYOUT);
		repeats = current->repeats;
	}
	if (current->function != function)
		left(current->function, name_of(function));
	return (int)get_int();
}

static void deliver_piece(char *base)
{
	char *into = base + get_int();
	int64_t left = get_int();
	const int64_t number = get_int();
	if (left < 0 || left > end - at)
		stop("a message of the recording is too short");
	const char *from = get_bytes((size_t)left);
	if (number == 0) {
		memcpy(into, from, (size_t)left);
		return;
	}
	const Layout *found = layout(number);
	for (; left > 0; into += found->extent)
		for (size_t n = 0; n < found->runs && left > 0; n++) {
			const size_t some = (int64_t)found->run[n].bytes < left ? found->run[n].bytes : (size_t)left;
			memcpy(into + found->run[n].at, from, some);
			from += some;
			left -= (int64_t)some;
		}
}

static void deliver(void *base)
{
	for (int64_t pieces = get_int(); pieces > 0; pieces--)
		deliver_piece(base);
}

static void check_sent(const void *data)
{
	int64_t bytes = get_int();
	const int64_t number = get_int();
	const uint64_t recorded = (uint64_t)get_int();
	uint64_t hash = 0;
	if (!is_checking)
		return;
	messages_sent++;
	if (number == 0)
		hash = mixed(hash, data, (uint64_t)bytes);
	else {
		const Layout *found = layout(number);
		for (const char *from = data; bytes > 0; from += found->extent)
			for (size_t n = 0; n < found->runs && bytes > 0; n++) {
				hash = mixed(hash, from + found->run[n].at, found->run[n].bytes);
				bytes -= (int64_t)found->run[n].bytes;
			}
	}
	if (hash != recorded && messages_differ++ == 0)
		first_differing = calls_made;
}

// -- handles: numbers of our own, which no library's constant has

// Odd, so that no address is one; above those of constants that are numbers.
enum { FIRST_HANDLE = 0x60000001 };

static uint32_t handles_made;

static int new_number(void)
{
	return (int)(FIRST_HANDLE + 2 * handles_made++);
}

#define HANDLE(type, number) ((type)(intptr_t)(number))
#define NUMBER(handle) ((int)(intptr_t)(handle))

// -- requests

typedef struct {
	void *base;
	int persistent, used;
} Waiting;

static Waiting *waiting;
static uint32_t waiting_room, *free_requests, free_count;

static int new_request(void *base, int persistent)
{
	if (free_count == 0) {
		const uint32_t room = waiting_room * 2 + 64;
		waiting = realloc(waiting, room * sizeof *waiting);
		free_requests = realloc(free_requests, room * sizeof *free_requests);
		if (waiting == NULL || free_requests == NULL)
			stop("no memory for requests");
		for (uint32_t n = room; n-- > waiting_room;)
			free_requests[free_count++] = n;
		waiting_room = room;
	}
	const uint32_t number = free_requests[--free_count];
	waiting[number] = (Waiting){base, persistent, 1};
	return (int)(FIRST_HANDLE + 2 * number);
}

#define TO_NEW_REQUEST(base) HANDLE(MPI_Request, new_request(base, 0))
#define TO_NEW_PERSISTENT(base) HANDLE(MPI_Request, new_request(base, 1))

static Waiting *waiting_of(MPI_Request request)
{
	const uint32_t number = ((uint32_t)NUMBER(request) - FIRST_HANDLE) / 2;
	if (request == MPI_REQUEST_NULL)
		return NULL;
	if (number >= waiting_room || !waiting[number].used)
		stop("the rank waits for a request that it does not have");
	return &waiting[number];
}

static void release(MPI_Request *request)
{
	Waiting *found = waiting_of(*request);
	if (found == NULL)
		return;
	found->used = 0;
	free_requests[free_count++] = (uint32_t)(found - waiting);
	*request = MPI_REQUEST_NULL;
}

static void completed(MPI_Request *request)
{
	const Waiting *found = waiting_of(*request);
	deliver(found == NULL ? NULL : found->base);
	if (found != NULL && !found->persistent)
		release(request);
}

int MPI_Recv(void *data, int count, MPI_Datatype type, int source, int tag, MPI_Comm comm, MPI_Status *status)
{
	(void)count, (void)type, (void)source, (void)tag, (void)comm;
	const int result = take(F_Recv);
	get_status(status);
	deliver(data);
	return result;
}

int MPI_Sendrecv(const void *data, int count, MPI_Datatype type, int dest, int tag, void *into, int most,
		 MPI_Datatype into_type, int source, int into_tag, MPI_Comm comm, MPI_Status *status)
{
	(void)count, (void)type, (void)dest, (void)tag, (void)most, (void)into_type, (void)source, (void)into_tag;
	(void)comm;
	const int result = take(F_Sendrecv);
	check_sent(data);
	get_status(status);
	deliver(into);
	return result;
}

int MPI_Sendrecv_replace(void *data, int count, MPI_Datatype type, int dest, int tag, int source, int into_tag,
			 MPI_Comm comm, MPI_Status *status)
{
	(void)count, (void)type, (void)dest, (void)tag, (void)source, (void)into_tag, (void)comm;
	const int result = take(F_Sendrecv_replace);
	check_sent(data);
	get_status(status);
	deliver(data);
	return result;
}

int MPI_Irecv(void *data, int count, MPI_Datatype type, int source, int tag, MPI_Comm comm, MPI_Request *request)
{
	(void)count, (void)type, (void)source, (void)tag, (void)comm;
	const int result = take(F_Irecv);
	*request = TO_NEW_REQUEST(data);
	return result;
}

int MPI_Recv_init(void *data, int count, MPI_Datatype type, int source, int tag, MPI_Comm comm, MPI_Request *request)
{
	(void)count, (void)type, (void)source, (void)tag, (void)comm;
	const int result = take(F_Recv_init);
	*request = TO_NEW_PERSISTENT(data);
	return result;
}

int MPI_Start(MPI_Request *request)
{
	(void)request;
	return take(F_Start);
}

int MPI_Startall(int count, MPI_Request requests[])
{
	for (int n = 0; n < count; n++)
		MPI_Start(&requests[n]);
	return MPI_SUCCESS;
}

int MPI_Request_free(MPI_Request *request)
{
	const int result = take(F_Request_free);
	release(request);
	return result;
}

int MPI_Wait(MPI_Request *request, MPI_Status *status)
{
	const int result = take(F_Wait);
	get_status(status);
	completed(request);
	return result;
}

int MPI_Test(MPI_Request *request, int *flag, MPI_Status *status)
{
	const int result = take(F_Test);
	*flag = (int)get_int();
	if (*flag) {
		get_status(status);
		completed(request);
	}
	return result;
}

static void completed_all(int count, MPI_Request requests[], MPI_Status statuses[])
{
	for (int n = 0; n < count; n++) {
		get_status(statuses == MPI_STATUSES_IGNORE ? MPI_STATUS_IGNORE : &statuses[n]);
		completed(&requests[n]);
	}
}

int MPI_Waitall(int count, MPI_Request requests[], MPI_Status statuses[])
{
	const int result = take(F_Waitall);
	completed_all(count, requests, statuses);
	return result;
}

int MPI_Testall(int count, MPI_Request requests[], int *flag, MPI_Status statuses[])
{
	const int result = take(F_Testall);
	*flag = (int)get_int();
	if (*flag)
		completed_all(count, requests, statuses);
	return result;
}

static MPI_Request *chosen(int count, MPI_Request requests[], int64_t index)
{
	if (index < 0 || index >= count)
		stop("the recording completes a request that the rank does not name");
	return &requests[index];
}

static void completed_any(int count, MPI_Request requests[], int *index, MPI_Status *status)
{
	*index = (int)get_int();
	get_status(status);
	if (*index == MPI_UNDEFINED)
		deliver(NULL);
	else
		completed(chosen(count, requests, *index));
}

int MPI_Waitany(int count, MPI_Request requests[], int *index, MPI_Status *status)
{
	const int result = take(F_Waitany);
	completed_any(count, requests, index, status);
	return result;
}

int MPI_Testany(int count, MPI_Request requests[], int *index, int *flag, MPI_Status *status)
{
	const int result = take(F_Testany);
	*flag = (int)get_int();
	if (*flag)
		completed_any(count, requests, index, status);
	else
		*index = MPI_UNDEFINED;
	return result;
}

static void completed_some(int count, MPI_Request requests[], int *done, int indices[], MPI_Status statuses[])
{
	*done = (int)get_int();
	for (int n = 0; n < *done && *done != MPI_UNDEFINED; n++) {
		indices[n] = (int)get_int();
		get_status(statuses == MPI_STATUSES_IGNORE ? MPI_STATUS_IGNORE : &statuses[n]);
		completed(chosen(count, requests, indices[n]));
	}
}

int MPI_Waitsome(int count, MPI_Request requests[], int *done, int indices[], MPI_Status statuses[])
{
	const int result = take(F_Waitsome);
	completed_some(count, requests, done, indices, statuses);
	return result;
}

int MPI_Testsome(int count, MPI_Request requests[], int *done, int indices[], MPI_Status statuses[])
{
	const int result = take(F_Testsome);
	completed_some(count, requests, done, indices, statuses);
	return result;
}

int MPI_Comm_free(MPI_Comm *comm)
{
	const int result = take(F_Comm_free);
	*comm = MPI_COMM_NULL;
	return result;
}

int MPI_Type_free(MPI_Datatype *type)
{
	const int result = take(F_Type_free);
	*type = MPI_DATATYPE_NULL;
	return result;
}

int MPI_Pack(const void *data, int count, MPI_Datatype type, void *into, int room, int *position, MPI_Comm comm)
{
	(void)data, (void)count, (void)type, (void)room, (void)comm;
	const int result = take(F_Pack);
	*position = (int)get_int();
	deliver(into);
	return result;
}

int MPI_Unpack(const void *data, int room, int *position, void *into, int count, MPI_Datatype type, MPI_Comm comm)
{
	(void)data, (void)room, (void)count, (void)type, (void)comm;
	const int result = take(F_Unpack);
	*position = (int)get_int();
	deliver(into);
	return result;
}

static double taken_double(unsigned function)
{
	// A double answers where others have a result.
	const int64_t bits = (take(function), at -= WORD, get_int());
	double value;
	memcpy(&value, &bits, sizeof value);
	return value;
}

double MPI_Wtime(void)
{
	return taken_double(F_Wtime);
}

double MPI_Wtick(void)
{
	return taken_double(F_Wtick);
}

// -- beginning and end

static void begin(void)
{
	is_checking = getenv("PROBE_MPI_CHECK") != NULL;
	open_record();
	if (current->function != BEGIN)
		left(current->function, "MPI_Init");
	for (size_t n = 0; n < sizeof nulls / sizeof *nulls; n++)
		nulls[n] = get_int();
	is_begun = 1;
}

int MPI_Init(int *argc, char ***argv)
{
	(void)argc, (void)argv;
	begin();
	return MPI_SUCCESS;
}

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
	(void)required;
	MPI_Init(argc, argv);
	*provided = (int)nulls[LEVEL];
	return MPI_SUCCESS;
}

static void write_summary(void)
{
	char text[200];
	const char *path = getenv("PROBE_MPI_SUMMARY");
	const int file = path == NULL ? -1 : open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (file < 0)
		return;
	const int length = snprintf(text, sizeof text, "%lu %lu %lu %lu\n", calls_made, messages_sent, messages_differ,
				    first_differing);
	if (write(file, text, (size_t)length) != length)
		stop("the summary cannot be written");
	close(file);
}

int MPI_Finalize(void)
{
	const int result = take(F_Finalize);
	open_record();
	if (current->function != END)
		left(current->function, name_of(F_Finalize));
	munmap(part, part_bytes);
	part = NULL;
	is_over = 1;
	write_summary();
	return result;
}

int MPI_Abort(MPI_Comm comm, int status)
{
	(void)comm;
	stop("the rank calls MPI_Abort");
	return status;
}

// -- Fortran

extern char mpi_fortran_status_ignore_[] __attribute__((weak)), mpi_fortran_statuses_ignore_[] __attribute__((weak));
extern MPI_Fint mpipriv1_[] __attribute__((weak)), mpipriv2_[] __attribute__((weak));

static void *choice(void *data)
{
	return data;
}

static int ignores_status(const MPI_Fint *status)
{
	return (const char *)status == mpi_fortran_status_ignore_ || (mpipriv1_ != NULL && status == mpipriv1_ + 2);
}

static int ignores_statuses(const MPI_Fint *statuses)
{
	return (const char *)statuses == mpi_fortran_statuses_ignore_ || (mpipriv2_ != NULL && statuses == mpipriv2_);
}

// Only requests are looked at; other handles are numbers that go in and out.
#define FROM_COMM(number) HANDLE(MPI_Comm, number)
#define FROM_TYPE(number) HANDLE(MPI_Datatype, number)
#define FROM_GROUP(number) HANDLE(MPI_Group, number)
#define FROM_OP(number) HANDLE(MPI_Op, number)
#define FROM_INFO(number) HANDLE(MPI_Info, number)
#define FROM_ERRHANDLER(number) HANDLE(MPI_Errhandler, number)
#define FROM_REQUEST(number) ((number) == nulls[NULL_REQUEST] ? MPI_REQUEST_NULL : HANDLE(MPI_Request, number))
#define TO_FORTRAN(handle, null, which) ((handle) == (null) ? (MPI_Fint)nulls[which] : NUMBER(handle))
#define TO_COMM(handle) TO_FORTRAN(handle, MPI_COMM_NULL, NULL_COMM)
#define TO_TYPE(handle) TO_FORTRAN(handle, MPI_DATATYPE_NULL, NULL_TYPE)
#define TO_GROUP(handle) TO_FORTRAN(handle, MPI_GROUP_NULL, NULL_GROUP)
#define TO_OP(handle) TO_FORTRAN(handle, MPI_OP_NULL, NULL_OP)
#define TO_INFO(handle) TO_FORTRAN(handle, MPI_INFO_NULL, NULL_INFO)
#define TO_ERRHANDLER(handle) TO_FORTRAN(handle, MPI_ERRHANDLER_NULL, NULL_ERRHANDLER)
#define TO_REQUEST(handle) TO_FORTRAN(handle, MPI_REQUEST_NULL, NULL_REQUEST)
#define FROM_FORTRAN() ((void)0)

void mpi_init_(MPI_Fint *error)
{
	*error = MPI_Init(NULL, NULL);
}

void mpi_init_thread_(MPI_Fint *required, MPI_Fint *provided, MPI_Fint *error)
{
	int level;
	*error = MPI_Init_thread(NULL, NULL, (int)*required, &level);
	*provided = level;
}
