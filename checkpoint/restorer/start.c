/* SPDX-License-Identifier: Apache-2.0 */
/* From the kernel's hands to the park. */

#include "restorer.h"

extern const u8 code_begin[] __asm__("__executable_start");
extern const u8 code_end[] __asm__("_end");

__asm__(".globl _start\n"
	"_start: xor %ebp, %ebp\n"
	"	mov %rsp, %rdi\n"
	"	and $-16, %rsp\n"
	"	call start\n"
	"	hlt\n");

static u64 number(const char *text)
{
	u64 value = 0;

	for (; *text >= '0' && *text <= '9'; text++)
		value = value * 10 + (u64)(*text - '0');
	return value;
}

/* A file as long as asked for, or a failure at `step`. */
static void read_whole(struct report *report, enum step step, i64 fd, void *to, u64 bytes)
{
	for (u64 done = 0; done < bytes;) {
		i64 got = CALL4(SYS_pread, fd, (u64)to + done, bytes - done, done);

		if (got == -EINTR)
			continue;
		if (got <= 0)
			fail(report, step, got, done, bytes);
		done += (u64)got;
	}
}

static u64 checksum(const struct header *h)
{
	const u8 *byte = (const u8 *)&h->version, *end = (const u8 *)h + h->size;
	u64 hash = 0xcbf29ce484222325UL;

	for (; byte < end; byte++)
		hash = (hash ^ *byte) * 0x100000001b3UL;
	return hash;
}

static void check_format(struct report *report, const struct header *h)
{
	if (h->magic != IMAGE_MAGIC)
		fail(report, STEP_FORMAT, 0, 0, h->magic);
	if (!h->version || h->version > IMAGE_VERSION || h->header_size != sizeof(*h))
		fail(report, STEP_FORMAT, 0, 1, h->version);
	if (h->size < sizeof(*h) || h->size > IMAGE_MAX || h->park % PAGE || h->park_size % PAGE)
		fail(report, STEP_FORMAT, 0, 2, h->size);
	if (h->park < PAGE || h->park >= USER_END || h->park_size > USER_END - h->park ||
	    h->park_size < PARK_IMAGE + h->size || h->size < sizeof(*h) + tables_size(h))
		fail(report, STEP_FORMAT, 0, 3, h->park);
}

/* Runs on the stack in the park, with nothing else of the old process in use. */
__attribute__((noreturn, used)) static void parked(struct context *old)
{
	struct context c = *old;

	rebuild_memory(&c);
	rebuild_state(&c);
	start_timers(&c);
	load_registers(&c);
}

__attribute__((noreturn, used)) void start(const u64 *stack)
{
	const char *const *arguments = (const char *const *)(stack + 1);
	struct header h;
	struct context c;
	struct report *report;
	i64 result = CALL6(SYS_mmap, 0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, CONTROL_FD, 0);

	if (result < 0)
		fail(0, STEP_START, result, 0, 0);
	report = (struct report *)result;
	if (stack[0] != 3)
		fail(report, STEP_START, 0, 0, stack[0]);
	/* From here on the kernel ends us with our parent; if that is gone already, it did not see us. */
	result = CALL2(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL);
	if (result < 0 || (u64)CALL0(SYS_getppid) != number(arguments[1]))
		fail(report, STEP_PARENT, result, 0, number(arguments[1]));

	read_whole(report, STEP_IMAGE, IMAGE_FD, &h, sizeof(h));
	check_format(report, &h);
	result = CALL6(SYS_mmap, h.park, h.park_size, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	if ((u64)result != h.park)
		fail(report, STEP_PARK, result, h.park, 0);
	c.park = h.park;
	c.image = (const struct header *)(h.park + PARK_IMAGE);
	c.options = number(arguments[2]);
	c.pages = PAGES_FD;
	c.copies = COPIES_FD;
	c.scratch = SCRATCH_FD;
	c.control = CONTROL_FD;
	read_whole(report, STEP_IMAGE, IMAGE_FD, (void *)c.image, h.size);
	if (c.image->size != h.size || c.image->park != h.park || c.image->park_size != h.park_size ||
	    checksum(c.image) != c.image->checksum)
		fail(report, STEP_CHECKSUM, 0, 0, 0);
	result = CALL6(SYS_mmap, c.park + PARK_REPORT, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, CONTROL_FD,
		       0);
	if (result < 0)
		fail(report, STEP_PARK, result, c.park + PARK_REPORT, 0);
	c.report = (struct report *)(c.park + PARK_REPORT);
	check_tables(&c);

	if ((u64)(code_end - code_begin) > PARK_REPORT - PARK_CODE)
		fail(report, STEP_PARK, 0, c.park, 2);
	copy((void *)(c.park + PARK_CODE), code_begin, (u64)(code_end - code_begin));
	result = CALL3(SYS_mprotect, c.park + PARK_CODE, PARK_REPORT - PARK_CODE, PROT_READ | PROT_EXEC);
	if (result < 0)
		fail(report, STEP_PARK, result, c.park, 1);
	copy((void *)(c.park + PARK_FRAME), &c, sizeof(c));
	__asm__ volatile("mov %0, %%rsp\n"
			 "call *%1\n"
			 :
			 : "r"(c.park + PARK_FRAME), "r"(c.park + PARK_CODE + (u64)((const u8 *)parked - code_begin)),
			   "D"(c.park + PARK_FRAME)
			 : "memory", "rbx");
	__builtin_unreachable();
}
