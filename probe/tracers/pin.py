# SPDX-License-Identifier: Apache-2.0
"""The Pin tracer: every instruction counted by Intel's Pin, with a kit that the user has fetched.

The tool in `pintools/pin` is built at first use with the kit's own makefiles, and once more for another kit. No kit is
downloaded or part of this project. It was never run with a real one here: see `pintools/README.md`.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from checkpoint.compiled import own_programs
from checkpoint.errors import PrivilegeMissing, ToolMissing
from checkpoint.process.exit_status import exit_status, refuse_failed
from checkpoint.process.maps import FOREIGN_PREFIXES
from checkpoint.process.plain_run import PlainRun, run_plain
from checkpoint.process.program import Program, Streams
from checkpoint.run_command import run_group
from probe.formats.choices import PIN
from probe.tracers.exact import (
    SLACK,
    TEMPORARY,
    client_command,
    refuse_others,
    refuse_unwritten,
    trace_with,
)
from probe.tracers.joining import MOST_INTERVALS
from probe.tracers.stream import Recorded, read_stream

ROOT_VARIABLE = "PIN_ROOT"
MAJOR_VERSIONS = (3, 4)

_SOURCES = Path(__file__).parents[2] / "pintools"
_TOOL = Path("obj-intel64") / "probe_tool.so"
_KIT_FILES = ("pin", "source/include/pin/pin.H", "source/tools/Config/makefile.config")
_VERSION_SECONDS, _BUILD_SECONDS = 30, 300


@dataclass(frozen=True)
class Kit:
    """An unpacked kit: its folder, and its version such as 3.30-98830-1d7b601b3."""

    root: Path
    version: str

    @property
    def command(self) -> str:
        return str(self.root / "pin")


def find_pin() -> Kit:
    """The kit that PIN_ROOT names, else that of the `pin` in PATH. Raises ToolMissing with the reason."""
    given = os.environ.get(ROOT_VARIABLE, "")
    found = shutil.which("pin")
    if not given and found is None:
        raise ToolMissing(
            "Pin is not installed: fetch its kit for Linux from Intel, unpack it and set PIN_ROOT to its folder; or "
            "use --tracer valgrind"
        )
    root = Path(given) if given else Path(found or "").resolve().parent
    missing = [name for name in _KIT_FILES if not (root / name).is_file()]
    if missing:
        raise ToolMissing(
            f"{root}: not a kit of Pin, {', '.join(missing)} is missing; set PIN_ROOT to the folder of an unpacked kit"
        )
    try:
        done = subprocess.run([root / "pin", "-version"], capture_output=True, text=True, timeout=_VERSION_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolMissing(f"{root / 'pin'} does not run: {error}") from error
    version = re.search(r"pin-((\d+)\.\d\S*)", done.stdout + done.stderr)
    if not version:
        raise ToolMissing(f"{root / 'pin'} does not tell its version: {(done.stdout + done.stderr).strip()[:200]}")
    if int(version[2]) not in MAJOR_VERSIONS:
        raise ToolMissing(f"{root}: Pin {version[1]} is of another kind; fetch a kit of Pin 3 or 4")
    return Kit(root.absolute(), version[1])


def build_tool(kit: Kit) -> Path:
    """The tool, built with this kit: another kit, or another version of it, gets its own. Raises ToolMissing."""
    parts = [_SOURCES / "collector", _SOURCES / PIN]
    digest = hashlib.sha256(f"{kit.root}\0{kit.version}".encode())
    for part in parts:
        for source in sorted(part.iterdir()):
            digest.update(source.read_bytes())
    digest.update((kit.root / "source/include/pin/pin.H").read_bytes())
    kept = own_programs() / f"pin-tool-{digest.hexdigest()[:16]}.so"
    if kept.is_file():
        return kept
    try:
        kept.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=kept.parent) as made:
            for part in parts:
                shutil.copytree(part, Path(made) / part.name)
            # Silent: what it says is what went wrong, from the first error on.
            command = ["make", "-s", "-C", str(Path(made) / PIN), f"PIN_ROOT={kit.root}", "dir", str(_TOOL)]
            status, said = run_group(command, _BUILD_SECONDS, environment={**os.environ, "TMPDIR": made})
            if status:
                raise ToolMissing(
                    f"building the tool with Pin {kit.version} ({kit.root}) failed: {said.strip()[:2000]}"
                )
            (Path(made) / PIN / _TOOL).replace(kept)
    except FileNotFoundError as error:
        raise ToolMissing(f"building the tool for Pin needs make and a C++ compiler: {error}") from error
    except subprocess.TimeoutExpired as error:
        raise ToolMissing(f"building the tool for Pin did not end within {_BUILD_SECONDS} s") from error
    except OSError as error:
        raise ToolMissing(f"the tool for Pin cannot be built: {error}") from error
    return kept


def record(
    program: Program,
    *,
    interval: int,
    streams: Streams,
    cpu: int | None = None,
    look: Callable[[int], None] | None = None,
) -> tuple[Recorded, PlainRun]:
    """Run `program` once under Pin: what the tool recorded, and what the run took. Raises as `trace_with`."""
    kit = find_pin()
    tool = build_tool(kit)
    with tempfile.TemporaryDirectory(prefix=TEMPORARY, dir=streams.stdout.parent) as made:
        stream = Path(made) / "stream"
        options = [
            "-follow_execv", "-logfile", f"{made}/pin.log", "-t", str(tool), "-stream", str(stream),
            "-interval", str(interval), "-slack", str(round(interval * SLACK)),
            "-most_intervals", str(MOST_INTERVALS), "-foreign", ",".join(FOREIGN_PREFIXES), "--",
        ]  # fmt: skip
        under = replace(program, executable=kit.command, argv=("pin", *options, *client_command(program)))
        run = run_plain(under, streams, environment=program.environment(), cpu=cpu, look=look)
        recorded = read_stream(stream) if stream.exists() else None
    return _whole(program, kit, recorded, run.status, streams), run


trace = partial(trace_with, record, tracer=PIN)
"""Run a program once under Pin: its profile."""


def _whole(program: Program, kit: Kit, recorded: Recorded | None, status: int, streams: Streams) -> Recorded:
    """What was recorded, if the run came to its end. Pin and its tool speak on standard error."""
    said = streams.stderr.read_text(errors="replace")
    refuse_unwritten(recorded, status, streams)
    if recorded is None and "ptrace" in said:
        raise PrivilegeMissing(
            f"Pin {kit.version} may not attach to the program: allow it with `sysctl kernel.yama.ptrace_scope=0`, or "
            f"as root; it said: {_last(said)}"
        )
    if recorded is None:
        raise ToolMissing(f"{program.argv[0]}: Pin {kit.version} did not start it; it said: {_last(said)}")
    refuse_others(program, recorded.ending)
    code = exit_status(program, status, streams)
    if recorded.ending is None:
        refuse_failed(program, code, streams)
        raise ToolMissing(f"{program.argv[0]}: Pin {kit.version} left no whole trace; it said: {_last(said)}")
    return recorded


def _last(said: str) -> str:
    return " | ".join(said.strip().splitlines()[-4:])[-400:]
