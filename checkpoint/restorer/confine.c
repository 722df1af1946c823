/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Takes away what the phase does not need, for good: the rights of root that are not about reading files, changing files
 * and reaching other processes (landlock), system calls (filter.c). Each holds where another is missing.
 */

#include "restorer.h"

/* Rights to change files, by version of landlock (linux/landlock.h): 1; moving between folders; truncating. */
#define WRITE_FILE (1UL << 1)
#define CHANGES_1 (WRITE_FILE | 0x1ff0UL)
#define CHANGES_2 (1UL << 13)
#define CHANGES_3 (1UL << 14)
/* All that is known here. Tests try older ones: what was not asked for is not enforced. */
#ifndef NEWEST_LANDLOCK
#define NEWEST_LANDLOCK 6
#endif
#define BENEATH 1
#define BIND_TCP 1UL
#define CONNECT_TCP 2UL
#define ABSTRACT_SOCKETS 1UL
#define SIGNALS_OUTSIDE 2UL

#define CAPABILITY_VERSION 0x20080522U
/* CAP_CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID, IPC_LOCK: files as they were to it, locked memory */
#define KEPT_CAPABILITIES 0x401fU

struct __attribute__((packed)) beneath {
	u64 allowed;
	i32 folder;
};

struct ruleset {
	u64 files, network, scopes;
};

struct capabilities {
	u32 effective, permitted, inheritable;
};

static i64 allow_beneath(i64 rules, i64 folder, u64 allowed)
{
	struct beneath rule = {allowed, (i32)folder};

	return allowed ? CALL4(SYS_landlock_add_rule, rules, BENEATH, &rule, 0) : 0;
}

static u64 known_bytes(i64 version)
{
	return version >= 6 ? 24 : version >= 4 ? 16 : 8;
}

/* It may open again what it has open for writing, in its own folder, and make nothing there. */
static void use_landlock(struct context *c)
{
	i64 version = c->landlock, rules, result, null;
	u64 changes = CHANGES_1 | (version >= 2 ? CHANGES_2 : 0) | (version >= 3 ? CHANGES_3 : 0);
	u64 writes = changes & (WRITE_FILE | CHANGES_3);
	struct ruleset handled = {c->options & CONFINE_WRITES ? changes : 0, version >= 4 ? BIND_TCP | CONNECT_TCP : 0,
				  version >= 6 ? ABSTRACT_SOCKETS | SIGNALS_OUTSIDE : 0};

	if (!handled.files && !handled.network)
		return;
	rules = CALL3(SYS_landlock_create_ruleset, &handled, known_bytes(version), 0);
	null = CALL4(SYS_openat, -100, "/dev/null", O_PATH, 0);
	result = rules < 0 ? rules : allow_beneath(rules, c->scratch, handled.files & writes);
	if (!result && null >= 0)
		result = allow_beneath(rules, null, handled.files & writes);
	if (!result)
		result = CALL2(SYS_landlock_restrict_self, rules, 0);
	if (result < 0)
		fail(c->report, STEP_CONFINE, result, 0, 1);
	CALL1(SYS_close, rules);
	if (null >= 0)
		CALL1(SYS_close, null);
	if (handled.files)
		c->report->confined |= WRITES_CONFINED;
}

/* Root's, or those of whoever made the namespaces. */
static void drop_capabilities(struct context *c)
{
	struct {
		u32 version, pid;
	} header = {CAPABILITY_VERSION, 0};
	struct capabilities has[2];
	i64 result = CALL2(SYS_capget, &header, has);

	for (u64 i = 0; i < 2 && !result; i++) {
		has[i].permitted &= i ? 0 : KEPT_CAPABILITIES;
		has[i].effective &= has[i].permitted;
		has[i].inheritable = 0;
	}
	if (!result)
		result = CALL2(SYS_capset, &header, has);
	if (result < 0)
		fail(c->report, STEP_CONFINE, result, 0, 3);
}

void confine(struct context *c)
{
	i64 result = CALL5(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);

	if (result < 0)
		fail(c->report, STEP_CONFINE, result, 0, 0);
	if (!(c->options & (FILTER_CALLS | CONFINE_WRITES | ONLY_RECORDED_CALLS)))
		return;
	c->landlock = CALL3(SYS_landlock_create_ruleset, 0, 0, 1);
	if (c->landlock > NEWEST_LANDLOCK)
		c->landlock = NEWEST_LANDLOCK;
	drop_capabilities(c);
	if (c->landlock > 0)
		use_landlock(c);
}
