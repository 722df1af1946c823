// SPDX-License-Identifier: Apache-2.0
//
// Requests that are open.

typedef struct {
	void *base;
	int persistent, used;
} Waiting;

static Waiting *waiting;
static uint32_t waiting_room, *free_requests, free_count;

static int new_request(void *base, int persistent)
{
	if (free_count == 0) {
		const uint32_t room = waiting_room * 2 + 64;
		waiting = realloc(waiting, room * sizeof *waiting);
		free_requests = realloc(free_requests, room * sizeof *free_requests);
		if (waiting == NULL || free_requests == NULL)
			stop("no memory for requests");
		for (uint32_t n = room; n-- > waiting_room;)
			free_requests[free_count++] = n;
		waiting_room = room;
	}
	const uint32_t number = free_requests[--free_count];
	waiting[number] = (Waiting){base, persistent, 1};
	return (int)(FIRST_HANDLE + 2 * number);
}

#define TO_NEW_REQUEST(base) HANDLE(MPI_Request, new_request(base, 0))
#define TO_NEW_PERSISTENT(base) HANDLE(MPI_Request, new_request(base, 1))

static Waiting *waiting_of(MPI_Request request)
{
	const uint32_t number = ((uint32_t)NUMBER(request) - FIRST_HANDLE) / 2;
	if (request == MPI_REQUEST_NULL)
		return NULL;
	if (number >= waiting_room || !waiting[number].used)
		stop("the rank waits for a request that it does not have");
	return &waiting[number];
}

static void release(MPI_Request *request)
{
	Waiting *found = waiting_of(*request);
	if (found == NULL)
		return;
	found->used = 0;
	free_requests[free_count++] = (uint32_t)(found - waiting);
	*request = MPI_REQUEST_NULL;
}

static void completed(MPI_Request *request)
{
	const Waiting *found = waiting_of(*request);
	deliver(found == NULL ? NULL : found->base);
	if (found != NULL && !found->persistent)
		release(request);
}
