// SPDX-License-Identifier: Apache-2.0
// Drives the calendar of events: lines "a WHO TIME" add an event, lines "n" take the earliest and print it.

#include "../../probe/dataflow/native/events.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct {
	Event event;
	double beside;
} Owner;

static int told;

static void expect(uint32_t who, int time)
{
	(void)who;
	told += time >= 0;
}

int main(int count, char **words)
{
	const uint32_t owners = count > 1 ? (uint32_t)atoi(words[1]) : 0;
	Owner *all = calloc(owners, sizeof *all);
	char kind;
	open_events(&all[0].event, sizeof *all, owners, expect);
	while (scanf(" %c", &kind) == 1) {
		uint32_t who = 0;
		double time = 0;
		if (kind == 'a' && scanf("%u %lf", &who, &time) == 2)
			add_event(who, time);
		else if (next_event(&who, &time))
			printf("%u %.17g\n", who, time);
		else
			puts("none");
	}
	free(all);
	return 0;
}
