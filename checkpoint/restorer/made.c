/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Descriptors that lead to the process itself: made anew, filled with what had not been read, watched as they were. All
 * of it before the process is confined; what a region does with them reaches nobody else.
 */

#include "restorer.h"

static void check_made(struct context *c, const struct descriptor *d, i64 result)
{
	if (result < 0)
		fail(c->report, STEP_DESCRIPTOR, result, d->kind, d->number);
}

/* A new descriptor goes where the program's have no numbers, so that it is in nobody's way. */
static i64 moved(struct context *c, const struct descriptor *d, i64 fd)
{
	i64 result = CALL3(SYS_fcntl, fd, F_DUPFD, c->first_free);

	check_made(c, d, result);
	CALL1(SYS_close, fd);
	return result;
}

/* `fd` becomes the descriptor `d`. */
static void settle(struct context *c, const struct descriptor *d, i64 fd)
{
	check_made(c, d, CALL3(SYS_fcntl, fd, F_SETFL, d->flags & (O_APPEND | O_NONBLOCK)));
	check_made(c, d, CALL3(SYS_dup3, fd, d->number, d->cloexec ? O_CLOEXEC : 0));
	CALL1(SYS_close, fd);
}

/* What `to` is to read, sent by `from`, which does not wait: it all fitted before. */
static void fill(struct context *c, const struct descriptor *to, i64 from)
{
	const struct descriptor *d = table_at(c, &c->image->descriptors), *last = d + c->image->descriptors.count;

	for (d += c->opened; d < last; d++) {
		u64 done = 0;

		if (d->kind != CONTENTS || d->number != to->number)
			continue;
		do {
			i64 put = CALL3(SYS_write, from, (const u8 *)c->image + d->position + done, d->path - done);

			if (put == -EINTR)
				continue;
			check_made(c, to, put);
			done += (u64)put;
		} while (done < d->path);
	}
}

static void make_pipe(struct context *c, const struct descriptor *d)
{
	const struct descriptor *other = descriptor_at(c, d->file);
	int writes = (d->flags & O_ACCMODE) != 0;
	i32 made[2];
	i64 end[2];

	check_made(c, d, CALL2(SYS_pipe2, made, O_NONBLOCK));
	end[0] = moved(c, d, made[0]);
	end[1] = moved(c, d, made[1]);
	if (d->position && CALL2(SYS_fcntl, end[0], F_GETPIPE_SZ) != (i64)d->position)
		check_made(c, d, CALL3(SYS_fcntl, end[0], F_SETPIPE_SZ, d->position));
	fill(c, writes ? other : d, end[1]);
	settle(c, d, end[writes]);
	if (other == d)
		CALL1(SYS_close, end[!writes]);
	else
		settle(c, other, end[!writes]);
}

static void set_buffer(struct context *c, const struct descriptor *d, i64 fd)
{
	u32 size, bytes = sizeof(size);

	check_made(c, d, CALL5(SYS_getsockopt, fd, SOL_SOCKET, SO_SNDBUF, &size, &bytes));
	if (!d->position || size == d->position)
		return;
	/* The kernel doubles what it is told. */
	size = (u32)(d->position / 2);
	check_made(c, d, CALL5(SYS_setsockopt, fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size)));
	check_made(c, d, CALL5(SYS_getsockopt, fd, SOL_SOCKET, SO_SNDBUF, &size, &bytes));
	/* An ordinary user may have no more than net.core.wmem_max. */
	check_made(c, d, size < d->position ? -EPERM : 0);
}

static void make_sockets(struct context *c, const struct descriptor *d)
{
	const struct descriptor *other = descriptor_at(c, d->file);
	i32 made[2];
	i64 end[2];

	check_made(c, d, CALL4(SYS_socketpair, AF_UNIX, d->path | O_NONBLOCK, 0, made));
	end[0] = moved(c, d, made[0]);
	end[1] = moved(c, d, made[1]);
	set_buffer(c, d, end[0]);
	set_buffer(c, other, end[1]);
	fill(c, d, end[1]);
	fill(c, other, end[0]);
	settle(c, d, end[0]);
	settle(c, other, end[1]);
}

/* One that listens gets a name that the kernel makes up: no network reaches it, whatever it listened on. */
static void make_socket_alone(struct context *c, const struct descriptor *d)
{
	const unsigned short family = AF_UNIX; /* sa_family_t */
	i64 fd = CALL3(SYS_socket, AF_UNIX, d->path, 0);

	check_made(c, d, fd);
	fd = moved(c, d, fd);
	if (d->position) {
		check_made(c, d, CALL3(SYS_bind, fd, &family, sizeof(family)));
		check_made(c, d, CALL2(SYS_listen, fd, 1));
	}
	settle(c, d, fd);
}

/* The filter that comes would not let it be set later: it expires by as much too early as restoring takes from here. */
static void run_timer(struct context *c, const struct descriptor *timer, i64 fd)
{
	const struct descriptor *d = table_at(c, &c->image->descriptors), *last = d + c->image->descriptors.count;

	for (d += c->opened; d < last; d++) {
		const struct ticks *t = (const void *)((const u8 *)c->image + d->position);

		if (d->kind != CONTENTS || d->number != timer->number)
			continue;
		check_made(c, timer, CALL4(SYS_timerfd_settime, fd, 0, t, 0));
		if (t->ticks)
			check_made(c, timer, CALL3(SYS_ioctl, fd, TFD_IOC_SET_TICKS, &t->ticks));
	}
}

static i64 made_alone(const struct descriptor *d)
{
	switch (d->kind) {
	case OPEN_EVENT:
		return CALL2(SYS_eventfd2, 0, 0);
	case OPEN_EPOLL:
		return CALL1(SYS_epoll_create1, 0);
	case OPEN_TIMER:
		return CALL2(SYS_timerfd_create, d->position, 0);
	default:
		return CALL4(SYS_signalfd4, -1, &d->position, sizeof(d->position), 0);
	}
}

/* Both ends of a pair are made with the first of them. */
void make_descriptor(struct context *c, const struct descriptor *d)
{
	i64 fd;

	if (is_alone(d)) {
		make_socket_alone(c, d);
		return;
	}
	if (d->kind == OPEN_PIPE || d->kind == OPEN_SOCKET) {
		if (d->file >= d->number)
			(d->kind == OPEN_PIPE ? make_pipe : make_sockets)(c, d);
		return;
	}
	fd = made_alone(d);
	check_made(c, d, fd);
	fd = moved(c, d, fd);
	if (d->kind == OPEN_EVENT && d->position)
		check_made(c, d, CALL3(SYS_write, fd, &d->position, sizeof(d->position)));
	if (d->kind == OPEN_TIMER)
		run_timer(c, d, fd);
	settle(c, d, fd);
}

/* Once every descriptor is there. */
void watch_descriptors(struct context *c)
{
	const struct descriptor *d = table_at(c, &c->image->descriptors), *last = d + c->image->descriptors.count;

	for (d += c->opened; d < last; d++) {
		struct __attribute__((packed)) {
			u32 events;
			u64 data;
		} event = {(u32)d->flags, d->position};

		if (d->kind == WATCH)
			check_made(c, d, CALL4(SYS_epoll_ctl, d->number, EPOLL_CTL_ADD, d->file, &event));
	}
}
