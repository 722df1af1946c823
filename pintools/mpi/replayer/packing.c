// SPDX-License-Identifier: Apache-2.0
//
// Calls that pack, unpack, and reduce two buffers of this rank.

int MPI_Pack(const void *data, int count, MPI_Datatype type, void *into, int room, int *position, MPI_Comm comm)
{
	(void)data, (void)count, (void)type, (void)room, (void)comm;
	const int result = take(F_Pack);
	*position = (int)get_int();
	deliver(into);
	return result;
}

int MPI_Unpack(const void *data, int room, int *position, void *into, int count, MPI_Datatype type, MPI_Comm comm)
{
	(void)data, (void)room, (void)count, (void)type, (void)comm;
	const int result = take(F_Unpack);
	*position = (int)get_int();
	deliver(into);
	return result;
}

int MPI_Reduce_local(const void *data, void *into, int count, MPI_Datatype type, MPI_Op operation)
{
	(void)data, (void)count, (void)type, (void)operation;
	const int result = take(F_Reduce_local);
	deliver(into);
	return result;
}
