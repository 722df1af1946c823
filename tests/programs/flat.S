// SPDX-License-Identifier: Apache-2.0
    .text
    .globl flat_loop, site_flat, bare_loop
// uint64_t flat_loop(uint64_t rounds): one hot site, and no other in the whole stretch.
    .type flat_loop, @function
flat_loop:
    .cfi_startproc
    xor %eax, %eax
site_flat:
    lea 0x1234567(%rax,%rax,2), %rax
    dec %rdi
    jnz site_flat
    ret
    .cfi_endproc
    .size flat_loop, . - flat_loop
// uint64_t bare_loop(uint64_t rounds): nothing that could be displaced.
    .type bare_loop, @function
bare_loop:
    .cfi_startproc
    xor %eax, %eax
1:  add %rdi, %rax
    rol $3, %rax
    dec %rdi
    jnz 1b
    ret
    .cfi_endproc
    .size bare_loop, . - bare_loop
    .section .note.GNU-stack, "", @progbits
