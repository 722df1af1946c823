/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that several mappings or descriptors lead to: anonymous shared memory, memfds, deleted files in memory. Each is
 * a memfd here, filled before anything is mapped from it. And signals that were sent and not yet delivered.
 */

#include "restorer.h"

/* With these nothing more is mapped writable, or sealed. */
#define LAST_SEALS (F_SEAL_FUTURE_WRITE | F_SEAL_SEAL)
#define NEW_MODE 0777

static void check_made(struct context *c, u64 number, i64 result)
{
	if (result < 0)
		fail(c->report, STEP_OBJECT, result, 0, number);
}

static void send_piece(struct context *c, const struct piece *p, i64 from, u64 offset)
{
	i64 to = c->objects[p->object];
	u64 left = p->pages * PAGE;

	check_made(c, p->object, CALL3(SYS_lseek, to, p->offset, 0));
	while (left) {
		i64 sent = CALL4(SYS_sendfile, to, from, &offset, left);

		if (sent == -EINTR)
			continue;
		if (!sent)
			fail(c->report, STEP_PAGES, 0, p->offset, offset);
		check_made(c, p->object, sent);
		left -= (u64)sent;
	}
}

/* Where the pages file has what is in the last page behind the end of the memory: a mapping shows it. 0: nowhere. */
static u64 tail_of(const struct object *o, const struct piece *p, u64 offset)
{
	return p->offset < o->size && o->size - p->offset < p->pages * PAGE ? offset + o->size - p->offset : 0;
}

/* Every piece into its place; `tails` gets the offset of each end. */
static void fill_objects(struct context *c, const struct tables *t, i64 from, u64 *tails)
{
	const struct object *o = table_at(c, &t->objects);
	const struct piece *p = table_at(c, &t->pieces);
	u64 offset = 0;

	for (u64 i = 0; i < t->objects.count; i++)
		tails[i] = 0;
	for (u64 i = 0; i < t->pieces.count; i++, p++) {
		send_piece(c, p, from, offset);
		if (tail_of(&o[p->object], p, offset))
			tails[p->object] = tail_of(&o[p->object], p, offset);
		offset += p->pages * PAGE;
	}
}

static void end_object(struct context *c, u64 number, u64 size, i64 from, u64 tail)
{
	i64 fd = c->objects[number], at;

	/* What is behind the end becomes zeros. */
	check_made(c, number, CALL2(SYS_ftruncate, fd, size));
	if (!tail)
		return;
	at = CALL6(SYS_mmap, 0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, size & ~(PAGE - 1));
	check_made(c, number, at);
	check_made(c, number, CALL4(SYS_pread, from, (u64)at + size % PAGE, PAGE - size % PAGE, tail));
	check_made(c, number, CALL2(SYS_munmap, at, PAGE));
}

/* With vm.memfd_noexec=1 none is executable that does not ask for it; before Linux 6.3 none can. */
static i64 create(const char *name)
{
	i64 fd = CALL2(SYS_memfd_create, name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_EXEC);

	return fd == -EINVAL ? CALL2(SYS_memfd_create, name, MFD_CLOEXEC | MFD_ALLOW_SEALING) : fd;
}

void make_objects(struct context *c)
{
	const struct tables *t = tables_of(c->image);
	u64 tails[MOST_OBJECTS];
	const struct object *o;
	char text[12];
	i64 from = 0;

	c->described = 0;
	if (!t || !t->objects.count)
		return;
	o = table_at(c, &t->objects);
	for (u64 i = 0; i < t->objects.count; i++) {
		c->objects[i] = create(string_at(c, o[i].name));
		check_made(c, i, c->objects[i]);
	}
	if (t->pieces.count)
		from = CALL4(SYS_openat, c->copies, copy_name(text, 0, (u32)t->contents), O_CLOEXEC, 0);
	if (from < 0)
		fail(c->report, STEP_OPEN, from, 0, t->contents);
	fill_objects(c, t, from, tails);
	for (u64 i = 0; i < t->objects.count; i++) {
		u32 seals = o[i].seals & ~(u32)LAST_SEALS;

		end_object(c, i, o[i].size, from, tails[i]);
		if (o[i].mode != NEW_MODE)
			check_made(c, i, CALL2(SYS_fchmod, c->objects[i], o[i].mode));
		if (seals)
			check_made(c, i, CALL3(SYS_fcntl, c->objects[i], F_ADD_SEALS, seals));
	}
	if (t->pieces.count)
		CALL1(SYS_close, from);
}

/* Once all is mapped. */
void seal_objects(struct context *c)
{
	const struct tables *t = tables_of(c->image);
	const struct object *o;

	if (!t)
		return;
	o = table_at(c, &t->objects);
	for (u64 i = 0; i < t->objects.count; i++)
		if (o[i].seals & LAST_SEALS)
			check_made(c, i, CALL3(SYS_fcntl, c->objects[i], F_ADD_SEALS, o[i].seals & LAST_SEALS));
}

/* Pages of shared mappings that the page table had: the region shall not wait for them. */
void fault_in(struct context *c)
{
	const struct tables *t = tables_of(c->image);
	const struct run *r;

	if (!t)
		return;
	r = table_at(c, &t->present);
	for (u64 i = 0; i < t->present.count; i++, r++)
		for (u64 page = r->address; page < ends(r); page += PAGE)
			(void)*(const volatile u8 *)page;
}

/* The memory opened once more. */
static i64 reopen(const struct context *c, u64 number, u64 access)
{
	static const char folder[] = "/proc/self/fd/";
	char path[sizeof(folder) + 12], text[12];
	const char *name = copy_name(text, 0, (u32)c->objects[number]);

	copy(path, folder, sizeof(folder) - 1);
	copy(path + sizeof(folder) - 1, name, (u64)(text + 12 - name));
	return CALL4(SYS_openat, -100, path, access | O_CLOEXEC, 0);
}

/* What is sealed is mapped from a file that is open for reading: before Linux 6.7 no other may be mapped shared. */
i64 map_object(struct context *c, const struct mapping *m, u64 flags)
{
	const struct object *o = table_at(c, &tables_of(c->image)->objects);
	u64 number = m->file & ~OF_OBJECT;
	int closed = (o[number].seals & F_SEAL_WRITE) && (m->flags & MAP_SHARED) && !(m->prot & PROT_WRITE);
	i64 fd = closed ? reopen(c, number, O_RDONLY) : c->objects[number], result;

	if (fd < 0)
		return fd;
	result = CALL6(SYS_mmap, m->start, m->end - m->start, m->prot, flags, fd, m->file_offset);
	if (closed)
		CALL1(SYS_close, fd);
	return result;
}

/* One descriptor may have the open file that we made; any other opens the memory once more. */
void open_object(struct context *c, const struct descriptor *d)
{
	int first = !(c->described >> d->file & 1) && (d->flags & O_ACCMODE) == O_RDWR;
	i64 fd = c->objects[d->file], result;

	if (!first) {
		fd = reopen(c, d->file, d->flags & O_ACCMODE);
		if (fd < 0)
			fail(c->report, STEP_DESCRIPTOR, fd, d->kind, d->number);
		result = CALL3(SYS_fcntl, fd, F_DUPFD, c->first_free);
		CALL1(SYS_close, fd);
		fd = result;
	} else {
		c->described |= 1UL << d->file;
	}
	result = fd < 0 ? fd : CALL3(SYS_fcntl, fd, F_SETFL, d->flags & (O_APPEND | O_NONBLOCK));
	if (result >= 0)
		result = CALL3(SYS_lseek, fd, d->position, 0);
	if (result >= 0)
		result = CALL3(SYS_dup3, fd, d->number, d->cloexec ? O_CLOEXEC : 0);
	if (result < 0)
		fail(c->report, STEP_DESCRIPTOR, result, d->kind, d->number);
	if (!first)
		CALL1(SYS_close, fd);
}

/* Behind the actions, which would drop what is ignored. All signals are blocked until the registers are loaded. */
void send_pending(struct context *c)
{
	const struct tables *t = tables_of(c->image);
	const struct pending *p;

	if (!t)
		return;
	p = table_at(c, &t->pending);
	for (u64 i = 0; i < t->pending.count; i++, p++) {
		u64 process = (u64)CALL0(SYS_getpid), signal = signal_of(p);
		i64 result = p->to_thread
				     ? CALL4(SYS_rt_tgsigqueueinfo, process, CALL0(SYS_gettid), signal, p->information)
				     : CALL3(SYS_rt_sigqueueinfo, process, signal, p->information);

		if (result < 0)
			fail(c->report, STEP_PENDING, result, 0, signal);
	}
}
