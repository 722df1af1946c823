# SPDX-License-Identifier: Apache-2.0
"""Run a data-intensive application for real without its data: direct reads of files made here, MPI, constant delays."""

from __future__ import annotations

import math
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from checkpoint.compiled import built
from checkpoint.errors import ModelInvalid, NodeUnfit, ProgramFailed, StorageError, ToolMissing
from probe.dataflow.application import DataApplication
from probe.dataflow.engines import OPTIONS, sources
from probe.dataflow.machine import DiskMachine
from probe.dataflow.measured import local_machine, machine_text
from probe.dataflow.prediction import BlockTime
from probe.dataflow.work import Placed, place
from probe.progress import Display, Silent
from probe.simulation.smpirun import watched

_PAGE: Final = 4096
_LARGEST_MESSAGE: Final = (1 << 31) - 1
_PIECE: Final = 4 << 20
_SPARE: Final = 1 << 30
"""Bytes that stay free on the file system."""

_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
_SHOWN = 400


@dataclass(frozen=True)
class Measured:
    """This machine with nothing else going on. read_seconds, message_seconds: of a block; the latter 0 for one rank."""

    read_seconds: float
    latency: float
    message_seconds: float


@dataclass(frozen=True)
class DataEmulation:
    """What an emulation took. computing: seconds of the rank that computed longest."""

    application: DataApplication
    ranks: int
    disks: int
    seconds: float
    computing: float
    blocks: int
    messages: int
    block_time: BlockTime
    measured: Measured

    def to_json(self) -> dict[str, Any]:
        """As docs/json.md says of `probe emulate --ranks`."""
        return {
            "application": self.application.name,
            "family": self.application.family,
            "ranks": self.ranks,
            "disks": self.disks,
            "seconds": self.seconds,
            "computing_seconds": self.computing,
            "blocks": self.blocks,
            "messages": self.messages,
            "block_seconds": self.block_time.seconds,
            "block_source": self.block_time.source,
            "measured": vars(self.measured),
        }

    def machine_text(self, name: str) -> str:
        """A machine in TOML for `probe simulate`: this one, as it was measured."""
        size, seen = self.application.block_bytes, self.measured
        moving = max(seen.message_seconds - seen.latency, 1e-9)
        network = (seen.latency, size / moving) if self.ranks > 1 else None
        return machine_text(local_machine(name, self.disks, size, seen.read_seconds, network))


def emulate_data(
    application: DataApplication, ranks: int, *, folder: Path, time: BlockTime, disks: int = 1, limit: float = 3600.0,
    display: Display | None = None,
) -> DataEmulation:  # fmt: skip
    """Run the application on so many ranks here, each with `disks` files in a new folder below `folder`.

    Raises ToolMissing without MPI, NodeUnfit for more ranks than processors, StorageError where the files do not fit or
    cannot be read directly, ProgramFailed, ModelInvalid for a number of ranks that the application does not allow.
    """
    processors = len(os.sched_getaffinity(0))
    if ranks > processors:
        raise NodeUnfit(
            f"{ranks} ranks compute on {processors} processors: delays would be no longer those of a block; ask for "
            f"{processors} at most"
        )
    if application.block_bytes > _LARGEST_MESSAGE:
        raise ModelInvalid(f"{application.path}: blocks of more than {_LARGEST_MESSAGE} bytes are no messages of MPI")
    here = DiskMachine("here", None, disks, 0.0, (0.0, 0.0), 0.0, 1e9, 1e18, disks, 0.0, 1e9, 0.0, 1e9)
    placed, shown = place(application, here, ranks), display or Silent()
    program, mpirun = _program(), _mpirun()
    try:
        with TemporaryDirectory(prefix="probe-emulate-", dir=folder.absolute()) as name:
            with shown.stage("files"):
                _make_files(placed, Path(name))
            (Path(name) / "setting").write_text(placed.text(time.seconds))
            with shown.stage("emulate"):
                command = [mpirun, "-n", str(ranks), str(program), str(Path(name) / "setting"), name]
                status, said, late = watched(command, Path(name), limit, lambda line: None, more=_AS_ROOT)
    except OSError as error:
        raise StorageError(f"{folder}: {error.strerror}; give another --folder") from error
    if late:
        raise ProgramFailed(f"{application.path}: the emulation was not over after {limit:.0f} s")
    if "opening a file for direct reads" in said:
        raise StorageError(f"{folder}: its file system has no direct reads (O_DIRECT); give another --folder")
    lines = {line.split()[0]: line.split()[1:] for line in said.splitlines() if line.strip()}
    if status or "done" not in lines:
        raise ProgramFailed(f"{application.path}: the emulation ended with status {status}: {said[-_SHOWN:].strip()}")
    return _emulation(application, ranks, disks, time, lines)


def _emulation(
    application: DataApplication, ranks: int, disks: int, time: BlockTime, lines: dict[str, list[str]]
) -> DataEmulation:
    done, alone = (
        dict(zip(words[::2], map(float, words[1::2]), strict=True)) for words in (lines["done"], lines["measured"])
    )
    return DataEmulation(
        application=application,
        ranks=ranks,
        disks=disks,
        seconds=done["seconds"],
        computing=done["computed"],
        blocks=int(done["blocks"]),
        messages=int(done["messages"]),
        block_time=time,
        measured=Measured(alone["read"], alone["latency"], alone["message"]),
    )


def _program() -> Path:
    if shutil.which("mpicc") is None:
        raise ToolMissing("no MPI compiler (mpicc): install Open MPI (Debian's package libopenmpi-dev)")
    return built("dataflow-native", sources("native.c"), OPTIONS, libraries=("-lm", "-lpthread"), compiler="mpicc")


def _mpirun() -> str:
    found = shutil.which("mpirun")
    if found is None:
        raise ToolMissing("mpirun is not installed: install Open MPI (Debian's package openmpi-bin)")
    return found


def _make_files(placed: Placed, folder: Path) -> None:
    """A file for each reading rank and disk, of bytes that no file system leaves out."""
    size = math.ceil(placed.application.block_bytes)
    each = (math.ceil(placed.blocks / (placed.readers * placed.machine.disks)) + 10) * size
    each = math.ceil(each / _PAGE) * _PAGE + 2 * _PAGE
    files = placed.readers * placed.machine.disks
    free = shutil.disk_usage(folder).free
    if each * files + _SPARE > free:
        raise StorageError(
            f"{folder}: {files} files of {each} bytes do not fit into {free}; give another --folder, or fewer blocks"
        )
    piece = os.urandom(_PIECE)
    for reader in range(placed.readers):
        for disk in range(placed.machine.disks):
            with open(folder / f"{reader}-{disk}", "wb") as file:
                for begin in range(0, each, _PIECE):
                    file.write(piece[: min(_PIECE, each - begin)])
                file.flush()
                os.fsync(file.fileno())
