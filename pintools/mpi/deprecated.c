// SPDX-License-Identifier: Apache-2.0
//
// Calls of MPI 1 that MPI 3 no longer has, by those that took their places. Libraries still have them, and headers that
// name them in macros.

int(MPI_Type_extent)(MPI_Datatype type, MPI_Aint *extent)
{
	MPI_Aint lower;
	return MPI_Type_get_extent(type, &lower, extent);
}

int(MPI_Type_lb)(MPI_Datatype type, MPI_Aint *lower)
{
	MPI_Aint extent;
	return MPI_Type_get_extent(type, lower, &extent);
}

int(MPI_Type_ub)(MPI_Datatype type, MPI_Aint *upper)
{
	MPI_Aint lower, extent;
	const int result = MPI_Type_get_extent(type, &lower, &extent);
	*upper = lower + extent;
	return result;
}

int(MPI_Type_hvector)(int count, int length, MPI_Aint stride, MPI_Datatype type, MPI_Datatype *made)
{
	return MPI_Type_create_hvector(count, length, stride, type, made);
}

int(MPI_Type_hindexed)(int count, int lengths[], MPI_Aint places[], MPI_Datatype type, MPI_Datatype *made)
{
	return MPI_Type_create_hindexed(count, lengths, places, type, made);
}

int(MPI_Type_struct)(int count, int lengths[], MPI_Aint places[], MPI_Datatype types[], MPI_Datatype *made)
{
	return MPI_Type_create_struct(count, lengths, places, types, made);
}

int(MPI_Errhandler_set)(MPI_Comm comm, MPI_Errhandler handler)
{
	return MPI_Comm_set_errhandler(comm, handler);
}

int(MPI_Errhandler_get)(MPI_Comm comm, MPI_Errhandler *handler)
{
	return MPI_Comm_get_errhandler(comm, handler);
}

int(MPI_Errhandler_create)(MPI_Comm_errhandler_function *function, MPI_Errhandler *made)
{
	return MPI_Comm_create_errhandler(function, made);
}

int(MPI_Keyval_create)(MPI_Comm_copy_attr_function *copy, MPI_Comm_delete_attr_function *delete, int *key, void *given)
{
	return MPI_Comm_create_keyval(copy, delete, key, given);
}

int(MPI_Keyval_free)(int *key)
{
	return MPI_Comm_free_keyval(key);
}

int(MPI_Attr_put)(MPI_Comm comm, int key, void *value)
{
	return MPI_Comm_set_attr(comm, key, value);
}

int(MPI_Attr_get)(MPI_Comm comm, int key, void *value, int *is_set)
{
	return MPI_Comm_get_attr(comm, key, value, is_set);
}

int(MPI_Attr_delete)(MPI_Comm comm, int key)
{
	return MPI_Comm_delete_attr(comm, key);
}

// Fortran's of MPI 1 have places and sizes in its integers.

void mpi_attr_get_(MPI_Fint *comm, MPI_Fint *key, MPI_Fint *value, MPI_Fint *is_set, MPI_Fint *error)
{
	MPI_Aint found;
	mpi_comm_get_attr_(comm, key, &found, is_set, error);
	if (*is_set)
		*value = (MPI_Fint)found;
}

void mpi_errhandler_set_(MPI_Fint *comm, MPI_Fint *handler, MPI_Fint *error)
{
	mpi_comm_set_errhandler_(comm, handler, error);
}

void mpi_errhandler_get_(MPI_Fint *comm, MPI_Fint *handler, MPI_Fint *error)
{
	mpi_comm_get_errhandler_(comm, handler, error);
}

void mpi_type_extent_(MPI_Fint *type, MPI_Fint *extent, MPI_Fint *error)
{
	MPI_Aint lower, found;
	mpi_type_get_extent_(type, &lower, &found, error);
	*extent = (MPI_Fint)found;
}

void mpi_type_lb_(MPI_Fint *type, MPI_Fint *lower, MPI_Fint *error)
{
	MPI_Aint found, extent;
	mpi_type_get_extent_(type, &found, &extent, error);
	*lower = (MPI_Fint)found;
}

void mpi_type_ub_(MPI_Fint *type, MPI_Fint *upper, MPI_Fint *error)
{
	MPI_Aint lower, extent;
	mpi_type_get_extent_(type, &lower, &extent, error);
	*upper = (MPI_Fint)(lower + extent);
}

void mpi_type_hvector_(MPI_Fint *count, MPI_Fint *length, MPI_Fint *stride, MPI_Fint *type, MPI_Fint *made,
		       MPI_Fint *error)
{
	MPI_Aint wide = *stride;
	mpi_type_create_hvector_(count, length, &wide, type, made, error);
}

static MPI_Aint *widened(const MPI_Fint *count, const MPI_Fint *places)
{
	MPI_Aint *wide = malloc((size_t)*count * sizeof *wide + 1);
	for (int n = 0; n < *count; n++)
		wide[n] = places[n];
	return wide;
}

void mpi_type_hindexed_(MPI_Fint *count, MPI_Fint *lengths, MPI_Fint *places, MPI_Fint *type, MPI_Fint *made,
			MPI_Fint *error)
{
	MPI_Aint *wide = widened(count, places);
	mpi_type_create_hindexed_(count, lengths, wide, type, made, error);
	free(wide);
}

void mpi_type_struct_(MPI_Fint *count, MPI_Fint *lengths, MPI_Fint *places, MPI_Fint *types, MPI_Fint *made,
		      MPI_Fint *error)
{
	MPI_Aint *wide = widened(count, places);
	mpi_type_create_struct_(count, lengths, wide, types, made, error);
	free(wide);
}
