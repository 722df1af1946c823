// SPDX-License-Identifier: Apache-2.0
//
// Messages that a probe takes out of matching, and their receives.

static MPI_Message new_message(void)
{
	return get_int() ? MPI_MESSAGE_NO_PROC : HANDLE(MPI_Message, new_number());
}

int MPI_Mprobe(int source, int tag, MPI_Comm comm, MPI_Message *message, MPI_Status *status)
{
	(void)source, (void)tag, (void)comm;
	const int result = take(F_Mprobe);
	get_status(status);
	*message = new_message();
	return result;
}

int MPI_Improbe(int source, int tag, MPI_Comm comm, int *flag, MPI_Message *message, MPI_Status *status)
{
	(void)source, (void)tag, (void)comm;
	const int result = take(F_Improbe);
	*flag = (int)get_int();
	if (*flag) {
		get_status(status);
		*message = new_message();
	} else
		*message = MPI_MESSAGE_NULL;
	return result;
}

int MPI_Mrecv(void *data, int count, MPI_Datatype type, MPI_Message *message, MPI_Status *status)
{
	(void)count, (void)type;
	const int result = take(F_Mrecv);
	get_status(status);
	deliver(data);
	*message = MPI_MESSAGE_NULL;
	return result;
}

int MPI_Imrecv(void *data, int count, MPI_Datatype type, MPI_Message *message, MPI_Request *request)
{
	(void)count, (void)type;
	const int result = take(F_Imrecv);
	*request = TO_NEW_REQUEST(data);
	*message = MPI_MESSAGE_NULL;
	return result;
}
