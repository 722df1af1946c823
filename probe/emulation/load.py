# SPDX-License-Identifier: Apache-2.0
"""Artificial load beside an emulation, by stress-ng: it begins before the emulation, and ends with it.

Also sent to candidate nodes: Python 3.8 and the standard library.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from checkpoint.errors import ProbeError, StorageError, ToolMissing

CPU, DISK, MEMORY = "cpu", "disk", "memory"
LOADS = (CPU, DISK, MEMORY)
"""Processes that compute, processes that write, and bytes that one process touches again and again."""

MOST_PROCESSES = 1024
LEAST_MEMORY, MOST_MEMORY = 1 << 20, 1 << 50

_DISK_BYTES = 64 << 20
"""Of the file of a process that writes."""

_BEGIN_SECONDS = 20.0
_LOOK_SECONDS = 0.05
_MOST_SAID = 300


def check_load(load: Mapping[str, int]) -> None:
    """Raise ProbeError for a load that there is not."""
    for name, value in load.items():
        least, most = (LEAST_MEMORY, MOST_MEMORY) if name == MEMORY else (1, MOST_PROCESSES)
        if name not in LOADS or not least <= value <= most:
            raise ProbeError(
                f"load {name}={value}: loads are cpu and disk, of 1 to {MOST_PROCESSES} processes, and memory, of "
                "1 MiB or more"
            )


def memory_of(load: Mapping[str, int]) -> int:
    """Bytes that a load holds."""
    return load.get(MEMORY, 0)


def disk_of(load: Mapping[str, int]) -> int:
    """Bytes that a load writes to the disk before it writes over them."""
    return load.get(DISK, 0) * _DISK_BYTES


@contextlib.contextmanager
def beside(load: Mapping[str, int], folder: Path) -> Iterator[None]:
    """Load this node while the block runs; what is written goes into a folder in `folder`, which is gone afterwards.

    Nothing is left where this process is killed, either. Raises ToolMissing without stress-ng, StorageError where it
    ends by itself.
    """
    if not load:
        yield
        return
    program = shutil.which("stress-ng")
    if program is None:
        raise ToolMissing("no stress-ng on this node, which makes the load of --load: install it, or leave --load out")
    with vanishing_folder(folder) as (place, guarded):
        words = [program, "--quiet", "--temp-path", str(place)]
        words += ["--cpu", str(load[CPU])] if CPU in load else []
        words += ["--hdd", str(load[DISK]), "--hdd-bytes", str(_DISK_BYTES)] if DISK in load else []
        words += ["--vm", "1", "--vm-bytes", str(load[MEMORY]), "--vm-keep"] if MEMORY in load else []
        with tempfile.TemporaryFile() as said:
            running = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=said, stderr=said, cwd=str(place), start_new_session=True
            )
            os.write(guarded, b"%d\n" % running.pid)
            try:
                _begun(running, len(load))
                yield
                if running.poll() is not None:
                    said.seek(0)
                    text = said.read().decode(errors="replace").strip()[-_MOST_SAID:]
                    raise StorageError(f"the load ended before the emulation: stress-ng: {text or running.returncode}")
            finally:
                _end(running.pid)
                running.wait()


def _begun(running: subprocess.Popen[bytes], kinds: int) -> None:
    """Wait until each kind of load has a process that has used the processor."""
    deadline = time.monotonic() + _BEGIN_SECONDS
    while running.poll() is None and time.monotonic() < deadline:
        if sum(_has_computed(child) for child in _children(running.pid)) >= kinds:
            return
        time.sleep(_LOOK_SECONDS)


def _children(pid: int) -> list[int]:
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []


def _has_computed(pid: int) -> bool:
    """The process, or one that it has started: those with memory to touch have children that do."""
    for one in (pid, *_children(pid)):
        with contextlib.suppress(OSError, ValueError), open(f"/proc/{one}/stat", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
            if int(fields[11]) + int(fields[12]):
                return True
    return False


def _end(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


@contextlib.contextmanager
def vanishing_folder(place: Path | None = None) -> Iterator[tuple[Path, int]]:
    """A folder that is removed in the end, by a process of its own where this one is killed.

    Of the process group whose number is written to the descriptor, nobody is left then. Raises StorageError.
    """
    try:
        folder = tempfile.mkdtemp(prefix="probe-emulation-", dir=str(place.absolute()) if place is not None else None)
    except OSError as error:
        raise StorageError(f"{place or tempfile.gettempdir()}: {error.strerror}") from error
    alive, dead = os.pipe()
    guard = os.fork()
    if not guard:
        _guard(folder, alive, dead)
    os.close(alive)
    try:
        yield Path(folder), dead
    finally:
        os.close(dead)
        os.waitpid(guard, 0)


def _guard(folder: str, alive: int, dead: int) -> None:
    """Wait for the end of whoever has the other end of the pipe; then tidy up. Never returns."""
    try:
        os.setsid()
        os.close(dead)
        # A connection, or a shell's pipe, shall not wait for this process.
        for descriptor in (0, 1, 2):
            os.close(descriptor)
        said = b""
        while piece := os.read(alive, 64):
            said += piece
        if said.strip():
            _end(int(said))
        # Again and again, as long as somebody who is being killed puts files there.
        for _ in range(50):
            shutil.rmtree(folder, ignore_errors=True)
            if not Path(folder).exists():
                break
            time.sleep(0.1)
    finally:
        os._exit(0)
