// SPDX-License-Identifier: Apache-2.0
//
// Begin and end of a rank.

static void begin(void)
{
	is_checking = getenv("PROBE_MPI_CHECK") != NULL;
	open_record();
	if (current->function != BEGIN)
		left(current->function, "MPI_Init");
	for (int n = 0; n < FIRST_COUNT; n++)
		first[n] = get_int();
	is_begun = 1;
}

int MPI_Init(int *argc, char ***argv)
{
	(void)argc, (void)argv;
	begin();
	return MPI_SUCCESS;
}

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
	(void)required;
	MPI_Init(argc, argv);
	*provided = (int)first[LEVEL];
	return MPI_SUCCESS;
}

static void write_summary(void)
{
	char text[200];
	const char *path = getenv("PROBE_MPI_SUMMARY");
	const int file = path == NULL ? -1 : open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (file < 0)
		return;
	const int length = snprintf(text, sizeof text, "%lu %lu %lu %lu %lu %lu\n", calls_made, messages_sent,
				    messages_differ, first_differing, bytes_sent, bytes_differ);
	if (write(file, text, (size_t)length) != length)
		stop("the summary cannot be written");
	close(file);
}

int MPI_Finalize(void)
{
	delete_attributes(MPI_COMM_SELF);
	const int result = take(F_Finalize);
	open_record();
	if (current->function != END)
		left(current->function, name_of(F_Finalize));
	munmap(part, part_bytes);
	part = NULL;
	is_over = 1;
	write_summary();
	return result;
}

int MPI_Abort(MPI_Comm comm, int status)
{
	(void)comm;
	stop("the rank calls MPI_Abort");
	return status;
}
