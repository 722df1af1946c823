# SPDX-License-Identifier: Apache-2.0
"""The files a probe carries: the program, its libraries, its input; and private copies of what it writes."""

from __future__ import annotations

import mmap
import os
import shutil
import stat
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from checkpoint.errors import ProbeError, ProgramUnsupported, StorageError
from checkpoint.restore.known_calls import KERNELS
from checkpoint.state.process_state import ProcessState, file_mappings, open_files
from probe.formats.manifest import OUTPUT, ExternalFile, PrivateFile
from probe.node.files import file_sha256
from reducer.archive import ContainedFile

PROGRAM, LIBRARY, INPUT = "program", "library", "input"

_PRIVATE_ROOT = "/private"
"""Where private copies stand in the probe's list of files: below /private/<phase>, since each phase has its own."""

_CLOCK_STEP = 0.02
"""Seconds by which the clock of file times may be behind."""


def needed_files(
    images: Sequence[tuple[ProcessState, Collection[str]]],
    executable: str,
    outputs: Iterable[str],
    opened: Iterable[str] = (),
) -> list[ContainedFile]:
    """Every regular file that the checkpoints map or read, each once, but those that the kernel makes up.

    With each checkpoint come the paths of its private copies (`copy_written_files`); `outputs` are the program's own
    streams; `opened` are files that phases open by their paths while they run.
    """
    found: dict[str, str] = {executable: PROGRAM}
    streams = set(outputs)
    for image, copied in images:
        skipped = streams.union(copied)
        for mapping in file_mappings(image):
            if mapping.path not in skipped:
                found.setdefault(mapping.path, LIBRARY if mapping.prot & mmap.PROT_EXEC else INPUT)
        for file in open_files(image):
            if file.is_regular and not file.writable and file.path not in skipped and not file.path.startswith(KERNELS):
                found.setdefault(file.path, INPUT)
    copied_somewhere = set(outputs).union(*(copied for _, copied in images))
    for path in opened:
        # One that the run has removed since is made by the region itself, or the phase fails in its self-check.
        if path not in copied_somewhere and Path(path).exists():
            found.setdefault(path, INPUT)
    # A library is mapped once with and several times without permission to execute.
    libraries = {m.path for image, _ in images for m in file_mappings(image) if m.prot & mmap.PROT_EXEC}
    files = []
    for path, purpose in found.items():
        local = Path(path)
        try:
            mode = local.stat().st_mode
        except OSError as error:
            raise StorageError(f"{path}: is part of the program but cannot be read: {error.strerror}") from error
        if stat.S_ISREG(mode):
            final = LIBRARY if purpose == INPUT and path in libraries else purpose
            files.append(ContainedFile(path, local, mode, final))
    return files


def set_apart(
    files: Sequence[ContainedFile], external: Sequence[str]
) -> tuple[list[ContainedFile], list[ContainedFile]]:
    """(files to carry, files to leave out): those named by `external`, or inside a folder named there, stay out.

    Raises ProbeError for a name that is none of the files.
    """
    prefixes = {name: os.path.realpath(name) for name in external}
    carried: list[ContainedFile] = []
    left_out: list[ContainedFile] = []
    used: set[str] = set()
    for file in files:
        by = {n for n, p in prefixes.items() if file.original_path == p or file.original_path.startswith(f"{p}/")}
        used |= by
        (left_out if by else carried).append(file)
    if unknown := [name for name in prefixes if name not in used]:
        known = "; ".join(f"{f.original_path} ({f.local_path.stat().st_size} bytes)" for f in files)
        raise ProbeError(
            f"--external {unknown[0]}: no file that the probe needs is there; it needs {known} (files that the program "
            "writes are always carried)"
        )
    return carried, left_out


def external_files(files: Iterable[ContainedFile]) -> list[ExternalFile]:
    """What the manifest says of files left out."""
    return [
        ExternalFile(f.original_path, f.local_path.stat().st_size, file_sha256(f.local_path), stat.S_IMODE(f.mode))
        for f in files
    ]


def copy_written_files(image: ProcessState, folder: Path, outputs: Iterable[str], *, since: float) -> dict[str, Path]:
    """Copy every regular file that will not stay as it is, while the process is stopped: path -> copy in `folder`.

    Those are the files open for writing, and those it reads that were changed after `since` (seconds of the epoch, the
    start of the run): the program's own intermediate files, which it will write again or remove.
    """
    skipped = set(outputs)
    paths = {f.path for f in open_files(image) if f.is_regular and (f.writable or _changed(f.path, since))}
    paths |= {mapping.path for mapping in file_mappings(image) if _changed(mapping.path, since)}
    copies: dict[str, Path] = {}
    for path in sorted(paths - skipped):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        target = folder / str(len(copies))
        try:
            # With its permission bits: CRIU refuses to reopen a file that has others.
            shutil.copy(path, target)
        except OSError as error:
            raise ProgramUnsupported(f"{path}: open for writing but cannot be copied: {error}") from error
        copies[path] = target
    return copies


def _changed(path: str, since: float) -> bool:
    try:
        status = Path(path).stat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and max(status.st_mtime, status.st_ctime) >= since - _CLOCK_STEP


def private_files(phase: int, copies: dict[str, Path]) -> tuple[list[ContainedFile], list[PrivateFile]]:
    """The same as entries of the probe."""
    contained, listed = [], []
    for path, copy in copies.items():
        mode = stat.S_IMODE(copy.stat().st_mode)
        listed.append(PrivateFile(phase, path, file_sha256(copy), mode))
        contained.append(ContainedFile(private_path(listed[-1]), copy, mode, OUTPUT))
    return contained, listed


def private_path(file: PrivateFile) -> str:
    """Where a private copy stands in the probe's list of files."""
    return f"{_PRIVATE_ROOT}/{file.phase}{file.path}"
