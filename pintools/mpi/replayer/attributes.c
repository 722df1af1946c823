// SPDX-License-Identifier: Apache-2.0
//
// Attributes of communicators: the program's own are kept here, and its functions called; what the library said of itself
// is in the recording.

enum { FIRST_KEY = 0x50000001, MOST_CONSTANTS = 32 };

typedef struct {
	MPI_Comm_copy_attr_function *copy;
	MPI_Comm_delete_attr_function *delete;
	void *given;
} Key;

typedef struct {
	MPI_Comm comm;
	int key;
	void *value;
} Attribute;

static Key *keys;
static int keys_made;

// In the order in which they were set.
static Attribute *attributes, *copies;
static int attributes_set, copies_made;

static void *more_room(void *old, int count, size_t each)
{
	void *room = realloc(old, (size_t)(count + 1) * each);
	if (room == NULL)
		stop("no memory for attributes");
	return room;
}

static Key *key_of(int number)
{
	const uint32_t place = ((uint32_t)number - FIRST_KEY) / 2;
	return number >= FIRST_KEY && place < (uint32_t)keys_made ? &keys[place] : NULL;
}

int MPI_Comm_create_keyval(MPI_Comm_copy_attr_function *copy, MPI_Comm_delete_attr_function *delete, int *number,
			   void *given)
{
	keys = more_room(keys, keys_made, sizeof *keys);
	*number = FIRST_KEY + 2 * keys_made;
	keys[keys_made++] = (Key){copy, delete, given};
	return MPI_SUCCESS;
}

static Attribute *attribute_of(MPI_Comm comm, int number)
{
	for (int n = 0; n < attributes_set; n++)
		if (attributes[n].comm == comm && attributes[n].key == number)
			return &attributes[n];
	return NULL;
}

static void remove_attribute(MPI_Comm comm, int number)
{
	const Attribute *found = attribute_of(comm, number);
	if (found == NULL)
		return;
	const size_t at = (size_t)(found - attributes);
	memmove(attributes + at, attributes + at + 1, ((size_t)--attributes_set - at) * sizeof *attributes);
}

// The attribute whose function the library called next.
static Attribute called_next(MPI_Comm comm)
{
	open_record();
	const int64_t place = get_int();
	const Attribute *found =
		place < 0 || place >= keys_made ? NULL : attribute_of(comm, FIRST_KEY + 2 * (int)place);
	if (found == NULL)
		stop("the recording has a function of an attribute that is not set");
	return *found;
}

// Calls what the library called next to delete an attribute. The function may set and delete others.
static int delete_next(MPI_Comm comm)
{
	const Attribute one = called_next(comm);
	const Key key = *key_of(one.key);
	const int result = key.delete(comm, one.key, one.value, key.given);
	if (result == MPI_SUCCESS)
		remove_attribute(comm, one.key);
	return result;
}

static int delete_attribute(MPI_Comm comm, int number)
{
	if (key_of(number)->delete != NULL && is_next(DELETE))
		return delete_next(comm);
	remove_attribute(comm, number);
	return MPI_SUCCESS;
}

int MPI_Comm_set_attr(MPI_Comm comm, int number, void *value)
{
	if (key_of(number) == NULL)
		return MPI_ERR_KEYVAL;
	const int result = attribute_of(comm, number) == NULL ? MPI_SUCCESS : delete_attribute(comm, number);
	if (result != MPI_SUCCESS)
		return result;
	attributes = more_room(attributes, attributes_set, sizeof *attributes);
	attributes[attributes_set++] = (Attribute){comm, number, value};
	return MPI_SUCCESS;
}

int MPI_Comm_delete_attr(MPI_Comm comm, int number)
{
	return attribute_of(comm, number) == NULL ? MPI_ERR_KEYVAL : delete_attribute(comm, number);
}

static void delete_attributes(MPI_Comm comm)
{
	while (is_next(DELETE))
		delete_next(comm);
	for (int n = attributes_set; n-- > 0;)
		if (attributes[n].comm == comm)
			remove_attribute(comm, attributes[n].key);
}

static void add_copy(MPI_Comm from, int number, void *value)
{
	copies = more_room(copies, copies_made, sizeof *copies);
	copies[copies_made++] = (Attribute){from, number, value};
}

// Before the call that makes the communicator is taken: what the functions call was recorded before it. They may copy
// communicators themselves: the copies of the outer call are the first ones. Returns where those of this call begin.
static int copy_attributes(MPI_Comm from)
{
	const int begun = copies_made;
	while (is_next(COPY)) {
		const Attribute one = called_next(from);
		const Key key = *key_of(one.key);
		void *made = NULL;
		int is_set = 0;
		key.copy(from, one.key, key.given, one.value, &made, &is_set);
		if (is_set)
			add_copy(from, one.key, made);
	}
	return begun;
}

static void set_copies(MPI_Comm made, int begun)
{
	for (int n = begun; n < copies_made; n++)
		MPI_Comm_set_attr(made, copies[n].key, copies[n].value);
	copies_made = begun;
}

// A place for what the library says of itself under one key: a program may keep the address.
static int *constant_of(int key)
{
	static int seen[MOST_CONSTANTS], values[MOST_CONSTANTS], used;
	int n = 0;
	while (n < used && seen[n] != key)
		n++;
	if (n == MOST_CONSTANTS)
		stop("the recording has too many attributes of the library");
	if (n == used)
		seen[used++] = key;
	return &values[n];
}

int MPI_Comm_get_attr(MPI_Comm comm, int number, void *value, int *is_set)
{
	if (key_of(number) != NULL) {
		const Attribute *found = attribute_of(comm, number);
		*is_set = found != NULL;
		if (found != NULL)
			*(void **)value = found->value;
		return MPI_SUCCESS;
	}
	const int result = take(F_Comm_get_attr);
	*is_set = (int)get_int();
	const int said = (int)get_int();
	if (*is_set) {
		int *place = constant_of(number);
		*place = said;
		*(int **)value = place;
	}
	return result;
}

// Functions that MPI libraries have for programs to name as theirs.
int OMPI_C_MPI_COMM_NULL_COPY_FN(MPI_Comm comm, int key, void *given, void *value, void *made, int *is_set)
{
	(void)comm, (void)key, (void)given, (void)value, (void)made;
	*is_set = 0;
	return MPI_SUCCESS;
}

int OMPI_C_MPI_COMM_NULL_DELETE_FN(MPI_Comm comm, int key, void *value, void *given)
{
	(void)comm, (void)key, (void)value, (void)given;
	return MPI_SUCCESS;
}

int OMPI_C_MPI_COMM_DUP_FN(MPI_Comm comm, int key, void *given, void *value, void *made, int *is_set)
{
	(void)comm, (void)key, (void)given;
	*(void **)made = value;
	*is_set = 1;
	return MPI_SUCCESS;
}

int OMPI_C_MPI_NULL_COPY_FN(MPI_Comm comm, int key, void *given, void *value, void *made, int *is_set)
{
	return OMPI_C_MPI_COMM_NULL_COPY_FN(comm, key, given, value, made, is_set);
}

int OMPI_C_MPI_NULL_DELETE_FN(MPI_Comm comm, int key, void *value, void *given)
{
	return OMPI_C_MPI_COMM_NULL_DELETE_FN(comm, key, value, given);
}

int OMPI_C_MPI_DUP_FN(MPI_Comm comm, int key, void *given, void *value, void *made, int *is_set)
{
	return OMPI_C_MPI_COMM_DUP_FN(comm, key, given, value, made, is_set);
}

int MPIR_Dup_fn(MPI_Comm comm, int key, void *given, void *value, void *made, int *is_set)
{
	return OMPI_C_MPI_COMM_DUP_FN(comm, key, given, value, made, is_set);
}
