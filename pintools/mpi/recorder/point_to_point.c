// SPDX-License-Identifier: Apache-2.0
//
// Calls from one rank to one other, and the starting of requests.

int MPI_Recv(void *data, int count, MPI_Datatype type, int source, int tag, MPI_Comm comm, MPI_Status *status)
{
	MPI_Status own, *seen = status == MPI_STATUS_IGNORE ? &own : status;
	if (!enter(SITE))
		return PMPI_Recv(data, count, type, source, tag, comm, status);
	const int result = PMPI_Recv(data, count, type, source, tag, comm, seen);
	put_result(result);
	note(world_of(comm, seen->MPI_SOURCE), seen->MPI_TAG, comm, bytes_of(seen), MPI_BYTE, source);
	put_status(seen);
	begin_plan(data);
	add(0, count, type);
	put_plan(&plan, bytes_of(seen));
	leave(F_Recv);
	return result;
}

int MPI_Sendrecv(const void *data, int count, MPI_Datatype type, int dest, int tag, void *into, int most,
		 MPI_Datatype into_type, int source, int into_tag, MPI_Comm comm, MPI_Status *status)
{
	MPI_Status own, *seen = status == MPI_STATUS_IGNORE ? &own : status;
	if (!enter(SITE))
		return PMPI_Sendrecv(data, count, type, dest, tag, into, most, into_type, source, into_tag, comm,
				     status);
	put_int(0);
	put_sent(data, count, type);
	const int result =
		PMPI_Sendrecv(data, count, type, dest, tag, into, most, into_type, source, into_tag, comm, seen);
	returned_wall = clock_of(CLOCK_MONOTONIC);
	note(world_of(comm, dest), tag, comm, count, type, world_of(comm, seen->MPI_SOURCE));
	note_extra(seen->MPI_TAG);
	note_extra(bytes_of(seen));
	put_status(seen);
	begin_plan(into);
	add(0, most, into_type);
	put_plan(&plan, bytes_of(seen));
	leave(F_Sendrecv);
	return result;
}

int MPI_Sendrecv_replace(void *data, int count, MPI_Datatype type, int dest, int tag, int source, int into_tag,
			 MPI_Comm comm, MPI_Status *status)
{
	MPI_Status own, *seen = status == MPI_STATUS_IGNORE ? &own : status;
	if (!enter(SITE))
		return PMPI_Sendrecv_replace(data, count, type, dest, tag, source, into_tag, comm, status);
	put_int(0);
	put_sent(data, count, type);
	const int result = PMPI_Sendrecv_replace(data, count, type, dest, tag, source, into_tag, comm, seen);
	returned_wall = clock_of(CLOCK_MONOTONIC);
	note(world_of(comm, dest), tag, comm, count, type, world_of(comm, seen->MPI_SOURCE));
	note_extra(seen->MPI_TAG);
	note_extra(bytes_of(seen));
	put_status(seen);
	begin_plan(data);
	add(0, count, type);
	put_plan(&plan, bytes_of(seen));
	leave(F_Sendrecv_replace);
	return result;
}

int MPI_Irecv(void *data, int count, MPI_Datatype type, int source, int tag, MPI_Comm comm, MPI_Request *request)
{
	if (!enter(SITE))
		return PMPI_Irecv(data, count, type, source, tag, comm, request);
	const int result = PMPI_Irecv(data, count, type, source, tag, comm, request);
	put_result(result);
	note(world_of(comm, source), tag, comm, count, type, source);
	begin_plan(data);
	add(0, count, type);
	track(*request, RECEIVING);
	leave(F_Irecv);
	return result;
}

int MPI_Recv_init(void *data, int count, MPI_Datatype type, int source, int tag, MPI_Comm comm, MPI_Request *request)
{
	if (!enter(SITE))
		return PMPI_Recv_init(data, count, type, source, tag, comm, request);
	const int result = PMPI_Recv_init(data, count, type, source, tag, comm, request);
	put_result(result);
	begin_plan(data);
	add(0, count, type);
	note(world_of(comm, source), tag, comm, count, type, source);
	noted.function = F_Irecv;
	persist(track(*request, RECEIVING));
	leave(F_Recv_init);
	return result;
}

int MPI_Start(MPI_Request *request)
{
	if (!enter(SITE))
		return PMPI_Start(request);
	Open *one = open_of(*request);
	const int result = PMPI_Start(request);
	put_result(result);
	unsigned like = F_Start;
	if (one != NULL) {
		noted = one->call;
		like = noted.function;
		is_noted = one->started = 1;
	}
	leave_as(F_Start, like);
	return result;
}

int MPI_Startall(int count, MPI_Request requests[])
{
	for (int n = 0; n < count; n++) {
		fortran_site = fortran_site != NULL ? fortran_site : SITE;
		const int result = MPI_Start(&requests[n]);
		if (result != MPI_SUCCESS)
			return result;
	}
	return MPI_SUCCESS;
}

int MPI_Request_free(MPI_Request *request)
{
	if (!enter(SITE))
		return PMPI_Request_free(request);
	Open *one = open_of(*request);
	if (one != NULL && one->kind != SENDING && one->started && !one->persistent)
		refuse("MPI_Request_free frees a receive that is not complete, which is not recorded");
	if (one != NULL)
		forget(one);
	const int result = PMPI_Request_free(request);
	put_result(result);
	leave(F_Request_free);
	return result;
}
