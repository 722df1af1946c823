// SPDX-License-Identifier: Apache-2.0
// Operands relative to the instruction pointer, with and without an immediate behind the
// displacement, one per block and each at the head of its block.
    .data
    .balign 32
rip_v:  .long 1, 2, 3, 4, 0x50505050, 0x60606060, 0x70707070, 0x12345678
rip_x:  .long 0x11111111, 0x22222222, 0x33333333, 0x44444444
rip_y:  .zero 16
rip_vout: .zero 32
rip_q:  .quad 0x1122334455667788
rip_acc: .quad 1
rip_dbl: .double 1.25
rip_d:  .long 0x0badcafe
rip_w:  .word 0xbeef, 0
rip_b:  .byte 0x41
    .balign 8
rip_out: .quad 0
    .section .data.rel.ro, "aw"
    .balign 8
rip_function: .quad rip_callee
rip_target: .quad rip_landing

    .text
    .macro BLOCK name
    rol $7, %rax
    xor %rdx, %rax
    xor %edx, %edx
    jmp \name
    int3
    .globl \name
\name:
    .endm

rip_callee:
    .cfi_startproc
    mov $0x600df00d, %edx
    ret
    .cfi_endproc

// uint64_t riprel_integer(uint64_t accumulator)
    .globl riprel_integer
    .type riprel_integer, @function
riprel_integer:
    .cfi_startproc
    mov %rdi, %rax
    xor %edx, %edx
    BLOCK site_rip_load
    mov rip_q(%rip), %rdx
    BLOCK site_rip_lea
    lea rip_q(%rip), %rdx
    mov (%rdx), %rdx
    BLOCK site_rip_cmp32
    cmpl $0x0badcafe, rip_d(%rip)
    sete %dl
    BLOCK site_rip_cmp8
    cmpb $0x42, rip_b(%rip)
    setb %dl
    BLOCK site_rip_cmp16
    cmpw $0xbeef, rip_w(%rip)
    sete %dl
    BLOCK site_rip_test
    testl $0x00100000, rip_d(%rip)
    setne %dl
    BLOCK site_rip_store32
    movl $0x13572468, rip_out(%rip)
    mov rip_out(%rip), %rdx
    BLOCK site_rip_store16
    movw $0x1357, rip_out + 3(%rip)
    mov rip_out(%rip), %rdx
    BLOCK site_rip_store8
    movb $0x24, rip_out + 7(%rip)
    mov rip_out(%rip), %rdx
    BLOCK site_rip_store64
    movq $-0x1234567, rip_out(%rip)
    mov rip_out(%rip), %rdx
    BLOCK site_rip_add32
    addq $0x10203040, rip_acc(%rip)
    mov rip_acc(%rip), %rdx
    BLOCK site_rip_add8
    addq $-3, rip_acc(%rip)
    mov rip_acc(%rip), %rdx
    BLOCK site_rip_imul
    imul $0x01000193, rip_q(%rip), %rdx
    BLOCK site_rip_rol
    rolq $9, rip_acc(%rip)
    mov rip_acc(%rip), %rdx
    BLOCK site_rip_bts
    btsq $33, rip_acc(%rip)
    mov rip_acc(%rip), %rdx
    BLOCK site_rip_xadd
    mov %rax, %rdx
    lock xaddq %rdx, rip_acc(%rip)
    BLOCK site_rip_push
    push rip_q(%rip)
    .cfi_adjust_cfa_offset 8
    pop %rdx
    .cfi_adjust_cfa_offset -8
    BLOCK site_rip_call
    call *rip_function(%rip)
    BLOCK site_rip_jump
    jmp *rip_target(%rip)
    ud2
rip_landing:
    mov $0x77, %dl
    BLOCK site_rip_segment
    mov %fs:0x28, %rdx
    xor %fs:0x28, %rdx
    BLOCK site_rip_x87
    fldl rip_dbl(%rip)
    fadd %st(0), %st(0)
    fstpl rip_out(%rip)
    mov rip_out(%rip), %rdx
    BLOCK site_rip_sse_load
    movdqa rip_x(%rip), %xmm0
    movq %xmm0, %rdx
    BLOCK site_rip_sse_shuffle
    pshufd $0x1b, rip_x(%rip), %xmm0
    movq %xmm0, %rdx
    BLOCK site_rip_sse_insert
    pinsrw $3, rip_w(%rip), %xmm0
    movq %xmm0, %rdx
    BLOCK site_rip_sse_store
    movaps %xmm0, rip_y(%rip)
    mov rip_y + 8(%rip), %rdx
    BLOCK site_rip_sse_double
    movsd rip_dbl(%rip), %xmm1
    mulsd rip_dbl(%rip), %xmm1
    movq %xmm1, %rdx
    rol $7, %rax
    xor %rdx, %rax
    ret
    .cfi_endproc
    .size riprel_integer, . - riprel_integer

// uint64_t riprel_avx2(uint64_t accumulator)
    .globl riprel_avx2
    .type riprel_avx2, @function
riprel_avx2:
    .cfi_startproc
    mov %rdi, %rax
    xor %edx, %edx
    BLOCK site_rip_avx_load
    vmovdqu rip_v(%rip), %ymm0
    BLOCK site_rip_avx_add
    vpaddd rip_v(%rip), %ymm0, %ymm0
    BLOCK site_rip_avx_shuffle
    vpshufd $0x1b, rip_v(%rip), %ymm1
    BLOCK site_rip_avx_insert
    vinserti128 $1, rip_x(%rip), %ymm1, %ymm1
    BLOCK site_rip_avx_blend
    vpblendd $0x5a, rip_v(%rip), %ymm1, %ymm2
    BLOCK site_rip_avx_store
    vmovdqu %ymm2, rip_vout(%rip)
    .irp offset, 0, 8, 16, 24
    rol $7, %rax
    xor rip_vout + \offset(%rip), %rax
    .endr
    vpxor %ymm2, %ymm0, %ymm0
    vmovq %xmm0, %rdx
    xor %rdx, %rax
    vzeroupper
    ret
    .cfi_endproc
    .size riprel_avx2, . - riprel_avx2
    .section .note.GNU-stack, "", @progbits
