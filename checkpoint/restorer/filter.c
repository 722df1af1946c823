/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The system call filter of a phase. A table has a verdict for every call: what computes is allowed, what reaches other
 * processes, the network or the machine is refused. Recorded calls only take away from that table.
 *
 * The filter looks a number up in a tree of ranges, because old kernels run it at each call. Newer ones remember which
 * numbers are always allowed, so few calls are judged by their arguments, and no frequent ones.
 */

#include "restorer.h"

#define SECCOMP_SET_MODE_FILTER 1
/* Without it old kernels switch off speculation, and the phase runs slower than the program would. */
#define SECCOMP_FILTER_FLAG_SPEC_ALLOW 4
#define SECCOMP_FILTER_FLAG_TSYNC 1 /* for all threads */
#define RET_KILL 0x80000000U
#define RET_ERRNO 0x00050000U
#define RET_ALLOW 0x7fff0000U
#define X86_64 0xc000003eU
#define X32 0x40000000U
#define LOAD 0x20	  /* BPF_LD | BPF_W | BPF_ABS */
#define AND 0x54	  /* BPF_ALU | BPF_AND | BPF_K */
#define JUMP 0x05	  /* BPF_JMP | BPF_JA */
#define JUMP_EQUAL 0x15	  /* BPF_JMP | BPF_JEQ | BPF_K */
#define JUMP_ABOVE 0x35	  /* BPF_JMP | BPF_JGE | BPF_K */
#define JUMP_ANY_BIT 0x45 /* BPF_JMP | BPF_JSET | BPF_K */
#define RETURN 0x06
#define NUMBER 0 /* offsets in struct seccomp_data */
#define ARCHITECTURE 4
#define ARGUMENT(n) (16 + 8 * (n))
#define MOST_INSTRUCTIONS 1400

/* Everything behind REFUSED depends on the arguments, or on how the phase is confined. */
enum verdict {
	ALLOWED,
	REFUSED,
	ABSENT, /* as on a kernel that does not have the call */
	KILLED,
	USES_PAIR,     /* of sockets: others that there are are of no use, and so are all where the image has no pair */
	CHANGES_FILES, /* by their paths, or their metadata by anything: what landlock lets through is among it */
	OPENS,	       /* flags are the second argument */
	OPENS_AT,      /* flags are the third argument */
	OPENS_BY_STRUCT,
	OWN_PROCESS, /* the first argument names a process: this one alone */
	OWN_PRIORITY,
	CONTROLS,    /* ioctl */
	DESCRIPTORS, /* fcntl */
	SELF,	     /* prctl */
	SENDS,	     /* to the other end of a pair: without an address, which a datagram could have */
	VERDICTS,
};

/* By number, linux/arch/x86/entry/syscalls/syscall_64.tbl. What is not named is allowed, up to the last one. */
static const u8 verdicts[] = {
	[2] = OPENS,		       /* open */
	[16] = CONTROLS,	       /* ioctl */
	[29 ... 31] = REFUSED,	       /* shmget shmat shmctl */
	[41 ... 43] = REFUSED,	       /* socket connect accept */
	[44] = SENDS,		       /* sendto */
	[45] = USES_PAIR,	       /* recvfrom */
	[46] = REFUSED,		       /* sendmsg: the address is in memory */
	[47 ... 48] = USES_PAIR,       /* recvmsg shutdown */
	[49 ... 50] = REFUSED,	       /* bind listen */
	[51 ... 52] = USES_PAIR,       /* getsockname getpeername */
	[53 ... 54] = REFUSED,	       /* socketpair setsockopt */
	[55] = USES_PAIR,	       /* getsockopt */
	[56 ... 59] = REFUSED,	       /* clone fork vfork execve */
	[62] = OWN_PROCESS,	       /* kill */
	[64 ... 71] = REFUSED,	       /* semget semop semctl shmdt msgget msgsnd msgrcv msgctl */
	[72] = DESCRIPTORS,	       /* fcntl */
	[76] = CHANGES_FILES,	       /* truncate */
	[82 ... 88] = CHANGES_FILES,   /* rename mkdir rmdir creat link unlink symlink */
	[90 ... 94] = CHANGES_FILES,   /* chmod fchmod chown fchown lchown */
	[101] = REFUSED,	       /* ptrace */
	[103] = REFUSED,	       /* syslog */
	[129] = OWN_PROCESS,	       /* rt_sigqueueinfo */
	[132 ... 133] = CHANGES_FILES, /* utime mknod */
	[134] = REFUSED,	       /* uselib */
	[141] = OWN_PRIORITY,	       /* setpriority */
	[142] = OWN_PROCESS,	       /* sched_setparam */
	[144] = OWN_PROCESS,	       /* sched_setscheduler */
	[153 ... 156] = REFUSED,       /* vhangup modify_ldt pivot_root _sysctl */
	[157] = SELF,		       /* prctl */
	[161] = REFUSED,	       /* chroot */
	[163 ... 185] = REFUSED,       /* acct settimeofday mount ... reboot ... init_module ... security */
	[188 ... 190] = CHANGES_FILES, /* setxattr lsetxattr fsetxattr */
	[197 ... 199] = CHANGES_FILES, /* removexattr lremovexattr fremovexattr */
	[200] = OWN_PROCESS,	       /* tkill: it has one thread */
	[203] = OWN_PROCESS,	       /* sched_setaffinity */
	[212] = REFUSED,	       /* lookup_dcookie */
	[216] = REFUSED,	       /* remap_file_pages: from its stamps to the report */
	[220] = REFUSED,	       /* semtimedop */
	[227] = REFUSED,	       /* clock_settime */
	[234] = OWN_PROCESS,	       /* tgkill */
	[235] = CHANGES_FILES,	       /* utimes */
	[236] = REFUSED,	       /* vserver */
	[240 ... 246] = REFUSED,       /* mq_open ... mq_getsetattr kexec_load */
	[248 ... 251] = REFUSED,       /* add_key request_key keyctl ioprio_set */
	[256] = REFUSED,	       /* migrate_pages */
	[257] = OPENS_AT,	       /* openat */
	[258 ... 261] = CHANGES_FILES, /* mkdirat mknodat fchownat futimesat */
	[263 ... 266] = CHANGES_FILES, /* unlinkat renameat linkat symlinkat */
	[268] = CHANGES_FILES,	       /* fchmodat */
	[272] = REFUSED,	       /* unshare */
	[279] = REFUSED,	       /* move_pages */
	[280] = CHANGES_FILES,	       /* utimensat */
	[288] = REFUSED,	       /* accept4 */
	[297 ... 301] = REFUSED,       /* rt_tgsigqueueinfo perf_event_open recvmmsg fanotify_init fanotify_mark */
	[302] = OWN_PROCESS,	       /* prlimit64 */
	[304 ... 305] = REFUSED,       /* open_by_handle_at clock_adjtime */
	[307 ... 308] = REFUSED,       /* sendmmsg setns */
	[310 ... 313] = REFUSED,       /* process_vm_readv process_vm_writev kcmp finit_module */
	[314] = OWN_PROCESS,	       /* sched_setattr */
	[316] = CHANGES_FILES,	       /* renameat2 */
	[319] = REFUSED,	       /* memfd_create: memory that no limit of a process covers */
	[320 ... 323] = REFUSED,       /* kexec_file_load bpf execveat userfaultfd */
	[335 ... 423] = ABSENT,
	[424 ... 433] = REFUSED, /* pidfd_send_signal io_uring_setup ... fspick */
	[434 ... 435] = REFUSED, /* pidfd_open clone3 */
	[437] = OPENS_BY_STRUCT, /* openat2 */
	[438] = REFUSED,	 /* pidfd_getfd */
	[440] = REFUSED,	 /* process_madvise */
	[442 ... 443] = REFUSED, /* mount_setattr quotactl_fd */
	[447 ... 448] = REFUSED, /* memfd_secret process_mrelease */
	[452] = CHANGES_FILES,	 /* fchmodat2 */
	[457 ... 458] = REFUSED, /* statmount listmount */
	[460] = REFUSED,	 /* lsm_set_self_attr */
	[463] = CHANGES_FILES,	 /* setxattrat */
	[466] = CHANGES_FILES,	 /* removexattrat */
	[467] = REFUSED,	 /* open_tree_attr */
	[468] = ALLOWED,	 /* file_getattr */
	[469] = CHANGES_FILES,	 /* file_setattr */
	[470 ... 511] = ABSENT,
};
#define KNOWN (sizeof(verdicts) / sizeof(*verdicts))

/* What the restorer itself still calls before the program runs; restart_syscall is the kernel's own, behind a stop. */
static const unsigned short still_to_come[] = {
	SYS_close,	   SYS_munmap,	     SYS_prlimit,	  SYS_personality, SYS_setitimer,
	SYS_clock_gettime, SYS_rt_sigreturn, SYS_restart_syscall, SYS_exit_group,  SYS_futex,
};

/* Asking a terminal, a pipe or a file system; cloning between own descriptors. Not: putting characters into a terminal,
 * flags of files that were opened for reading, freezing. */
static const u32 harmless_controls[] = {
	0x5401,	    /* TCGETS */
	0x540f,	    /* TIOCGPGRP */
	0x5413,	    /* TIOCGWINSZ */
	0x541b,	    /* FIONREAD */
	0x5421,	    /* FIONBIO */
	0x5450,	    /* FIONCLEX */
	0x5451,	    /* FIOCLEX */
	0x80086601, /* FS_IOC_GETFLAGS */
	0x801c581f, /* FS_IOC_FSGETXATTR */
	0xc020660b, /* FS_IOC_FIEMAP */
	0x40049409, /* FICLONE */
	0x4020940d, /* FICLONERANGE */
};

/* F_SETOWN, F_SETOWN_EX: a signal to somebody else; F_SETLEASE, F_NOTIFY: a hold on somebody else's files */
static const u32 far_reaching_descriptors[] = {8, 15, 1024, 1026};

/* PR_SET_PDEATHSIG: it dies with its parent; PR_SCHED_CORE: touches others */
static const u32 far_reaching_selves[] = {1, 62};

struct instruction {
	unsigned short code;
	u8 if_true, if_false;
	u32 value;
};

struct program {
	unsigned short length;
	struct instruction *first;
};

struct range {
	u32 first; /* number */
	u32 verdict;
};

static struct instruction *put(struct instruction *at, u32 code, u32 value, u32 if_true, u32 if_false)
{
	*at = (struct instruction){(unsigned short)code, (u8)if_true, (u8)if_false, value};
	return at + 1;
}

static struct instruction *answer(struct instruction *at, u32 value, u32 verdict)
{
	at = put(at, JUMP_EQUAL, value, 0, 1);
	return put(at, RETURN, verdict, 0, 0);
}

static u32 answer_of(u32 verdict)
{
	switch (verdict) {
	case ALLOWED:
		return RET_ALLOW;
	case ABSENT:
		return RET_ERRNO | ENOSYS;
	case KILLED:
		return RET_KILL;
	default:
		return RET_ERRNO | EACCES;
	}
}

static int listed(u32 number, const unsigned short *list, u64 count)
{
	for (u64 i = 0; i < count; i++)
		if (list[i] == number)
			return 1;
	return 0;
}

/* Landlock's first two versions miss files that are truncated; without it nobody sees which file is opened. */
static u32 verdict_on_opening(const struct context *c, u32 verdict)
{
	if (!(c->options & CONFINE_WRITES) || c->landlock >= 3)
		return ALLOWED;
	return verdict == OPENS_BY_STRUCT ? ABSENT : verdict;
}

static int has_pair(const struct context *c)
{
	const struct descriptor *d = table_at(c, &c->image->descriptors);
	u64 i = 0;

	while (i < c->opened && (d[i].kind != OPEN_SOCKET || is_alone(d + i)))
		i++;
	return i < c->opened;
}

static u32 verdict_on(const struct context *c, u32 number)
{
	const u64 *recorded = table_at(c, &c->image->calls);
	u32 verdict = number < KNOWN ? verdicts[number] : ABSENT;
	u64 i = 0;

	if (verdict >= OPENS && verdict <= OPENS_BY_STRUCT)
		verdict = verdict_on_opening(c, verdict);
	if ((verdict == USES_PAIR || verdict == SENDS) && !c->pair)
		verdict = REFUSED;
	else if (verdict == USES_PAIR)
		verdict = ALLOWED;
	if (verdict == CHANGES_FILES)
		verdict = c->options & CONFINE_WRITES ? REFUSED : ALLOWED;
	if (!(c->options & ONLY_RECORDED_CALLS) ||
	    listed(number, still_to_come, sizeof(still_to_come) / sizeof(*still_to_come)))
		return verdict;
	while (i < c->image->calls.count && recorded[i] != number)
		i++;
	return i < c->image->calls.count ? verdict : KILLED;
}

/* Neighbours of one verdict, the last of them without an end. */
static u32 find_ranges(const struct context *c, struct range *range)
{
	u32 count = 0;

	for (u32 number = 0; number <= KNOWN; number++) {
		u32 verdict = verdict_on(c, number);

		if (!count || range[count - 1].verdict != verdict)
			range[count++] = (struct range){number, verdict};
	}
	return count;
}

/* A leaf that asks for arguments jumps by its verdict, for now. */
static struct instruction *put_tree(struct instruction *at, const struct range *range, u32 count)
{
	struct instruction *fork = at, *left, *right;
	u32 half = count / 2;

	if (count == 1) {
		if (range->verdict <= KILLED)
			return put(at, RETURN, answer_of(range->verdict), 0, 0);
		return put(at, JUMP, range->verdict, 0, 0);
	}
	left = at + 2;
	right = put_tree(left, range, half);
	put(fork, JUMP_ABOVE, range[half].first, 0, 1);
	put(fork + 1, JUMP, (u32)(right - left), 0, 0);
	return put_tree(right, range + half, count - half);
}

static struct instruction *put_list(struct instruction *at, u32 argument, const u32 *list, u64 count, u32 answer_listed,
				    u32 answer_others)
{
	at = put(at, LOAD, ARGUMENT(argument), 0, 0);
	for (u64 i = 0; i < count; i++)
		at = answer(at, list[i], answer_listed);
	return put(at, RETURN, answer_others, 0, 0);
}

/* With landlock: only what truncates without writing. Without: whatever writes, creates or truncates. */
static struct instruction *put_opening(struct instruction *at, const struct context *c, u32 argument)
{
	at = put(at, LOAD, ARGUMENT(argument), 0, 0);
	if (c->landlock < 1) {
		at = put(at, JUMP_ANY_BIT, O_ACCMODE | O_CREAT | O_TRUNC, 0, 1);
		at = put(at, RETURN, RET_ERRNO | EACCES, 0, 0);
		return put(at, RETURN, RET_ALLOW, 0, 0);
	}
	at = put(at, AND, O_ACCMODE | O_TRUNC, 0, 0);
	at = answer(at, O_TRUNC, RET_ERRNO | EACCES);
	return put(at, RETURN, RET_ALLOW, 0, 0);
}

static struct instruction *put_questions(struct instruction *at, const struct context *c, u32 verdict)
{
	const u32 ourselves[] = {0, (u32)CALL0(SYS_getpid)};

	switch (verdict) {
	case OPENS:
		return put_opening(at, c, 1);
	case OPENS_AT:
		return put_opening(at, c, 2);
	case OWN_PRIORITY:
		at = put(at, LOAD, ARGUMENT(0), 0, 0);
		at = put(at, JUMP_EQUAL, 0, 1, 0); /* PRIO_PROCESS */
		at = put(at, RETURN, RET_ERRNO | EACCES, 0, 0);
		return put_list(at, 1, ourselves, 2, RET_ALLOW, RET_ERRNO | EACCES);
	case OWN_PROCESS:
		return put_list(at, 0, ourselves, 2, RET_ALLOW, RET_ERRNO | EACCES);
	case CONTROLS:
		return put_list(at, 1, harmless_controls, sizeof(harmless_controls) / sizeof(u32), RET_ALLOW,
				RET_ERRNO | ENOTTY);
	case SENDS:
		at = put(at, LOAD, ARGUMENT(4), 0, 0);
		at = put(at, JUMP_EQUAL, 0, 1, 0);
		at = put(at, RETURN, RET_ERRNO | EACCES, 0, 0);
		at = put(at, LOAD, ARGUMENT(4) + 4, 0, 0);
		at = put(at, JUMP_EQUAL, 0, 1, 0);
		at = put(at, RETURN, RET_ERRNO | EACCES, 0, 0);
		return put(at, RETURN, RET_ALLOW, 0, 0);
	case DESCRIPTORS:
		return put_list(at, 1, far_reaching_descriptors, sizeof(far_reaching_descriptors) / sizeof(u32),
				RET_ERRNO | EACCES, RET_ALLOW);
	default:
		return put_list(at, 0, far_reaching_selves, sizeof(far_reaching_selves) / sizeof(u32),
				RET_ERRNO | EACCES, RET_ALLOW);
	}
}

static u64 build(const struct context *c, struct instruction *code)
{
	struct range range[KNOWN + 1];
	struct instruction *at = code, *tree, *end, *questions[VERDICTS];

	at = put(at, LOAD, ARCHITECTURE, 0, 0);
	at = put(at, JUMP_EQUAL, X86_64, 1, 0);
	at = put(at, RETURN, RET_KILL, 0, 0);
	at = put(at, LOAD, NUMBER, 0, 0);
	at = put(at, JUMP_ABOVE, X32, 0, 1);
	at = put(at, RETURN, RET_KILL, 0, 0);
	tree = at;
	end = at = put_tree(tree, range, find_ranges(c, range));
	for (u32 verdict = OPENS; verdict < VERDICTS; verdict++) {
		questions[verdict] = at;
		at = put_questions(at, c, verdict);
	}
	for (struct instruction *leaf = tree; leaf < end; leaf++) {
		/* The tree's own jumps follow a comparison. */
		if (leaf->code == JUMP && leaf[-1].code != JUMP_ABOVE)
			leaf->value = (u32)(questions[leaf->value] - leaf - 1);
	}
	return (u64)(at - code);
}

void filter_calls(struct context *c)
{
	struct instruction code[MOST_INSTRUCTIONS];
	struct program program = {0, code};
	u64 whom = thread_count(c->image) ? SECCOMP_FILTER_FLAG_TSYNC : 0;
	i64 result;

	c->pair = has_pair(c);
	program.length = (unsigned short)build(c, code);
	result = CALL3(SYS_seccomp, SECCOMP_SET_MODE_FILTER, whom | SECCOMP_FILTER_FLAG_SPEC_ALLOW, &program);
	if (result == -EINVAL) /* before Linux 4.17 */
		result = CALL3(SYS_seccomp, SECCOMP_SET_MODE_FILTER, whom, &program);
	if (result > 0) /* a thread that cannot have it */
		fail(c->report, STEP_CONFINE, -EACCES, 0, 5);
	if (result < 0 && (c->options & ONLY_RECORDED_CALLS))
		fail(c->report, STEP_CONFINE, result, 0, 2);
	if (result >= 0)
		c->report->confined |= CALLS_FILTERED;
	/* Without landlock the filter alone keeps it from files. */
	if (result >= 0 && (c->options & CONFINE_WRITES))
		c->report->confined |= WRITES_CONFINED;
}
