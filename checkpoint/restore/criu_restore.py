# SPDX-License-Identifier: Apache-2.0
"""Restoring a phase on this machine, in namespaces of its own, and timing its region."""

from __future__ import annotations

import array
import contextlib
import errno
import os
import signal
import stat
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from checkpoint.criu.images import read_checkpoint
from checkpoint.criu.tool import Criu, failure, read_tail, real_errors
from checkpoint.errors import (
    CriuError,
    NodeUnfit,
    PhaseFailed,
    PrivilegeMissing,
    ProbeError,
    StorageError,
)
from checkpoint.restore.agent_process import AgentProcess
from checkpoint.state.process_state import ProcessState, open_files

RESTORE_SECONDS = 120.0
_LEAST_REGION_SECONDS = 30.0
_REGION_SLACK = 100.0
"""A region may take this many times as long as on the reference node, or the process is taken for lost."""

_AGENT = Path(__file__).with_name("criu_agent.py")
_LAZY_AGENT = Path(__file__).with_name("lazy_agent.py")
_TOUCHED = "touched"

_LIKELY_CAUSES = {
    signal.SIGILL: "this CPU lacks an instruction that the phase uses: build the probe with a lower --isa",
    signal.SIGSEGV: "memory it needs was not restored as it was; build the probe again, and report it if it repeats",
    signal.SIGBUS: "a mapped file is shorter than at capture",
    signal.SIGFPE: "an arithmetic fault that the reference run did not have: different input files?",
    signal.SIGKILL: "the kernel ended it, most likely for want of memory (see dmesg)",
    signal.SIGTRAP: "a breakpoint was left in the checkpoint; build the probe again",
    signal.SIGSYS: "it made a system call that it may not make (--only-recorded-calls, or a container's filter)",
    signal.SIGXCPU: "a limit on CPU time is set here (ulimit -t)",
    signal.SIGXFSZ: "a limit on file size is set here (ulimit -f)",
}


@dataclass(frozen=True)
class RestoreJob:
    """One phase to restore. Paths are on this machine; `binds` are (source, path to show it at),
    `folders` must exist; paths that this node does not have are added in the phase's own mount namespace.

    `written`: the same for files the phase writes; every repeat is shown a fresh copy of the source. `outputs`: paths
    of files open for appending at capture, replaced by scratch files. The three events are addresses in the restored
    process. `expected_seconds`: warm-up and region on the reference node. `threads`: how many share the work, and so
    how many processors it gets.
    """

    phase: int
    images: Path
    outputs: Sequence[str]
    folders: Sequence[str]
    binds: Sequence[tuple[str, str]]
    written: Sequence[tuple[str, str]]
    warm_event: int
    start_event: int
    end_event: int
    expected_seconds: float
    threads: int = 1


@dataclass(frozen=True)
class RegionTime:
    """Seconds of one repeat, from the stamps inside the process; restoring it is not part of them.

    `warm_cpu`: CPU time of the warm-up, whose wall time is `warm`. `kernel` of `cpu` were spent in the kernel, by its
    own ticks; `faults`: page faults; `switches`, where threads share the work: how often they lost their processors.
    None where these were not stamped. `delay`, likewise: how long the thread that waited longest for a processor has
    done so in warm-up and region, and in about the last 50 ms of restoring. `yardsticks`: CPU seconds of known
    work right after it (probe/node/yardsticks.py); empty where that was not done.
    """

    wall: float
    cpu: float
    warm: float
    restore: float
    kernel: float | None = None
    faults: int | None = None
    switches: int | None = None
    delay: float | None = None
    warm_cpu: float | None = None
    yardsticks: tuple[float, ...] = ()


class PageDropped(PhaseFailed):
    """A page that was dropped from a checkpoint was asked for after all."""

    def __init__(self, message: str, address: int) -> None:
        super().__init__(message)
        self.address = address


def check_privilege() -> None:
    """Raise PrivilegeMissing where nothing can be restored because of who we are."""
    if os.geteuid() != 0:
        raise PrivilegeMissing("restoring with CRIU needs root; run the command as root or with `sudo -n`")


class PhaseAgent:
    """One phase, restored and timed by an agent whenever `repeat` is called.

    `scratch` is an existing folder, in which the agent gets one of its own; `start` makes the agent for that one.
    `extra`: seconds that a repeat may take besides restoring and running. `warnings`: what could not be kept from the
    phase on this node. Nothing is left running or mounted after `close`, or after leaving the `with` block.
    """

    def __init__(
        self,
        job: RestoreJob,
        scratch: Path,
        start: Callable[[Path], contextlib.AbstractContextManager[AgentProcess]],
        extra: float = 0.0,
    ) -> None:
        self._job = job
        self._seconds = region_limit(job) + RESTORE_SECONDS + extra
        self.warnings: set[str] = set()
        self._cleanup = contextlib.ExitStack()
        with self._cleanup:
            name = self._cleanup.enter_context(tempfile.TemporaryDirectory(prefix=f"phase-{job.phase}-", dir=scratch))
            self._folder = Path(name)
            self._agent = self._cleanup.enter_context(start(self._folder))
            self._cleanup = self._cleanup.pop_all()

    def repeat(self) -> RegionTime:
        """Restore the phase once and run it to its region's end.

        Raises PhaseFailed (signal, time-out, order), PrivilegeMissing, NodeUnfit, StorageError, and what restoring
        raises besides: CriuError, DirectRefused.
        """
        self._agent.order()
        line = self._agent.answer(self._seconds)
        if line is None:
            raise PhaseFailed(f"phase {self._job.phase}: the restore agent ended without an answer")
        return self._time(line)

    def _time(self, line: dict[str, Any]) -> RegionTime:
        time = region_time(self._job, line, self._folder)
        # What the stamps of threads count in place of page faults (checkpoint/stubs/stubs.S, fire_many).
        return time if self._job.threads == 1 else replace(time, faults=None, switches=time.faults)

    def close(self) -> None:
        self._cleanup.close()

    def __enter__(self) -> PhaseAgent:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class CriuAgent(PhaseAgent):
    """One phase restored by CRIU, in namespaces of its own. Needs root; ProbeFileDamaged for images that do not fit
    together."""

    def __init__(self, job: RestoreJob, criu: Criu, *, scratch: Path, cpu: int | None = None) -> None:
        check_privilege()
        # From a pages image that is too short CRIU restores for ever.
        images = read_checkpoint(job.images)

        def start(folder: Path) -> AgentProcess:
            return AgentProcess(_AGENT, _spec(job, images, criu, str(folder), region_limit(job), cpu))

        super().__init__(job, scratch, start)


def time_phase(job: RestoreJob, criu: Criu, *, repeats: int, scratch: Path, cpu: int | None = None) -> list[RegionTime]:
    """Restore and run one phase `repeats` times, one after the other. Nothing is left running or mounted.

    Raises as CriuAgent does.
    """
    with CriuAgent(job, criu, scratch=scratch, cpu=cpu) as agent:
        return [agent.repeat() for _ in range(repeats)]


def observe_touches(
    job: RestoreJob,
    criu: Criu,
    runs: Sequence[tuple[int, int, int]],
    pages: Path,
    *,
    scratch: Path,
    margin: float,
    dropped: Sequence[tuple[int, int]] | None = None,
) -> list[int]:
    """Restore one phase lazily: addresses of the pages it touches, in order, lowest bit set for a write.

    `runs` (address, pages, flags) and `pages` are its page map and pages image. It runs to its region's end and
    `margin` seconds further. Given the runs `dropped` (address, pages), it only looks whether one of their pages is
    asked for, and returns nothing: raises PageDropped.
    Raises PhaseFailed and the others as `time_phase`.
    """
    check_privilege()
    images = read_checkpoint(job.images)
    limit = region_limit(job)
    with tempfile.TemporaryDirectory(prefix=f"phase-{job.phase}-", dir=scratch) as folder:
        spec = _spec(job, images, criu, folder, limit, None) | {
            "options": ["--lazy-pages"],
            "runs": [list(r) for r in runs],
            "pages": str(pages),
            "margin_seconds": margin,
            "guard": None if dropped is None else [list(d) for d in dropped],
        }
        with AgentProcess(_LAZY_AGENT, spec) as agent:
            line = agent.answer(limit + RESTORE_SECONDS + margin)
        if line is None:
            raise PhaseFailed(f"phase {job.phase}: the lazy agent ended without an answer")
        if line.get("status") == "dropped":
            raise PageDropped(
                f"phase {job.phase}: the page at {int(line['address']):#x} was dropped and is asked for",
                line["address"],
            )
        region_time(job, line, Path(folder))
        if dropped is not None:
            return []
        touched = array.array("Q")
        touched.frombytes((Path(folder) / _TOUCHED).read_bytes())
        return touched.tolist()


def _spec(
    job: RestoreJob, images: ProcessState, criu: Criu, folder: str, limit: float, cpu: int | None
) -> dict[str, Any]:
    # CRIU compares the permission bits of folders, too.
    used = [images.files[images.cwd_file_id], *(images.files[d.file_id] for d in images.descriptors)]
    modes = {file.path: stat.S_IMODE(file.mode) for file in used if stat.S_ISDIR(file.mode)}
    # CRIU makes a deleted file anew, and removes it: its folder must be there.
    deleted = [str(Path(images.files[n].path).parent) for n in images.removed_files if n in images.files]
    # Input is shown by itself: every read through the overlay that covers the rest would take a fifth longer.
    shown = {*job.outputs, *(path for _, path in [*job.binds, *job.written])}
    read = {f.path for f in open_files(images) if f.is_regular and not f.writable} - shown
    binds = [*job.binds, *((path, path) for path in sorted(read) if Path(path).is_file())]
    return {
        "criu": list(criu.command),
        "options": [],
        "images": str(job.images),
        "scratch": folder,
        "outputs": list(job.outputs),
        "folders": [[path, modes.get(path)] for path in dict.fromkeys([*job.folders, *modes, *deleted])],
        "binds": [list(b) for b in binds],
        "written": [list(w) for w in job.written],
        "warm": job.warm_event,
        "start": job.start_event,
        "end": job.end_event,
        "cpu": cpu,
        "restore_seconds": RESTORE_SECONDS,
        "region_seconds": limit,
    }


def region_limit(job: RestoreJob) -> float:
    """Seconds after which a region that has not ended is given up."""
    return region_seconds(job.expected_seconds)


def region_seconds(expected: float) -> float:
    """The same for a phase that took `expected` seconds on the reference node."""
    return max(_LEAST_REGION_SECONDS, _REGION_SLACK * expected)


def region_time(job: RestoreJob, line: dict[str, Any], scratch: Path | None = None) -> RegionTime:
    """What an agent's line says: the times, or the error raised. CRIU's log is in `scratch`."""
    if line.get("status") == "ok":
        return RegionTime(
            float(line["wall"]), float(line["cpu"]), float(line["warm"]), float(line["restore_seconds"]),
            line.get("kernel"), line.get("faults"), delay=line.get("delay"), warm_cpu=line.get("warm_cpu"),
        )  # fmt: skip
    raise _failure(job, line, scratch)


def _failure(job: RestoreJob, line: dict[str, Any], scratch: Path | None) -> ProbeError:
    status, detail = line.get("status"), str(line.get("detail", ""))
    name = f"phase {job.phase}"
    if status == "restore" and scratch is not None:
        log = scratch / "restore.log"
        if "did not end" in detail:
            quoted = "; ".join(real_errors(read_tail(log)))
            return CriuError(f"{name}: {detail}" + (f"; its last error: {quoted}" if quoted else ""))
        error = failure(f"criu restore of {name}", 1, detail, log)
        return type(error)(str(error).replace(f" (log: {log})", ""))
    if status == "node":
        if line.get("errno") in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return StorageError(f"{name}: the disk is full: {detail}; free some, or set TMPDIR")
        return NodeUnfit(f"{name}: {detail}")
    if status == "killed":
        number = int(line["signal"])
        try:
            known = signal.Signals(number)
            text, cause = known.name, _LIKELY_CAUSES.get(known, "the program sent it to itself, or a limit is set")
        except ValueError:
            text, cause = f"signal {number}", "unknown"
        return PhaseFailed(f"{name}: the restored process was killed by {text}; likely cause: {cause}")
    if status == "exited":
        return PhaseFailed(
            f"{name}: the restored program exited with status {line.get('code')} before its region ended; "
            "it met something that is not as it was at capture (a file, the time, its process number)"
        )
    if status == "waits":
        return PhaseFailed(f"{name}: {detail}; build the probe where the program has one thread, if it can")
    if status == "timeout":
        return PhaseFailed(f"{name}: {detail}; the node is far slower or overloaded, or the program hangs")
    return PhaseFailed(f"{name}: {detail or status}; the program did not repeat the captured run")
