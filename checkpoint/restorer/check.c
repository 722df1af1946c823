/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every address and offset in the image, before anything is done with it. The checksum finds damage; these checks keep
 * an image that was made wrong, or made to harm, from reaching beyond its own process.
 */

#include "restorer.h"

enum table_name {
	MAPPINGS,
	RUNS,
	PATCHES,
	DESCRIPTORS,
	STAMPS,
	TOUCH_ORDER,
	CALLS,
	STRINGS,
	RSEQ,
	THREADS,
	OBJECTS,
	PIECES,
	PRESENT,
	PENDING,
	CLOCK_TABLE
};

#define MOST_STAMPS 64
#define MOST_CALLS 512

static void bounded(struct context *c, const struct table *t, u64 size, enum table_name name)
{
	const struct header *h = c->image;

	if (t->offset % 8 || t->offset < sizeof(*h) || t->offset > h->size || t->count > (h->size - t->offset) / size)
		fail(c->report, STEP_TABLE, 0, t->offset, name);
}

static int aligned(u64 start, u64 bytes)
{
	return start % PAGE == 0 && bytes % PAGE == 0 && start >= PAGE && start < USER_END && bytes <= USER_END - start;
}

/* The first mapping that ends behind `address`, or the end of the table. */
static const struct mapping *mapping_of(const struct context *c, u64 address)
{
	const struct mapping *all = table_at(c, &c->image->mappings);
	u64 low = 0, high = c->image->mappings.count;

	while (low < high) {
		u64 middle = (low + high) / 2;

		if (all[middle].end <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return all + low;
}

/* Whether mappings cover [start, end) without a gap. */
static int covered(const struct context *c, u64 start, u64 end)
{
	const struct mapping *m = mapping_of(c, start);
	const struct mapping *last =
		(const struct mapping *)table_at(c, &c->image->mappings) + c->image->mappings.count;

	for (; start < end; m++) {
		if (m == last || m->start > start)
			return 0;
		start = m->end;
	}
	return 1;
}

/* Whether the restorer can write there while it fills the memory: writable itself, or made so for a run. */
static int fillable(const struct context *c, u64 start, u64 end)
{
	const struct run *all = table_at(c, &c->image->runs);
	const struct mapping *m = mapping_of(c, start);

	for (; covered(c, start, end) && start < end; start = m->end, m++) {
		u64 i = 0;

		while (i < c->image->runs.count && (ends(&all[i]) <= m->start || starts(&all[i]) >= m->end))
			i++;
		if ((m->prot & 3) != 3 && i == c->image->runs.count)
			return 0;
	}
	return start >= end;
}

static void check_mappings(struct context *c)
{
	const struct header *h = c->image;
	const struct mapping *m = table_at(c, &h->mappings);
	u64 end = 0;

	for (u64 i = 0; i < h->mappings.count; i++, m++) {
		int wrong = m->start >= m->end || !aligned(m->start, m->end - m->start) || m->start < end;

		wrong |= m->start < h->park + h->park_size && h->park < m->end;
		wrong |= m->file_offset % PAGE || m->prot > 7 || (m->flags & 3) == 0 || (m->flags & 3) == 3;
		wrong |= (m->file & OF_OBJECT) && (m->file & ~OF_OBJECT) >= object_count(h);
		wrong |= (m->flags & MAP_SHARED) && (!m->file || ((m->prot & PROT_WRITE) && !(m->file & OF_OBJECT)));
		if (wrong)
			fail(c->report, STEP_TABLE, 0, m->start, MAPPINGS);
		end = m->end;
	}
}

/* Shared memory, what is in it, and signals. Before the mappings, which name it. */
static void check_shared(struct context *c)
{
	const struct tables *t = tables_of(c->image);
	const struct object *object;
	const struct piece *piece;
	const struct pending *pending;

	if (!t)
		return;
	bounded(c, &t->objects, sizeof(*object), OBJECTS);
	bounded(c, &t->pieces, sizeof(*piece), PIECES);
	bounded(c, &t->present, sizeof(struct run), PRESENT);
	bounded(c, &t->pending, sizeof(*pending), PENDING);
	if (t->objects.count > MOST_OBJECTS)
		fail(c->report, STEP_TABLE, 0, t->objects.count, OBJECTS);
	object = table_at(c, &t->objects);
	for (u64 i = 0; i < t->objects.count; i++)
		if (object[i].size > USER_END || object[i].name >= c->image->strings.count || object[i].mode > 0777 ||
		    object[i].seals >= 2 * F_SEAL_EXEC)
			fail(c->report, STEP_TABLE, 0, i, OBJECTS);
	piece = table_at(c, &t->pieces);
	for (u64 i = 0; i < t->pieces.count; i++, piece++) {
		u64 size = piece->object < t->objects.count ? object[piece->object].size + PAGE - 1 : 0;

		if (!piece->pages || piece->offset % PAGE || piece->offset > size ||
		    piece->pages > (size - piece->offset) / PAGE)
			fail(c->report, STEP_TABLE, 0, i, PIECES);
	}
	if (t->pending.count > MOST_PENDING)
		fail(c->report, STEP_TABLE, 0, t->pending.count, PENDING);
	pending = table_at(c, &t->pending);
	for (u64 i = 0; i < t->pending.count; i++, pending++) {
		u64 signal = signal_of(pending);

		if (pending->to_thread > 1 || !signal || signal > SIGNALS || signal == SIGKILL || signal == SIGSTOP ||
		    signal == SIGTRAP)
			fail(c->report, STEP_TABLE, 0, i, PENDING);
	}
}

/* Pages that are asked for in advance: of shared memory, not behind its end, readable. */
static void check_present(struct context *c)
{
	const struct tables *t = tables_of(c->image);
	const struct object *object;
	const struct run *r;

	if (!t)
		return;
	object = table_at(c, &t->objects);
	r = table_at(c, &t->present);
	for (u64 i = 0; i < t->present.count; i++, r++) {
		const struct mapping *m;
		u64 last;

		if (!r->pages || r->pages > USER_END / PAGE || !aligned(r->address, r->pages * PAGE) ||
		    !covered(c, r->address, ends(r)))
			fail(c->report, STEP_TABLE, 0, r->address, PRESENT);
		m = mapping_of(c, r->address);
		last = ends(r) - m->start;
		if (m->end < ends(r) || !(m->file & OF_OBJECT) || !(m->prot & PROT_READ) || m->file_offset > USER_END ||
		    last + m->file_offset > ((object[m->file & ~OF_OBJECT].size + PAGE - 1) & ~(PAGE - 1)))
			fail(c->report, STEP_TABLE, 0, r->address, PRESENT);
	}
}

static void check_pages(struct context *c)
{
	const struct header *h = c->image;
	const struct run *r = table_at(c, &h->runs);
	const struct patch *p = table_at(c, &h->patches);
	u64 end = 0, pages = 0;
	/* Whoever looks for pages that are touched wants each from its own place in the file. */
	int may_repeat = h->version >= REPEATED_VERSION && !(c->options & MAP_LAZILY);

	for (u64 i = 0; i < h->runs.count; i++, r++) {
		if (!r->pages || r->pages > USER_END / PAGE || !aligned(starts(r), r->pages * PAGE) ||
		    starts(r) < end || !covered(c, starts(r), ends(r)) || ((r->address & REPEATED) && !may_repeat))
			fail(c->report, STEP_TABLE, 0, r->address, RUNS);
		end = ends(r);
		pages += stored(r) / PAGE;
	}
	if (pages != h->pages)
		fail(c->report, STEP_TABLE, 0, pages, RUNS);
	for (u64 i = 0; i < h->patches.count; i++, p++)
		if (!p->pages || p->pages > h->size / PAGE || !aligned(p->address, p->pages * PAGE) ||
		    !fillable(c, p->address, p->address + p->pages * PAGE) || p->contents < sizeof(*h) ||
		    p->contents > h->size || p->pages * PAGE > h->size - p->contents)
			fail(c->report, STEP_TABLE, 0, p->address, PATCHES);
}

/* They are written before the program runs: in a patch, nowhere else. */
static void check_clocks(struct context *c)
{
	const struct patch *p = table_at(c, &c->image->patches);
	u64 clocks = clocks_of(c->image), inside = !clocks;
	u64 written = asks_node(c->image) ? CLOCK_TABLE_BYTES + sizeof(u64) : CLOCKS * sizeof(struct clock);
	u64 threads = thread_count(c->image) * THREAD_ROOM, room = asks_node(c->image) ? VDSO_ROOM : 0;

	for (u64 i = 0; i < c->image->patches.count; i++, p++)
		inside |= clocks >= p->address && clocks - p->address <= p->pages * PAGE - written;
	if (!inside || clocks % sizeof(u64) || c->image->park_size < park_image_end(c->image) + threads + room)
		fail(c->report, STEP_TABLE, 0, clocks, CLOCK_TABLE);
}

static void check_string(struct context *c, u64 offset)
{
	if (offset >= c->image->strings.count)
		fail(c->report, STEP_TABLE, 0, offset, STRINGS);
}

/* The entry that opens `number`; 0 where none does. */
const struct descriptor *descriptor_at(const struct context *c, u32 number)
{
	const struct descriptor *all = table_at(c, &c->image->descriptors);
	u64 low = 0, high = c->opened;

	while (low < high) {
		u64 middle = (low + high) / 2;

		if (all[middle].number < number)
			low = middle + 1;
		else
			high = middle;
	}
	return low < c->opened && all[low].number == number ? all + low : 0;
}

/* Two ends that name each other. One of which there is no other end names itself. */
static int paired(const struct context *c, const struct descriptor *d)
{
	const struct descriptor *other = descriptor_at(c, d->file);

	if (!other || other->kind != d->kind || other->file != d->number)
		return 0;
	if (d->kind == OPEN_SOCKET && d->path != SOCK_STREAM && d->path != SOCK_DGRAM && d->path != SOCK_SEQPACKET)
		return 0;
	if (is_alone(d))
		return c->image->version >= ALONE_VERSION && d->position <= (d->path != SOCK_DGRAM);
	if (d->kind == OPEN_SOCKET)
		return other->path == d->path;
	return (d->flags & O_ACCMODE) <= O_WRONLY && d->position <= LARGEST_PIPE &&
	       (other == d || (other->flags & O_ACCMODE) != (d->flags & O_ACCMODE));
}

/* The clocks that anybody may have a timer of. */
static int is_clock(u64 clock)
{
	return clock == CLOCK_REALTIME || clock == CLOCK_MONOTONIC || clock == CLOCK_BOOTTIME;
}

static int receives(const struct descriptor *d)
{
	return d && ((d->kind == OPEN_SOCKET && !is_alone(d)) || (d->kind == OPEN_PIPE && !(d->flags & O_ACCMODE)));
}

/* Whether `held` is what a timer is set to. */
static int ticks(const struct context *c, const struct descriptor *timer, const struct descriptor *held)
{
	return c->image->version >= TICKS_VERSION && timer && timer->kind == OPEN_TIMER &&
	       held->path == sizeof(struct ticks) && !(held->position % sizeof(u64));
}

static int sound_descriptor(const struct context *c, const struct descriptor *d)
{
	const struct descriptor *of;

	if (d->kind < OPEN_COPY || d->kind > (c->image->version == 1 ? SAME_AS : OPEN_MEMORY))
		return 0;
	switch (d->kind) {
	case SAME_AS:
		return d->file < d->number && descriptor_at(c, d->file);
	case OPEN_MEMORY:
		return d->file < object_count(c->image) && (d->flags & O_ACCMODE) <= O_RDWR;
	case OPEN_PATH:
		return d->path < c->image->strings.count;
	case OPEN_PIPE:
	case OPEN_SOCKET:
		return paired(c, d);
	case OPEN_TIMER:
		return is_clock(d->position);
	case CONTENTS:
		of = descriptor_at(c, d->number);
		return (receives(of) || ticks(c, of, d)) && d->position >= sizeof(*c->image) &&
		       d->position <= c->image->size && d->path <= c->image->size - d->position;
	case WATCH:
		of = descriptor_at(c, d->number);
		return of && of->kind == OPEN_EPOLL && d->file != d->number && descriptor_at(c, d->file);
	default:
		return 1;
	}
}

static int opens(const struct descriptor *d)
{
	return d->kind < CONTENTS || d->kind == OPEN_MEMORY;
}

static void check_descriptors(struct context *c)
{
	const struct descriptor *all = table_at(c, &c->image->descriptors);
	u64 count = c->image->descriptors.count;

	for (c->opened = 0; c->opened < count && opens(all + c->opened); c->opened++)
		if (all[c->opened].number >= MOST_DESCRIPTORS ||
		    (c->opened && all[c->opened].number <= all[c->opened - 1].number))
			fail(c->report, STEP_TABLE, 0, all[c->opened].number, DESCRIPTORS);
	c->first_free = c->opened ? all[c->opened - 1].number + 1 : 0;
	if (count - c->opened > MOST_DESCRIPTORS)
		fail(c->report, STEP_TABLE, 0, count, DESCRIPTORS);
	for (u64 i = 0; i < count; i++)
		if (!sound_descriptor(c, all + i) || (i < c->opened) != opens(all + i))
			fail(c->report, STEP_TABLE, 0, all[i].number, DESCRIPTORS);
}

static int sound_rseq(const struct context *c, u64 rseq)
{
	return !rseq || (rseq % 32 == 0 && rseq < USER_END && covered(c, rseq & ~(PAGE - 1), rseq + 32) &&
			 (mapping_of(c, rseq)->prot & 3) == 3);
}

/* Each has a stack of its own; what the kernel writes for it lies in the program's memory. */
static int sound_thread(const struct context *c, const struct thread *t, const struct thread *before)
{
	if (t->clear_tid >= USER_END || (t->clear_tid && !covered(c, t->clear_tid & ~(PAGE - 1), t->clear_tid + 4)))
		return 0;
	if (t->registers.sp == c->image->registers.sp || t->registers.fs_base == c->image->registers.fs_base)
		return 0;
	for (; before < t; before++)
		if (t->registers.sp == before->registers.sp || t->registers.fs_base == before->registers.fs_base)
			return 0;
	return sound_rseq(c, t->rseq);
}

static void check_threads(struct context *c)
{
	const struct header *h = c->image;
	const struct table *table = threads_of(h);
	const struct thread *all;

	if (!table)
		return;
	bounded(c, table, sizeof(struct thread), THREADS);
	if (table->offset < sizeof(*h) + tables_size(h) || table->count > MOST_THREADS ||
	    h->park_size < park_image_end(h) + table->count * THREAD_ROOM)
		fail(c->report, STEP_TABLE, 0, table->count, THREADS);
	all = table_at(c, table);
	for (u64 i = 0; i < table->count; i++)
		if (!sound_thread(c, all + i, all))
			fail(c->report, STEP_TABLE, 0, i, THREADS);
}

void check_tables(struct context *c)
{
	const struct header *h = c->image;
	const u64 *stamp, *touched;

	bounded(c, &h->mappings, sizeof(struct mapping), MAPPINGS);
	bounded(c, &h->runs, sizeof(struct run), RUNS);
	bounded(c, &h->patches, sizeof(struct patch), PATCHES);
	bounded(c, &h->descriptors, sizeof(struct descriptor), DESCRIPTORS);
	bounded(c, &h->stamps, sizeof(u64), STAMPS);
	bounded(c, &h->touch_order, sizeof(u64), TOUCH_ORDER);
	bounded(c, &h->calls, sizeof(u64), CALLS);
	bounded(c, &h->strings, 1, STRINGS);
	if (!h->strings.count || *string_at(c, h->strings.count - 1))
		fail(c->report, STEP_TABLE, 0, 0, STRINGS);
	if (h->calls.count > MOST_CALLS || h->stamps.count > MOST_STAMPS)
		fail(c->report, STEP_TABLE, 0, h->calls.count, CALLS);
	check_shared(c);
	check_mappings(c);
	check_present(c);
	check_pages(c);
	check_descriptors(c);
	check_string(c, h->cwd);
	stamp = table_at(c, &h->stamps);
	for (u64 i = 0; i < h->stamps.count; i++)
		if (!aligned(stamp[i], PAGE) || !covered(c, stamp[i], stamp[i] + PAGE))
			fail(c->report, STEP_TABLE, 0, stamp[i], STAMPS);
	touched = table_at(c, &h->touch_order);
	for (u64 i = 0; i < h->touch_order.count; i++)
		if (!aligned(touched[i], PAGE) || !covered(c, touched[i], touched[i] + PAGE) ||
		    !(mapping_of(c, touched[i])->prot & PROT_READ) || mapping_of(c, touched[i])->file)
			fail(c->report, STEP_TABLE, 0, touched[i], TOUCH_ORDER);
	if (!sound_rseq(c, h->rseq))
		fail(c->report, STEP_TABLE, 0, h->rseq, RSEQ);
	check_threads(c);
	check_clocks(c);
}
