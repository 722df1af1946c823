# SPDX-License-Identifier: Apache-2.0
"""Writes bigtext.S: some 100,000 basic blocks in 2,500 functions, as a big program has them.

Each unit is two blocks: a head, executed in every call, and a block behind a branch on the
data. Written as assembly because a compiler needs minutes for that much C.
"""

import sys
from pathlib import Path

FUNCTIONS = 2500
UNITS = 20


def unit(function: int, number: int) -> str:
    seed = (function * UNITS + number) * 2654435761 & 0x3FFFFFFF
    return f"""    add ${0x1000000 + seed % 0x1000000:#x}, %eax
    imul ${seed | 0x10001:#x}, %eax, %eax
    test ${1 << (13 + seed % 16):#x}, %eax
    jz 1f
    xor ${0x2000000 + seed:#x}, %eax
1:
"""


def source() -> str:
    parts = ["# SPDX-License-Identifier: Apache-2.0\n    .text\n"]
    for function in range(FUNCTIONS):
        name = f"big_{function:04}"
        parts.append(f"    .balign 16\n    .globl {name}\n    .type {name}, @function\n{name}:\n")
        parts.append("    .cfi_startproc\n    mov %edi, %eax\n    jmp 1f\n1:\n")
        parts.extend(unit(function, number) for number in range(UNITS))
        parts.append(f"    ret\n    .cfi_endproc\n    .size {name}, . - {name}\n")
    parts.append('    .section .data.rel.ro, "aw"\n    .balign 8\n    .globl big_functions\nbig_functions:\n')
    parts.extend(f"    .quad big_{function:04}\n" for function in range(FUNCTIONS))
    parts.append("    .quad 0\n" + '    .section .note.GNU-stack, "", @progbits\n')
    return "".join(parts)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(source())
