/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For a tracer that wants to know which pages the phase touches: its anonymous memory is mapped privately from the
 * pages file instead of being read, so that the page table shows what was asked for. The build does so; no probe run.
 *
 * Around a page that is asked for, the kernel maps up to fifteen neighbours from the page cache. It does not where the
 * mapping is registered with a userfaultfd for write protection; nothing is ever protected, and no event comes.
 */

#include "restorer.h"

#define SECCOMP_SET_MODE_FILTER 1
#define SECCOMP_FILTER_FLAG_SPEC_ALLOW 4
#define RET_TRACE 0x7ff00000U
#define RET_ALLOW 0x7fff0000U
#define LOAD 0x20 /* BPF_LD | BPF_W | BPF_ABS */
#define JUMP_EQUAL 0x15
#define RETURN 0x06

#define USER_MODE_ONLY 1
#define API 0xc018aa3f
#define REGISTER 0xc020aa00
#define API_VERSION 0xAA
#define WP_SHMEM (1UL << 12)
#define WP_ASYNC (1UL << 15)
#define MODE_WRITE_PROTECT 2

struct api {
	u64 version, features, controls;
};

struct registration {
	u64 start, bytes, mode, controls;
};

/* A stack may not be mapped from a file: it grows. */
int is_lazy(const struct context *c, const struct mapping *m)
{
	return (c->options & MAP_LAZILY) && !m->file && !(m->flags & MAP_GROWSDOWN);
}

/* Calls `use` with each piece of a mapping that is lazy, and where its pages are. */
static void for_lazy(struct context *c, void (*use)(struct context *, const struct mapping *, u64, u64, u64, i64),
		     i64 file)
{
	const struct run *r = table_at(c, &c->image->runs), *last = r + c->image->runs.count;
	const struct mapping *m = table_at(c, &c->image->mappings);
	u64 offset = 0;

	for (; r < last; r++) {
		for (u64 at = r->address, end; at < ends(r); at = end) {
			while (m->end <= at)
				m++;
			end = m->end < ends(r) ? m->end : ends(r);
			if (is_lazy(c, m))
				use(c, m, at, end, offset, file);
			offset += end - at;
		}
	}
}

static void map_piece(struct context *c, const struct mapping *m, u64 start, u64 end, u64 offset, i64 file)
{
	/* Writable for now: the vDSO is patched and protections are set afterwards. */
	i64 result = CALL6(SYS_mmap, start, end - start, m->prot | PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED,
			   file, offset);

	if (result < 0)
		fail(c->report, STEP_MAP, result, start, 0);
}

static void register_piece(struct context *c, const struct mapping *m, u64 start, u64 end, u64 offset, i64 file)
{
	struct registration one = {start, end - start, MODE_WRITE_PROTECT, 0};

	(void)m, (void)offset;
	/* A page of stamps is shared by now. */
	if (CALL3(SYS_ioctl, file, REGISTER, &one) < 0)
		c->report->confined |= TOUCHES_IN_GROUPS;
}

/* In place of reading the pages, before protections are set. */
void map_lazily(struct context *c)
{
	for_lazy(c, map_piece, c->pages);
}

static i64 open_faults(u64 features)
{
	struct api api = {API_VERSION, features, 0};
	i64 file = CALL1(SYS_userfaultfd, O_CLOEXEC | USER_MODE_ONLY);

	if (file >= 0 && CALL3(SYS_ioctl, file, API, &api) < 0) {
		CALL1(SYS_close, file);
		return -EINVAL;
	}
	return file;
}

/* Where the kernel cannot, whole groups of pages show: more than were touched, and never fewer. The descriptor stays
 * open, with the highest number there is: the program's own come out as they would. */
void show_single_pages(struct context *c)
{
	struct limit limit;
	i64 fault = open_faults(WP_ASYNC), high = -EINVAL;

	if (fault < 0)
		fault = open_faults(WP_SHMEM);
	if (fault >= 0 && !CALL4(SYS_prlimit, 0, RLIMIT_NOFILE, 0, &limit))
		high = CALL3(SYS_fcntl, fault, F_DUPFD, limit.soft - 1);
	if (high < 0) {
		c->report->confined |= TOUCHES_IN_GROUPS;
		return;
	}
	CALL1(SYS_close, fault);
	for_lazy(c, register_piece, high);
}

/* The tracer sees calls that take pages away or move them, before they do. Behind all that the restorer calls itself. */
void trace_mappings(struct context *c)
{
	static const unsigned short watched[] = {SYS_mmap, SYS_munmap, SYS_mremap, SYS_madvise, SYS_brk};
	enum { COUNT = sizeof(watched) / sizeof(*watched) };
	struct {
		unsigned short code;
		u8 if_true, if_false;
		u32 value;
	} code[COUNT + 3];
	struct {
		unsigned short length;
		void *first;
	} program = {COUNT + 3, code};
	i64 result;

	code[0].code = LOAD, code[0].if_true = code[0].if_false = 0, code[0].value = 0;
	for (u32 i = 0; i < COUNT; i++) {
		code[i + 1].code = JUMP_EQUAL, code[i + 1].value = watched[i];
		code[i + 1].if_true = (u8)(COUNT - i), code[i + 1].if_false = 0;
	}
	code[COUNT + 1].code = code[COUNT + 2].code = RETURN;
	code[COUNT + 1].if_true = code[COUNT + 1].if_false = code[COUNT + 2].if_true = code[COUNT + 2].if_false = 0;
	code[COUNT + 1].value = RET_ALLOW, code[COUNT + 2].value = RET_TRACE;
	result = CALL3(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_SPEC_ALLOW, &program);
	if (result == -EINVAL) /* before Linux 4.17 */
		result = CALL3(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
	if (result < 0)
		fail(c->report, STEP_CONFINE, result, 0, 4);
}
