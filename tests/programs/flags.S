// SPDX-License-Identifier: Apache-2.0
// Every arithmetic flag, and the direction flag, live across instructions that a tracer
// would choose to displace: each block below has exactly one of five bytes or more, or none
// but a direct call or long jump.
    .data
    .balign 8
    .globl flags_set_bytes
flags_memory:
    .quad 0
flags_one:
    .quad 1
flags_set_bytes:
    .zero 16

    .text
// Functions of the first argument, the flags to load; each clears DF before it returns.
.macro LOAD_FLAGS
    push %rdi
    .cfi_adjust_cfa_offset 8
    popfq
    .cfi_adjust_cfa_offset -8
.endm
.macro RETURN_FLAGS
    pushfq
    .cfi_adjust_cfa_offset 8
    pop %rax
    .cfi_adjust_cfa_offset -8
    cld
    ret
.endm
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

// The flags themselves, across a store, a call and a long jump.
FUNCTION flags_over_store
    LOAD_FLAGS
    .globl site_flags_store
site_flags_store:
    movl $0x01020304, flags_memory(%rip)
    RETURN_FLAGS
END flags_over_store

FUNCTION flags_over_call
    LOAD_FLAGS
    .globl site_flags_call
site_flags_call:
    call 1f
    ret
1:  RETURN_FLAGS
END flags_over_call

FUNCTION flags_over_jump
    LOAD_FLAGS
    .globl site_flags_jump
site_flags_jump:
    {disp32} jmp 1f
    ud2
1:  RETURN_FLAGS
END flags_over_jump

// All sixteen conditions, read by a long conditional jump, a conditional move from memory
// and a store of the condition.
.macro CONDITION cc
FUNCTION flags_jump_\cc
    LOAD_FLAGS
    .globl site_jump_\cc, taken_jump_\cc
site_jump_\cc:
    movl $0x05060708, flags_memory(%rip)
    {disp32} j\cc taken_jump_\cc
    cld
    xor %eax, %eax
    ret
taken_jump_\cc:
    mov $1, %eax
    cld
    ret
END flags_jump_\cc
FUNCTION flags_move_\cc
    xor %eax, %eax
    LOAD_FLAGS
    jmp 1f
    .globl site_move_\cc
1:
site_move_\cc:
    cmov\cc flags_one(%rip), %rax
    cld
    ret
END flags_move_\cc
.endm
.irp cc, o, no, b, ae, e, ne, be, a, s, ns, p, np, l, ge, le, g
CONDITION \cc
.endr

FUNCTION flags_set
    LOAD_FLAGS
    .set index, 0
    .irp cc, o, no, b, ae, e, ne, be, a, s, ns, p, np, l, ge, le, g
    set\cc flags_set_bytes + index(%rip)
    .set index, index + 1
    .endr
    cld
    ret
END flags_set

// uint64_t flags_add(uint64_t *to, const uint64_t *from, uint64_t words): returns the carry.
// The carry is live at the head of the loop, which begins with a long instruction.
FUNCTION flags_add
    clc
    .globl site_flags_add
1:
site_flags_add:
    movl $0x090a0b0c, flags_memory(%rip)
    mov (%rsi), %rax
    adc %rax, (%rdi)
    lea 8(%rsi), %rsi
    lea 8(%rdi), %rdi
    dec %rdx
    jnz 1b
    setb %al
    movzbl %al, %eax
    ret
END flags_add

    .section .data.rel.ro, "aw"
    .balign 8
    .globl flags_jumps, flags_moves
flags_jumps:
    .irp cc, o, no, b, ae, e, ne, be, a, s, ns, p, np, l, ge, le, g
    .quad flags_jump_\cc
    .endr
flags_moves:
    .irp cc, o, no, b, ae, e, ne, be, a, s, ns, p, np, l, ge, le, g
    .quad flags_move_\cc
    .endr
    .section .note.GNU-stack, "", @progbits
