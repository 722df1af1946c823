// SPDX-License-Identifier: Apache-2.0
//
// Calls that free handles.

int MPI_Comm_free(MPI_Comm *comm)
{
	delete_attributes(*comm);
	const int result = take(F_Comm_free);
	*comm = MPI_COMM_NULL;
	return result;
}

int MPI_Type_free(MPI_Datatype *type)
{
	const int result = take(F_Type_free);
	*type = MPI_DATATYPE_NULL;
	return result;
}
