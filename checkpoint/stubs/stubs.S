/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The counting stubs: every piece of machine code that a probe adds to a program.
 *
 * A patched instruction becomes a five-byte jump to a stub; the stub counts, runs the displaced instruction
 * and jumps back. Three templates and one shared handler are assembled here; checkpoint/stubs/encode.py copies them
 * and fills the holes (labels ending in _hole are four-byte displacements).
 *
 * Rules that every stub keeps:
 *  - The 128 bytes below the stack pointer belong to the program (red zone): step over them before a push.
 *  - Flags, registers and vector state come out as they went in. lahf/seto and add/sahf carry the six
 *    arithmetic flags through %rax; pushfq/popfq would cost several times as much.
 *  - Counting is one read-modify-write instruction, so that a signal handler which runs through the same stub
 *    between any two instructions loses no count.
 *  - Counters lie on pages that hold no code: a store next to running code stalls the whole pipeline.
 */
	.text

/* Counting up, where the program never reads the flags as they are here. */
	.globl count_plain, count_plain_counter_hole, count_plain_end
count_plain:
	.byte 0x48, 0xff, 0x05		/* incq counter(%rip) */
count_plain_counter_hole:
	.long 0
count_plain_end:			/* displaced instruction, jmp back */

/* Counting up, flags kept. */
	.globl count_saving, count_saving_counter_hole, count_saving_end
count_saving:
	lea	-128(%rsp), %rsp
	push	%rax
	lahf
	seto	%al
	.byte 0x48, 0xff, 0x05		/* incq counter(%rip) */
count_saving_counter_hole:
	.long 0
	add	$0x7f, %al		/* overflows exactly if %al is 1 */
	sahf
	pop	%rax
	lea	128(%rsp), %rsp
count_saving_end:

/* Flags kept while the copies of a loop (checkpoint/stubs/loops.py) add to any number of counters, and given back. */
	.globl flags_kept, flags_kept_end, flags_back, flags_back_end
flags_kept:
	lea	-128(%rsp), %rsp
	push	%rax
	lahf
	seto	%al
flags_kept_end:
flags_back:
	add	$0x7f, %al
	sahf
	pop	%rax
	lea	128(%rsp), %rsp
flags_back_end:

/*
 * Counting down to the next event of a marker. The struct marker this stub serves (encode.py: marker record)
 * starts with the counter. At zero the handler runs once; all other executions cost two memory operations.
 */
	.globl marker, marker_counter_hole, marker_slow_hole, marker_end
marker:
	lea	-128(%rsp), %rsp
	push	%rax
	lahf
	seto	%al
	.byte 0x48, 0xff, 0x0d		/* decq counter(%rip) */
marker_counter_hole:
	.long 0
	.byte 0x0f, 0x84		/* jz slow */
marker_slow_hole:
	.long 0
	.globl marker_resume
marker_resume:
	add	$0x7f, %al
	sahf
	pop	%rax
	lea	128(%rsp), %rsp
marker_end:

/* The way from one marker to the shared handler and back. */
	.globl marker_slow, marker_record_hole, marker_fire_hole, marker_resume_hole, marker_slow_end
marker_slow:
	push	%rdi
	.byte 0x48, 0x8d, 0x3d		/* lea record(%rip), %rdi */
marker_record_hole:
	.long 0
	.byte 0xe8			/* call fire */
marker_fire_hole:
	.long 0
	pop	%rdi
	.byte 0xe9			/* jmp marker_resume */
marker_resume_hole:
	.long 0
marker_slow_end:

/*
 * fire: a marker has reached its next event. %rdi: the marker's record
 *	 0 int64   executions left before the next event
 *	 8 pointer to the event that is due
 * An event is 64 bytes:
 *	 0 int64   executions from this event to the following one
 *	 8 uint32  action: 1 stop before the stamp, 2 stamp, 4 stop after the stamp
 *	12 uint32  1 once fired, 2 once the last two are known
 *	16 timespec CLOCK_MONOTONIC
 *	32 timespec the first thread's CPU time
 *	48 int64   microseconds in the kernel so far, as getrusage(RUSAGE_THREAD) tells them
 *	56 int64   page faults so far
 * Another thread, which runs the same code, stamps the first one's CPU time, and leaves the last two out: nobody can
 * ask for another thread's.
 * The gap is added, not stored: executions by a signal handler since the counter reached zero still count.
 * Stopping is kill(getpid(), SIGSTOP): getpid by system call, since a restored process may have another number.
 */
	.macro	handler name, clock, whom, column, column_more
	.globl \name, \name\()_end
\name:
	push	%rax
	push	%rcx
	push	%rdx
	push	%rsi
	push	%r11
	mov	8(%rdi), %rdx
	lea	64(%rdx), %rax
	mov	%rax, 8(%rdi)
	mov	(%rdx), %rax
	add	%rax, (%rdi)
	testl	$1, 8(%rdx)
	jz	1f
	call	stop_in_\name
1:	testl	$2, 8(%rdx)
	jz	2f
	mov	$1, %edi		/* CLOCK_MONOTONIC */
	lea	16(%rdx), %rsi
	mov	$228, %eax		/* clock_gettime */
	syscall
	.ifnb	\clock
	mov	$\clock, %edi
	.else
	mov	$39, %eax		/* getpid */
	syscall
	mov	%eax, %edi
	not	%edi
	shl	$3, %edi
	or	$6, %edi		/* CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED */
	.endif
	lea	32(%rdx), %rsi
	mov	$228, %eax
	syscall
	.ifb	\clock
	mov	$186, %eax		/* gettid */
	syscall
	not	%eax
	shl	$3, %eax
	or	$6, %eax
	cmp	%edi, %eax
	jne	2f
	.endif
	sub	$144, %rsp		/* struct rusage */
	mov	$\whom, %edi
	mov	%rsp, %rsi
	mov	$98, %eax		/* getrusage */
	syscall
	imul	$1000000, 16(%rsp), %rcx
	add	24(%rsp), %rcx		/* ru_stime */
	mov	%rcx, 48(%rdx)
	mov	\column(%rsp), %rcx
	.ifnb	\column_more
	add	\column_more(%rsp), %rcx
	.endif
	mov	%rcx, 56(%rdx)
	mov	$18, %ecx		/* leave no times below the stack: equal runs leave equal memory */
4:	movq	$0, -8(%rsp,%rcx,8)
	dec	%ecx
	jnz	4b
	add	$144, %rsp
	orl	$2, 12(%rdx)
2:	orl	$1, 12(%rdx)
	testl	$4, 8(%rdx)
	jz	3f
	call	stop_in_\name
3:	pop	%r11
	pop	%rsi
	pop	%rdx
	pop	%rcx
	pop	%rax
	ret
	.endm

/* The first thread's clock, RUSAGE_THREAD; ru_minflt and ru_majflt */
	handler	fire, , 1, 64, 72
stop_in_fire:
	mov	$39, %eax		/* getpid */
	syscall
	mov	%eax, %edi
	mov	$19, %esi		/* SIGSTOP */
	mov	$62, %eax		/* kill */
	syscall
	ret
fire_end:

/*
 * fire_many: the same in a program whose threads share its work. CLOCK_PROCESS_CPUTIME_ID, RUSAGE_SELF; ru_nivcsw, how
 * often a thread lost its processor, stands in place of page faults. A signal sent by kill another thread might take.
 */
	handler	fire_many, 2, 0, 136
stop_in_fire_many:
	push	%rdx
	mov	$186, %eax		/* gettid */
	syscall
	mov	%eax, %esi
	mov	$39, %eax		/* getpid */
	syscall
	mov	%eax, %edi
	mov	$19, %edx		/* SIGSTOP */
	mov	$234, %eax		/* tgkill */
	syscall
	pop	%rdx
	ret
fire_many_end:
	.section .note.GNU-stack, "", @progbits
