// SPDX-License-Identifier: Apache-2.0
// Blocks that can be counted at their call only: the call must still push its own return
// address, whatever it calls first.
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
    .globl site_get_pc, site_fib_first, site_fib_second, callpop_here, site_tail

// uint64_t callpop_pc(void): the old way to learn one's own address.
FUNCTION callpop_pc
site_get_pc:
    call callpop_here
callpop_here:
    .cfi_adjust_cfa_offset 8
    pop %rax
    .cfi_adjust_cfa_offset -8
    ret
END callpop_pc

// uint64_t callpop_fib(uint64_t n): two recursive calls and nothing else of five bytes.
FUNCTION callpop_fib
    cmp $2, %rdi
    jb 1f
    push %rbx
    .cfi_adjust_cfa_offset 8
    push %rdi
    .cfi_adjust_cfa_offset 8
    dec %rdi
site_fib_first:
    call callpop_fib
    mov %rax, %rbx
    pop %rdi
    .cfi_adjust_cfa_offset -8
    sub $2, %rdi
site_fib_second:
    call callpop_fib
    add %rbx, %rax
    pop %rbx
    .cfi_adjust_cfa_offset -8
    ret
1:
    mov %rdi, %rax
    ret
END callpop_fib

// uint64_t callpop_tail(uint64_t n): leaves by a long jump to another function.
FUNCTION callpop_tail
    dec %rdi
site_tail:
    {disp32} jmp callpop_fib
END callpop_tail
    .section .note.GNU-stack, "", @progbits
