# SPDX-License-Identifier: Apache-2.0
"""Watchers: what each resource's use is read from. A user may add some (`Watcher`)."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from checkpoint.errors import ToolMissing
from probe.emulation.sockets import Sockets
from probe.emulation.tree import Process, Tree, read
from probe.emulation.usage import AMOUNT, LEVEL, MOST_PROCESSES, Column, Endpoint, ProcessRow


@dataclass(frozen=True)
class Ended:
    """What the supervisor says of the whole command: seconds, bytes; `io` as /proc/PID/io names it."""

    seconds: float
    status: int
    user: float
    kernel: float
    minor: int
    major: int
    peak: float
    left: int
    io: Mapping[str, int] = field(default_factory=dict)


class Watcher:
    """Reads the use of one resource. A subclass gives `look`, and what it needs of the others; all run in one thread.

    columns    what it measures; read again after `begin`, which may put a reason (`Column.missing`) for a source
    begin      called before the first look, with the number of the supervising process
    look       called for each sample: a value for each column. An AMOUNT is counted from the start of the command, and
               never falls; a LEVEL is as of now; NaN where it is not known now
    finish     called once at the end: values that are now known better, of the whole command
    notes      sentences for the profile's header, after `finish`
    give_up    called in any case when all is over, also where the command did not come to its end
    """

    columns: dict[str, Column]

    def begin(self, supervisor: int) -> None:
        """Nothing to prepare."""

    def look(self, tree: Tree) -> Mapping[str, float]:
        raise NotImplementedError

    def finish(self, ended: Ended) -> Mapping[str, float]:
        return {}

    def notes(self) -> Sequence[str]:
        return ()

    def give_up(self) -> None:
        """Nothing to tidy up."""


def _of_all(tree: Tree) -> list[tuple[Process, bool]]:
    """Processes, and whether what they used by themselves counts: not the supervisor's own."""
    top = [(tree.supervisor, False)] if tree.supervisor is not None else []
    return [*top, *((process, True) for process in tree.processes)]


class CpuWatcher(Watcher):
    """CPU time, in user code and in the kernel."""

    def __init__(self) -> None:
        source = "/proc/PID/stat (10 ms), total by wait4"
        self.columns = {name: Column(AMOUNT, "s", source) for name in ("cpu_user", "cpu_kernel")}

    def look(self, tree: Tree) -> Mapping[str, float]:
        used = [process.cpu(own=own) for process, own in _of_all(tree)]
        return {"cpu_user": sum(user for user, _ in used), "cpu_kernel": sum(kernel for _, kernel in used)}

    def finish(self, ended: Ended) -> Mapping[str, float]:
        return {"cpu_user": ended.user, "cpu_kernel": ended.kernel}


class MemoryWatcher(Watcher):
    """Resident memory and page faults."""

    def __init__(self) -> None:
        self.columns = {
            "resident": Column(LEVEL, "B", "/proc/PID/stat, sum of all processes; shared pages count in each"),
            "peak": Column(LEVEL, "B", "/proc/PID/status (VmHWM), largest of one process so far"),
            "faults_minor": Column(AMOUNT, "faults", "/proc/PID/stat, total by wait4"),
            "faults_major": Column(AMOUNT, "faults", "/proc/PID/stat, total by wait4"),
        }
        self._peak, self._looks = 0.0, 0

    def look(self, tree: Tree) -> Mapping[str, float]:
        self._looks += 1
        resident = sum(process.resident for process in tree.processes)
        # At the first look the command's program is only being loaded.
        if self._looks > 1:
            self._peak = max([self._peak, *(_high_water(process.pid) for process in tree.processes)])
        faults = [process.faults(own=own) for process, own in _of_all(tree)]
        return {
            "resident": (self._looks > 1 and resident) or math.nan,
            "peak": self._peak or math.nan,
            "faults_minor": sum(minor for minor, _ in faults),
            "faults_major": sum(major for _, major in faults),
        }

    def finish(self, ended: Ended) -> Mapping[str, float]:
        # A process starts with its parent's: less than the supervisor has (PEAK there) is not known of any other.
        peak = max(self._peak, ended.peak)
        return {"faults_minor": ended.minor, "faults_major": ended.major, "peak": peak or math.nan}


def _high_water(pid: int) -> float:
    for line in read(f"/proc/{pid}/status").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024.0
    return 0.0


_IO = {
    "read": ("rchar", "B"), "written": ("wchar", "B"), "read_calls": ("syscr", "calls"),
    "write_calls": ("syscw", "calls"), "device_read": ("read_bytes", "B"), "device_written": ("write_bytes", "B"),
}  # fmt: skip
"""Column -> (name in /proc/PID/io, unit)."""


class StorageWatcher(Watcher):
    """Bytes by calls of read and write, pipes and sockets included, and by devices; the number of such calls."""

    def __init__(self) -> None:
        self.columns = {column: Column(AMOUNT, unit, f"/proc/PID/io ({name})") for column, (name, unit) in _IO.items()}
        self._first: dict[str, int] = {}
        self._hidden = False

    def begin(self, supervisor: int) -> None:
        self._first = _counters(supervisor)
        if not self._first:
            missing = "/proc/PID/io cannot be read here: the kernel lacks CONFIG_TASK_IO_ACCOUNTING, or hides it"
            self.columns = {name: Column(c.kind, c.unit, "", missing) for name, c in self.columns.items()}

    def look(self, tree: Tree) -> Mapping[str, float]:
        if not self._first:
            return {}
        found = [_counters(process.pid) for process in tree.processes]
        self._hidden |= any(not one for one in found)
        top = _counters(tree.supervisor.pid) if tree.supervisor else {}
        return {
            column: max(0, top.get(name, 0) - self._first[name]) + sum(one.get(name, 0) for one in found)
            for column, (name, _) in _IO.items()
        }

    def finish(self, ended: Ended) -> Mapping[str, float]:
        return {column: ended.io[name] for column, (name, _) in _IO.items() if name in ended.io}

    def notes(self) -> Sequence[str]:
        if not self._hidden:
            return ()
        return (
            "bytes of some processes were counted when they ended and not before: they ended during a look, or belong "
            "to another user",
        )


def _counters(pid: int) -> dict[str, int]:
    words = read(f"/proc/{pid}/io").split()
    return {words[at].rstrip(":"): int(words[at + 1]) for at in range(0, len(words) - 1, 2)}


class ProcessWatcher(Watcher):
    """Processes and threads that there are, and the time they waited for a processor."""

    def __init__(self) -> None:
        self.columns = {
            "processes": Column(LEVEL, "count", "/proc/PID/task/TID/children"),
            "threads": Column(LEVEL, "count", "/proc/PID/stat"),
            "run_queue": Column(AMOUNT, "s", "/proc/PID/schedstat, first threads, as of the last look at each"),
        }
        self._waited: dict[tuple[int, int], float] = {}
        self._rows: dict[tuple[int, int], ProcessRow] = {}

    def begin(self, supervisor: int) -> None:
        if not read(f"/proc/{supervisor}/schedstat"):
            missing = "the kernel lacks CONFIG_SCHED_INFO"
            self.columns["run_queue"] = Column(AMOUNT, "s", "", missing)

    def look(self, tree: Tree) -> Mapping[str, float]:
        for process in tree.processes:
            said = read(f"/proc/{process.pid}/schedstat").split()
            if len(said) == 3:
                self._waited[process.born] = int(said[1]) * 1e-9
            begin = self._rows[process.born].begin if process.born in self._rows else tree.seconds
            self._rows[process.born] = ProcessRow(
                process.pid, _printable(process.name), begin, tree.seconds, process.used
            )
        return {
            "processes": len(tree.processes) or math.nan,
            "threads": sum(process.threads for process in tree.processes) or math.nan,
            "run_queue": sum(self._waited.values()),
        }

    def rows(self) -> list[ProcessRow]:
        """The processes that looks have met."""
        most = sorted(self._rows.values(), key=lambda row: -row.cpu)[:MOST_PROCESSES]
        return sorted(most, key=lambda row: row.begin)


def _printable(name: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in name)


class NetworkWatcher(Watcher):
    """Bytes of TCP connections, and where these lead."""

    def __init__(self) -> None:
        source = "inet_diag (tcp_info), as of the last look at each TCP socket; other protocols are not seen"
        self.columns = {name: Column(AMOUNT, "B", source) for name in ("net_received", "net_sent")}
        self._sockets: Sockets | None = None

    def begin(self, supervisor: int) -> None:
        try:
            self._sockets = Sockets()
        except OSError as error:
            missing = f"the kernel does not tell about sockets (inet_diag): {error.strerror}"
            self.columns = {name: Column(AMOUNT, "B", "", missing) for name in self.columns}

    def look(self, tree: Tree) -> Mapping[str, float]:
        if self._sockets is None:
            return {}
        received, sent = self._sockets.look(tree.pids)
        return {"net_received": received, "net_sent": sent}

    def finish(self, ended: Ended) -> Mapping[str, float]:
        if self._sockets is not None:
            self._sockets.close()
        return {}

    def endpoints(self) -> tuple[Endpoint, ...]:
        """The other ends of all connections seen."""
        return self._sockets.endpoints() if self._sockets is not None else ()


def own_watchers() -> list[Watcher]:
    """Those of /proc and the kernel's sockets, fresh ones for each command."""
    return [CpuWatcher(), MemoryWatcher(), StorageWatcher(), NetworkWatcher(), ProcessWatcher()]


def named_watcher(name: str) -> Watcher:
    """A user's watcher, from `MODULE:CLASS`. Raises ToolMissing where there is none of that name."""
    module, _, kind = name.partition(":")
    try:
        made = getattr(importlib.import_module(module), kind)()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ToolMissing(f"{name}: no watcher: {error}; name one as MODULE:CLASS, on PYTHONPATH") from error
    if not isinstance(made, Watcher):
        raise ToolMissing(f"{name}: not a subclass of probe.emulation.watchers.Watcher")
    return made
