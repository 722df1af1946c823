// SPDX-License-Identifier: Apache-2.0
//
// Calls that pack, unpack, and reduce two buffers of this rank.

int MPI_Pack(const void *data, int count, MPI_Datatype type, void *into, int room, int *at, MPI_Comm comm)
{
	if (!enter(SITE))
		return PMPI_Pack(data, count, type, into, room, at, comm);
	const int from = *at, result = PMPI_Pack(data, count, type, into, room, at, comm);
	put_result(result);
	put_int(*at);
	begin_plan(into);
	add(from, *at - from, MPI_BYTE);
	put_plan(&plan, -1);
	leave(F_Pack);
	return result;
}

int MPI_Unpack(const void *data, int room, int *at, void *into, int count, MPI_Datatype type, MPI_Comm comm)
{
	if (!enter(SITE))
		return PMPI_Unpack(data, room, at, into, count, type, comm);
	const int result = PMPI_Unpack(data, room, at, into, count, type, comm);
	put_result(result);
	put_int(*at);
	begin_plan(into);
	add(0, count, type);
	put_plan(&plan, -1);
	leave(F_Unpack);
	return result;
}

int MPI_Reduce_local(const void *data, void *into, int count, MPI_Datatype type, MPI_Op operation)
{
	if (!enter(SITE))
		return PMPI_Reduce_local(data, into, count, type, operation);
	const int result = PMPI_Reduce_local(data, into, count, type, operation);
	put_result(result);
	begin_plan(into);
	add(0, count, type);
	put_plan(&plan, -1);
	leave(F_Reduce_local);
	return result;
}
