// SPDX-License-Identifier: Apache-2.0
//
// Fortran's handles and sentinels, for the wrappers of probe/mpi/fortran.py.

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
