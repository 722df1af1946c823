// SPDX-License-Identifier: Apache-2.0
//
// Calls that are not recorded, since they mean the same in a rank alone: the end of the replayer.

int MPI_Initialized(int *flag)
{
	*flag = is_begun;
	return MPI_SUCCESS;
}

int MPI_Finalized(int *flag)
{
	*flag = is_over;
	return MPI_SUCCESS;
}

int MPI_Pcontrol(const int level, ...)
{
	(void)level;
	return MPI_SUCCESS;
}

int MPI_Get_address(const void *place, MPI_Aint *address)
{
	*address = (MPI_Aint)place;
	return MPI_SUCCESS;
}

MPI_Aint(MPI_Aint_add)(MPI_Aint base, MPI_Aint distance)
{
	return base + distance;
}

MPI_Aint(MPI_Aint_diff)(MPI_Aint a, MPI_Aint b)
{
	return a - b;
}

void mpi_initialized_(MPI_Fint *flag, MPI_Fint *error)
{
	*flag = is_begun;
	*error = MPI_SUCCESS;
}

void mpi_finalized_(MPI_Fint *flag, MPI_Fint *error)
{
	*flag = is_over;
	*error = MPI_SUCCESS;
}

void mpi_get_address_(const void *place, MPI_Aint *address, MPI_Fint *error)
{
	*address = (MPI_Aint)place;
	*error = MPI_SUCCESS;
}
