/* SPDX-License-Identifier: Apache-2.0 */
/* All registers at once, by returning from a signal that never came. */

#include "restorer.h"

#define MAGIC_1 0x46505853U
#define MAGIC_2 0x46505845U
#define LEGACY_BYTES 512
#define XSAVE_HEADER_BYTES 64
#define SOFTWARE_OFFSET 464
#define OSXSAVE (1U << 27)
#define FRAME_FLAGS 7 /* UC_FP_XSTATE | UC_SIGCONTEXT_SS | UC_STRICT_RESTORE_SS */
#define STATE_OFFSET 0x1000
#define TILE_DATA 18 /* AMX: only for processes that asked for it */

/* struct rt_sigframe without its first word, the return address, which rt_sigreturn expects popped */
struct frame {
	u64 flags, link;
	u64 stack_pointer;
	u32 stack_flags, pad;
	u64 stack_size;
	u64 general[18]; /* r8 ... flags, as in struct registers */
	unsigned short cs, gs, fs, ss;
	u64 error, trap, old_mask, fault_address;
	u64 state;
	u64 reserved[8];
	u64 blocked_signals;
	u8 info[128];
};

/* struct _fpx_sw_bytes */
struct software {
	u32 magic;
	u32 extended_size;
	u64 features;
	u32 size;
	u32 pad[7];
};

static void cpuid(u32 leaf, u32 sub, u32 *a, u32 *b, u32 *c)
{
	u32 d;

	__asm__ volatile("cpuid" : "=a"(*a), "=b"(*b), "=c"(*c), "=d"(d) : "a"(leaf), "c"(sub));
}

/* State components that the kernel has switched on. */
static u64 enabled(void)
{
	u32 a, b, c, low, high;

	cpuid(1, 0, &a, &b, &c);
	if (!(c & OSXSAVE))
		return 3;
	__asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
	return (u64)high << 32 | low;
}

/*
 * Bytes of all components that every process has. The kernel of some versions looks for the second magic number right
 * there, and where it does not find it takes x87 and SSE alone, without a word.
 */
static u32 whole_size(void)
{
	u64 on = enabled();
	u32 whole = LEGACY_BYTES + XSAVE_HEADER_BYTES, size, offset, flags;

	for (u32 number = 2; number < 63; number++) {
		if (!(on >> number & 1) || number == TILE_DATA)
			continue;
		cpuid(13, number, &size, &offset, &flags);
		if (offset + size > whole)
			whole = offset + size;
	}
	return whole;
}

/*
 * The state as XSAVE would leave it on this processor, with the components in use alone: where a component lies
 * differs between makers, and how long the whole is between models.
 */
static void put_state(struct context *c, u8 *state)
{
	const struct thread *h = c->thread;
	const struct {
		u32 number, bytes;
		const u8 *from;
	} parts[] = {{2, sizeof(h->ymm_high), h->ymm_high},
		     {5, sizeof(h->opmask), h->opmask},
		     {6, sizeof(h->zmm_high), h->zmm_high},
		     {7, sizeof(h->zmm_more), h->zmm_more}};
	struct software software = {MAGIC_1, 0, h->xstate, whole_size(), {0}};
	u64 missing = h->xstate & ~enabled(), handled = 3;

	copy(state, h->legacy, LEGACY_BYTES);
	for (u64 i = 0; i < sizeof(parts) / sizeof(*parts); i++) {
		u32 size, offset, flags;

		handled |= 1UL << parts[i].number;
		if (!(h->xstate >> parts[i].number & 1) || (missing >> parts[i].number & 1))
			continue;
		cpuid(13, parts[i].number, &size, &offset, &flags);
		if (size != parts[i].bytes || offset > PARK_IMAGE - PARK_FRAME - STATE_OFFSET - size - sizeof(u32))
			fail(c->report, STEP_STATE, 0, size, parts[i].number);
		copy(state + offset, parts[i].from, size);
	}
	missing |= h->xstate & ~handled;
	if (missing)
		fail(c->report, STEP_STATE, 0, 0, (u64)__builtin_ctzl(missing));
	copy(state + LEGACY_BYTES, &h->xstate, sizeof(h->xstate));
	if (software.size > PARK_IMAGE - PARK_FRAME - STATE_OFFSET - sizeof(u32))
		fail(c->report, STEP_STATE, 0, software.size, 0);
	software.extended_size = software.size + sizeof(u32);
	copy(state + software.size, &(u32){MAGIC_2}, sizeof(u32));
	copy(state + SOFTWARE_OFFSET, &software, sizeof(software));
}

/* The frame from which the thread's registers will come. */
void put_registers(struct context *c)
{
	const struct thread *h = c->thread;
	struct frame *frame = (struct frame *)c->frame;
	u8 *state = (u8 *)frame + STATE_OFFSET;

	for (u64 i = 0; i < PARK_IMAGE - PARK_FRAME; i += 8)
		*(volatile u64 *)((u8 *)frame + i) = 0;
	put_state(c, state);
	frame->flags = FRAME_FLAGS;
	frame->stack_pointer = h->stack_pointer;
	frame->stack_flags = h->stack_flags;
	frame->stack_size = h->stack_size;
	copy(frame->general, &h->registers, sizeof(frame->general));
	frame->cs = (unsigned short)h->registers.cs;
	frame->ss = (unsigned short)h->registers.ss;
	frame->state = (u64)state;
	frame->blocked_signals = h->blocked_signals;
}

void load_registers(struct context *c)
{
	put_registers(c);
	CALL2(SYS_clock_gettime, CLOCK_MONOTONIC, &c->report->restored_s);
	c->report->progress = RESTORED;
	/* What it says is ours: the phase shall not reach it. */
	CALL2(SYS_munmap, c->report, PAGE);
	if (c->options & STOP_RESTORED)
		CALL3(SYS_tgkill, CALL0(SYS_getpid), CALL0(SYS_gettid), SIGSTOP);
	open_gate(c);
	enter(c);
}

void enter(struct context *c)
{
	__asm__ volatile("mov %0, %%rsp\n"
			 "mov %1, %%eax\n"
			 "syscall\n"
			 "hlt\n"
			 :
			 : "r"(c->frame), "i"(SYS_rt_sigreturn)
			 : "memory");
	__builtin_unreachable();
}
