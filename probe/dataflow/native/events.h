// SPDX-License-Identifier: Apache-2.0
//
// Events by time, of those who have one each: a calendar queue (Brown 1988). Adding an event and taking the next one
// cost the same however many there are. Events at one time have the order in which they were added.

#ifndef PROBE_DATAFLOW_EVENTS_H
#define PROBE_DATAFLOW_EVENTS_H

#include <stddef.h>
#include <stdint.h>

// Lies inside whoever has it, so that both are one line of the cache.
typedef struct {
	double time;
	uint64_t order;
} Event;

// What the queue needs for each of those that may have an event, bytes.
double event_bytes(void);

// `first` is the event of number 0; that of number n lies n times `stride` bytes behind it.
// `expect` is told three times of whose events come soon, so that what they concern is in the cache by then: with 0 when
// the event itself is, with 1 when its day comes, with 2 when it is the next.
void open_events(Event *first, size_t stride, uint32_t count, void (*expect)(uint32_t who, int time));

// Number `who` has no event; now it has one.
void add_event(uint32_t who, double time);

// Takes the earliest event: whose it is and when. 0: there is none.
int next_event(uint32_t *who, double *time);

#endif
