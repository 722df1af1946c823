# SPDX-License-Identifier: Apache-2.0
"""Sample what a command uses, from its start to its end, into a resource profile."""

from __future__ import annotations

import errno
import math
import os
import platform
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from checkpoint.errors import ProbeError, ProgramFailed, ProgramNotRunnable, StorageError
from checkpoint.process.exit_status import signal_name
from probe.emulation import supervisor
from probe.emulation.counted import CallWatcher, CounterWatcher
from probe.emulation.kernels import all_rates
from probe.emulation.mixing import MixWatcher, spread_mix
from probe.emulation.tree import look, read
from probe.emulation.usage import AMOUNT, Column, Header, ProfiledNode, Usage
from probe.emulation.watchers import Ended, NetworkWatcher, ProcessWatcher, Watcher, own_watchers
from probe.node.facts import this_node

MOST_RATE = 20.0
"""Samples a second."""

MOST_COST = 0.01
"""Share of the time that looking may take: beyond, samples are further apart."""

MOST_KEPT = 20000
"""Samples: beyond, every other is left out, and they are twice as far apart from then on."""

_STARTING_SECONDS = 60.0


class _Command:
    """The supervisor of a command, and what it has said so far."""

    def __init__(self, pid: int, said: int, go: int) -> None:
        self.pid, self._said, self._go = pid, said, go
        self._text = ""
        self.status: int | None = None

    def wait(self, seconds: float) -> bool:
        """Whether there is more to come; returns early when something was said."""
        if select.select([self._said], [], [], max(0.0, seconds))[0]:
            data = os.read(self._said, 1 << 16)
            self._text += data.decode()
            return bool(data)
        return True

    def more(self, name: str, limit: float) -> None:
        """Wait for what it says next, until that time. Raises ProgramFailed where nothing comes."""
        if not self.wait(limit - time.monotonic()) or time.monotonic() > limit:
            raise ProgramFailed(f"{name}: what was to start it has ended or hangs; see what it said above")

    def line(self, word: str) -> list[str]:
        """The words behind `word` in the line that begins with it; empty if there is none."""
        whole = self._text.rpartition("\n")[0].splitlines()
        return next((line.split()[1:] for line in whole if line.startswith(f"{word} ")), [])

    def lines(self, word: str) -> list[list[str]]:
        return [line.split()[1:] for line in self._text.splitlines() if line.startswith(f"{word} ")]

    def begin(self) -> None:
        """Let the supervisor start the command."""
        os.write(self._go, b"g")

    def end(self) -> None:
        """End everything below the supervisor, and it."""
        os.close(self._said)
        os.close(self._go)
        if self.status is None:
            os.kill(self.pid, signal.SIGTERM)
            self.status = os.waitpid(self.pid, 0)[1]

    def ended(self) -> Ended:
        seconds, status, user, kernel, minor, major, peak, left = self.line("ended")
        return Ended(
            float(seconds) - float(self.line("started")[0]), int(status), float(user), float(kernel), int(minor),
            int(major), _known_peak(float(peak)), int(left), {name: int(value) for name, value in self.lines("io")},
        )  # fmt: skip


def _known_peak(peak: float) -> float:
    """A process's largest resident set as wait4 has it; 0 where that may be what it was born with, its parent's."""
    return peak if peak > 1.2 * _supervisor_size() else 0.0


def _supervisor_size() -> float:
    own = re.search(r"^VmHWM:\s+(\d+) kB", read("/proc/self/status"), re.MULTILINE)
    return int(own[1]) * 1024.0 if own else math.inf


def profile_usage(
    command: Sequence[str] | Callable[[], object],
    tags: Mapping[str, str] | None = None,
    *,
    rate: float = MOST_RATE,
    watchers: Sequence[Watcher] = (),
    stdout: int | None = None,
    kernels: bool = False,
    trace_calls: bool = False,
) -> Usage:
    """Run a command, or a Python function in a process of its own, and profile what it uses.

    rate      samples a second, at most MOST_RATE; fewer where looking takes long or the run does
    watchers  further ones beside those of `own_watchers`
    stdout    descriptor that replaces the command's standard output
    kernels   also calibrate the emulator's kernels, after the command: other nodes need their rates
    trace_calls  have strace say sizes of blocks and bytes of sockets; the command takes longer then

    Raises ProgramNotRunnable where it cannot be started, ProgramFailed where a signal ends it, ProbeError for bad tags.
    """
    words = _words(command)
    _check_tags(tags or {})
    if not 0 < rate <= MOST_RATE:
        raise ProbeError(f"{rate:g} samples a second: more than 0 and at most {MOST_RATE:g} can be taken")
    # What samples instructions follows what is started from here on.
    calls = CallWatcher(trace_calls)
    mix = [MixWatcher()] if kernels else []
    all_watchers = [*own_watchers(), CounterWatcher(), calls, *mix, *watchers]
    node, started = _node(), time.time()
    running = _start_function(command) if callable(command) else _start(words, stdout)
    try:
        series, ended = _watch(running, words[0], all_watchers, rate)
        _refuse_killed(words[0], ended.status)
        # Watchers are asked for their totals while their counters are still open.
        columns, values, end = _table(series, all_watchers, ended)
        notes = _notes(all_watchers, ended)
    finally:
        running.end()
        for watcher in all_watchers:
            watcher.give_up()
    spread_mix(values)
    rates, unrated = _rates() if kernels else ({}, ())
    header = Header(
        command=words, tags=dict(tags or {}), folder=str(Path.cwd()), started=started,
        exit_status=os.waitstatus_to_exitcode(ended.status), node=node, columns=columns,
        endpoints=calls.endpoints() or tuple(
            e for w in all_watchers if isinstance(w, NetworkWatcher) for e in w.endpoints()
        ),
        processes=tuple(row for w in all_watchers if isinstance(w, ProcessWatcher) for row in w.rows()),
        kernels=rates, notes=(*notes, *unrated),
    )  # fmt: skip
    return Usage(header, end, values)


def _words(command: Sequence[str] | Callable[[], object]) -> tuple[str, ...]:
    if callable(command):
        return (f"<{getattr(command, '__module__', '')}.{getattr(command, '__qualname__', repr(command))}>",)
    words = tuple(command)
    if not words or not all(isinstance(word, str) and "\0" not in word for word in words):
        raise ProbeError("a command is one word or more, none of them with a NUL")
    if shutil.which(words[0]) is None:
        raise ProgramNotRunnable(f"{words[0]}: no such command, or not executable; give its path")
    return words


def _check_tags(tags: Mapping[str, str]) -> None:
    for name, value in tags.items():
        if not re.fullmatch(r"[^=\0]{1,200}", name) or len(value) > 1000 or "\0" in value:
            raise ProbeError(f"tag {name[:40]!r}: a tag is NAME=VALUE, of at most 200 and 1000 characters")


def _start(words: Sequence[str], stdout: int | None) -> _Command:
    """Start the supervisor as a small program of its own, so that the command begins with little memory of ours."""
    (said, answer), (heard, go) = os.pipe(), os.pipe()
    try:
        numbers = map(str, (answer, heard, os.getpid()))
        command = [sys.executable, "-I", "-S", supervisor.__file__, *numbers, *words]
        pid = subprocess.Popen(command, pass_fds=[answer, heard], stdout=stdout).pid
    finally:
        os.close(answer)
        os.close(heard)
    return _Command(pid, said, go)


def _start_function(function: Callable[[], object]) -> _Command:
    parent = os.getpid()
    (said, answer), (heard, go) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(go)
        _leave(lambda: supervisor.supervise(lambda: _forked(function, answer), answer, heard, parent))
    os.close(answer)
    os.close(heard)
    return _Command(pid, said, go)


def _forked(function: Callable[[], object], answer: int) -> int:
    pid = os.fork()
    if pid == 0:
        os.close(answer)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)
        _leave(function)
    return pid


def _leave(function: Callable[[], object]) -> None:
    """Call it and end this process; nothing of the parent's is cleaned up twice."""
    status = 1
    try:
        function()
        status = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


_Values = dict[str, list[float]]
_Series = tuple[list[float], _Values]


def _watch(running: _Command, name: str, watchers: Sequence[Watcher], rate: float) -> tuple[_Series, Ended]:
    """Look until the command has ended. Returns (seconds, column -> values) and what the supervisor says at the end."""
    limit = time.monotonic() + _STARTING_SECONDS
    while not running.line("ready"):
        running.more(name, limit)
    for watcher in watchers:
        watcher.begin(running.pid)
    running.begin()
    limit = time.monotonic() + _STARTING_SECONDS
    while not running.line("started"):
        if failed := running.line("failed"):
            number = int(failed[0])
            hint = " (no interpreter named in its first line?)" if number == errno.ENOEXEC else ""
            raise ProgramNotRunnable(f"{name}: {os.strerror(number)}{hint}")
        running.more(name, limit)
    series = _sampled(running, watchers, rate)
    while running.wait(_STARTING_SECONDS):
        pass
    _, running.status = os.waitpid(running.pid, 0)
    if not running.line("ended"):
        raise ProgramFailed(f"{name}: its supervisor was killed; nothing is known of how it ended")
    return series, running.ended()


def _sampled(running: _Command, watchers: Sequence[Watcher], rate: float) -> _Series:
    begun = float(running.line("started")[0])
    times: list[float] = []
    seen: _Values = {column: [] for watcher in watchers for column in watcher.columns}
    interval, due = 1.0 / rate, time.monotonic()
    while not running.line("ended") and _alive(running):
        cost = _look(running.pid, watchers, times, seen, begun)
        if len(times) >= MOST_KEPT:
            _thin(times, seen)
            interval *= 2
        due = max(due + interval, time.monotonic() + cost * (1 / MOST_COST - 1))
        while (left := due - time.monotonic()) > 0 and not running.line("ended") and running.wait(left):
            pass
    return times, seen


def _alive(running: _Command) -> bool:
    return os.waitid(os.P_PID, running.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None


def _look(pid: int, watchers: Sequence[Watcher], times: list[float], seen: _Values, begun: float) -> float:
    """One sample of everything. Returns the CPU seconds that looking took."""
    before = time.thread_time()
    tree = look(pid)
    now = time.monotonic() - begun
    if tree.supervisor is not None and now > (times[-1] if times else 0.0):
        times.append(now)
        tree = replace(tree, seconds=now)
        for watcher in watchers:
            found = watcher.look(tree)
            for column in watcher.columns:
                seen[column].append(float(found.get(column, math.nan)))
    return time.thread_time() - before


def _thin(times: list[float], seen: _Values) -> None:
    for values in (times, *seen.values()):
        del values[::2]


def _table(
    series: _Series, watchers: Sequence[Watcher], ended: Ended
) -> tuple[dict[str, Column], dict[str, np.ndarray], np.ndarray]:
    """Columns, their values, and the ends of the samples: the last one is that of the command, with its totals."""
    times, seen = series
    kept = sum(one < ended.seconds for one in times)
    # The first look comes at once, and has hardly anything in it.
    first = 1 if kept > 1 else 0
    end = np.array([*times[first:kept], ended.seconds])
    columns, values = {}, {}
    for watcher in watchers:
        last = watcher.finish(ended)
        for name, column in watcher.columns.items():
            read_off = np.array([*seen[name][first:kept], last.get(name, math.nan)])
            whole = seen[name][-1] if seen[name] else math.nan
            columns[name] = column
            if column.missing:
                values[name] = np.full(len(end), math.nan)
            elif column.kind == AMOUNT:
                values[name] = _differences(read_off, whole)
            else:
                values[name] = _levels(read_off)
            if not column.missing and np.isnan(values[name]).all():
                columns[name] = replace(column, source="", missing="the command ended before anything was seen of it")
    return columns, values, end


def _differences(counted: np.ndarray, whole: float) -> np.ndarray:
    """What was used in each sample, from what was counted since the start; `whole`: the last count there is."""
    if math.isnan(counted[-1]):
        counted[-1] = whole
    if math.isnan(counted[-1]):
        return np.full(len(counted), math.nan)
    # A process that nobody has waited for yet is missing from one look; counts in ticks are rounded.
    known = np.where(np.isnan(counted), 0.0, counted)
    return np.diff(np.minimum(np.maximum.accumulate(known), known[-1]), prepend=0.0)


def _levels(had: np.ndarray) -> np.ndarray:
    """Levels, each unknown one as the one before it, or behind it at the beginning."""
    known = np.flatnonzero(~np.isnan(had))
    if not len(known):
        return had
    return had[known[np.maximum(np.searchsorted(known, np.arange(len(had)), side="right") - 1, 0)]]


def _refuse_killed(name: str, status: int) -> None:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        raise ProgramFailed(
            f"{name} was killed by signal {number} ({signal_name(number)}); a resource profile needs a run that ends "
            "by itself"
        )


def _notes(watchers: Sequence[Watcher], ended: Ended) -> tuple[str, ...]:
    notes = [note for watcher in watchers for note in watcher.notes()]
    if ended.left:
        notes.append(
            f"{ended.left} processes were still there {supervisor.GRACE:g} s after the command, and were ended"
        )
    return tuple(notes)


def _rates() -> tuple[dict[str, float], tuple[str, ...]]:
    """(rates of the emulator's kernels, notes): a profile is of use without them."""
    try:
        return all_rates(), ()
    except (ProbeError, OSError) as error:
        return {}, (f"kernels were not calibrated, and other nodes cannot emulate equal work: {error}",)


def _node() -> ProfiledNode:
    here = this_node()
    memory = re.search(r"^MemTotal:\s+(\d+) kB", read("/proc/meminfo"), re.MULTILINE)
    return ProfiledNode(
        name=here["name"], cpu=here["cpu"], machine=platform.machine(), kernel=here["kernel"], cores=here["cores"],
        frequency=_frequency(), memory=int(memory[1]) << 10 if memory else 0, load=here["load"],
        file_system=file_system(Path.cwd()),
    )  # fmt: skip


def _frequency() -> float:
    """Hertz, the highest of the first processor; 0 if unknown."""
    most = read("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq").strip()
    if most.isdigit():
        return float(most) * 1000
    found = [float(one) * 1e6 for one in re.findall(r"^cpu MHz\s*:\s*([\d.]+)$", read("/proc/cpuinfo"), re.MULTILINE)]
    return max(found, default=0.0)


def file_system(folder: Path) -> str:
    """Type of the file system that a folder is on, such as ext4; "" if unknown."""
    try:
        number = folder.stat().st_dev
    except OSError as error:
        raise StorageError(f"{folder}: {error.strerror}") from error
    wanted = f"{os.major(number)}:{os.minor(number)}"
    for line in reversed(read("/proc/self/mountinfo").splitlines()):
        words = line.split()
        if len(words) > 4 and words[2] == wanted and " - " in line:
            return line.partition(" - ")[2].split()[0]
    return ""
