// SPDX-License-Identifier: Apache-2.0
//
// Communicators: their members' ranks in MPI_COMM_WORLD.

typedef struct {
	MPI_Comm comm;
	int number, size, rank;
	int *members;
} Comm;

static Comm *comms;
static int comms_used, comms_made;

static Comm *comm_of(MPI_Comm comm)
{
	for (int n = 0; n < comms_used; n++)
		if (comms[n].comm == comm)
			return &comms[n];
	refuse("a communicator is used that was not seen when it was made");
}

static Comm *add_comm(MPI_Comm comm)
{
	MPI_Group own, world;
	comms = grown(comms, (size_t)(comms_used + 1) * sizeof *comms);
	Comm *made = &comms[comms_used++];
	*made = (Comm){.comm = comm, .number = comms_made++};
	PMPI_Comm_size(comm, &made->size);
	PMPI_Comm_rank(comm, &made->rank);
	int *ranks = grown(NULL, (size_t)made->size * sizeof *ranks);
	made->members = grown(NULL, (size_t)made->size * sizeof *made->members);
	for (int n = 0; n < made->size; n++)
		ranks[n] = n;
	PMPI_Comm_group(comm, &own);
	PMPI_Comm_group(MPI_COMM_WORLD, &world);
	PMPI_Group_translate_ranks(own, made->size, ranks, world, made->members);
	PMPI_Group_free(&own);
	PMPI_Group_free(&world);
	free(ranks);
	return made;
}

static int world_of(MPI_Comm comm, int rank)
{
	const Comm *found = comm_of(comm);
	return rank >= 0 && rank < found->size ? found->members[rank] : -1;
}
