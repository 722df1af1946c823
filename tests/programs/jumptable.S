// SPDX-License-Identifier: Apache-2.0
// uint64_t ladder(uint64_t rung, uint64_t value)
// An address is computed and jumped to: any of sixteen instructions of eight bytes that a
// linear sweep takes for one block. No direct branch and no table names them.
    .text
    .globl ladder
    .type ladder, @function
ladder:
    .cfi_startproc
    mov %rsi, %rax
    lea ladder_0(%rip), %rdx
    lea (%rdx,%rdi,8), %rdx
    jmp *%rdx
    .set rung, 0
    .irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    .globl ladder_\n
ladder_\n:
    lea 0x1000 + 17*rung(%rax,%rax,2), %rax
    .if . - ladder_\n - 8
    .error "a rung must be eight bytes long"
    .endif
    .set rung, rung + 1
    .endr
    ret
    .cfi_endproc
    .size ladder, . - ladder
    .section .note.GNU-stack, "", @progbits
