// SPDX-License-Identifier: Apache-2.0
// Reads an engine's setting, lines "KEY VALUE ...". Python has checked the values; here only their form is checked.

#include "blocks.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { HUGE_PAGE = 1 << 21 };

typedef struct {
	const char *name;
	char kind; // i: int, l: int64_t, d: double
	size_t offset;
} Key;

#define WORK(kind, field) {#field, kind, offsetof(Work, field)}
#define MACHINE(kind, field) {#field, kind, offsetof(Machine, field)}

static const Key of_work[] = {
	WORK('i', processors), WORK('i', readers), WORK('i', epoch), WORK('i', by_query), WORK('l', blocks),
	WORK('d', block_bytes), WORK('d', result_bytes), WORK('d', compute), WORK('l', seed), WORK('d', width),
	WORK('d', height), WORK('d', polar), WORK('d', west), WORK('d', east), WORK('d', south), WORK('d', north),
	WORK('i', columns), WORK('i', rows), WORK('l', queries), WORK('i', slides), WORK('i', planes),
	WORK('i', slide_columns), WORK('i', slide_rows), WORK('i', query_columns), WORK('i', query_rows),
};

static const Key of_machine[] = {
	MACHINE('i', disks), MACHINE('i', buses), MACHINE('d', controller), MACHINE('d', seek_least),
	MACHINE('d', seek_most), MACHINE('d', turn), MACHINE('d', disk_rate), MACHINE('d', capacity),
	MACHINE('d', bus_latency), MACHINE('d', bus_rate), MACHINE('d', net_latency), MACHINE('d', net_rate),
};

static void unreadable(const char *line)
{
	fprintf(stderr, "unknown setting: %s", line);
	exit(2);
}

static int set(const Key *keys, size_t count, void *into, const char *name, const char *value)
{
	for (size_t n = 0; n < count; n++) {
		char *place = (char *)into + keys[n].offset;
		if (strcmp(keys[n].name, name) != 0)
			continue;
		if (keys[n].kind == 'i')
			*(int *)(void *)place = (int)strtol(value, NULL, 10);
		else if (keys[n].kind == 'l')
			*(int64_t *)(void *)place = strtoll(value, NULL, 10);
		else
			*(double *)(void *)place = strtod(value, NULL);
		return 1;
	}
	return 0;
}

static int set_graph(Graph *graph, const char *name, const char *value)
{
	int first, second;
	if (sscanf(value, "%d %d", &first, &second) != 2 || first < 0 || first >= MOST_NODES || second < 0 || second >= MOST_NODES)
		return 0;
	if (strcmp(name, "node") == 0) {
		graph->operation[first] = (enum Operation)second;
		graph->nodes = first >= graph->nodes ? first + 1 : graph->nodes;
		return 1;
	}
	if (strcmp(name, "edge") == 0) {
		graph->after[first] |= 1u << second;
		return 1;
	}
	return 0;
}

void read_setting(Work *work, Machine *machine, double *memory)
{
	char line[256];
	memset(work, 0, sizeof *work);
	memset(machine, 0, sizeof *machine);
	while (fgets(line, sizeof line, stdin) != NULL && strcmp(line, "end\n") != 0) {
		char name[64], value[128];
		if (sscanf(line, "%63s %127[^\n]", name, value) != 2)
			unreadable(line);
		if (strcmp(name, "memory") == 0)
			*memory = strtod(value, NULL);
		else if (!set(of_work, sizeof of_work / sizeof *of_work, work, name, value) &&
			 !set(of_machine, sizeof of_machine / sizeof *of_machine, machine, name, value) &&
			 !set_graph(&work->graph, name, value))
			unreadable(line);
	}
	if (work->processors < 1 || work->readers < 1 || machine->disks < 1 || machine->buses < 1)
		unreadable("too little\n");
}

static void *or_exit(void *found)
{
	if (found == NULL || found == MAP_FAILED) {
		fprintf(stderr, "no memory\n");
		exit(3);
	}
	return found;
}

void *room_for(double count, size_t size)
{
	return or_exit(calloc(count < 1 ? 1 : (size_t)count, size));
}

void *large_room(double count, size_t size)
{
	const size_t bytes = (count < 1 ? 1 : (size_t)count) * size + HUGE_PAGE;
	const int kind = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
	char *found = or_exit(mmap(NULL, bytes, PROT_READ | PROT_WRITE, kind, -1, 0));
	found += HUGE_PAGE - (uintptr_t)found % HUGE_PAGE;
	// Looking up addresses in small pages costs more than all else where thousands of nodes take turns.
	if (bytes >= 4 * (size_t)HUGE_PAGE)
		madvise(found, (bytes - HUGE_PAGE) / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
	return found;
}

double clock_seconds(void)
{
	struct timespec at;
	clock_gettime(CLOCK_MONOTONIC, &at);
	return (double)at.tv_sec + 1e-9 * (double)at.tv_nsec;
}

double processor_seconds(void)
{
	struct timespec used;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
	return (double)used.tv_sec + 1e-9 * (double)used.tv_nsec;
}

long memory_kb(void)
{
	char line[256];
	long found = 0;
	FILE *status = fopen("/proc/self/status", "r");
	while (status != NULL && fgets(line, sizeof line, status) != NULL)
		if (sscanf(line, "VmHWM: %ld", &found) == 1)
			break;
	if (status != NULL)
		fclose(status);
	return found;
}
