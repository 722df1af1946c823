// SPDX-License-Identifier: Apache-2.0
//
// Messages that a probe takes out of matching, and their receives.

typedef struct {
	MPI_Message message;
	MPI_Comm comm;
	int asked, source, tag;
} Matched;

static Matched *matched;
static int matched_used;

// asked: the source that the program named.
static void keep_matched(MPI_Message message, MPI_Comm comm, int asked, const MPI_Status *status)
{
	put_int(message == MPI_MESSAGE_NO_PROC);
	if (message == MPI_MESSAGE_NULL || message == MPI_MESSAGE_NO_PROC)
		return;
	matched = grown(matched, (size_t)(matched_used + 1) * sizeof *matched);
	matched[matched_used++] = (Matched){message, comm, asked, status->MPI_SOURCE, status->MPI_TAG};
}

// Of a message from MPI_PROC_NULL nothing is kept.
static Matched take_matched(MPI_Message message)
{
	Matched found = {message, MPI_COMM_WORLD, MPI_PROC_NULL, MPI_PROC_NULL, MPI_ANY_TAG};
	for (int n = 0; n < matched_used; n++)
		if (matched[n].message == message) {
			found = matched[n];
			matched[n] = matched[--matched_used];
			break;
		}
	return found;
}

int MPI_Mprobe(int source, int tag, MPI_Comm comm, MPI_Message *message, MPI_Status *status)
{
	MPI_Status own, *seen = status == MPI_STATUS_IGNORE ? &own : status;
	if (!enter(SITE))
		return PMPI_Mprobe(source, tag, comm, message, status);
	const int result = PMPI_Mprobe(source, tag, comm, message, seen);
	put_result(result);
	put_status(seen);
	keep_matched(*message, comm, source, seen);
	leave(F_Mprobe);
	return result;
}

int MPI_Improbe(int source, int tag, MPI_Comm comm, int *flag, MPI_Message *message, MPI_Status *status)
{
	MPI_Status own = {0}, *seen = status == MPI_STATUS_IGNORE ? &own : status;
	if (!enter(SITE))
		return PMPI_Improbe(source, tag, comm, flag, message, status);
	const int result = PMPI_Improbe(source, tag, comm, flag, message, seen);
	put_result(result);
	put_int(*flag);
	if (*flag) {
		put_status(seen);
		keep_matched(*message, comm, source, seen);
	}
	leave(F_Improbe);
	return result;
}

int MPI_Mrecv(void *data, int count, MPI_Datatype type, MPI_Message *message, MPI_Status *status)
{
	MPI_Status own, *seen = status == MPI_STATUS_IGNORE ? &own : status;
	if (!enter(SITE))
		return PMPI_Mrecv(data, count, type, message, status);
	const Matched from = take_matched(*message);
	const int result = PMPI_Mrecv(data, count, type, message, seen);
	put_result(result);
	note(world_of(from.comm, seen->MPI_SOURCE), seen->MPI_TAG, from.comm, bytes_of(seen), MPI_BYTE, from.asked);
	put_status(seen);
	begin_plan(data);
	add(0, count, type);
	put_plan(&plan, bytes_of(seen));
	leave_as(F_Mrecv, F_Recv);
	return result;
}

int MPI_Imrecv(void *data, int count, MPI_Datatype type, MPI_Message *message, MPI_Request *request)
{
	if (!enter(SITE))
		return PMPI_Imrecv(data, count, type, message, request);
	const Matched from = take_matched(*message);
	const int result = PMPI_Imrecv(data, count, type, message, request);
	put_result(result);
	note(world_of(from.comm, from.source), from.tag, from.comm, count, type, from.asked);
	begin_plan(data);
	add(0, count, type);
	track(*request, RECEIVING);
	leave_as(F_Imrecv, F_Irecv);
	return result;
}
