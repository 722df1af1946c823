// SPDX-License-Identifier: Apache-2.0
//
// Calls that complete requests.

int MPI_Wait(MPI_Request *request, MPI_Status *status)
{
	MPI_Status own, *seen = status == MPI_STATUS_IGNORE ? &own : status;
	if (!enter(SITE))
		return PMPI_Wait(request, status);
	Open *was = open_of(*request);
	const int result = PMPI_Wait(request, seen);
	put_result(result);
	note_waiting();
	put_status(seen);
	complete(was, seen);
	leave(F_Wait);
	return result;
}

int MPI_Test(MPI_Request *request, int *flag, MPI_Status *status)
{
	MPI_Status own = {0}, *seen = status == MPI_STATUS_IGNORE ? &own : status;
	if (!enter(SITE))
		return PMPI_Test(request, flag, status);
	Open *was = open_of(*request);
	const int result = PMPI_Test(request, flag, seen);
	put_result(result);
	put_int(*flag);
	if (*flag) {
		note_waiting();
		put_status(seen);
		complete(was, seen);
	}
	leave(F_Test);
	return result;
}

// The data is in its place by then, and the request stays.
int MPI_Request_get_status(MPI_Request request, int *flag, MPI_Status *status)
{
	MPI_Status own = {0}, *seen = status == MPI_STATUS_IGNORE ? &own : status;
	if (!enter(SITE))
		return PMPI_Request_get_status(request, flag, status);
	const int result = PMPI_Request_get_status(request, flag, seen);
	put_result(result);
	put_int(*flag);
	if (*flag) {
		put_status(seen);
		put_answer(open_of(request), seen);
	}
	leave(F_Request_get_status);
	return result;
}

// Room for the requests as they were, and for statuses that the program does not want.
static Open **before;
static MPI_Status *ignored;

// An Open for each request. Equal handles are different requests: the n-th of them is the n-th opened.
static MPI_Status *remember(int count, MPI_Request requests[], MPI_Status statuses[])
{
	before = grown(before, (size_t)count * sizeof *before + 1);
	ignored = grown(ignored, (size_t)count * sizeof *ignored + 1);
	memset(ignored, 0, (size_t)count * sizeof *ignored);
	for (int n = 0; n < count; n++) {
		Open *one = open_of(requests[n]);
		for (int m = 0; one != NULL && m < n; m++)
			if (before[m] == one) {
				do
					one = one->next;
				while (one != NULL && one->request != requests[n]);
				m = -1;
			}
		before[n] = one;
	}
	return statuses == MPI_STATUSES_IGNORE ? ignored : statuses;
}

int MPI_Waitall(int count, MPI_Request requests[], MPI_Status statuses[])
{
	if (!enter(SITE))
		return PMPI_Waitall(count, requests, statuses);
	MPI_Status *seen = remember(count, requests, statuses);
	const int result = PMPI_Waitall(count, requests, seen);
	put_result(result);
	note_waiting();
	for (int n = 0; n < count; n++) {
		put_status(&seen[n]);
		complete(before[n], &seen[n]);
	}
	leave(F_Waitall);
	return result;
}

int MPI_Testall(int count, MPI_Request requests[], int *flag, MPI_Status statuses[])
{
	if (!enter(SITE))
		return PMPI_Testall(count, requests, flag, statuses);
	MPI_Status *seen = remember(count, requests, statuses);
	const int result = PMPI_Testall(count, requests, flag, seen);
	put_result(result);
	put_int(*flag);
	if (*flag) {
		note_waiting();
		for (int n = 0; n < count; n++) {
			put_status(&seen[n]);
			complete(before[n], &seen[n]);
		}
	}
	leave(F_Testall);
	return result;
}

static void completed_any(int index, const MPI_Status *seen)
{
	put_int(index);
	put_status(seen);
	note_waiting();
	complete(index == MPI_UNDEFINED ? NULL : before[index], seen);
}

int MPI_Waitany(int count, MPI_Request requests[], int *index, MPI_Status *status)
{
	MPI_Status own = {0}, *seen = status == MPI_STATUS_IGNORE ? &own : status;
	if (!enter(SITE))
		return PMPI_Waitany(count, requests, index, status);
	remember(count, requests, MPI_STATUSES_IGNORE);
	const int result = PMPI_Waitany(count, requests, index, seen);
	put_result(result);
	completed_any(*index, seen);
	leave(F_Waitany);
	return result;
}

int MPI_Testany(int count, MPI_Request requests[], int *index, int *flag, MPI_Status *status)
{
	MPI_Status own = {0}, *seen = status == MPI_STATUS_IGNORE ? &own : status;
	if (!enter(SITE))
		return PMPI_Testany(count, requests, index, flag, status);
	remember(count, requests, MPI_STATUSES_IGNORE);
	const int result = PMPI_Testany(count, requests, index, flag, seen);
	put_result(result);
	put_int(*flag);
	if (*flag)
		completed_any(*index, seen);
	leave(F_Testany);
	return result;
}

static void completed_some(int count, const int indices[], const MPI_Status seen[])
{
	put_int(count);
	for (int n = 0; n < count && count != MPI_UNDEFINED; n++) {
		put_int(indices[n]);
		put_status(&seen[n]);
		complete(before[indices[n]], &seen[n]);
	}
}

int MPI_Waitsome(int count, MPI_Request requests[], int *done, int indices[], MPI_Status statuses[])
{
	if (!enter(SITE))
		return PMPI_Waitsome(count, requests, done, indices, statuses);
	MPI_Status *seen = remember(count, requests, statuses);
	const int result = PMPI_Waitsome(count, requests, done, indices, seen);
	put_result(result);
	note_waiting();
	completed_some(*done, indices, seen);
	leave(F_Waitsome);
	return result;
}

int MPI_Testsome(int count, MPI_Request requests[], int *done, int indices[], MPI_Status statuses[])
{
	if (!enter(SITE))
		return PMPI_Testsome(count, requests, done, indices, statuses);
	MPI_Status *seen = remember(count, requests, statuses);
	const int result = PMPI_Testsome(count, requests, done, indices, seen);
	put_result(result);
	if (*done > 0)
		note_waiting();
	completed_some(*done, indices, seen);
	leave(F_Testsome);
	return result;
}
