// SPDX-License-Identifier: Apache-2.0
//
// Begin and end of a rank.

static void copy_file(const char *from, Stream *to)
{
	char piece[PATH_SIZE];
	const int file = open(from, O_RDONLY | O_CLOEXEC);
	for (ssize_t got; file >= 0 && (got = read(file, piece, sizeof piece)) > 0;)
		append(to, piece, (size_t)got);
	if (file >= 0)
		close(file);
}

// The name that Slurm gives this node, where it started this very process: other launchers hand on what they had.
static const char *own_node(void)
{
	const char *task = getenv("SLURM_TASK_PID");
	return task != NULL && strtol(task, NULL, 10) == getpid() ? getenv("SLURMD_NODENAME") : NULL;
}

// Executable, folder, library, whether the answers are kept, host, the executable's SHA-256 if known, number of arguments;
// then the arguments, and the environment that the process began with. Each is ended by a zero.
static void write_rank(void)
{
	char path[PATH_SIZE], text[PATH_SIZE], library[MPI_MAX_LIBRARY_VERSION_STRING];
	const char *node = own_node(), *digest = getenv("PROBE_MPI_DIGEST") != NULL ? getenv("PROBE_MPI_DIGEST") : "";
	Stream made = {0}, words = {0};
	int length, count = 0;
	PMPI_Get_library_version(library, &length);
	const ssize_t named = readlink("/proc/self/exe", text, sizeof text - 1);
	text[named > 0 ? named : 0] = 0;
	append(&made, text, strlen(text) + 1);
	if (getcwd(text, sizeof text) == NULL)
		text[0] = 0;
	append(&made, text, strlen(text) + 1);
	library[strcspn(library, "\n")] = 0;
	append(&made, library, strlen(library) + 1);
	append(&made, contents ? "1" : "0", 2);
	if (gethostname(text, sizeof text) != 0)
		text[0] = 0;
	append(&made, node != NULL ? node : text, strlen(node != NULL ? node : text) + 1);
	append(&made, digest, strlen(digest) + 1);
	copy_file("/proc/self/cmdline", &words);
	for (size_t at = 0; at < words.used; at++)
		count += words.data[at] == 0;
	snprintf(text, sizeof text, "%d", count);
	append(&made, text, strlen(text) + 1);
	append(&made, words.data, words.used);
	free(words.data);
	copy_file("/proc/self/environ", &made);
	if (spool >= 0) {
		spool_file(RANK_FILE, 0, made.used);
		write_all(spool, made.data, made.used, spool_place());
		free(made.data);
		return;
	}
	snprintf(path, sizeof path, "%s/rank.%d", folder, world_rank);
	const int file = new_file(strrchr(path, '/') + 1);
	if (file < 0 && errno == EEXIST) {
		snprintf(text, sizeof text, "two processes are this rank, each as one of %d", world_size);
		refuse(text);
	}
	if (file < 0)
		refuse_folder();
	write_all(file, made.data, made.used, path);
	close(file);
	free(made.data);
}

static int is_wanted(const char *list)
{
	char wanted[16];
	if (list == NULL)
		return 1;
	snprintf(wanted, sizeof wanted, "%d,", world_rank);
	for (const char *at = list; (at = strstr(at, wanted)) != NULL; at++)
		if (at == list || at[-1] == ',')
			return 1;
	return 0;
}

static void begin(int provided)
{
	int level = provided;
	folder = getenv("PROBE_MPI_RECORD");
	if (active || folder == NULL)
		return;
	PMPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
	PMPI_Comm_size(MPI_COMM_WORLD, &world_size);
	meet();
	PMPI_Query_thread(&level);
	contents = is_wanted(getenv("PROBE_MPI_RANKS"));
	if (getenv("PROBE_MPI_MOST") != NULL)
		most_bytes = strtoull(getenv("PROBE_MPI_MOST"), NULL, 10);
	write_rank();
	add_comm(MPI_COMM_WORLD);
	add_comm(MPI_COMM_SELF);
	if (contents) {
		// Fortran's handles that the library has from the beginning.
		const int64_t first[] = {level,
					 PMPI_Comm_c2f(MPI_COMM_NULL),
					 PMPI_Request_c2f(MPI_REQUEST_NULL),
					 PMPI_Type_c2f(MPI_DATATYPE_NULL),
					 PMPI_Group_c2f(MPI_GROUP_NULL),
					 PMPI_Op_c2f(MPI_OP_NULL),
					 PMPI_Info_c2f(MPI_INFO_NULL),
					 PMPI_Errhandler_c2f(MPI_ERRHANDLER_NULL),
					 PMPI_Message_c2f(MPI_MESSAGE_NULL),
					 PMPI_Comm_c2f(MPI_COMM_WORLD),
					 PMPI_Comm_c2f(MPI_COMM_SELF)};
		add_record(BEGIN, first, sizeof first);
	}
	active = is_first = 1;
	note_left(0);
	left_cpu = own_time(clock_of(CLOCK_MONOTONIC));
}

int MPI_Init(int *argc, char ***argv)
{
	in_library = 1;
	const int result = PMPI_Init(argc, argv);
	in_library = 0;
	begin(MPI_THREAD_SINGLE);
	return result;
}

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
	in_library = 1;
	const int result = PMPI_Init_thread(argc, argv, required, provided);
	in_library = 0;
	begin(*provided);
	return result;
}

int MPI_Finalize(void)
{
	if (active && depth == 0)
		delete_own();
	if (enter(SITE)) {
		noted = (CallRecord){.peer = -1, .comm = 0, .other = -1};
		is_noted = 1;
		put_int(MPI_SUCCESS);
		leave(F_Finalize);
		if (contents) {
			add_record(END, "", 0);
			write_part(&inbox);
		}
		// What the rank had beside its first thread, and for all of them.
		const CallRecord end = {
			.function = END, .count = (uint64_t)most_threads, .element = (uint32_t)processor_count()};
		append(&calls, &end, sizeof end);
		write_part(&calls);
		active = 0;
		gather();
	}
	return PMPI_Finalize();
}

int MPI_Abort(MPI_Comm comm, int status)
{
	char reason[100];
	if (active) {
		snprintf(reason, sizeof reason, "called MPI_Abort with status %d", status);
		write_text("aborted", reason);
		if (is_apart)
			say_last(reason);
	}
	return PMPI_Abort(comm, status);
}
