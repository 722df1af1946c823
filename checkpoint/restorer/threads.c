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

/* Processors that a mask has room for. */
#define MASK_WORDS 128

/*
 * Of as many threads as processors each has one of its own from the start: the kernel would find that out in
 * milliseconds of the region, in which two threads share a processor. Where that fails, they share as they did.
 */
static void give_processor(u64 number, u64 threads, i64 tid)
{
	u64 mask[MASK_WORDS], seen = 0, word;
	i64 size = CALL3(SYS_sched_getaffinity, 0, sizeof(mask), mask);
	i64 words = size / (i64)sizeof(*mask), at = -1;

	for (i64 i = 0; i < words; i++)
		for (word = mask[i]; word; word &= word - 1, seen++)
			if (seen == number)
				at = i * 64 + __builtin_ctzl(word);
	if (seen != threads)
		return;
	for (i64 i = 0; i < words; i++)
		mask[i] = i == at / 64 ? 1UL << (at % 64) : 0;
	CALL3(SYS_sched_setaffinity, tid, size, mask);
}

void start_threads(struct context *c)
{
	u64 count = thread_count(c->image), room = c->park + park_image_end(c->image);
	const struct thread *all = count ? table_at(c, threads_of(c->image)) : 0;
	const struct limit none = {0, 0};

	if (!count)
		return;
	/* Nobody uses the stack this far down. */
	c->gate = (struct gate *)(c->park + PARK_STACK);
	c->gate->ready = c->gate->open = 0;
	for (u64 i = 0; i < count; i++, room += THREAD_ROOM) {
		struct context *own = (struct context *)(room + ROOM_CONTEXT);
		u64 *stack = (u64 *)(room + ROOM_STACK_END - 16);
		i64 result;

		copy(own, c, sizeof(*own));
		own->thread = all + i;
		own->frame = room;
		*stack = (u64)own;
		result = start_one((u64)stack);
		if (result < 0)
			fail(c->report, STEP_CLONE, result, 0, i);
		give_processor(i + 1, count + 1, result);
	}
	give_processor(0, count + 1, 0);
	while (__atomic_load_n(&c->gate->ready, __ATOMIC_SEQ_CST) < count)
		CALL0(SYS_sched_yield);
	CALL4(SYS_prlimit, 0, RLIMIT_NPROC, &none, 0);
}

void open_gate(struct context *c)
{
	if (!c->gate)
		return;
	__atomic_store_n(&c->gate->open, 1, __ATOMIC_SEQ_CST);
	CALL3(SYS_futex, &c->gate->open, FUTEX_WAKE, 1UL << 30);
}
