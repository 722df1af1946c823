/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The restorer's checks of a flat image, in an ordinary program that sanitizers can watch: its own start.c and check.c,
 * with the code between the kernel and them replaced. Each image stands at the end of memory of exactly its size, so
 * that a byte read behind it is a report.
 *
 * Standard input: images, each behind its length (4 bytes). Standard output: for each 1 where it is taken, else the
 * step that refused it.
 */
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>

#include "restorer.h"

static jmp_buf refused;
static enum step last_step;

void fail(struct report *report, enum step step, i64 result, u64 address, u64 detail)
{
	(void)report, (void)result, (void)address, (void)detail;
	last_step = step;
	longjmp(refused, 1);
}

void rebuild_memory(struct context *c) { (void)c; }
void rebuild_state(struct context *c) { (void)c; }
void start_timers(struct context *c) { (void)c; }
void load_registers(struct context *c) { (void)c; abort(); }

/* The real entry point and the bounds of the code are the linker's there. */
#define __asm__(...)
#include "start.c"
#undef __asm__
const u8 code_begin[1], code_end[1];

static int taken(const void *data, u64 size)
{
	struct context c = {0};
	struct header head;

	if (setjmp(refused))
		return 0;
	if (size < sizeof(head))
		fail(0, STEP_IMAGE, 0, 0, 0);
	copy(&head, data, sizeof(head));
	check_format(0, &head);
	if (size < head.size)
		fail(0, STEP_IMAGE, 0, 0, 0);
	c.image = data;
	if (checksum(c.image) != c.image->checksum)
		fail(0, STEP_CHECKSUM, 0, 0, 0);
	check_tables(&c);
	return 1;
}

int main(void)
{
	u32 size;

	while (fread(&size, sizeof(size), 1, stdin) == 1) {
		u8 *data = malloc(size ? size : 1);

		if (!data || fread(data, 1, size, stdin) != size)
			return 2;
		/* What lies behind an image that says less than it is, must not be read either. */
		u64 left = size;

		if (size >= sizeof(struct header) && ((struct header *)data)->size < size)
			left = ((struct header *)data)->size;
		data = realloc(data, left ? left : 1);
		last_step = STEP_IMAGE;
		putchar(left >= sizeof(struct header) && taken(data, left) ? 1 : 100 + (int)last_step);
		fflush(stdout);
		free(data);
	}
	return 0;
}
