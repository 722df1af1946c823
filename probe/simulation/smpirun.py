# SPDX-License-Identifier: Apache-2.0
"""SimGrid as it is installed: its library found, its `smpirun` started and watched, links as the user described them.

The package of the distribution (3.32 in Debian 12) has library, headers and `smpirun`. That of the Python package
index (4.1, built from source) has the library alone, which is enough for engines of our own.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from checkpoint.errors import ModelInvalid, ToolMissing

COMMAND = "smpirun"
STACK_KB = 64
"""Of a simulated rank, which needs little; SimGrid's 8 MB would need 256 GB for 32,768 ranks."""

_AS_DESCRIBED = (
    "--cfg=smpi/bw-factor:0:1",
    "--cfg=smpi/lat-factor:0:1",
    "--cfg=network/TCP-gamma:0",
    "--cfg=network/crosstraffic:0",
)
"""SimGrid's own factors are of a cluster with Ethernet and TCP that was measured once."""

_IN_STEPS = (
    "--cfg=smpi/allreduce:rdb",
    "--cfg=smpi/reduce:binomial",
    "--cfg=smpi/barrier:ompi_recursivedoubling",
)
"""In SimGrid's own collectives one rank waits for every other; here they take log2 of the ranks steps, as in MPI
libraries and as prices say."""

_SMALL = (f"--cfg=contexts/stack-size:{STACK_KB}", "--cfg=contexts/guard-size:0")
"""Without guards neighbouring stacks are one mapping: a process has 65,530 mappings at most."""

_SHOWN = 400


@dataclass(frozen=True)
class Simulated:
    """What `smpirun` printed, and the seconds that it took."""

    printed: str
    wall: float


def installed(command: str) -> str:
    """Path of a command of SimGrid. Raises ToolMissing."""
    found = shutil.which(command)
    if found is None:
        raise ToolMissing(f"{command} is not installed: install SimGrid (Debian's package libsimgrid-dev)")
    return found


def library() -> Path:
    """SimGrid's C library: the distribution's, beside its `smpirun`, else the Python package's. Raises ToolMissing.

    probe/dataflow/native/simgrid_calls.h has what both versions share.
    """
    places = []
    command = shutil.which(COMMAND)
    if command is not None:
        prefix = Path(command).resolve().parents[1]
        places += [prefix / "lib", prefix / "lib64", *sorted(prefix.glob("lib/*-linux-gnu*"))]
    package = importlib.util.find_spec("simgrid")
    if package is not None and package.origin:
        places.append(Path(package.origin).parent)
    found = (sorted(place.glob("libsimgrid.so*")) for place in places)
    first = next((one[0] for one in found if one), None)
    if first is None:
        raise ToolMissing(
            "SimGrid's library is not installed: install Debian's package libsimgrid-dev, or the Python package simgrid"
        )
    return first


def simulated(
    ranks: int, platform: tuple[Path, Path], what: Sequence[str], folder: Path, limit: float,
    heard: Callable[[str], None] = lambda line: None, collectives: Sequence[str] = _IN_STEPS,
) -> Simulated:  # fmt: skip
    """Run `smpirun` on so many ranks. platform: the platform file and the list of hosts. what: its last arguments.

    heard: gets each line as soon as it is printed. collectives: options that choose their algorithms. Raises
    ToolMissing without SimGrid, ModelInvalid where it fails or takes longer than `limit` seconds.
    """
    described, hosts = platform
    command = [
        installed(COMMAND), "-np", str(ranks), "-platform", str(described), "-hostfile", str(hosts), *_SMALL,
        *_AS_DESCRIBED, *collectives, *what,
    ]  # fmt: skip
    begun = time.monotonic()
    status, printed, late = watched(command, folder, limit, heard)
    if late:
        raise ModelInvalid(f"the simulation was not over after {limit:.0f} s: allow more with --limit")
    if status:
        raise ModelInvalid(f"{COMMAND} failed: {_reason(printed)}")
    return Simulated(printed, time.monotonic() - begun)


def _reason(printed: str) -> str:
    """What the program, or SimGrid, says of its end; `smpirun` says what it ran behind that. Else the last words."""
    said = re.findall(r"^probe: (.+)|\[\S+/CRITICAL\] (.+)", printed, re.M)
    return "".join(said[-1])[:_SHOWN] if said else printed[-_SHOWN:].strip()


def watched(
    command: Sequence[str],
    folder: Path,
    limit: float,
    heard: Callable[[str], None],
    given: Path = Path(os.devnull),
    more: Mapping[str, str] | None = None,
) -> tuple[int, str, bool]:
    """(status, output, whether it was ended for its time). The whole group ends with the command, or with us.

    given: file that it has as standard input. more: variables of its environment.
    """
    late = threading.Event()

    def end() -> None:
        late.set()
        _end(process.pid)

    with given.open("rb") as stdin, subprocess.Popen(
        command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        cwd=folder, env={**os.environ, "TMPDIR": str(folder), **(more or {})}, text=True, errors="replace",
    ) as process:  # fmt: skip
        timer = threading.Timer(limit, end)
        timer.start()
        lines = []
        try:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line)
                heard(line)
            process.wait()
        finally:
            timer.cancel()
            _end(process.pid)
    return process.returncode, "".join(lines), late.is_set()


def _end(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
