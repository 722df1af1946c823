// SPDX-License-Identifier: Apache-2.0
//
// Requests that are open, by their handles.

typedef enum { SENDING, RECEIVING, COLLECTIVE } Kind;

typedef struct Open {
	MPI_Request request;
	Kind kind;
	uint32_t number;
	int persistent, started;
	Plan plan;
	struct Open *next;
	// Of persistent ones, what each start does.
	CallRecord call;
} Open;

static Open *opened[BUCKETS];
static uint32_t requests_made;

static Open **bucket_of(MPI_Request request)
{
	uint64_t key = 0;
	memcpy(&key, &request, sizeof request);
	return &opened[(key * 0x9e3779b97f4a7c15u) >> 54];
}

// Appended: equal handles, which libraries use for requests that are complete at once, are completed in their order.
static Open *track(MPI_Request request, Kind kind)
{
	Open *made = grown(NULL, sizeof *made), **at = bucket_of(request);
	*made = (Open){.request = request, .kind = kind, .number = requests_made++, .started = 1, .call = noted};
	if (kind != SENDING) {
		made->plan = (Plan){.base = plan.base, .count = plan.count};
		made->plan.pieces = grown(NULL, (size_t)plan.count * sizeof *plan.pieces + 1);
		memcpy(made->plan.pieces, plan.pieces, (size_t)plan.count * sizeof *plan.pieces);
	}
	while (*at != NULL)
		at = &(*at)->next;
	*at = made;
	noted.request = made->number;
	return made;
}

static Open *open_of(MPI_Request request)
{
	for (Open *one = request == MPI_REQUEST_NULL ? NULL : *bucket_of(request); one != NULL; one = one->next)
		if (one->request == request)
			return one;
	return NULL;
}

static void forget(Open *gone)
{
	for (Open **at = bucket_of(gone->request); *at != NULL; at = &(*at)->next)
		if (*at == gone) {
			*at = gone->next;
			break;
		}
	free(gone->plan.pieces);
	free(gone);
}

static int64_t bytes_of(const MPI_Status *status)
{
	MPI_Count bytes = 0;
	int cancelled = 0;
	PMPI_Test_cancelled(status, &cancelled);
	if (cancelled || status->MPI_SOURCE == MPI_PROC_NULL)
		return 0;
	PMPI_Get_elements_x(status, MPI_BYTE, &bytes);
	return bytes > 0 ? bytes : 0;
}

// Rank in MPI_COMM_WORLD that a receive was answered by; -1 where nobody did.
static int source_of(const Open *was, const MPI_Status *status)
{
	// Not every library fills the status of a receive from nobody.
	int nobody = was->call.other == MPI_PROC_NULL;
	if (!nobody)
		PMPI_Test_cancelled(status, &nobody);
	for (int n = 0; !nobody && n < comms_used; n++)
		if (comms[n].number == was->call.comm && status->MPI_SOURCE >= 0)
			return comms[n].members[status->MPI_SOURCE];
	return -1;
}

// The data that a request has brought; none of one that sends, or of none.
static void put_answer(const Open *was, const MPI_Status *status)
{
	if (was != NULL && was->started && was->kind != SENDING)
		put_plan(&was->plan, was->kind == COLLECTIVE ? -1 : source_of(was, status) < 0 ? 0 : bytes_of(status));
	else if (contents)
		put_int(0);
}

// What completing the request `was` brought. `request`: as it is now, of which a persistent one remains.
static void complete(Open *was, const MPI_Status *status)
{
	put_answer(was, status);
	if (was == NULL || !was->started)
		return;
	note_extra((int64_t)was->number);
	note_extra(was->kind == RECEIVING ? source_of(was, status) : -1);
	note_extra(was->kind == RECEIVING ? status->MPI_TAG : -1);
	if (was->persistent)
		was->started = 0;
	else
		forget(was);
}

// A persistent request: what is noted is done by each start, nothing by making it.
static void persist(Open *made)
{
	made->persistent = 1;
	made->started = 0;
	made->call = noted;
	is_noted = 0;
}

static void note_waiting(void)
{
	noted = (CallRecord){.peer = -1, .comm = -1, .other = -1};
	is_noted = 1;
}
