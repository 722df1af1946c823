# SPDX-License-Identifier: Apache-2.0
"""Instructions and floating-point operations of a command from the blocks that an instruction-exact tracer counted.

The tracer runs the command by itself (`probe trace --tracer valgrind`), so totals are exact for that run. Where in the
resource profile they belong is by CPU time: a tracer slows all code down, but not all of it alike.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from iced_x86 import Decoder, Instruction, MemorySizeExt, Mnemonic

from checkpoint.binary.elf import read_image
from checkpoint.errors import ProbeError
from probe.emulation.usage import AMOUNT, Column, Usage
from probe.formats.arrays import FloatArray
from probe.formats.profile import NO_FILE, Profile, load_profile

_EXACT = "instructions"
"""Unit of the intervals of a tracer that misses no instruction."""

_MOST_UNKNOWN = 0.001
"""Share of the instructions that may be in no file, and so cannot be decoded."""

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

    def added_to(self, usage: Usage) -> Usage:
        """The profile with columns `instructions`, where no hardware counter has them, and `flops`.

        Where the command had several processes the columns say why they are empty.
        """
        columns, values = dict(usage.header.columns), dict(usage.values)
        source = f"blocks counted by {self.tracer} in a run by itself, placed by CPU time"
        several = self.processes > 0 or usage.total("processes") not in (None, 1.0)
        one = "the command has several processes, and a tracer counts one" if several else ""
        found = {"instructions": (self.instructions, one), "flops": (self.operations, one or self.missing)}
        for name, (counted, missing) in found.items():
            if name in columns and not columns[name].missing:
                continue
            unit = "instructions" if name == "instructions" else "operations"
            columns[name] = Column(AMOUNT, unit, "" if missing else source, missing)
            values[name] = np.full(usage.samples, np.nan) if missing else self._placed(counted, usage)
        return Usage(replace(usage.header, columns=columns), usage.end, values)

    def _placed(self, counted: FloatArray, usage: Usage) -> FloatArray:
        """What of `counted` belongs to each sample: both runs are at one place after one share of their CPU time."""
        used = np.cumsum(np.nan_to_num(usage.column("cpu_user")))
        if not used[-1]:
            used = usage.end
        place = np.concatenate([[0.0], np.cumsum(self.seconds)])
        total = np.concatenate([[0.0], np.cumsum(counted)])
        reached = np.interp(used / used[-1], place / place[-1], total)
        return np.asarray(np.diff(reached, prepend=0.0))


def counted_blocks(path: Path, command: Sequence[str]) -> CountedBlocks:
    """What the profile of `probe trace` at `path` counted of `command`.

    Raises ProbeError where it is of another command or leaves code out, ProbeFileDamaged, StorageError.
    """
    profile = load_profile(path)
    if profile.program.argv != tuple(command):
        raise ProbeError(f"{path}: counts another command ({' '.join(profile.program.argv)[:200]}); trace this one")
    if profile.unit != _EXACT:
        raise ProbeError(
            f"{path}: the tracer {profile.tracer} leaves libraries and hot blocks out; trace the command with "
            "--tracer valgrind"
        )
    vectors = profile.vectors()
    instructions = np.asarray(vectors.sum(axis=1), dtype=np.float64)
    unknown = float(vectors[:, profile.blocks.image == NO_FILE].sum() / max(1.0, instructions.sum()))
    if unknown > _MOST_UNKNOWN:
        operations = np.full(profile.intervals, np.nan)
        missing = f"{unknown:.1%} of the instructions are in no file (made at run time), and cannot be decoded"
    else:
        operations, missing = np.asarray(profile.counts @ _block_operations(profile, path), dtype=np.float64), ""
    return CountedBlocks(
        profile.program.argv, profile.tracer, profile.processes, profile.seconds, instructions, operations, missing
    )


def _block_operations(profile: Profile, path: Path) -> FloatArray:
    """Floating-point operations of each block, B. Raises ProbeError where an image is not the one that was traced."""
    found = np.zeros(len(profile.blocks.size))
    known: dict[int, int] = {}
    for number, (name, sha256) in enumerate(profile.images):
        blocks = np.flatnonzero(profile.blocks.image == number)
        if not len(blocks):
            continue
        image = read_image(name)
        if image.sha256 != sha256:
            raise ProbeError(f"{path}: {name} is not the file that was traced; trace the command again")
        for block in blocks:
            code = image.bytes_at(int(profile.blocks.start[block]), int(profile.blocks.size[block]))
            found[block] = sum(_operations(one, known) for one in Decoder(64, code))
    return found


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
