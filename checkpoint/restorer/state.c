/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernel keeps for a process, besides memory and registers. */

#include "restorer.h"

#define RSEQ_NOT_REGISTERED ((u32) - 2) /* RSEQ_CPU_ID_REGISTRATION_FAILED */

static int equal(const char *a, const char *b)
{
	for (; *a && *a == *b; a++, b++)
		;
	return *a == *b;
}

static void set_layout(struct context *c)
{
	i64 result = CALL5(SYS_prctl, PR_SET_MM, PR_SET_MM_MAP, &c->image->mm, sizeof(c->image->mm), 0);

	if (result < 0)
		fail(c->report, STEP_LAYOUT, result, c->image->mm.start_brk, c->image->mm.brk);
}

static void set_thread(struct context *c)
{
	const struct thread *h = c->thread;
	i64 result = CALL2(SYS_arch_prctl, ARCH_SET_FS, h->registers.fs_base);

	if (!result)
		result = CALL2(SYS_arch_prctl, ARCH_SET_GS, h->registers.gs_base);
	if (result < 0)
		fail(c->report, STEP_SEGMENT, result, h->registers.fs_base, 0);
	CALL1(SYS_set_tid_address, h->clear_tid);
	result = h->robust_list ? CALL2(SYS_set_robust_list, h->robust_list, h->robust_size) : 0;
	if (result < 0)
		fail(c->report, STEP_THREAD, result, h->robust_list, 0);
	CALL2(SYS_prctl, PR_SET_NAME, h->name);
	if (h->rseq && CALL4(SYS_rseq, h->rseq, h->rseq_size, 0, h->rseq_signature) < 0)
		/* A kernel without rseq: what a C library leaves there when registering failed, so that it asks the
		 * kernel which processor it runs on. */
		*(volatile u32 *)(h->rseq + 4) = RSEQ_NOT_REGISTERED;
}

/* rt_sigreturn sets it too, but would not say that the kernel refused. */
static void set_alternate_stack(struct context *c)
{
	const struct {
		u64 start;
		u32 flags, pad;
		u64 size;
	} stack = {c->thread->stack_pointer, c->thread->stack_flags & ~(u32)SS_ONSTACK, 0, c->thread->stack_size};
	i64 result = CALL2(SYS_sigaltstack, &stack, 0);

	if (result < 0)
		fail(c->report, STEP_THREAD, result, stack.start, stack.size);
}

/* What the kernel keeps for each thread. */
void set_own(struct context *c)
{
	set_thread(c);
	set_alternate_stack(c);
}

static void describe_first(struct context *c)
{
	const struct header *h = c->image;
	struct thread *t = &c->first;

	copy(&t->registers, &h->registers, sizeof(t->registers));
	t->blocked_signals = h->blocked_signals;
	t->stack_pointer = h->stack_pointer, t->stack_size = h->stack_size, t->stack_flags = h->stack_flags;
	t->clear_tid = h->clear_tid, t->robust_list = h->robust_list, t->robust_size = h->robust_size;
	t->rseq = h->rseq, t->rseq_size = h->rseq_size, t->rseq_signature = h->rseq_signature;
	copy(t->name, h->name, sizeof(t->name));
	t->xstate = h->xstate;
	copy(t->legacy, h->legacy, sizeof(t->legacy));
	copy(t->ymm_high, h->ymm_high, sizeof(t->ymm_high));
	copy(t->opmask, h->opmask, sizeof(t->opmask));
	copy(t->zmm_high, h->zmm_high, sizeof(t->zmm_high));
	copy(t->zmm_more, h->zmm_more, sizeof(t->zmm_more));
	c->thread = t;
	c->frame = c->park + PARK_FRAME;
	c->gate = 0;
}

static void set_actions(struct context *c)
{
	for (u64 signal = 1; signal <= SIGNALS; signal++) {
		i64 result;

		if (signal == SIGKILL || signal == SIGSTOP)
			continue;
		result = CALL4(SYS_rt_sigaction, signal, &c->image->actions[signal - 1], 0, 8);
		if (result < 0)
			fail(c->report, STEP_SIGNAL, result, 0, signal);
	}
}

/*
 * The program's own limits, but never above what this node allows. No core: to a kernel that pipes cores to a handler only
 * one byte means none. No more files than an image may have: each may be a pipe, whose memory is nobody's.
 */
static void set_limits(struct context *c)
{
	for (u64 i = 0; i < LIMITS; i++) {
		struct limit wanted = c->image->limits[i], here;
		i64 result = CALL4(SYS_prlimit, 0, i, 0, &here);

		if (!result) {
			if (wanted.hard > here.hard)
				wanted.hard = here.hard;
			if (i == RLIMIT_CORE)
				wanted.soft = wanted.hard = here.hard < 1 ? here.hard : 1;
			if (i == RLIMIT_NOFILE && wanted.hard > MOST_DESCRIPTORS)
				wanted.hard = MOST_DESCRIPTORS;
			if (wanted.soft > wanted.hard)
				wanted.soft = wanted.hard;
			result = CALL4(SYS_prlimit, 0, i, &wanted, 0);
		}
		if (result < 0)
			fail(c->report, STEP_LIMIT, result, 0, i);
	}
}

static void enter_folder(struct context *c)
{
	i64 result = CALL1(SYS_chdir, string_at(c, c->image->cwd));

	if (result < 0 && (c->options & ANY_FOLDER))
		result = CALL1(SYS_fchdir, c->scratch);
	if (result < 0)
		fail(c->report, STEP_FOLDER, result, 0, 0);
	CALL1(SYS_umask, c->image->umask);
}

/* A folder or plain device of the node, the first three also for writing. Opening any other can do something. */
static i64 open_path(struct context *c, const char *path, u64 flags)
{
	static const char plain[][13] = {"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"};
	i64 result = -EACCES;
	int may_write = 0, is_plain = 0;

	for (u64 i = 0; i < sizeof(plain) / sizeof(*plain); i++) {
		is_plain |= equal(path, plain[i]);
		may_write |= i < 3 && is_plain;
	}
	if (!(flags & O_ACCMODE) || may_write)
		result = CALL4(SYS_openat, -100, path, is_plain ? flags : flags | O_DIRECTORY, 0);
	/* A folder that this node does not have, of a phase that uses no paths. */
	if (result < 0 && (flags & O_DIRECTORY) && (c->options & ANY_FOLDER))
		result = CALL4(SYS_openat, c->scratch, ".", O_DIRECTORY, 0);
	return result;
}

static i64 open_one(struct context *c, const struct descriptor *d)
{
	char text[12];
	u64 flags = d->flags & (O_ACCMODE | O_APPEND | O_NONBLOCK | O_DIRECTORY | O_SYNC);

	switch (d->kind) {
	case OPEN_COPY:
		/* The copy may be the node's own file: an image made to harm shall not get it for writing. */
		return CALL4(SYS_openat, c->copies, copy_name(text, 0, d->file), flags & (O_NONBLOCK | O_DIRECTORY), 0);
	case OPEN_WRITTEN:
		return CALL4(SYS_openat, c->scratch, copy_name(text, 'w', d->file), flags, 0);
	case OPEN_OUTPUT:
		return CALL4(SYS_openat, c->scratch, copy_name(text, 'o', d->file), flags | O_CREAT, 0600);
	default:
		return open_path(c, string_at(c, d->path), flags);
	}
}

static int is_ours(const struct context *c, i64 fd)
{
	for (u64 i = 0; i < object_count(c->image); i++)
		if (fd == c->objects[i])
			return 1;
	return fd == c->pages || fd == c->copies || fd == c->scratch || fd == c->control;
}

static void open_descriptors(struct context *c)
{
	const struct descriptor *d = table_at(c, &c->image->descriptors);

	for (i64 fd = 0; fd < INHERITED_END; fd++)
		CALL1(SYS_close, fd);
	/* Anything else that we inherited, between and behind our own. */
	for (i64 fd = INHERITED_END, last = c->control; fd <= last; fd++)
		if (!is_ours(c, fd))
			CALL1(SYS_close, fd);
	CALL3(SYS_close_range, c->control + 1, ~0U, 0);
	for (u64 i = 0; i < c->opened; i++, d++) {
		i64 fd, result;

		if (d->kind == OPEN_MEMORY) {
			open_object(c, d);
			continue;
		}
		if (d->kind > SAME_AS) {
			make_descriptor(c, d);
			continue;
		}
		fd = result = d->kind == SAME_AS ? (i64)d->file : open_one(c, d);
		if (fd >= 0 && d->position && d->kind != SAME_AS)
			result = CALL3(SYS_lseek, fd, d->position, 0);
		if (result >= 0 && fd != d->number) {
			result = CALL3(SYS_dup3, fd, d->number, d->cloexec ? O_CLOEXEC : 0);
			if (d->kind != SAME_AS)
				CALL1(SYS_close, fd);
		} else if (result >= 0 && d->cloexec) {
			result = CALL3(SYS_fcntl, fd, F_SETFD, FD_CLOEXEC);
		}
		if (result < 0)
			fail(c->report, STEP_DESCRIPTOR, result, d->kind, d->number);
	}
	watch_descriptors(c);
}

static void make_room_for(struct context *c, i64 *fd, u64 least)
{
	*fd = CALL3(SYS_fcntl, *fd, F_DUPFD, least);
	if (*fd < 0)
		fail(c->report, STEP_ROOM, *fd, 0, least);
}

/* Our own descriptors leave the numbers that the program's will have. */
static void make_room(struct context *c)
{
	u64 least = c->first_free;
	i64 *const ours[] = {&c->pages, &c->copies, &c->scratch, &c->control};

	if (least < INHERITED_END)
		least = INHERITED_END;
	/* The last of ours is the highest number: what is behind it was inherited. */
	for (u64 i = 0; i < object_count(c->image); i++)
		make_room_for(c, &c->objects[i], least);
	for (u64 i = 0; i < sizeof(ours) / sizeof(*ours); i++)
		make_room_for(c, ours[i], least);
}

void rebuild_state(struct context *c)
{
	describe_first(c);
	make_room(c);
	set_layout(c);
	set_actions(c);
	set_own(c);
	send_pending(c);
	enter_folder(c);
	open_descriptors(c);
	if (c->options & MAP_LAZILY)
		show_single_pages(c);
	confine(c);
	start_threads(c);
	if (c->options & (FILTER_CALLS | ONLY_RECORDED_CALLS))
		filter_calls(c);
	if (c->options & TRACE_MAPPINGS)
		trace_mappings(c);
	for (u64 i = 0; i < object_count(c->image); i++)
		CALL1(SYS_close, c->objects[i]);
	CALL1(SYS_close, c->pages);
	CALL1(SYS_close, c->copies);
	CALL1(SYS_close, c->scratch);
	CALL1(SYS_close, c->control);
	set_limits(c);
	CALL1(SYS_personality, c->image->personality);
}

void start_timers(struct context *c)
{
	for (u64 i = 0; i < 3; i++) {
		const struct timer *t = &c->image->timers[i];
		i64 result = t->value_s || t->value_us ? CALL3(SYS_setitimer, i, t, 0) : 0;

		if (result < 0)
			fail(c->report, STEP_TIMER, result, 0, i);
	}
}
