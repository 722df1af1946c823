# SPDX-License-Identifier: Apache-2.0
"""The agents that restore phases: started, asked, listened to with limits, and ended with all they started."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from checkpoint import strict_json
from checkpoint.errors import PhaseFailed, PrivilegeMissing, ToolMissing

_NAMESPACES = ("--pid", "--mount", "--fork", "--mount-proc", "--kill-child", "--propagation", "private")
_LONGEST_LINE = 1 << 16
_END_SECONDS = 5.0
"""From the end of an agent's output to its own."""


class AgentProcess:
    """A running agent: one line of JSON in at its start, then one per order; one line out each time."""

    def __init__(self, script: Path, spec: dict[str, Any], *, private: bool = True) -> None:
        """`private`: in PID and mount namespaces of its own, which needs root."""
        command = _command(script)
        if private:
            command = ["unshare", *_NAMESPACES, *command]
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
            )
        except FileNotFoundError as error:
            raise ToolMissing("`unshare` is missing: install util-linux") from error
        assert self._process.stdout
        self._reader = _LineReader(self._process.stdout.fileno())
        self._answered = False
        self._send(strict_json.dumps(spec).encode())

    def _send(self, line: bytes) -> None:
        assert self._process.stdin
        # An agent that is gone says why on its standard error, which `answer` reads.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()

    def order(self) -> None:
        """Ask for one repeat."""
        self._send(b"go")

    def answer(self, seconds: float) -> dict[str, Any] | None:
        """The next line; None when the agent has ended or was killed. PhaseFailed after `seconds` of silence."""
        line = self._reader.next_line(seconds)
        if line is not None:
            self._answered = True
            return _parsed(line)
        if self._answered:
            return None
        if self._killed():
            return None
        assert self._process.stderr
        said = os.read(self._process.stderr.fileno(), 2000).decode(errors="replace").strip()
        if "ermission" in said or "not permitted" in said:
            raise PrivilegeMissing(f"namespaces cannot be made here: {said}; run as root")
        raise ToolMissing(f"the restore agent gave no answer: {said or 'no message'}")

    def _killed(self) -> bool:
        """Whether a signal ended the agent, which has closed its output: somebody's doing, and no tool is missing."""
        try:
            return self._process.wait(_END_SECONDS) < 0
        except subprocess.TimeoutExpired:
            return False

    def __enter__(self) -> AgentProcess:
        return self

    def __exit__(self, *_: object) -> None:
        process = self._process
        # Process 1 of the namespace is killed by unshare's --kill-child; the rest dies with it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        # What could not be written is still in the buffer; click takes a broken pipe for one of its own output.
        for stream in (process.stdin, process.stdout, process.stderr):
            assert stream
            with contextlib.suppress(BrokenPipeError):
                stream.close()
        process.wait()


def _command(script: Path) -> list[str]:
    # On a candidate node all our code is in one archive, which starts the agent whose name it is given.
    archive = getattr(globals()["__loader__"], "archive", None)
    if archive is not None:
        return [sys.executable, "-I", archive, script.stem]
    return [sys.executable, "-I", str(script)]


class _LineReader:
    """Lines from a descriptor, each within a time limit and a length."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._buffer = b""

    def next_line(self, timeout: float) -> bytes | None:
        """The next line; None at the end. Raises PhaseFailed after `timeout` seconds of silence."""
        deadline = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            selector.register(self._descriptor, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise PhaseFailed(f"the restore agent was silent for {timeout:g} s")
                data = os.read(self._descriptor, _LONGEST_LINE)
                if not data:
                    return None
                self._buffer += data
                if len(self._buffer) > _LONGEST_LINE:
                    raise PhaseFailed("the restore agent sent an endless line")
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        value = strict_json.loads(line)
    except ValueError as error:
        raise PhaseFailed(f"the restore agent sent no JSON: {line[:100]!r}") from error
    if not isinstance(value, dict):
        raise PhaseFailed(f"the restore agent sent {line[:100]!r}")
    return value
