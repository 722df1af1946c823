// SPDX-License-Identifier: Apache-2.0
// Jumps into the middle of instructions, and blocks that share their tails.
    .data
    .balign 8
    .globl overlap_cell
overlap_cell: .long 0

    .text
    .macro FUNCTION name
    .globl \name
    .type \name, @function
\name:
    .cfi_startproc
    .endm
    .macro END name
    .cfi_endproc
    .size \name, . - \name
    .endm
    .globl site_locked, site_unlocked, site_outer, site_inner
    .globl site_long_outer, site_long_inner, site_head, site_middle

// void overlap_lock(int locked): jumps over a lock prefix, as C libraries do.
FUNCTION overlap_lock
    test %edi, %edi
    je site_unlocked
site_locked:
    .byte 0xf0
site_unlocked:
    addl $0x01010101, overlap_cell(%rip)
    ret
END overlap_lock

// uint64_t overlap_short(uint64_t inside): mov $0x90c7ff48, %eax, or its last four bytes,
// which are inc %rdi and nop.
FUNCTION overlap_short
    mov $5, %al
    movzbl %al, %eax
    test %edi, %edi
    jne site_inner
site_outer:
    .byte 0xb8
site_inner:
    .byte 0x48, 0xff, 0xc7, 0x90
    lea (%rax,%rdi), %rax
    ret
END overlap_short

// uint64_t overlap_long(uint64_t inside): movabs of ten bytes, whose last eight are
// mov $0x44332211, %ecx and three nops: both readings offer an instruction to displace,
// and the two overlap.
FUNCTION overlap_long
    xor %eax, %eax
    xor %ecx, %ecx
    test %edi, %edi
    jne site_long_inner
site_long_outer:
    .byte 0x48, 0xb8
site_long_inner:
    .byte 0xb9, 0x11, 0x22, 0x33, 0x44, 0x90, 0x90, 0x90
    lea (%rax,%rcx,2), %rax
    ret
END overlap_long

// uint64_t overlap_loop(uint64_t rounds): the loop's head lies inside the block that leads
// into it, so the second long instruction belongs to two blocks.
FUNCTION overlap_loop
    xor %eax, %eax
site_head:
    lea 0x1234567(%rax), %rax
site_middle:
    lea 0x7654321(%rax,%rax,2), %rax
    dec %rdi
    jnz site_middle
    ret
END overlap_loop
    .section .note.GNU-stack, "", @progbits
