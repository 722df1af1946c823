// SPDX-License-Identifier: Apache-2.0
//
// Fortran's handles and sentinels, for the wrappers of probe/mpi/library/fortran.py.

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
#define FROM_MESSAGE PMPI_Message_f2c
#define TO_MESSAGE PMPI_Message_c2f
#define TO_COMM PMPI_Comm_c2f
#define TO_TYPE PMPI_Type_c2f
#define TO_GROUP PMPI_Group_c2f
#define TO_OP PMPI_Op_c2f
#define TO_INFO PMPI_Info_c2f
#define TO_ERRHANDLER PMPI_Errhandler_c2f
#define TO_REQUEST PMPI_Request_c2f
#define FROM_FORTRAN() (fortran_site = SITE)

extern void pmpi_comm_get_attr_(MPI_Fint *comm, MPI_Fint *key, MPI_Aint *value, MPI_Fint *is_set, MPI_Fint *error)
	__attribute__((weak));
extern void pmpi_op_create_(void *function, MPI_Fint *commutes, MPI_Fint *operation, MPI_Fint *error)
	__attribute__((weak));

// The numbers of the library's keys may be others than those of C.
void mpi_comm_get_attr_(MPI_Fint *comm, MPI_Fint *key, MPI_Aint *value, MPI_Fint *is_set, MPI_Fint *error)
{
	FROM_FORTRAN();
	const int is_recorded = key_of(*key) == NULL && enter(SITE);
	pmpi_comm_get_attr_(comm, key, value, is_set, error);
	if (is_recorded)
		record_attribute(*error, *is_set, *is_set ? *value : 0);
}

// The library calls the function with handles of Fortran.
void mpi_op_create_(void *function, MPI_Fint *commutes, MPI_Fint *operation, MPI_Fint *error)
{
	FROM_FORTRAN();
	const int is_recorded = enter(SITE);
	pmpi_op_create_(function, commutes, operation, error);
	if (is_recorded) {
		put_result(*error);
		put_int(1);
		leave(F_Op_create);
	}
}

// The library's own, which also tell it where the program keeps Fortran's constants.
extern void pmpi_init_(MPI_Fint *error) __attribute__((weak));
extern void pmpi_init_thread_(MPI_Fint *required, MPI_Fint *provided, MPI_Fint *error) __attribute__((weak));

void mpi_init_(MPI_Fint *error)
{
	in_library = 1;
	pmpi_init_(error);
	in_library = 0;
	begin(MPI_THREAD_SINGLE);
}

void mpi_init_thread_(MPI_Fint *required, MPI_Fint *provided, MPI_Fint *error)
{
	in_library = 1;
	pmpi_init_thread_(required, provided, error);
	in_library = 0;
	begin(*provided);
}
