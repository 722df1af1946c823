// SPDX-License-Identifier: Apache-2.0
//
// Calls that free what the recorder keeps by its handle.

int MPI_Comm_free(MPI_Comm *comm)
{
	if (!enter(SITE))
		return PMPI_Comm_free(comm);
	const MPI_Comm gone = *comm;
	// Functions of its attributes may still use it.
	const int result = PMPI_Comm_free(comm);
	for (int n = 0; n < comms_used; n++)
		if (comms[n].comm == gone) {
			free(comms[n].members);
			comms[n] = comms[--comms_used];
			break;
		}
	put_result(result);
	leave(F_Comm_free);
	return result;
}

int MPI_Type_free(MPI_Datatype *type)
{
	if (!enter(SITE))
		return PMPI_Type_free(type);
	forget_layout(*type);
	const int result = PMPI_Type_free(type);
	put_result(result);
	leave(F_Type_free);
	return result;
}
