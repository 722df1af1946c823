// SPDX-License-Identifier: Apache-2.0
//
// Calls from one rank to one other, and the starting of requests.

int MPI_Recv(void *data, int count, MPI_Datatype type, int source, int tag, MPI_Comm comm, MPI_Status *status)
{
	(void)count, (void)type, (void)source, (void)tag, (void)comm;
	const int result = take(F_Recv);
	get_status(status);
	deliver(data);
	return result;
}

int MPI_Sendrecv(const void *data, int count, MPI_Datatype type, int dest, int tag, void *into, int most,
		 MPI_Datatype into_type, int source, int into_tag, MPI_Comm comm, MPI_Status *status)
{
	(void)count, (void)type, (void)dest, (void)tag, (void)most, (void)into_type, (void)source, (void)into_tag;
	(void)comm;
	const int result = take(F_Sendrecv);
	check_sent(data);
	get_status(status);
	deliver(into);
	return result;
}

int MPI_Sendrecv_replace(void *data, int count, MPI_Datatype type, int dest, int tag, int source, int into_tag,
			 MPI_Comm comm, MPI_Status *status)
{
	(void)count, (void)type, (void)dest, (void)tag, (void)source, (void)into_tag, (void)comm;
	const int result = take(F_Sendrecv_replace);
	check_sent(data);
	get_status(status);
	deliver(data);
	return result;
}

int MPI_Irecv(void *data, int count, MPI_Datatype type, int source, int tag, MPI_Comm comm, MPI_Request *request)
{
	(void)count, (void)type, (void)source, (void)tag, (void)comm;
	const int result = take(F_Irecv);
	*request = TO_NEW_REQUEST(data);
	return result;
}

int MPI_Recv_init(void *data, int count, MPI_Datatype type, int source, int tag, MPI_Comm comm, MPI_Request *request)
{
	(void)count, (void)type, (void)source, (void)tag, (void)comm;
	const int result = take(F_Recv_init);
	*request = TO_NEW_PERSISTENT(data);
	return result;
}

int MPI_Start(MPI_Request *request)
{
	(void)request;
	return take(F_Start);
}

int MPI_Startall(int count, MPI_Request requests[])
{
	for (int n = 0; n < count; n++)
		MPI_Start(&requests[n]);
	return MPI_SUCCESS;
}

int MPI_Request_free(MPI_Request *request)
{
	const int result = take(F_Request_free);
	release(request);
	return result;
}
