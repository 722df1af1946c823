/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads beside the first. They are started when the process may do no more than the phase may, but for the filter of
 * system calls, which would refuse it: the filter comes for all of them together, while they wait at the gate.
 */

#include "restorer.h"

/* CLONE_VM FS FILES SIGHAND THREAD SYSVSEM */
#define THREAD_FLAGS 0x50f00UL

static void wait_at(struct gate *gate)
{
	__atomic_add_fetch(&gate->ready, 1, __ATOMIC_SEQ_CST);
	while (!__atomic_load_n(&gate->open, __ATOMIC_SEQ_CST))
		CALL4(SYS_futex, &gate->open, FUTEX_WAIT, 0, 0);
}

__attribute__((noreturn, used)) static void go_on(struct context *c)
{
	set_own(c);
	CALL1(SYS_personality, c->image->personality);
	put_registers(c);
	wait_at(c->gate);
	enter(c);
}

/* On a stack of its own, whose first word is the new thread's context. */
static i64 start_one(u64 stack)
{
	i64 result;

	__asm__ volatile("xor %%r10d, %%r10d\n"
			 "xor %%r8d, %%r8d\n"
			 "xor %%edx, %%edx\n"
			 "syscall\n"
			 "test %%rax, %%rax\n"
			 "jnz 1f\n"
			 "xor %%ebp, %%ebp\n"
			 "pop %%rdi\n"
			 "call *%[go]\n"
			 "hlt\n"
			 "1:\n"
			 : "=a"(result)
			 : "a"((u64)SYS_clone), "D"(THREAD_FLAGS), "S"(stack), [go] "b"(go_on)
			 : "rcx", "rdx", "r8", "r10", "r11", "memory");
	return result;
}

/* Processors that a mask has room for, 64 in each word. */
#define MASK_WORDS 128

struct mask {
	i64 size;
	u64 words[MASK_WORDS];
};

static u64 count_of(const struct mask *mask)
{
	u64 found = 0;

	for (i64 i = 0; i < mask->size / 8; i++)
		for (u64 left = mask->words[i]; left; left &= left - 1)
			found++;
	return found;
}

/* Put a thread, 0: this one, on the processor with that place in the mask. */
static void put_on_processor(const struct mask *allowed, u64 place, i64 tid)
{
	struct mask one;

	one.size = allowed->size;
	for (i64 i = 0; i < allowed->size / 8; i++) {
		one.words[i] = 0;
		for (u64 left = allowed->words[i]; left; left &= left - 1)
			if (!place--)
				one.words[i] = left & -left;
	}
	CALL3(SYS_sched_setaffinity, tid, one.size, one.words);
}

void start_threads(struct context *c)
{
	u64 count = thread_count(c->image), room = c->park + park_image_end(c->image);
	const struct thread *all = count ? table_at(c, threads_of(c->image)) : 0;
	const struct limit none = {0, 0};
	struct mask allowed;
	int apart;

	if (!count)
		return;
	/*
	 * Of as many threads as processors each begins on one of its own: the kernel would find that out in
	 * milliseconds of the region, in which two threads share a processor. The program sees the mask that it had,
	 * but for the beginning of a warm-up that the parent wants otherwise.
	 */
	allowed.size = CALL3(SYS_sched_getaffinity, 0, sizeof(allowed.words), allowed.words);
	apart = allowed.size > 0 && count_of(&allowed) == count + 1;
	/* Nobody uses the stack this far down. */
	c->gate = (struct gate *)(c->park + PARK_STACK);
	c->gate->ready = c->gate->open = 0;
	for (u64 i = 0; i < count; i++) {
		struct context *own = (struct context *)(room + i * THREAD_ROOM + ROOM_CONTEXT);
		u64 *stack = (u64 *)(room + i * THREAD_ROOM + ROOM_STACK_END - 16);

		copy(own, c, sizeof(*own));
		own->thread = all + i;
		own->frame = room + i * THREAD_ROOM;
		*stack = (u64)own;
		/* Before it begins: once asleep at the gate it would be moved no more. */
		if (apart)
			put_on_processor(&allowed, i + 1, 0);
		own->tid = start_one((u64)stack);
		if (own->tid < 0)
			fail(c->report, STEP_CLONE, own->tid, 0, i);
	}
	if (apart)
		put_on_processor(&allowed, 0, 0);
	while (__atomic_load_n(&c->gate->ready, __ATOMIC_SEQ_CST) < count)
		CALL0(SYS_sched_yield);
	apart = apart && !(c->options & STAY_APART);
	for (u64 i = 0; apart && i < count; i++) {
		const struct context *own = (struct context *)(room + i * THREAD_ROOM + ROOM_CONTEXT);

		CALL3(SYS_sched_setaffinity, own->tid, allowed.size, allowed.words);
	}
	if (apart)
		CALL3(SYS_sched_setaffinity, 0, allowed.size, allowed.words);
	CALL4(SYS_prlimit, 0, RLIMIT_NPROC, &none, 0);
}

void open_gate(struct context *c)
{
	if (!c->gate)
		return;
	__atomic_store_n(&c->gate->open, 1, __ATOMIC_SEQ_CST);
	CALL3(SYS_futex, &c->gate->open, FUTEX_WAKE, 1UL << 30);
}
