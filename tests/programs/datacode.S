// SPDX-License-Identifier: Apache-2.0
// Data inside .text, inside functions and their .eh_frame ranges, as hand-written assembly
// has it: bytes that decode to nothing, bytes that decode to plausible instructions (long
// ones, and branches into real code), a string, and a table of jump offsets.
    .text
    .globl datacode_begin, datacode_end
    .set state, 12345

// uint64_t datacode_hash(uint64_t value): over everything from datacode_begin to datacode_end.
    .globl datacode_hash, site_hash
    .type datacode_hash, @function
datacode_hash:
    .cfi_startproc
    mov %rdi, %rax
    jmp 1f
datacode_begin:
    .rept 253
    .byte state >> 16 & 0xff
    .set state, (state * 1103515245 + 12345) & 0x7fffffff
    .endr
datacode_string:
    .asciz "not instructions, though some of it decodes"
datacode_plausible:
    mov $0x11223344, %eax
    movl $0x55667788, 0x01020304(%rip)
    call datacode_hash
    movabs $0x1122334455667788, %rcx
    jne 2f
    lea 0x12345678(%rax,%rcx,4), %rdx
    {disp32} jmp 1f
datacode_end:
1:
site_hash:
    lea datacode_begin(%rip), %rsi
    lea datacode_end(%rip), %rcx
    sub %rsi, %rcx
2:
    movzbl (%rsi), %edx
    inc %rsi
    ror $9, %rax
    add %rdx, %rax
    dec %rcx
    jnz 2b
    ret
    .balign 4, 0x00
datacode_offsets:
    .irp n, 0, 1, 2, 3
    .long datacode_case_\n - datacode_offsets
    .endr
    .cfi_endproc
    .size datacode_hash, . - datacode_hash

// uint64_t datacode_jump(uint64_t which, uint64_t value): through the offsets above.
    .globl datacode_jump, datacode_case_0, datacode_case_1, datacode_case_2, datacode_case_3
    .type datacode_jump, @function
datacode_jump:
    .cfi_startproc
    mov %rsi, %rax
    lea datacode_offsets(%rip), %rdx
    movslq (%rdx,%rdi,4), %rcx
    add %rdx, %rcx
    jmp *%rcx
datacode_case_0:
    add $0x1234567, %rax
    ret
datacode_case_1:
    xor $0x2345678, %rax
    ret
datacode_case_2:
    imul $0x1000193, %rax, %rax
    ret
datacode_case_3:
    lea 0x3456789(%rax,%rax,8), %rax
    ret
    .cfi_endproc
    .size datacode_jump, . - datacode_jump

// const void *datacode_absolute(void): the data by its absolute address.
    .globl datacode_absolute
    .type datacode_absolute, @function
datacode_absolute:
    .cfi_startproc
#ifdef __PIE__
    mov datacode_pointer(%rip), %rax
#else
    movabs $datacode_begin, %rax
#endif
    ret
    .cfi_endproc
    .size datacode_absolute, . - datacode_absolute

    .section .data.rel.ro, "aw"
    .balign 8
datacode_pointer: .quad datacode_begin
    .section .note.GNU-stack, "", @progbits
