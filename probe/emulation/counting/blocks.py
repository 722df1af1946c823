# SPDX-License-Identifier: Apache-2.0
"""Instructions and floating-point operations of a command from the blocks that an instruction-exact tracer counted.

The tracer runs the command by itself (`probe trace --tracer valgrind`), so totals are exact for that run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from iced_x86 import Code, Decoder, Instruction, MemorySizeExt, Mnemonic

from checkpoint.binary.elf import ElfImage, read_image
from checkpoint.errors import ProbeError, ProbeFileDamaged
from checkpoint.process.program import resolve_program
from probe.formats.arrays import FloatArray
from probe.formats.checked import MOST_AMOUNT, MOST_SECONDS
from probe.formats.choices import INSTRUCTIONS, TRACERS
from probe.formats.profile import Profile, load_profile
from probe.node.files import file_sha256

_MOST_UNKNOWN = 0.001
"""Share of the instructions that may be in no file, and so cannot be decoded."""

_LONGEST_BLOCK = 1 << 20
"""Bytes; no tracer's block comes near."""

_MNEMONICS = {value: name for name, value in vars(Mnemonic).items() if isinstance(value, int)}
_ONCE = re.compile(r"V?(?:ADD|SUB|MUL|DIV|SQRT|MIN|MAX|HADD|HSUB|ADDSUB|RCP|RSQRT|RCP14|RSQRT14)(?P<lanes>[SP])[SDH]")
_TWICE = re.compile(r"V?(?:DP|FN?M(?:ADD|SUB|ADDSUB|SUBADD)(?:132|213|231)?)(?P<lanes>[SP])[SDH]")
_SINGLE = re.compile(r"FI?(?:ADD|SUB|MUL|DIV)R?P?|FSQRT")
"""Of the x87, one operation each."""


@dataclass(frozen=True)
class CountedBlocks:
    """N intervals of a run of `command`: lengths in seconds of the traced run, instructions, floating-point operations.

    `missing` says why operations are not known; they are NaN then.
    """

    command: tuple[str, ...]
    tracer: str
    processes: int
    seconds: FloatArray = field(repr=False)
    instructions: FloatArray = field(repr=False)
    operations: FloatArray = field(repr=False)
    missing: str = ""


def counted_blocks(path: Path, command: Sequence[str]) -> CountedBlocks:
    """What the profile of `probe trace` at `path` counted of `command`.

    Raises ProbeError where it is of another command or leaves code out, ProbeFileDamaged, StorageError.
    """
    profile = load_profile(path)
    _check_same(path, profile, command)
    vectors = profile.vectors()
    instructions = np.asarray(vectors.sum(axis=1), dtype=np.float64)
    seconds = float(profile.seconds.sum())
    if not (0 < instructions.sum() <= MOST_AMOUNT and np.median(profile.seconds) > 0 and seconds <= MOST_SECONDS):
        raise ProbeFileDamaged(f"{path}: counts no instructions, or in no time; trace the command again")
    operations, known = _block_operations(profile, path)
    unknown = 1.0 - float(vectors[:, known].sum() / instructions.sum())
    missing = ""
    if unknown > _MOST_UNKNOWN:
        missing = f"{unknown:.1%} of the instructions are in no file (made at run time), and cannot be decoded"
    each = np.asarray(profile.counts @ operations, dtype=np.float64)
    return CountedBlocks(
        profile.program.argv, profile.tracer, profile.processes, profile.seconds, instructions, each, missing
    )


def _check_same(path: Path, profile: Profile, command: Sequence[str]) -> None:
    """Raise ProbeError where the profile is not of all that the command executes, here."""
    program = profile.program
    here = resolve_program(command)
    same = (program.argv, program.executable, program.cwd) == (here.argv, here.executable, here.cwd)
    if not same or profile.tracer not in TRACERS:
        raise ProbeError(
            f"{path}: counts another command ({' '.join(program.argv)[:200]} in {program.cwd[:200]}); trace this one"
        )
    if profile.unit != INSTRUCTIONS:
        raise ProbeError(
            f"{path}: the tracer {profile.tracer} leaves libraries and hot blocks out; trace the command with "
            "--tracer valgrind"
        )
    if not {program.executable, os.path.realpath(program.executable)} & {name for name, _ in profile.images}:
        raise ProbeError(
            f"{path}: {program.argv[0]} executes another program in its place, and that alone was counted; trace and "
            "profile that program"
        )


def _block_operations(profile: Profile, path: Path) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
    """Floating-point operations of each block, and whether it could be decoded: B each. Raises ProbeError where an
    image is not the one that was traced."""
    found, decoded = np.zeros(len(profile.blocks.size)), np.zeros(len(profile.blocks.size), dtype=bool)
    known: dict[int, int] = {}
    sizes = profile.blocks.size
    for number, (name, sha256) in enumerate(profile.images):
        blocks = np.flatnonzero((profile.blocks.image == number) & (sizes > 0) & (sizes <= _LONGEST_BLOCK))
        if not len(blocks):
            continue
        image = _image(path, name, sha256)
        for block in blocks:
            code = image.bytes_at(int(profile.blocks.start[block]), int(sizes[block]))
            instructions = [one for one in Decoder(64, code) if one.code != Code.INVALID]
            decoded[block] = len(instructions) == profile.blocks.instructions[block]
            found[block] = sum(_operations(one, known) for one in instructions)
    return found, decoded


def _image(path: Path, name: str, sha256: str) -> ElfImage:
    try:
        same = Path(name).is_file() and file_sha256(Path(name)) == sha256
    except (OSError, ValueError):
        same = False
    if not same:
        raise ProbeError(f"{path}: {name[:200]} is not the file that was traced; trace the command again")
    return read_image(name)


def _operations(instruction: Instruction, known: dict[int, int]) -> int:
    """As Intel's event FP_ARITH_INST_RETIRED counts, and those of the x87: fused twice, each lane, masked or not."""
    if instruction.code not in known:
        known[instruction.code] = _operations_of(instruction)
    return known[instruction.code]


def _operations_of(instruction: Instruction) -> int:
    name = _MNEMONICS.get(instruction.mnemonic, "")
    if _SINGLE.fullmatch(name):
        return 1
    twice = _TWICE.fullmatch(name)
    found = twice or _ONCE.fullmatch(name)
    if found is None:
        return 0
    whole = instruction.op_code().memory_size
    lanes = 1 if found["lanes"] == "S" else MemorySizeExt.size(whole) // MemorySizeExt.element_size(whole)
    return 2 * lanes if twice else lanes
