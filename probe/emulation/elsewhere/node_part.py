# SPDX-License-Identifier: Apache-2.0
"""Emulate on a candidate node: the emulator is built or taken, run, and watched; what it says is passed on.

Sent there and started by probe/emulation/elsewhere/start.py: Python 3.8 and the standard library. This program and the
emulator are in memory alone. Only a compiler needs files, in a folder that is gone before anything is measured.
"""

from __future__ import annotations

import contextlib
import os
import platform
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from checkpoint.errors import NodeBusy, NodeUnfit, ProbeError, ToolMissing
from probe.emulation.load import beside, vanishing_folder
from probe.emulation.room import check_room
from probe.node.facts import available_memory, this_node
from probe.node.machine_lock import measuring_alone
from probe.node.protocol import ALIVE_SECONDS, CHUNK, Input, Lost, encode

VERSION = 1
"""Of the words between prober and this program: docs/node-protocol.md."""

MOST_SOURCE, MOST_PROGRAM, MOST_PLAN = 1 << 20, 1 << 26, 1 << 27
"""Bytes that are taken of a source file, a program, a plan."""

BUILD_SECONDS = 120
_START_SECONDS = 600
_AFTER_SECONDS = 60
_TRY_SECONDS = 10
_MOST_SAID = 1 << 14
_POLL_SECONDS = 0.2


def main(silence: float) -> None:
    """Talk to the prober on standard input and output until an emulation is done, or the prober is gone."""
    # However the prober is lost, and whatever a full pipe waits for: this program ends, and the emulator with it.
    signal.alarm(_START_SECONDS)
    prober = Input(0, silence)
    try:
        _tell(
            event="hello", version=VERSION, node={**this_node(), "machine": platform.machine()},
            memory=available_memory(), compiler=shutil.which("cc") is not None,
            python=platform.python_version(),
        )  # fmt: skip
        _serve(prober)
    except ProbeError as error:
        _tell(event="failed", kind=type(error).__name__, message=str(error))
    except OSError as error:
        _tell(event="failed", kind="StorageError", message=str(error))
    except Lost:
        sys.exit(3)


def _serve(prober: Input) -> None:
    program = None
    while True:
        order = prober.message()
        if order["op"] == "build":
            sources = {name: _taken(prober, size, MOST_SOURCE) for name, size in order["sources"]}
            try:
                program = _built(prober, sources, order["options"])
            except ToolMissing as error:
                _tell(event="not built", message=str(error))
                continue
            _tell(event="ready", blas=_has_blas(program))
        elif order["op"] == "program":
            program = _in_memory(_taken(prober, order["size"], MOST_PROGRAM))
            _tell(event="ready", blas=_has_blas(program))
        elif order["op"] == "emulate" and program is not None:
            plan = _in_memory(_taken(prober, order["size"], MOST_PLAN))
            _emulate(prober, program, plan, order)
            return
        elif order["op"] != "alive":
            raise Lost("an unknown order")


def _tell(**said: Any) -> None:
    data = encode(said)
    while data:
        data = data[os.write(1, data) :]


def _taken(prober: Input, size: int, most: int) -> bytes:
    if not 0 <= size <= most:
        raise Lost("an order of no sensible size")
    pieces: list[bytes] = []
    prober.raw(size, pieces.append)
    return b"".join(pieces)


def _in_memory(data: bytes) -> int:
    """A descriptor of these bytes, from their beginning."""
    descriptor = os.memfd_create("emulation", 0)
    while data:
        data = data[os.write(descriptor, data) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _has_blas(program: int) -> bool:
    """Whether the emulator can execute its kernel dgemm here, and in time: libraries may lie on a hung file system."""
    try:
        tried = subprocess.run(
            ["emulator", "has", "dgemm", "/"], executable=f"/proc/self/fd/{program}", pass_fds=(program,),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=_TRY_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return False
    return tried.returncode == 0


# -- building


def _built(prober: Input, sources: dict[str, bytes], options: list[str]) -> int:
    """The program of these sources, by this node's compiler. Raises ToolMissing."""
    with vanishing_folder() as (folder, _):
        for name, data in sources.items():
            (folder / Path(name).name).write_bytes(data)
        names = [Path(name).name for name in sources if not name.endswith(".h")]
        compiling = subprocess.Popen(
            ["cc", *options, "-o", "emulator", *names], cwd=str(folder), env={**os.environ, "TMPDIR": str(folder)},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        said: list[bytes] = []
        in_time = _watched(prober, compiling, said.append, BUILD_SECONDS)
        if not in_time or compiling.returncode:
            text = b"".join(said)[-_MOST_SAID:].decode(errors="replace").strip()
            raise ToolMissing(text or f"status {compiling.returncode}")
        return _in_memory((folder / "emulator").read_bytes())


# -- running


def _emulate(prober: Input, program: int, plan: int, order: dict[str, Any]) -> None:
    folder = Path(order["folder"]).expanduser()
    with _alone(prober, order["lock_seconds"]):
        check_room(order["resident"], order["written"], folder)
        signal.alarm(int(order["seconds"]) + _AFTER_SECONDS)
        # What is wrong with the load is known when it ends.
        with beside(order["load"], folder):
            done = _run(prober, program, plan, folder, order["seconds"])
        _tell(event="done", node=this_node(), **done)


def _run(prober: Input, program: int, plan: int, folder: Path, seconds: float) -> dict[str, Any]:
    """What is said of the emulator's end."""
    begun = time.monotonic()
    running = subprocess.Popen(
        ["emulator", "run"], executable=f"/proc/self/fd/{program}", pass_fds=(program,), cwd=str(folder),
        stdin=plan, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    passing = _Passing(begun)
    errors: list[bytes] = []
    if not _watched(prober, running, passing.take, seconds, errors.append):
        raise NodeUnfit(f"the emulation was not done within {seconds:.0f} s; give a longer --node-limit")
    text = b"".join(errors)[-_MOST_SAID:].decode(errors="replace")
    return {"status": running.returncode, "errors": text, "start": passing.start}


class _Passing:
    """Passes on whole lines of the emulator, and notes when its first sample begins."""

    def __init__(self, begun: float) -> None:
        self._begun, self._rest, self.start = begun, b"", 0.0

    def take(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if b"begin" in lines:
            self.start = time.monotonic() - self._begun
        if lines:
            _tell(event="said", lines=[line.decode("ascii", "replace") for line in lines])


def _watched(
    prober: Input, process: subprocess.Popen[bytes], take: Callable[[bytes], None], seconds: float,
    take_error: Callable[[bytes], None] = lambda _: None,
) -> bool:  # fmt: skip
    """Whether a process has ended in time; its output is taken meanwhile. It and its children end here in any case.

    Raises Lost where the prober is gone or silent.
    """
    assert process.stdout is not None
    takers = {process.stdout.fileno(): take}
    if process.stderr is not None:
        takers[process.stderr.fileno()] = take_error
    deadline = time.monotonic() + seconds
    heard = told = time.monotonic()
    try:
        while takers:
            now = time.monotonic()
            if now > deadline:
                return False
            if now - heard > prober.silence:
                raise Lost("silent")
            if now - told > ALIVE_SECONDS:
                told = now
                _tell(event="alive")
            ready, _, _ = select.select([0, *takers], [], [], _POLL_SECONDS)
            for descriptor in ready:
                if descriptor == 0:
                    prober.message()
                    heard = time.monotonic()
                    continue
                data = os.read(descriptor, CHUNK)
                if data:
                    takers[descriptor](data)
                else:
                    del takers[descriptor]
        process.wait()
        return True
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


@contextlib.contextmanager
def _alone(prober: Input, seconds: float) -> Iterator[None]:
    """The only measurement on this node's processors. NodeBusy after these seconds."""
    signal.alarm(int(seconds) + _AFTER_SECONDS)
    deadline, told = time.monotonic() + seconds, 0.0
    holders: list[str] = []
    with contextlib.ExitStack() as held:
        while True:
            try:
                held.enter_context(measuring_alone(os.sched_getaffinity(0), wait=0, waiting=holders.append))
                break
            except NodeBusy:
                if time.monotonic() > deadline:
                    raise NodeBusy(
                        f"another measurement is running here ({holders[-1]}) and did not end within {seconds:g} s; "
                        "try again later"
                    ) from None
            if time.monotonic() - told > ALIVE_SECONDS:
                told = time.monotonic()
                _tell(event="waiting", holder=holders[-1])
            if select.select([0], [], [], _POLL_SECONDS)[0]:
                prober.message()
        yield
