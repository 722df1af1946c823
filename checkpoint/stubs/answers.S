/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What stands in for functions whose answers differ from run to run (checkpoint/stubs/answers.py): those by which a
 * program draws random numbers, and the one that tells what the machine has free.
 *
 * Each entry is jumped to from the first instruction of the function it stands in for, with that one's arguments, and
 * returns to its caller (System V ABI: it may change what a function may). Numbers are bytes of a table, taken once each.
 * Where they do not suffice, or much is drawn at once, the kernel is asked as before: numbers that are a program's work
 * must cost what they cost.
 *
 * The code is copied to the begin of a page. Its data follow on the next, and the table behind them.
 */
	.set	GETRANDOM, 318
	.set	SYSINFO, 99
	.set	PROCESSES, 100
	.set	EIO, 5
	.set	EINTR, 4
	.set	TABLE, 262144		/* bytes */
	.set	MOST_AT_ONCE, 32768
	.set	LARGEST_ERRNO, 4095

	.text

/* ssize_t getrandom(void *, size_t, unsigned), and what follows a system call that may have failed */
getrandom:
	cmp	$MOST_AT_ONCE, %rsi
	ja	asked
	mov	%rdi, %r8
	mov	%rsi, %r9
	mov	%rdx, %r10
	call	take
	mov	%r9, %rax
	jnc	1f
	mov	%r8, %rdi
	mov	%r9, %rsi
	mov	%r10, %rdx
asked:
	mov	$GETRANDOM, %eax
	syscall
answered:
	cmp	$-LARGEST_ERRNO, %rax
	jae	failed
1:	ret
failed:
	neg	%eax
	push	%rax
	call	*errno_location(%rip)
	pop	%rcx
	mov	%ecx, (%rax)
	mov	$-1, %rax
	ret

/* long syscall(long, ...) */
syscall:
	mov	%rdi, %rax
	mov	%rsi, %rdi
	mov	%rdx, %rsi
	mov	%rcx, %rdx
	cmp	$GETRANDOM, %rax
	je	getrandom
	cmp	$SYSINFO, %rax
	je	sysinfo
	mov	%r8, %r10
	mov	%r9, %r8
	mov	8(%rsp), %r9
	syscall
	jmp	answered

/*
 * int sysinfo(struct sysinfo *). Of memory three quarters are free, of swap all; nothing else runs. The uptime is the
 * machine's.
 */
sysinfo:
	mov	$SYSINFO, %eax
	syscall
	test	%rax, %rax
	jnz	answered
	movq	$0, 8(%rdi)		/* loads */
	movq	$0, 16(%rdi)
	movq	$0, 24(%rdi)
	mov	32(%rdi), %rcx		/* totalram */
	mov	%rcx, %rdx
	shr	$2, %rdx
	sub	%rdx, %rcx
	mov	%rcx, 40(%rdi)		/* freeram */
	movq	$0, 48(%rdi)		/* sharedram */
	movq	$0, 56(%rdi)		/* bufferram */
	mov	64(%rdi), %rcx		/* totalswap */
	mov	%rcx, 72(%rdi)		/* freeswap */
	movw	$PROCESSES, 80(%rdi)
	ret

/* int getentropy(void *, size_t) */
getentropy:
	mov	$-EIO, %rax
	cmp	$256, %rsi
	ja	failed
	xor	%edx, %edx
	call	getrandom
	cmp	$-1, %rax
	je	1f
	xor	%eax, %eax
1:	ret

/* uint32_t arc4random(void), and unsigned std::random_device::_M_getval() */
arc4random:
_ZNSt13random_device9_M_getvalEv:
	push	%rax
	mov	%rsp, %rdi
	mov	$4, %esi
	call	arc4random_buf
	pop	%rax
	ret

/* void arc4random_buf(void *, size_t) */
arc4random_buf:
	cmp	$MOST_AT_ONCE, %rsi
	ja	1f
	mov	%rdi, %r8
	mov	%rsi, %r9
	call	take
	jnc	2f
	mov	%r8, %rdi
	mov	%r9, %rsi
1:	test	%rsi, %rsi
	jz	2f
	mov	$GETRANDOM, %eax
	xor	%edx, %edx
	syscall
	cmp	$-EINTR, %rax
	je	1b
	cmp	$-LARGEST_ERRNO, %rax
	jae	3f			/* it cannot say so: the C library ends the program, too */
	add	%rax, %rdi
	sub	%rax, %rsi
	jmp	1b
2:	ret
3:	ud2

/*
 * Puts the next %rsi bytes at %rdi, or sets the carry flag where so many are not left; leaves %r8 to %r10 alone. Threads
 * that draw at the same time get different ones.
 */
take:
	mov	%rsi, %rdx
	lock xadd %rdx, drawn(%rip)
	lea	(%rdx,%rsi), %rcx
	cmp	$TABLE, %rcx
	ja	1f
	mov	%rsi, %rcx
	lea	table(%rip), %rsi
	add	%rdx, %rsi
	rep movsb
	clc
	ret
1:	stc
	ret

	.balign	4096
drawn:	.quad	0			/* bytes so far */
errno_location:
	.quad	0			/* the C library's function of this name */
	.set	table, drawn + 4096
	.section .note.GNU-stack, "", @progbits
