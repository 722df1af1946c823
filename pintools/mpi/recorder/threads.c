// SPDX-License-Identifier: Apache-2.0
//
// Threads of the program's own, beside those of the MPI library.
//
// Where a rank has some, its first thread may wait for them between two calls. Then the computing is the time that
// passes while the process has a processor, and not the first thread's alone.

static int in_library, own_threads, most_threads;
static uint64_t left_wall, left_process;
static __thread int is_first, is_another;

typedef struct {
	void *(*begin)(void *);
	void *given;
} Started;

static void note_end(void *unused)
{
	(void)unused;
	__atomic_sub_fetch(&own_threads, 1, __ATOMIC_RELAXED);
}

static void *run_thread(void *given)
{
	const Started started = *(Started *)given;
	void *result;
	free(given);
	is_another = 1;
	pthread_cleanup_push(note_end, NULL);
	result = started.begin(started.given);
	pthread_cleanup_pop(1);
	return result;
}

static void note_left(uint64_t ago)
{
	left_wall = clock_of(CLOCK_MONOTONIC) - ago;
	left_process = clock_of(CLOCK_PROCESS_CPUTIME_ID) - ago;
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*begin)(void *), void *given)
{
	typedef int (*Create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
	static Create create;
	Started *started;
	if (create == NULL)
		*(void **)&create = dlsym(RTLD_NEXT, "pthread_create");
	// What the program's other threads start is the program's, also while the first one is in a call.
	if ((!is_another && (in_library || depth > 0)) || (started = malloc(sizeof *started)) == NULL)
		return create(thread, attributes, begin, given);
	*started = (Started){begin, given};
	if (active && is_first && most_threads == 0)
		note_left(own_time(clock_of(CLOCK_MONOTONIC)) - left_cpu);
	const int now = __atomic_add_fetch(&own_threads, 1, __ATOMIC_RELAXED);
	if (now > most_threads)
		most_threads = now;
	const int result = create(thread, attributes, run_thread, started);
	if (result != 0) {
		free(started);
		note_end(NULL);
	}
	return result;
}

// Nanoseconds of computing since the last call, of which the first thread has worked `alone`.
static uint64_t computed(uint64_t alone)
{
	if (most_threads == 0)
		return alone;
	const uint64_t wall = clock_of(CLOCK_MONOTONIC) - left_wall;
	const uint64_t all = clock_of(CLOCK_PROCESS_CPUTIME_ID) - left_process;
	const uint64_t together = wall < all ? wall : all;
	return together > alone ? together : alone;
}

// Processors that the threads of this process may use, together: OpenMP may bind each of them to one.
static uint64_t processor_count(void)
{
	cpu_set_t all, set;
	DIR *tasks = opendir("/proc/self/task");
	CPU_ZERO(&all);
	for (struct dirent *task; tasks != NULL && (task = readdir(tasks)) != NULL;)
		if (task->d_name[0] != '.' &&
		    sched_getaffinity((pid_t)strtol(task->d_name, NULL, 10), sizeof set, &set) == 0)
			CPU_OR(&all, &all, &set);
	if (tasks != NULL)
		closedir(tasks);
	return (uint64_t)CPU_COUNT(&all);
}
