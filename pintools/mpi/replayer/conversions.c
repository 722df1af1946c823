// SPDX-License-Identifier: Apache-2.0
//
// Handles of C for Fortran's numbers, and back, as programs ask for them. Some libraries have macros of these names.

MPI_Comm(MPI_Comm_f2c)(MPI_Fint number)
{
	return FROM_COMM(number);
}

MPI_Fint(MPI_Comm_c2f)(MPI_Comm handle)
{
	return TO_COMM(handle);
}

MPI_Datatype(MPI_Type_f2c)(MPI_Fint number)
{
	return FROM_TYPE(number);
}

MPI_Fint(MPI_Type_c2f)(MPI_Datatype handle)
{
	return TO_TYPE(handle);
}

MPI_Group(MPI_Group_f2c)(MPI_Fint number)
{
	return FROM_GROUP(number);
}

MPI_Fint(MPI_Group_c2f)(MPI_Group handle)
{
	return TO_GROUP(handle);
}

MPI_Op(MPI_Op_f2c)(MPI_Fint number)
{
	return FROM_OP(number);
}

MPI_Fint(MPI_Op_c2f)(MPI_Op handle)
{
	return TO_OP(handle);
}

MPI_Info(MPI_Info_f2c)(MPI_Fint number)
{
	return FROM_INFO(number);
}

MPI_Fint(MPI_Info_c2f)(MPI_Info handle)
{
	return TO_INFO(handle);
}

MPI_Errhandler(MPI_Errhandler_f2c)(MPI_Fint number)
{
	return FROM_ERRHANDLER(number);
}

MPI_Fint(MPI_Errhandler_c2f)(MPI_Errhandler handle)
{
	return TO_ERRHANDLER(handle);
}

MPI_Request(MPI_Request_f2c)(MPI_Fint number)
{
	return FROM_REQUEST(number);
}

MPI_Fint(MPI_Request_c2f)(MPI_Request handle)
{
	return TO_REQUEST(handle);
}

MPI_Message(MPI_Message_f2c)(MPI_Fint number)
{
	return FROM_MESSAGE(number);
}

MPI_Fint(MPI_Message_c2f)(MPI_Message handle)
{
	return TO_MESSAGE(handle);
}

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
