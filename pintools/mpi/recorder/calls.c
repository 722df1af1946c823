// SPDX-License-Identifier: Apache-2.0
//
// Calls for the simulation; begin and end of each wrapper, with the times around it.

static CallRecord noted;
static int32_t *extras;
static uint32_t extras_room;
static int is_noted;

static void note(int peer, int tag, MPI_Comm comm, int64_t count, MPI_Datatype type, int other)
{
	noted = (CallRecord){.peer = peer, .tag = tag, .comm = comm_of(comm)->number, .other = other};
	const uint64_t elements = count > 0 ? (uint64_t)count : 0, size = (uint64_t)size_of(type);
	// The simulation's elements are below 2 GB each: of larger ones the bytes are counted.
	noted.count = size > INT32_MAX ? elements * size : elements;
	noted.element = size > INT32_MAX ? 1 : (uint32_t)size;
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

static void note_each(const int *counts, MPI_Comm comm, const MPI_Datatype types[])
{
	const int size = comm_of(comm)->size;
	for (int n = 0; n < size; n++)
		note_extra(counts == NULL ? 0 : counts[n] * size_of(types[n]));
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

#define SITE __builtin_return_address(0)

// Whether the program makes a call, not the library for itself. The first thread may be in a call while another one of
// the program's makes this.
static int is_programs(void)
{
	const int inside = __atomic_load_n(&depth, __ATOMIC_RELAXED) > 0;
	if (active && !is_first && (is_another || !inside))
		refuse("another thread than the first calls MPI, which is not recorded");
	return active && !inside;
}

static int enter(const void *site)
{
	if (!is_programs())
		return 0;
	depth = 1;
	call_site = fortran_site != NULL ? fortran_site : site;
	fortran_site = NULL;
	record.used = 0;
	is_noted = 0;
	entered_wall = returned_wall = clock_of(CLOCK_MONOTONIC);
	entered_cpu = own_time(entered_wall);
	burst += computed(entered_cpu - left_cpu);
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
	if (most_threads > 0)
		note_left(0);
	left_cpu = own_time(clock_of(CLOCK_MONOTONIC));
}

static void leave(unsigned function)
{
	leave_as(function, function);
}
