// SPDX-License-Identifier: Apache-2.0
//
// Calls that are not recorded, since they mean the same in a rank alone: the end of the replayer. The recorder lets all
// of these pass, and refuses what neither has.

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

int MPI_Alloc_mem(MPI_Aint bytes, MPI_Info info, void *place)
{
	(void)info;
	*(void **)place = malloc((size_t)bytes + 1);
	return *(void **)place == NULL ? MPI_ERR_NO_MEM : MPI_SUCCESS;
}

int MPI_Free_mem(void *place)
{
	free(place);
	return MPI_SUCCESS;
}

int(MPI_Address)(void *place, MPI_Aint *address)
{
	return MPI_Get_address(place, address);
}

int MPI_Comm_free_keyval(int *key)
{
	*key = MPI_KEYVAL_INVALID;
	return MPI_SUCCESS;
}

static void *attached;
static int attached_bytes;

int MPI_Buffer_attach(void *buffer, int bytes)
{
	attached = buffer;
	attached_bytes = bytes;
	return MPI_SUCCESS;
}

int MPI_Buffer_detach(void *buffer, int *bytes)
{
	*(void **)buffer = attached;
	*bytes = attached_bytes;
	return MPI_SUCCESS;
}

void mpi_alloc_mem_(MPI_Aint *bytes, MPI_Fint *info, void *place, MPI_Fint *error)
{
	(void)info;
	*error = MPI_Alloc_mem(*bytes, MPI_INFO_NULL, place);
}

void mpi_alloc_mem_cptr_(MPI_Aint *bytes, MPI_Fint *info, void *place, MPI_Fint *error)
{
	mpi_alloc_mem_(bytes, info, place, error);
}

void mpi_free_mem_(void *place, MPI_Fint *error)
{
	*error = MPI_Free_mem(place);
}

void mpi_buffer_attach_(void *buffer, MPI_Fint *bytes, MPI_Fint *error)
{
	*error = MPI_Buffer_attach(buffer, *bytes);
}

// Fortran is told no address.
void mpi_buffer_detach_(void *buffer, MPI_Fint *bytes, MPI_Fint *error)
{
	(void)buffer;
	*bytes = attached_bytes;
	*error = MPI_SUCCESS;
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

void mpi_address_(const void *place, MPI_Fint *address, MPI_Fint *error)
{
	*address = (MPI_Fint)(MPI_Aint)place;
	*error = MPI_SUCCESS;
}

MPI_Aint mpi_aint_add_(MPI_Aint *base, MPI_Aint *distance)
{
	return *base + *distance;
}

MPI_Aint mpi_aint_diff_(MPI_Aint *a, MPI_Aint *b)
{
	return *a - *b;
}

void mpi_pcontrol_(MPI_Fint *level)
{
	(void)level;
}

void mpi_get_address_(const void *place, MPI_Aint *address, MPI_Fint *error)
{
	*address = (MPI_Aint)place;
	*error = MPI_SUCCESS;
}
