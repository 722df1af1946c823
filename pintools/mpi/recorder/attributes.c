// SPDX-License-Identifier: Apache-2.0
//
// Attributes of communicators. Those of the program's own keys mean the same in a rank alone, and are not recorded. Which
// of the program's functions the library calls while a communicator is copied, or freed, is: libraries have orders of
// their own. So is what these functions call, and what the library says of itself.

typedef struct {
	MPI_Comm_copy_attr_function *copy;
	MPI_Comm_delete_attr_function *delete;
	void *given;
	int key, place;
} Key;

// Freed keys stay: their attributes do, until the communicators go.
static Key **keys;
static int keys_made;

// Keys of attributes of MPI_COMM_SELF, in the order in which they were set.
static int *own_keys, own_keys_used;

static Key *key_of(int number)
{
	for (int n = keys_made; n-- > 0;)
		if (keys[n]->key == number)
			return keys[n];
	return NULL;
}

// The state of the call that calls back, which has put nothing into its record yet.
typedef struct {
	int depth;
	const void *site;
	uint64_t entered;
} Outer;

static Outer step_out(unsigned what, const Key *key)
{
	const Outer was = {depth, call_site, entered_wall};
	const int64_t place = key->place;
	if (active && contents)
		add_record(what, &place, sizeof place);
	// The outer call has counted the computing before it.
	if (depth > 0) {
		left_cpu = own_time(clock_of(CLOCK_MONOTONIC));
		note_left(0);
	}
	depth = 0;
	return was;
}

static void step_in(Outer was)
{
	if (active && was.depth > 0)
		burst += computed(own_time(clock_of(CLOCK_MONOTONIC)) - left_cpu);
	depth = was.depth;
	call_site = was.site;
	entered_wall = was.entered;
	record.used = 0;
	is_noted = 0;
}

static int copied(MPI_Comm comm, int number, void *given, void *value, void *made, int *is_set)
{
	const Key *key = given;
	*is_set = 0;
	if (key->copy == NULL)
		return MPI_SUCCESS;
	const Outer was = step_out(COPY, key);
	const int result = key->copy(comm, number, key->given, value, made, is_set);
	step_in(was);
	return result;
}

static int deleted(MPI_Comm comm, int number, void *value, void *given)
{
	const Key *key = given;
	if (key->delete == NULL)
		return MPI_SUCCESS;
	const Outer was = step_out(DELETE, key);
	const int result = key->delete(comm, number, value, key->given);
	step_in(was);
	return result;
}

int MPI_Comm_create_keyval(MPI_Comm_copy_attr_function *copy, MPI_Comm_delete_attr_function *delete, int *number,
			   void *given)
{
	// A library inside of MPI has keys of its own.
	if (!is_programs())
		return PMPI_Comm_create_keyval(copy, delete, number, given);
	Key *made = grown(NULL, sizeof *made);
	keys = grown(keys, (size_t)(keys_made + 1) * sizeof(Key *));
	*made = (Key){.copy = copy, .delete = delete, .given = given, .place = keys_made};
	const int result = PMPI_Comm_create_keyval(copied, deleted, &made->key, made);
	*number = made->key;
	if (result == MPI_SUCCESS)
		keys[keys_made++] = made;
	return result;
}

static void forget_own(int number)
{
	for (int n = 0; n < own_keys_used; n++)
		if (own_keys[n] == number) {
			memmove(own_keys + n, own_keys + n + 1, (size_t)(--own_keys_used - n) * sizeof *own_keys);
			return;
		}
}

int MPI_Comm_set_attr(MPI_Comm comm, int number, void *value)
{
	if (is_programs() && comm == MPI_COMM_SELF) {
		forget_own(number);
		own_keys = grown(own_keys, (size_t)(own_keys_used + 1) * sizeof *own_keys);
		own_keys[own_keys_used++] = number;
	}
	return PMPI_Comm_set_attr(comm, number, value);
}

int MPI_Comm_delete_attr(MPI_Comm comm, int number)
{
	const int own = is_programs(), result = PMPI_Comm_delete_attr(comm, number);
	if (own && comm == MPI_COMM_SELF)
		forget_own(number);
	return result;
}

// What MPI_Finalize begins with, while calls are still recorded (MPI 3.1, section 8.7.1): the last set goes first.
static void delete_own(void)
{
	const void *site = fortran_site;
	for (int n = own_keys_used; n-- > 0;)
		if (n < own_keys_used)
			MPI_Comm_delete_attr(MPI_COMM_SELF, own_keys[n]);
	fortran_site = site;
}

static void record_attribute(int result, int is_set, int64_t value)
{
	put_result(result);
	put_int(is_set);
	put_int(is_set ? value : 0);
	leave(F_Comm_get_attr);
}

int MPI_Comm_get_attr(MPI_Comm comm, int number, void *value, int *is_set)
{
	if (key_of(number) != NULL || !enter(SITE))
		return PMPI_Comm_get_attr(comm, number, value, is_set);
	const int result = PMPI_Comm_get_attr(comm, number, value, is_set);
	record_attribute(result, *is_set, *is_set ? **(int **)value : 0);
	return result;
}
