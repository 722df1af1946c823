// SPDX-License-Identifier: Apache-2.0
//
// What a played rank reads and writes: its steps through a window, times of its calls as they are made. Files of all
// ranks together may be larger than memory, and more than a process may have open.

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

// Some hundred calls: opening the file for so many costs nothing beside their simulation.
enum { WINDOW_BYTES = 1 << 14, TIMES_BYTES = 1 << 14 };

// Bytes of the file from `begin` on.
typedef struct {
	char path[PATH_SIZE];
	char *bytes;
	uint64_t begin, held, room;
} Window;

static void *needed(void *found, size_t bytes)
{
	if (found == NULL) {
		fprintf(stderr, "probe: no memory for %zu bytes\n", bytes);
		exit(2);
	}
	return found;
}

static Window *begin_window(const char *folder, int rank)
{
	Window *made = needed(calloc(1, sizeof *made), sizeof *made);
	snprintf(made->path, sizeof made->path, "%s/play.%d", folder, rank);
	return made;
}

static void end_window(Window *window)
{
	free(window->bytes);
	free(window);
}

static void refill(Window *window, uint64_t at)
{
	const int file = open(window->path, O_RDONLY | O_CLOEXEC);
	ssize_t got = file < 0 ? -1 : 1;
	window->begin = at;
	window->held = 0;
	while (got > 0 && window->held < window->room) {
		got = pread(file, window->bytes + window->held, window->room - window->held,
			    (off_t)(at + window->held));
		if (got > 0)
			window->held += (uint64_t)got;
		else if (got < 0 && errno == EINTR)
			got = 1;
	}
	if (got < 0) {
		fprintf(stderr, "probe: %s cannot be read\n", window->path);
		exit(2);
	}
	close(file);
}

// So many bytes of the file from `at` on, until the next call of this; NULL at its end.
static const char *seen(Window *window, uint64_t at, uint64_t wanted)
{
	if (wanted > window->room) {
		window->room = wanted > WINDOW_BYTES ? wanted : WINDOW_BYTES;
		window->bytes = needed(realloc(window->bytes, window->room), window->room);
		refill(window, at);
	} else if (at < window->begin || at + wanted > window->begin + window->held)
		refill(window, at);
	if (window->held == 0)
		return NULL;
	if (at + wanted > window->begin + window->held) {
		fprintf(stderr, "probe: %s is cut short\n", window->path);
		exit(2);
	}
	return window->bytes + (at - window->begin);
}

static FILE *made_file(const char *path, const char *mode)
{
	FILE *file = fopen(path, mode);
	if (file == NULL) {
		fprintf(stderr, "probe: %s cannot be written\n", path);
		exit(2);
	}
	return file;
}

static void close_whole(FILE *file, const char *path)
{
	const int failed = ferror(file);
	if (fclose(file) != 0 || failed) {
		fprintf(stderr, "probe: %s cannot be written\n", path);
		exit(2);
	}
}

// Both ends of calls, in their order: the last ones, which are not in the file yet.
typedef struct {
	double *seconds;
	size_t used;
	char path[PATH_SIZE];
} Times;

// Opened anew each time: a process may not have as many open files as there are ranks.
static void flush_times(Times *times)
{
	FILE *file = made_file(times->path, "ab");
	fwrite(times->seconds, sizeof *times->seconds, times->used, file);
	close_whole(file, times->path);
	times->used = 0;
}

static Times *begin_times(const char *folder, int rank)
{
	Times *made = needed(malloc(sizeof *made), sizeof *made);
	made->used = 0;
	made->seconds = needed(malloc(TIMES_BYTES), TIMES_BYTES);
	snprintf(made->path, sizeof made->path, "%s/times.%d", folder, rank);
	close_whole(made_file(made->path, "wb"), made->path);
	return made;
}

static void add_times(Times *times, double entered, double left)
{
	times->seconds[times->used++] = entered;
	times->seconds[times->used++] = left;
	if (times->used * sizeof *times->seconds == TIMES_BYTES)
		flush_times(times);
}
