/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process rebuilds itself from a flat phase image, as an ordinary user:
 *
 *   restorer PARENT OPTIONS	3 image  4 pages  5 folder of copies  6 folder for what it writes  7 control file
 *
 * fail.c	  says why it cannot go on, and ends
 * start.c	  reads and checks the image, moves to the park: an address range that the program does not use
 * memory.c	  removes everything else and maps the program's memory
 * vdso.c	  keeps the node's vDSO, by which the program reads clocks
 * state.c	  signals, limits, descriptors, everything the kernel keeps for a process
 * shared.c	  memory that several mappings or descriptors lead to: anonymous shared memory, memfds
 * made.c	  descriptors that lead to the process itself: pipes, sockets, epoll sets and the like
 * confine.c	  takes away what the phase does not need
 * filter.c	  system calls that it may make
 * observe.c	  shows a tracer which pages are touched
 * threads.c	  starts the threads beside the first, and lets them go on together
 * registers.c	  one rt_sigreturn loads all registers, and the program runs on
 *
 * There is no C library and no writable data: the code is copied to the park and runs there. Nothing returns after a
 * failure: `fail` leaves step, errno, address and detail in the control file and ends the process.
 */
#ifndef PROBE_RESTORER_H
#define PROBE_RESTORER_H

#include "kernel.h"

/* Layout of the park. */
#define PARK_CODE 0UL
#define PARK_REPORT 0x10000UL
#define PARK_STACK 0x11000UL
#define PARK_FRAME 0x31000UL
#define PARK_IMAGE 0x41000UL

/* Of the room of a thread beside the first: its signal frame is at its start. */
#define ROOM_STACK_END 0x1f000UL
#define ROOM_CONTEXT ROOM_STACK_END

#define MOST_DESCRIPTORS 65536UL
#define LARGEST_PIPE (1UL << 20) /* bytes: what the kernel lets an ordinary user have (fs.pipe-max-size) */

struct context {
	const struct header *image;
	struct report *report;
	u64 options;
	u64 park;
	const struct thread *thread; /* whose state is set */
	struct thread first;
	u64 frame;	   /* address of its signal frame */
	struct gate *gate; /* none where there is one thread */
	i64 landlock;	   /* its version, or what says that there is none */
	/* Inherited descriptors, moved out of the way of the program's own. */
	i64 pages, copies, scratch, control;
	u64 opened;		   /* entries in the table of descriptors before CONTENTS and WATCH */
	int pair;		   /* whether the program has sockets */
	i64 objects[MOST_OBJECTS]; /* descriptors of shared memory */
	u64 described;		   /* those of them whose open file a descriptor has; bit n: object n */
	u64 node_clock;		   /* clock_gettime of the node's vDSO; 0: system calls */
	u64 first_free;		   /* no descriptor of the program's has this number, or a higher one */
	i64 tid;		   /* the kernel's number of the thread that this is the context of; 0: the first */
};

_Static_assert(sizeof(struct context) <= THREAD_ROOM - ROOM_CONTEXT, "a thread's context has a page");

/* Where threads wait until all can go on. */
struct gate {
	u32 ready, open;
};

static inline const struct table *threads_of(const struct header *h)
{
	return h->version < THREADS_VERSION ? 0 : (const struct table *)(h + 1);
}

static inline u64 thread_count(const struct header *h)
{
	return h->version < THREADS_VERSION ? 0 : threads_of(h)->count;
}

/* The tables of shared memory and signals; 0 where the image has none. */
static inline const struct tables *tables_of(const struct header *h)
{
	return h->version < SHARED_VERSION ? 0 : (const struct tables *)(h + 1);
}

static inline u64 object_count(const struct header *h)
{
	return h->version < SHARED_VERSION ? 0 : tables_of(h)->objects.count;
}

/* Address of the clocks; 0 where the image has none. */
static inline u64 clocks_of(const struct header *h)
{
	return h->version < CLOCKS_VERSION ? 0 : tables_of(h)->clocks;
}

/* Whether the clocks are read by the node's vDSO. */
static inline int asks_node(const struct header *h)
{
	return h->version >= NODE_VERSION && clocks_of(h);
}

/* Whether it is a socket that nobody is connected to. */
static inline int is_alone(const struct descriptor *d)
{
	return d->kind == OPEN_SOCKET && d->file == d->number;
}

static inline u32 signal_of(const struct pending *p)
{
	return *(const u32 *)p->information;
}

static inline u64 tables_size(const struct header *h)
{
	if (h->version < THREADS_VERSION)
		return 0;
	if (h->version < SHARED_VERSION)
		return sizeof(struct table);
	return h->version < CLOCKS_VERSION ? __builtin_offsetof(struct tables, clocks) : sizeof(struct tables);
}

static inline u64 park_image_end(const struct header *h)
{
	return PARK_IMAGE + ((h->size + PAGE - 1) & ~(PAGE - 1));
}

static inline const void *table_at(const struct context *c, const struct table *t)
{
	return (const u8 *)c->image + t->offset;
}

static inline const char *string_at(const struct context *c, u64 offset)
{
	return (const char *)c->image + c->image->strings.offset + offset;
}

static inline u64 starts(const struct run *r)
{
	return r->address & ~REPEATED;
}

static inline u64 ends(const struct run *r)
{
	return starts(r) + r->pages * PAGE;
}

/* Bytes of it in the pages file. */
static inline u64 stored(const struct run *r)
{
	return r->address & REPEATED ? PAGE : r->pages * PAGE;
}

static inline void copy(void *to, const void *from, u64 bytes)
{
	for (u64 i = 0; i < bytes; i++)
		((volatile u8 *)to)[i] = ((const u8 *)from)[i];
}

__attribute__((noreturn)) void fail(struct report *report, enum step step, i64 result, u64 address, u64 detail);
const char *copy_name(char text[12], char letter, u32 number);
void check_tables(struct context *c);
void make_objects(struct context *c);
void seal_objects(struct context *c);
void fault_in(struct context *c);
i64 map_object(struct context *c, const struct mapping *m, u64 flags);
void open_object(struct context *c, const struct descriptor *d);
void send_pending(struct context *c);
const struct descriptor *descriptor_at(const struct context *c, u32 number);
void make_descriptor(struct context *c, const struct descriptor *d);
void watch_descriptors(struct context *c);
void keep_vdso(struct context *c);
void rebuild_memory(struct context *c);
void rebuild_state(struct context *c);
int is_lazy(const struct context *c, const struct mapping *m);
void map_lazily(struct context *c);
void show_single_pages(struct context *c);
void trace_mappings(struct context *c);
void set_own(struct context *c);
void start_threads(struct context *c);
void open_gate(struct context *c);
void confine(struct context *c);
void filter_calls(struct context *c);
void start_timers(struct context *c);
void put_registers(struct context *c);
__attribute__((noreturn)) void enter(struct context *c);
__attribute__((noreturn)) void load_registers(struct context *c);

#endif
