# SPDX-License-Identifier: Apache-2.0
"""Tiny programs of which every executed block is known, for the instruction-exact tracers."""

from __future__ import annotations

import subprocess
from pathlib import Path


def assembled(folder: Path, name: str, body: str) -> Path:
    """A static program of nothing but `body`, which begins at `_start`; at its end it exits with 0."""
    source = folder / f"{name}.S"
    source.write_text(
        f".globl _start\n_start:\n{body}\nthe_end:\n mov $60, %eax\n xor %edi, %edi\n syscall\n"
        '.bss\n.balign 64\nbuffer: .skip 65536\n.section .note.GNU-stack,"",@progbits\n'
    )
    subprocess.run(["cc", "-nostdlib", "-static", "-o", folder / name, source], check=True)
    return folder / name


LOOP = " mov ${rounds}, %ecx\nagain:\n add $1, %rax\n xor $0x12345678, %ebx\n dec %ecx\n jnz again"
SPLIT = """
 mov ${rounds}, %ecx
again:
 test $1, %cl
 jz even
 add $0x11111111, %eax
 nop
even:
 add $0x22222222, %edx
 dec %ecx
 jnz again"""


def blocks_of_loop(rounds: int) -> list[tuple[str, int]]:
    """The blocks of LOOP in their order, with their instructions."""
    return [("_start", 5), *[("again", 4)] * (rounds - 1), ("the_end", 3)]


def blocks_of_split(rounds: int) -> list[tuple[str, int]]:
    """The same of SPLIT: `even` is reached by a jump, and by falling into it from the block before."""
    found: list[tuple[str, int]] = [("_start", 3)]
    for count in range(rounds, 0, -1):
        found += [("again", 2)] if count < rounds else []
        found += [("odd", 5)] if count % 2 else [("even", 3)]
    return [*found, ("the_end", 3)]


STRINGS = """
 cld
 mov $200, %r8d
turn:
 lea buffer(%rip), %rdi
 mov $1000, %ecx
 rep stosb
 lea buffer(%rip), %rsi
 lea buffer+4096(%rip), %rdi
 mov $7, %ecx
 rep movsq
 xor %ecx, %ecx
 rep stosb
 lea buffer(%rip), %rdi
 mov $100, %ecx
 mov $1, %al
 repne scasb
 lea buffer(%rip), %rdi
 lea buffer(%rip), %rsi
 mov $50, %ecx
 repe cmpsb
 lea buffer(%rip), %rdi
 mov $30, %ecx
 xor %al, %al
 jmp lone
 nop
lone:
 rep stosb
 movsb
 dec %r8d
 jnz turn"""
