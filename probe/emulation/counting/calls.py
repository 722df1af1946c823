# SPDX-License-Identifier: Apache-2.0
"""Trace calls that move bytes, by strace: sizes of blocks, and bytes of each socket of whatever protocol.

Each traced call costs the command some microseconds and more. So nothing of it is done unless it is asked for.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import statistics
import subprocess
import threading
import time
from collections import defaultdict
from shutil import which

from checkpoint.process.waiting import status_of

READING = ("read", "pread64", "readv", "preadv", "preadv2", "recvfrom", "recvmsg")
WRITING = ("write", "pwrite64", "writev", "pwritev", "pwritev2", "sendto", "sendmsg", "sendfile")
_ATTACH_SECONDS = 10.0
_END_SECONDS = 20.0
_LOOK_SECONDS = 0.01

_WHOLE = re.compile(r"(\w+)\(\d+<(.*?)>(?:, |\)).* = (\d+)$")
_BEGUN = re.compile(r"(\w+)\(\d+<(.*?)>(?:, .*|\).*| *)<unfinished \.\.\.>$")
_RESUMED = re.compile(r"<\.\.\. (\w+) resumed>.* = (\d+)$")
_SOCKET = re.compile(r"(?:TCP|UDP|UNIX|SCTP|DCCP|NETLINK|socket)\w*-?\w*:\[")
_CONNECTED = re.compile(r"(?:TCP|UDP)\w*:\[.*->(\[[0-9a-fA-F.:]+\]|[0-9.]+):(\d+)\]")


class Calls:
    """What strace's lines say so far. Lines come from one thread, and are asked about by another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun: dict[str, tuple[str, str]] = {}
        # Reading and writing: since the last look, and in the sample before it.
        self._sizes: dict[bool, list[int]] = {True: [], False: []}
        self._before: dict[bool, list[int]] = {True: [], False: []}
        self.besides = ""
        """A process whose calls do not count."""
        self._socket_bytes = {True: 0, False: 0}
        self._ends: dict[tuple[str, int], list[int]] = defaultdict(lambda: [0, 0])

    def take(self, line: str) -> None:
        """One line of `strace -f -yy`: PID CALL(DESCRIPTOR<FILE>, …) = BYTES, or one of the two parts of that."""
        pid, _, said = line.strip().partition(" ")
        said = said.strip()
        if pid == self.besides:
            return
        if begun := _BEGUN.match(said):
            self._begun[pid] = (begun[1], begun[2])
        elif resumed := _RESUMED.match(said):
            name, file = self._begun.pop(pid, ("", ""))
            if name == resumed[1]:
                self._count(name, file, int(resumed[2]))
        elif whole := _WHOLE.match(said):
            self._count(whole[1], whole[2], int(whole[3]))

    def _count(self, name: str, file: str, moved: int) -> None:
        reading = name in READING
        if not moved or not (reading or name in WRITING):
            return
        with self._lock:
            if name != "sendfile":
                self._sizes[reading].append(moved)
            if _SOCKET.match(file):
                self._socket_bytes[reading] += moved
            if end := _CONNECTED.match(file):
                self._ends[end[1].strip("[]"), int(end[2])][not reading] += moved

    def blocks(self, *, last: bool = False) -> tuple[float, float]:
        """Median bytes of the calls that (read, wrote) something since the last time; NaN without any.

        `last`: with those of the time before, for a last look may have come after the end, and is left out then.
        """
        with self._lock:
            now, self._sizes = self._sizes, {True: [], False: []}
            before, self._before = self._before, now
        found = [now[kind] + (before[kind] if last else []) for kind in (True, False)]
        sizes = [float(statistics.median(one)) if one else math.nan for one in found]
        return sizes[0], sizes[1]

    def socket_totals(self) -> tuple[int, int]:
        """Bytes (received, sent) by sockets so far."""
        return self._socket_bytes[True], self._socket_bytes[False]

    def endpoints(self) -> list[tuple[str, int, int, int]]:
        """Other ends of connections: address, port, bytes from and to them; those with the most bytes first."""
        made = [(address, port, got, put) for (address, port), (got, put) in self._ends.items()]
        return sorted(made, key=lambda one: -one[2] - one[3])


class Strace:
    """strace on a process, and on what that starts. Raises OSError with the reason why it does not trace."""

    def __init__(self, pid: int, calls: Calls) -> None:
        program = which("strace")
        if program is None:
            raise OSError("strace is not installed")
        lines, answer = os.pipe()
        words = [program, "-f", "-qqq", "-yy", "-s", "0", "-e", "signal=none", "-e"]
        words += [f"trace=?{',?'.join((*READING, *WRITING))}", "-o", f"/dev/fd/{answer}", "-p", str(pid)]
        try:
            self._tracing = subprocess.Popen(
                words, pass_fds=[answer], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
            )
        finally:
            os.close(answer)
        self._reader = threading.Thread(target=_take_all, args=(lines, calls), daemon=True)
        self._reader.start()
        if not self._attached(pid):
            raise OSError(f"strace may not trace here: {self.end() or 'it did not begin'}"[:400])

    def _attached(self, pid: int) -> bool:
        limit = time.monotonic() + _ATTACH_SECONDS
        while self._tracing.poll() is None and time.monotonic() < limit:
            with contextlib.suppress(OSError):
                if status_of(pid).get("TracerPid") == str(self._tracing.pid):
                    return True
            time.sleep(_LOOK_SECONDS)
        return False

    def wait(self) -> None:
        """Until all that is traced has ended, and every line is taken."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._tracing.wait(_END_SECONDS)
        self.end()

    def end(self) -> str:
        """Have it let go of what it traces. What it complained about; empty the second time."""
        if self._tracing.stderr is None or self._tracing.stderr.closed:
            return ""
        if self._tracing.poll() is None:
            self._tracing.terminate()
        _, said = self._tracing.communicate()
        self._reader.join(_END_SECONDS)
        return " ".join(said.decode(errors="replace").split())[:300]


def _take_all(lines: int, calls: Calls) -> None:
    with open(lines, errors="replace") as file:
        for line in file:
            calls.take(line)
