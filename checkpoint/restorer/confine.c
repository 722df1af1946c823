/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Takes away what the phase does not need, for good: landlock keeps it from changing files outside its own folder,
 * a system call filter from the network, or from every call that it did not make when the probe was built.
 */

#include "restorer.h"

/* Rights to change files, by version of landlock (linux/landlock.h): 1; moving between folders; truncating. */
#define WRITE_FILE (1UL << 1)
#define CHANGES_1 (WRITE_FILE | 0x1ff0UL)
#define CHANGES_2 (1UL << 13)
#define CHANGES_3 (1UL << 14)
#define BENEATH 1
#define BIND_TCP 1UL
#define CONNECT_TCP 2UL

#define SECCOMP_SET_MODE_FILTER 1
/* Without it old kernels switch off speculation, and the phase runs slower than the program would. */
#define SECCOMP_FILTER_FLAG_SPEC_ALLOW 4
#define RET_KILL 0x80000000U
#define RET_DENY (0x00050000U | EACCES)
#define RET_ALLOW 0x7fff0000U
#define X86_64 0xc000003eU
#define X32 0x40000000U
#define LOAD 0x20	/* BPF_LD | BPF_W | BPF_ABS */
#define JUMP_EQUAL 0x15 /* BPF_JMP | BPF_JEQ | BPF_K */
#define JUMP_ABOVE 0x35 /* BPF_JMP | BPF_JGE | BPF_K */
#define RETURN 0x06
#define MOST_INSTRUCTIONS 1100

struct instruction {
	unsigned short code;
	u8 if_true, if_false;
	u32 value;
};

struct program {
	unsigned short length;
	struct instruction *first;
};

struct __attribute__((packed)) beneath {
	u64 allowed;
	i32 folder;
};

/* socket, connect, accept, bind, listen, socketpair, accept4, io_uring_setup: none is in a phase of a probe */
static const unsigned short network[] = {41, 42, 43, 49, 50, 53, 288, 425};

static i64 allow_beneath(i64 rules, i64 folder, u64 allowed)
{
	struct beneath rule = {allowed, (i32)folder};

	return CALL4(SYS_landlock_add_rule, rules, BENEATH, &rule, 0);
}

static void confine_writes(struct context *c)
{
	i64 version = CALL3(SYS_landlock_create_ruleset, 0, 0, 1), rules, result, null;
	u64 changes = CHANGES_1 | (version >= 2 ? CHANGES_2 : 0) | (version >= 3 ? CHANGES_3 : 0);
	u64 handled[2] = {changes, version >= 4 ? BIND_TCP | CONNECT_TCP : 0};

	if (version < 1)
		return; /* not in this kernel, or not switched on: the report says so */
	rules = CALL3(SYS_landlock_create_ruleset, handled, version >= 4 ? 16 : 8, 0);
	null = CALL4(SYS_openat, -100, "/dev/null", O_PATH, 0);
	result = rules < 0 ? rules : allow_beneath(rules, c->scratch, changes);
	if (!result && null >= 0)
		result = allow_beneath(rules, null, changes & (WRITE_FILE | CHANGES_3));
	if (!result)
		result = CALL2(SYS_landlock_restrict_self, rules, 0);
	if (result < 0)
		fail(c->report, STEP_CONFINE, result, 0, 1);
	CALL1(SYS_close, rules);
	if (null >= 0)
		CALL1(SYS_close, null);
	c->report->confined |= WRITES_CONFINED;
}

static struct instruction *put(struct instruction *at, u32 code, u32 value, u32 if_true, u32 if_false)
{
	*at = (struct instruction){(unsigned short)code, (u8)if_true, (u8)if_false, value};
	return at + 1;
}

static struct instruction *answer(struct instruction *at, u32 call, u32 verdict)
{
	at = put(at, JUMP_EQUAL, call, 0, 1);
	return put(at, RETURN, verdict, 0, 0);
}

static void filter_calls(struct context *c, int only_recorded)
{
	struct instruction code[MOST_INSTRUCTIONS], *at = code;
	const u64 *call = table_at(c, &c->image->calls);
	struct program program = {0, code};
	i64 result;

	at = put(at, LOAD, 4, 0, 0); /* seccomp_data.arch */
	at = put(at, JUMP_EQUAL, X86_64, 1, 0);
	at = put(at, RETURN, RET_KILL, 0, 0);
	at = put(at, LOAD, 0, 0, 0); /* seccomp_data.nr */
	at = put(at, JUMP_ABOVE, X32, 0, 1);
	at = put(at, RETURN, RET_KILL, 0, 0);
	if (only_recorded) {
		for (u64 i = 0; i < c->image->calls.count; i++)
			at = answer(at, (u32)call[i], RET_ALLOW);
		/* Still to come before the program runs. */
		at = answer(at, SYS_close, RET_ALLOW);
		at = answer(at, SYS_prlimit, RET_ALLOW);
		at = answer(at, SYS_personality, RET_ALLOW);
		at = answer(at, SYS_setitimer, RET_ALLOW);
		at = answer(at, SYS_clock_gettime, RET_ALLOW);
		at = answer(at, SYS_rt_sigreturn, RET_ALLOW);
		at = answer(at, SYS_restart_syscall, RET_ALLOW); /* the kernel's own, behind a stop */
		at = answer(at, SYS_exit_group, RET_ALLOW);
		at = put(at, RETURN, RET_KILL, 0, 0);
	} else {
		for (u64 i = 0; i < sizeof(network) / sizeof(*network); i++)
			at = answer(at, network[i], RET_DENY);
		at = put(at, RETURN, RET_ALLOW, 0, 0);
	}
	program.length = (unsigned short)(at - code);
	result = CALL3(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_SPEC_ALLOW, &program);
	if (result == -EINVAL) /* before Linux 4.17 */
		result = CALL3(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
	if (result < 0 && only_recorded)
		fail(c->report, STEP_CONFINE, result, 0, 2);
	if (result >= 0)
		c->report->confined |= CALLS_FILTERED;
}

void confine(struct context *c)
{
	i64 result = CALL5(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);

	if (result < 0)
		fail(c->report, STEP_CONFINE, result, 0, 0);
	if (c->options & CONFINE_WRITES)
		confine_writes(c);
	if (c->options & ONLY_RECORDED_CALLS)
		filter_calls(c, 1);
	else if (c->options & NO_NETWORK)
		filter_calls(c, 0);
}
