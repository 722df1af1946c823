# SPDX-License-Identifier: Apache-2.0
"""The Valgrind tracer: every instruction counted, several times slower than the program itself.

The tool in `pintools/valgrind` is built at first use against the Valgrind that is installed, and once more when that
changes. It runs as a program of its own; what it recorded becomes a profile in `probe.tracers.exact`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from iced_x86 import Code, Decoder

from checkpoint.compiled import built
from checkpoint.errors import ProgramUnsupported, ToolMissing
from checkpoint.process.exit_status import exit_status, refuse_failed
from checkpoint.process.maps import FOREIGN_PREFIXES
from checkpoint.process.plain_run import PlainRun, run_plain
from checkpoint.process.program import Program, Streams
from probe.formats.choices import VALGRIND
from probe.tracers.exact import (
    SLACK,
    TEMPORARY,
    client_command,
    refuse_others,
    refuse_unwritten,
    trace_with,
)
from probe.tracers.joining import MOST_INTERVALS
from probe.tracers.stream import Ending, Recorded, read_stream

_SOURCES = Path(__file__).parents[2] / "pintools"
_PLATFORM = "amd64-linux"
_OPTIONS = (
    "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-fno-builtin", "-fno-stack-protector", "-fno-strict-aliasing",
    "-fno-pie", "-no-pie", "-DVGA_amd64=1", "-DVGO_linux=1", "-DVGP_amd64_linux=1", "-DVGPV_amd64_linux_vanilla=1",
    f"-I{_SOURCES / 'collector'}",
    # A Valgrind tool has no C library, and lies where no program's own code does.
    "-static", "-nodefaultlibs", "-nostartfiles", "-u", "_start", "-Wl,--build-id=none",
    "-Wl,-Ttext-segment=0x58000000",
)  # fmt: skip
_ARCHIVES = (f"libcoregrind-{_PLATFORM}.a", f"libvex-{_PLATFORM}.a", f"libgcc-sup-{_PLATFORM}.a")
_PRELOADED = f"vgpreload_core-{_PLATFORM}.so"
_WRITABLE = ("--smc-check=all", "--writable-code=yes")
_VERSION_SECONDS = 30
_INSTRUCTION_BYTES = 15


@dataclass(frozen=True)
class Installation:
    """An installed Valgrind: its command, version, headers, archives to link with, and the files a tool needs."""

    command: str
    version: str
    headers: Path
    archives: tuple[Path, ...]
    support: Path


def find_valgrind() -> Installation:
    """The Valgrind that `PATH` names. Raises ToolMissing where it, or the parts to build tools with, are missing."""
    command = shutil.which("valgrind")
    if command is None:
        raise ToolMissing("valgrind is not installed: install the package valgrind, or run `probe doctor --fix`")
    try:
        done = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=_VERSION_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolMissing(f"{command} does not run: {error}") from error
    version = re.search(r"valgrind-(\S+)", done.stdout)
    if done.returncode or not version:
        raise ToolMissing(f"{command} does not run: {(done.stderr or done.stdout).strip()[:300]}")
    prefix = Path(command).resolve().parents[1]
    folders = [prefix / part / "valgrind" for part in ("lib/x86_64-linux-gnu", "libexec", "lib", "lib64")]
    headers, archives = prefix / "include" / "valgrind", _holding(folders, _ARCHIVES)
    support = _holding(folders, (_PRELOADED, "default.supp"))
    if archives is None or support is None or not (headers / "pub_tool_basics.h").is_file():
        raise ToolMissing(
            f"Valgrind {version[1]} ({command}) comes without what its tools are built with (pub_tool_basics.h, "
            f"{', '.join(_ARCHIVES)}): install the distribution's own package valgrind (valgrind-devel)"
        )
    return Installation(command, version[1], headers, tuple(archives / name for name in _ARCHIVES), support)


def _holding(folders: Iterable[Path], names: Iterable[str]) -> Path | None:
    return next((f for f in folders if all((f / name).is_file() for name in names)), None)


def build_tool(installation: Installation) -> Path:
    """The tool, built against this Valgrind: its archives are part of the version kept. Raises ToolMissing."""
    collector = _SOURCES / "collector"
    sources = [_SOURCES / VALGRIND / "probe_tool.c", *sorted(collector.glob("*.[ch]")), *installation.archives]
    try:
        return built("valgrind-tool", sources, (*_OPTIONS, "-isystem", str(installation.headers)), libraries=("-lgcc",))
    except OSError as error:
        raise ToolMissing(f"the Valgrind tool cannot be built: {error}") from error


def record(
    program: Program,
    *,
    interval: int,
    streams: Streams,
    cpu: int | None = None,
    look: Callable[[int], None] | None = None,
) -> tuple[Recorded, PlainRun]:
    """Run `program` under Valgrind: what the tool recorded, and what the run took. Raises as `trace_with`.

    Once; a program that makes its own code writable is run again, with Valgrind looking for changes at each block.
    """
    installation = find_valgrind()
    options = [
        "--command-line-only=yes", "--tool=probe", "--vgdb=no", "--trace-children=yes", f"--interval={interval}",
        f"--slack={round(interval * SLACK)}", f"--most-intervals={MOST_INTERVALS}",
        f"--foreign={','.join(FOREIGN_PREFIXES)}",
    ]  # fmt: skip
    with tempfile.TemporaryDirectory(prefix=TEMPORARY, dir=streams.stdout.parent) as made:
        folder = Path(made)
        for path in (installation.support / _PRELOADED, installation.support / "default.supp"):
            (folder / path.name).symlink_to(path)
        (folder / f"probe-{_PLATFORM}").symlink_to(build_tool(installation))
        recorded, run, said = _run(program, installation, folder, options, streams, cpu, look)
        if recorded is not None and recorded.ending is Ending.CODE_WRITABLE:
            recorded, run, said = _run(program, installation, folder, [*options, *_WRITABLE], streams, cpu, look)
    return _whole(program, installation, recorded, run.status, said, streams), run


def _run(
    program: Program, installation: Installation, folder: Path, options: list[str], streams: Streams, cpu: int | None,
    look: Callable[[int], None] | None,
) -> tuple[Recorded | None, PlainRun, str]:  # fmt: skip
    """One run, with the tool in `folder`: what it recorded, what the run took, and what Valgrind said."""
    stream, log = folder / "stream", folder / "log"
    argv = ("valgrind", *options, f"--log-file={log}", f"--stream={stream}", "--", *client_command(program))
    under = replace(program, executable=installation.command, argv=argv)
    environment = {**program.environment(), "VALGRIND_LIB": str(folder)}
    run = run_plain(under, streams, environment=environment, cpu=cpu, look=look)
    said = log.read_text(errors="replace") if log.exists() else ""
    if run.status:
        _check_log(program, installation, said, streams)
    return read_stream(stream) if stream.exists() else None, run, said


trace = partial(trace_with, record, tracer=VALGRIND)
"""Run a program once under Valgrind: its profile."""


def _check_log(program: Program, installation: Installation, said: str, streams: Streams) -> None:
    """After a run that failed: raise what Valgrind says of it, rather than what the program made of it."""
    if unknown := re.search(r"unhandled instruction bytes: ((?:0x[0-9A-F]+ ?)+)", said):
        code = bytes(int(byte, 16) for byte in unknown[1].split())
        raise ToolMissing(
            f"{program.argv[0]}: Valgrind {installation.version} does not know the instruction {_named(code)} that it "
            "uses; trace with --tracer native, or compile the program without it"
        )
    if "for platform 'x86-linux'" in streams.stderr.read_text(errors="replace"):
        raise ProgramUnsupported(f"{program.argv[0]}: goes on as a 32-bit program; only x86-64 programs can be probed")


def _named(code: bytes) -> str:
    """An instruction in words and bytes."""
    instruction = Decoder(64, code[:_INSTRUCTION_BYTES]).decode()
    if instruction.code == Code.INVALID:
        return f"`{code.hex(' ')}`"
    return f"`{instruction}` ({code[: instruction.len].hex(' ')})"


def _whole(
    program: Program, installation: Installation, recorded: Recorded | None, status: int, said: str, streams: Streams
) -> Recorded:
    """What was recorded, if the run came to its end."""
    refuse_unwritten(recorded, status, streams)
    if recorded is not None:
        refuse_others(program, recorded.ending)
    code = exit_status(program, status, streams)
    if recorded is None or recorded.ending is None:
        refuse_failed(program, code, streams)
        last = " | ".join(line.partition("== ")[2] for line in said.splitlines()[-4:])
        raise ToolMissing(
            f"{program.argv[0]}: Valgrind {installation.version} left no whole trace; it said: {last[-400:]}"
        )
    return recorded
