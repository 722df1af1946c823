/* SPDX-License-Identifier: Apache-2.0 */
/* The program's address space, in place of ours. */

#include "restorer.h"

#define VECTORS 256
#define COPY_BYTES 0x10000UL

static void unmap_everything_else(struct context *c)
{
	u64 end = c->park + c->image->park_size;
	i64 result = CALL2(SYS_munmap, 0, c->park);

	if (result < 0)
		fail(c->report, STEP_UNMAP, result, 0, 0);
	result = CALL2(SYS_munmap, end, USER_END - end);
	if (result < 0)
		fail(c->report, STEP_UNMAP, result, end, 0);
}

/* "17" for openat; `text` has room for 12 bytes, `letter` (if any) goes first. */
const char *copy_name(char text[12], char letter, u32 number)
{
	char *at = text + 11;

	*at = 0;
	do {
		*--at = (char)('0' + number % 10);
		number /= 10;
	} while (number);
	if (letter)
		*--at = letter;
	return at;
}

/* A file system mounted noexec maps nothing executable; private memory with the same contents may be executable. */
static i64 map_contents(struct context *c, const struct mapping *m, i64 file)
{
	u64 bytes = m->end - m->start;
	i64 result = CALL6(SYS_mmap, m->start, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
			   -1, 0);

	if (result < 0)
		return result;
	for (u64 done = 0; done < bytes;) {
		i64 got = CALL4(SYS_pread, file, m->start + done, bytes - done, m->file_offset + done);

		if (got == -EINTR)
			continue;
		if (got < 0)
			return got;
		if (!got)
			break;
		done += (u64)got;
	}
	c->report->copied++;
	return CALL3(SYS_mprotect, m->start, bytes, m->prot);
}

static void map_file(struct context *c, const struct mapping *m)
{
	char text[12];
	u64 flags = MAP_FIXED | (m->flags & (MAP_PRIVATE | MAP_SHARED | MAP_NORESERVE));
	i64 file, result;

	if (m->file & OF_OBJECT) {
		result = map_object(c, m, flags);
		if (result < 0)
			fail(c->report, STEP_MAP, result, m->start, m->file);
		return;
	}
	file = CALL4(SYS_openat, c->copies, copy_name(text, 0, m->file - 1), O_CLOEXEC, 0);

	if (file < 0)
		fail(c->report, STEP_OPEN, file, m->start, m->file - 1);
	result = CALL6(SYS_mmap, m->start, m->end - m->start, m->prot, flags, file, m->file_offset);
	if (result == -EPERM && (m->prot & PROT_EXEC) && (m->flags & MAP_PRIVATE))
		result = map_contents(c, m, file);
	if (result < 0)
		fail(c->report, STEP_MAP, result, m->start, m->file);
	CALL1(SYS_close, file);
}

static void map_anonymous(struct context *c, const struct mapping *m)
{
	u64 flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | (m->flags & (MAP_GROWSDOWN | MAP_NORESERVE));
	i64 result = CALL6(SYS_mmap, m->start, m->end - m->start, m->prot, flags, -1, 0);

	if (result < 0)
		fail(c->report, STEP_MAP, result, m->start, 0);
}

static void protect(struct context *c, const struct mapping *m, u64 prot)
{
	i64 result = CALL3(SYS_mprotect, m->start, m->end - m->start, prot);

	if (result < 0)
		fail(c->report, STEP_PROTECT, result, m->start, prot);
}

static void advise(struct context *c, const struct mapping *m)
{
	for (u64 advice = 0; advice < 64; advice++) {
		i64 result;

		if (!(m->advice >> advice & 1))
			continue;
		result = CALL3(SYS_madvise, m->start, m->end - m->start, advice);
		/* A kernel built without huge pages, or without KSM, has nothing to advise. */
		if (result < 0 && result != -EINVAL)
			fail(c->report, STEP_ADVISE, result, m->start, advice);
	}
}

/* Whether pages are put into `m`; `r` is moved to the first run that ends behind its start. */
static int filled(const struct mapping *m, const struct run **r, const struct run *last)
{
	while (*r < last && ends(*r) <= m->start)
		++*r;
	return *r < last && starts(*r) < m->end;
}

/* Both directions: `open` makes mappings that are filled writable, otherwise they get their own protection. */
static void set_protections(struct context *c, int open)
{
	const struct mapping *m = table_at(c, &c->image->mappings);
	const struct run *r = table_at(c, &c->image->runs), *last = r + c->image->runs.count;

	for (u64 i = 0; i < c->image->mappings.count; i++, m++)
		if ((m->prot & 3) != 3 && filled(m, &r, last))
			protect(c, m, open ? PROT_READ | PROT_WRITE : m->prot);
}

static void read_vectors(struct context *c, struct vector *v, u64 count, u64 offset)
{
	while (count) {
		i64 got = CALL5(SYS_preadv, c->pages, v, count, offset, 0);

		if (got == -EINTR)
			continue;
		if (got <= 0)
			fail(c->report, STEP_PAGES, got, v->address, offset);
		for (offset += (u64)got; count && (u64)got >= v->size; count--, v++)
			got -= (i64)v->size;
		if (count) {
			v->address += (u64)got;
			v->size -= (u64)got;
		}
	}
}

/* [at, end) gets what the page `first` holds, which may be the first of them. */
static void repeat(u64 first, u64 at, u64 end)
{
	for (; at < end; at += PAGE) {
		u64 to = at, from = first, words = PAGE / 8;

		if (at != first)
			__asm__ volatile("rep movsq" : "+D"(to), "+S"(from), "+c"(words) : : "memory");
	}
}

/*
 * The pages file front to back, straight into place. Mappings that had no huge pages get none here: filled in one go
 * they would, where the kernel makes huge pages unasked, and run faster than they did.
 */
static void fill(struct context *c)
{
	struct vector v[VECTORS];
	const struct run *r = table_at(c, &c->image->runs), *last = r + c->image->runs.count;
	const struct mapping *m = table_at(c, &c->image->mappings);
	u64 count = 0, bytes = 0, offset = 0;
	/* A huge page would show a tracer neighbours of what was asked for. */
	u32 small = 2, never = (c->options & TRACE_MAPPINGS) != 0;

	for (; r < last; r++) {
		/* A run may go on from one mapping into the next. */
		u64 repeated = r->address & REPEATED;

		for (u64 at = starts(r), end; at < ends(r); at = end) {
			while (m->end <= at)
				m++;
			end = m->end < ends(r) ? m->end : ends(r);
			if (count == VECTORS || m->small != small || is_lazy(c, m) || repeated) {
				read_vectors(c, v, count, offset);
				offset += bytes;
				count = bytes = 0;
				if (m->small != small)
					CALL5(SYS_prctl, PR_SET_THP_DISABLE, m->small | never, 0, 0, 0);
				small = m->small;
			}
			if (is_lazy(c, m)) {
				offset += end - at;
				continue;
			}
			if (repeated) {
				v[0] = (struct vector){at, PAGE};
				if (at == starts(r)) {
					read_vectors(c, v, 1, offset);
					offset += PAGE;
				}
				repeat(starts(r), at, end);
				continue;
			}
			v[count++] = (struct vector){at, end - at};
			bytes += end - at;
		}
	}
	read_vectors(c, v, count, offset);
	CALL5(SYS_prctl, PR_SET_THP_DISABLE, c->image->no_huge_pages | never, 0, 0, 0);
}

static void patch(struct context *c)
{
	const struct patch *p = table_at(c, &c->image->patches);

	for (u64 i = 0; i < c->image->patches.count; i++, p++)
		copy((void *)p->address, (const u8 *)c->image + p->contents, p->pages * PAGE);
}

#define SECOND 1000000000UL

/* The program's clocks go on from where they were. Its vDSO adds to the node's what these differ by now. From version
 * NODE_VERSION on they may be the node's, which differ by nothing. */
static void set_clocks(struct context *c)
{
	static const u64 numbers[CLOCKS] = {
		CLOCK_REALTIME,		 CLOCK_MONOTONIC,     CLOCK_BOOTTIME, CLOCK_PROCESS_CPUTIME_ID,
		CLOCK_THREAD_CPUTIME_ID, CLOCK_MONOTONIC_RAW, CLOCK_TAI};
	struct clock *clock = (struct clock *)clocks_of(c->image);

	if (asks_node(c->image)) {
		*(u64 *)((u8 *)clock + CLOCK_TABLE_BYTES) = c->node_clock;
		if (!clock->seconds && !clock->nanoseconds)
			return;
	}
	for (u64 i = 0; clock && i < CLOCKS; i++, clock++) {
		struct clock now = {0, 0};
		u64 borrowed;

		CALL2(SYS_clock_gettime, numbers[i], &now);
		borrowed = clock->nanoseconds < now.nanoseconds;
		clock->seconds -= now.seconds + borrowed;
		clock->nanoseconds += borrowed * SECOND - now.nanoseconds;
	}
}

/* Pages with stamps are shared with the parent: it needs no right to look into our memory. */
static void share_stamps(struct context *c)
{
	const u64 *stamp = table_at(c, &c->image->stamps);

	for (u64 i = 0; i < c->image->stamps.count; i++) {
		u64 offset = (i + 1) * PAGE;
		i64 result = CALL4(SYS_pwrite, c->control, stamp[i], PAGE, offset);

		if (result == (i64)PAGE)
			result = CALL6(SYS_mmap, stamp[i], PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
				       c->control, offset);
		if ((u64)result != stamp[i])
			fail(c->report, STEP_STAMP, result, stamp[i], i);
	}
}

/* Reads a byte of every page of the touched set, in the order in which the phase will ask for them. */
static void touch_in_order(struct context *c)
{
	const u64 *page = table_at(c, &c->image->touch_order);

	for (u64 i = 0; i < c->image->touch_order.count; i++)
		(void)*(const volatile u8 *)page[i];
}

void rebuild_memory(struct context *c)
{
	const struct mapping *m = table_at(c, &c->image->mappings);

	keep_vdso(c);
	unmap_everything_else(c);
	make_objects(c);
	for (u64 i = 0; i < c->image->mappings.count; i++, m++) {
		if (m->file)
			map_file(c, m);
		else
			map_anonymous(c, m);
		advise(c, m);
	}
	seal_objects(c);
	set_protections(c, 1);
	fill(c);
	if (c->options & MAP_LAZILY)
		map_lazily(c);
	patch(c);
	set_clocks(c);
	share_stamps(c);
	set_protections(c, 0);
	fault_in(c);
	if (c->options & TOUCH_IN_ORDER)
		touch_in_order(c);
}
