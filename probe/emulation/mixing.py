# SPDX-License-Identifier: Apache-2.0
"""Mix kernels so that together they execute as a command does: non-negative least squares, on the profiled node.

What is fitted are the shares of CPU time by class of instruction. Caches are not seen but by what waits for them.
"""

from __future__ import annotations

import functools
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

from checkpoint.errors import ProbeError
from probe.emulation.instruction_samples import CLASSES, InstructionSamples, NoSamples
from probe.emulation.kernels import COMPUTING, MIX, computing, emulator
from probe.emulation.tree import Tree
from probe.emulation.usage import AMOUNT, Column
from probe.emulation.watchers import Ended, Watcher
from probe.formats.arrays import FloatArray

MIXED = tuple(name for name in COMPUTING if name != "syscalls")
"""Kernels that user code is mixed of."""

_LEAST_SHARE = 1e-4
_CPU_SECONDS = 0.3
_SECONDS = 60


@functools.cache
def kernel_classes(program: Path | None = None) -> dict[str, dict[str, float]]:
    """Shares of CLASSES of each kernel that this node has, by samples of it. Raises NoSamples, ToolMissing."""
    program = program or emulator()
    found = {}
    with tempfile.TemporaryDirectory(prefix="probe-kernels-") as folder:
        for name in (one for one in computing(program) if one in MIXED):
            samples = InstructionSamples()
            words = [str(program), "repeat", name, folder, str(_CPU_SECONDS)]
            with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
                assert running.stdin is not None and running.stdout is not None
                running.stdout.readline()
                # What prepares a kernel may take longer than the kernel, and is no part of it.
                samples.forget()
                running.communicate("\n", timeout=_SECONDS)
            found[name] = samples.close()
            if running.returncode or not found[name]:
                raise NoSamples(f"kernel {name} was never sampled")
    return found


def mixed(program: Mapping[str, float], kernels: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Shares of kernels, 1 in all, whose classes are nearest to the program's by non-negative least squares."""
    names = list(kernels)
    columns = np.array([[kernels[name][kind] for name in names] for kind in CLASSES])
    wanted = np.array([program[kind] for kind in CLASSES])
    found, _ = nnls(columns, wanted)
    if not found.sum() > 0:
        raise ProbeError("no mix of kernels is like the command; name a kernel")
    # Next to nothing is an error of rounding, and in seconds it is no number that a profile takes.
    found[found < _LEAST_SHARE * found.sum()] = 0.0
    return dict(zip(names, (found / found.sum()).tolist(), strict=True))


class MixWatcher(Watcher):
    """CPU seconds in user code that each kernel stands for in the mix. Made before the command is started."""

    def __init__(self) -> None:
        self.columns = {f"{MIX}{name}": Column(AMOUNT, "s", "instruction samples (task clock)") for name in MIXED}
        self._samples: InstructionSamples | None = None
        self._supervisor = 0
        try:
            self._samples = InstructionSamples()
        except NoSamples as error:
            self._give_up(str(error))

    def begin(self, supervisor: int) -> None:
        self._supervisor = supervisor

    def look(self, tree: Tree) -> Mapping[str, float]:
        if self._samples is not None:
            self._samples.read()
        return {}

    def finish(self, ended: Ended) -> Mapping[str, float]:
        """The whole of each; `spread_mix` gives every sample its part."""
        if self._samples is None:
            return {}
        try:
            classes = self._samples.close(self._supervisor)
            if not classes:
                raise NoSamples("no sample was taken of the command: it is too short, or is made at run time")
            shares = mixed(classes, kernel_classes())
        except (NoSamples, ProbeError, OSError, subprocess.SubprocessError) as error:
            self._give_up(str(error))
            return {}
        return {f"{MIX}{name}": shares.get(name, 0.0) * ended.user for name in MIXED}

    def _give_up(self, reason: str) -> None:
        self._samples = None
        self.columns = {name: Column(AMOUNT, "s", "", reason[:400]) for name in self.columns}


def spread_mix(values: dict[str, FloatArray]) -> None:
    """Give every sample of a profile's columns its part of each kernel's whole, as of the CPU time in user code."""
    user = values["cpu_user"]
    whole = user.sum()
    for name in values:
        if name.startswith(MIX) and whole > 0:
            values[name] = user * (values[name].sum() / whole)
