// SPDX-License-Identifier: Apache-2.0
//
// Fortran's handles and sentinels, for the wrappers of probe/mpi/library/fortran.py.

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

// Handles that the library had from the beginning are its own; others are numbers that go in and out.
#define FROM_NUMBER(type, number, null, which) ((number) == first[which] ? (null) : HANDLE(type, number))
#define TO_NUMBER(handle, null, which) ((handle) == (null) ? (MPI_Fint)first[which] : NUMBER(handle))

static MPI_Comm from_comm(MPI_Fint number)
{
	if (number == first[WORLD])
		return MPI_COMM_WORLD;
	return number == first[SELF] ? MPI_COMM_SELF : FROM_NUMBER(MPI_Comm, number, MPI_COMM_NULL, NULL_COMM);
}

static MPI_Fint to_comm(MPI_Comm comm)
{
	if (comm == MPI_COMM_WORLD)
		return (MPI_Fint)first[WORLD];
	return comm == MPI_COMM_SELF ? (MPI_Fint)first[SELF] : TO_NUMBER(comm, MPI_COMM_NULL, NULL_COMM);
}

#define FROM_COMM from_comm
#define FROM_TYPE(number) FROM_NUMBER(MPI_Datatype, number, MPI_DATATYPE_NULL, NULL_TYPE)
#define FROM_GROUP(number) FROM_NUMBER(MPI_Group, number, MPI_GROUP_NULL, NULL_GROUP)
#define FROM_OP(number) FROM_NUMBER(MPI_Op, number, MPI_OP_NULL, NULL_OP)
#define FROM_INFO(number) FROM_NUMBER(MPI_Info, number, MPI_INFO_NULL, NULL_INFO)
#define FROM_ERRHANDLER(number) FROM_NUMBER(MPI_Errhandler, number, MPI_ERRHANDLER_NULL, NULL_ERRHANDLER)
#define FROM_REQUEST(number) FROM_NUMBER(MPI_Request, number, MPI_REQUEST_NULL, NULL_REQUEST)
#define FROM_MESSAGE(number) FROM_NUMBER(MPI_Message, number, MPI_MESSAGE_NULL, NULL_MESSAGE)
#define TO_COMM to_comm
#define TO_TYPE(handle) TO_NUMBER(handle, MPI_DATATYPE_NULL, NULL_TYPE)
#define TO_GROUP(handle) TO_NUMBER(handle, MPI_GROUP_NULL, NULL_GROUP)
#define TO_OP(handle) TO_NUMBER(handle, MPI_OP_NULL, NULL_OP)
#define TO_INFO(handle) TO_NUMBER(handle, MPI_INFO_NULL, NULL_INFO)
#define TO_ERRHANDLER(handle) TO_NUMBER(handle, MPI_ERRHANDLER_NULL, NULL_ERRHANDLER)
#define TO_REQUEST(handle) TO_NUMBER(handle, MPI_REQUEST_NULL, NULL_REQUEST)
#define TO_MESSAGE(handle) TO_NUMBER(handle, MPI_MESSAGE_NULL, NULL_MESSAGE)
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

void mpi_comm_get_attr_(MPI_Fint *comm, MPI_Fint *key, MPI_Aint *value, MPI_Fint *is_set, MPI_Fint *error)
{
	int *found;
	*error = MPI_Comm_get_attr(FROM_COMM(*comm), *key, &found, is_set);
	if (*is_set)
		*value = key_of(*key) != NULL ? (MPI_Aint)found : *found;
}

void mpi_op_create_(void *function, MPI_Fint *commutes, MPI_Fint *operation, MPI_Fint *error)
{
	MPI_Op made;
	(void)function;
	*error = MPI_Op_create(NULL, *commutes, &made);
	*operation = TO_OP(made);
}

// Some libraries have macros of these names.
int(MPI_Status_f2c)(const MPI_Fint *from, MPI_Status *status)
{
	memcpy(status, from, sizeof *status);
	return MPI_SUCCESS;
}

int(MPI_Status_c2f)(const MPI_Status *status, MPI_Fint *into)
{
	memcpy(into, status, sizeof *status);
	return MPI_SUCCESS;
}
