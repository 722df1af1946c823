// SPDX-License-Identifier: Apache-2.0
// uint64_t redzone_mix(uint64_t rounds, uint64_t seed)
// A leaf that keeps sixteen live words in the 128 bytes below the stack pointer and never
// moves it. Its loads and stores are themselves five bytes long and relative to %rsp, so a
// stub that moves the stack pointer before it runs the displaced instruction is caught too.
    .text
    .globl redzone_mix, site_redzone_long, site_redzone_short
    .type redzone_mix, @function
redzone_mix:
    .cfi_startproc
    mov %rsi, %rax
    .set slot, 1
    .rept 16
    mov %rax, -8*slot(%rsp)
    lea 0x1234567(%rax,%rax,4), %rax
    .set slot, slot + 1
    .endr
1:
site_redzone_long:
    movabs $0x9e3779b97f4a7c15, %rdx
    add -128(%rsp), %rdx
    xor -8(%rsp), %rdx
    jmp 2f
2:
site_redzone_short:
    mov $0x5bd1e995, %ecx
    imul %rcx, %rdx
    .set slot, 16
    .rept 15
    mov -8*(slot-1)(%rsp), %r8
    mov %r8, -8*slot(%rsp)
    .set slot, slot - 1
    .endr
    mov %rdx, -8(%rsp)
    dec %rdi
    jnz 1b
    xor %eax, %eax
    .set slot, 1
    .rept 16
    rol $5, %rax
    xor -8*slot(%rsp), %rax
    .set slot, slot + 1
    .endr
    ret
    .cfi_endproc
    .size redzone_mix, . - redzone_mix
    .section .note.GNU-stack, "", @progbits
