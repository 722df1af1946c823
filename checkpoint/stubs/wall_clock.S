/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What stands in for the vDSO's clock_gettime, gettimeofday and time (checkpoint/stubs/wall_clock.py): they tell the time
 * of day as another run of the program was told it, by which it may have chosen where its random numbers begin.
 *
 * Each entry is jumped to from the first instruction of the function it stands in for, with that one's arguments, and
 * returns to its caller. The first answer is written down; where a first answer is given, all are as much earlier or
 * later as makes this one the same. Two threads that ask first at the same time get the same shift.
 *
 * The code is copied to the begin of a page. Its data follow on the next.
 */
	.set	CLOCK_REALTIME, 0
	.set	CLOCK_REALTIME_COARSE, 5
	.set	LAST_CLOCK, 11
	.set	OF_THE_DAY, 1 << 0 | 1 << 5 | 1 << 8 | 1 << 11	/* CLOCK_REALTIME, _COARSE, _ALARM, CLOCK_TAI */
	.set	GETTIMEOFDAY, 96
	.set	SECOND, 1000000000		/* nanoseconds */
	.set	NANOSECONDS, 30			/* bits, below the seconds */

	.text

/* int clock_gettime(clockid_t, struct timespec *) */
clock_gettime:
	push	%rdi
	push	%rsi
	sub	$8, %rsp
	call	original
	add	$8, %rsp
	pop	%rsi
	pop	%rdi
	test	%eax, %eax
	jnz	5f
	cmp	$LAST_CLOCK, %edi
	ja	5f
	mov	$OF_THE_DAY, %edx
	bt	%edi, %edx
	jnc	5f
	mov	shift(%rip), %rdx
	test	%rdx, %rdx
	jnz	3f
	mov	given(%rip), %rcx
	test	%rcx, %rcx
	jz	6f
	sub	(%rsi), %rcx
	mov	8+given(%rip), %rdx
	sub	8(%rsi), %rdx
	jns	1f
	add	$SECOND, %rdx
	dec	%rcx
1:	shl	$NANOSECONDS, %rcx
	or	%rcx, %rdx
	jnz	2f
	inc	%edx			/* 0 says that none is chosen yet */
2:	xor	%eax, %eax
	lock cmpxchg %rdx, shift(%rip)
	cmovnz	%rax, %rdx
3:	mov	%rdx, %rcx
	sar	$NANOSECONDS, %rcx
	and	$(1 << NANOSECONDS) - 1, %edx
	add	%rcx, (%rsi)
	add	8(%rsi), %rdx
	cmp	$SECOND, %rdx
	jb	4f
	sub	$SECOND, %rdx
	incq	(%rsi)
4:	mov	%rdx, 8(%rsi)
	xor	%eax, %eax
5:	ret
6:	cmpq	$0, told(%rip)
	jne	5b
	mov	8(%rsi), %rdx
	mov	%rdx, 8+told(%rip)
	mov	(%rsi), %rdx
	mov	%rdx, told(%rip)
	ret

/* int gettimeofday(struct timeval *, struct timezone *) */
gettimeofday:
	push	%rdi
	test	%rsi, %rsi
	jz	1f
	xor	%edi, %edi
	mov	$GETTIMEOFDAY, %eax
	syscall
1:	mov	(%rsp), %rsi
	test	%rsi, %rsi
	jz	2f
	xor	%edi, %edi
	call	clock_gettime
	mov	(%rsp), %rcx
	mov	8(%rcx), %rax
	xor	%edx, %edx
	mov	$1000, %esi
	div	%rsi
	mov	%rax, 8(%rcx)
2:	pop	%rdi
	xor	%eax, %eax
	ret

/* time_t time(time_t *): by the last tick, as in the kernel's own */
time:
	push	%rdi
	sub	$16, %rsp
	mov	$CLOCK_REALTIME_COARSE, %edi
	mov	%rsp, %rsi
	call	clock_gettime
	mov	(%rsp), %rax
	add	$16, %rsp
	pop	%rdi
	test	%rdi, %rdi
	jz	1f
	mov	%rax, (%rdi)
1:	ret

/* The first instructions of the vDSO's clock_gettime, and a jump behind them there. */
	.balign	16
original:
	.fill	64, 1, 0xcc

	.balign	4096
shift:	.quad	0			/* seconds above, nanoseconds below */
given:	.quad	0, 0			/* the first answer to be: seconds, nanoseconds */
told:	.quad	0, 0			/* the first answer, where none is given */
	.section .note.GNU-stack, "", @progbits
