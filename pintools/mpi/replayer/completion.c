// SPDX-License-Identifier: Apache-2.0
//
// Calls that complete requests.

int MPI_Wait(MPI_Request *request, MPI_Status *status)
{
	const int result = take(F_Wait);
	get_status(status);
	completed(request);
	return result;
}

int MPI_Test(MPI_Request *request, int *flag, MPI_Status *status)
{
	const int result = take(F_Test);
	*flag = (int)get_int();
	if (*flag) {
		get_status(status);
		completed(request);
	}
	return result;
}

int MPI_Request_get_status(MPI_Request request, int *flag, MPI_Status *status)
{
	const int result = take(F_Request_get_status);
	*flag = (int)get_int();
	if (*flag) {
		get_status(status);
		const Waiting *found = waiting_of(request);
		deliver(found == NULL ? NULL : found->base);
	}
	return result;
}

static void completed_all(int count, MPI_Request requests[], MPI_Status statuses[])
{
	for (int n = 0; n < count; n++) {
		get_status(statuses == MPI_STATUSES_IGNORE ? MPI_STATUS_IGNORE : &statuses[n]);
		completed(&requests[n]);
	}
}

int MPI_Waitall(int count, MPI_Request requests[], MPI_Status statuses[])
{
	const int result = take(F_Waitall);
	completed_all(count, requests, statuses);
	return result;
}

int MPI_Testall(int count, MPI_Request requests[], int *flag, MPI_Status statuses[])
{
	const int result = take(F_Testall);
	*flag = (int)get_int();
	if (*flag)
		completed_all(count, requests, statuses);
	return result;
}

static MPI_Request *chosen(int count, MPI_Request requests[], int64_t index)
{
	if (index < 0 || index >= count)
		stop("the recording completes a request that the rank does not name");
	return &requests[index];
}

static void completed_any(int count, MPI_Request requests[], int *index, MPI_Status *status)
{
	*index = (int)get_int();
	get_status(status);
	if (*index == MPI_UNDEFINED)
		deliver(NULL);
	else
		completed(chosen(count, requests, *index));
}

int MPI_Waitany(int count, MPI_Request requests[], int *index, MPI_Status *status)
{
	const int result = take(F_Waitany);
	completed_any(count, requests, index, status);
	return result;
}

int MPI_Testany(int count, MPI_Request requests[], int *index, int *flag, MPI_Status *status)
{
	const int result = take(F_Testany);
	*flag = (int)get_int();
	if (*flag)
		completed_any(count, requests, index, status);
	else
		*index = MPI_UNDEFINED;
	return result;
}

static void completed_some(int count, MPI_Request requests[], int *done, int indices[], MPI_Status statuses[])
{
	*done = (int)get_int();
	for (int n = 0; n < *done && *done != MPI_UNDEFINED; n++) {
		indices[n] = (int)get_int();
		get_status(statuses == MPI_STATUSES_IGNORE ? MPI_STATUS_IGNORE : &statuses[n]);
		completed(chosen(count, requests, indices[n]));
	}
}

int MPI_Waitsome(int count, MPI_Request requests[], int *done, int indices[], MPI_Status statuses[])
{
	const int result = take(F_Waitsome);
	completed_some(count, requests, done, indices, statuses);
	return result;
}

int MPI_Testsome(int count, MPI_Request requests[], int *done, int indices[], MPI_Status statuses[])
{
	const int result = take(F_Testsome);
	completed_some(count, requests, done, indices, statuses);
	return result;
}
