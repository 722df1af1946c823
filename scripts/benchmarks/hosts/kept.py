# SPDX-License-Identifier: Apache-2.0
"""The kept probes: programs, inputs, and how each probe was built. The probes lie in data/probes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.hosts.processor import this_processor
from probe import BuildOptions, SelectionOptions, build

ROOT = Path(__file__).resolve().parents[3]
PROBES = ROOT / "data" / "probes"
INDEX = PROBES / "index.json"
FOLDER = Path("/var/tmp/probe-hosts")
"""Programs and inputs, on every machine: a probe holds the paths of its program's files."""

_INTERVAL = 0.02
_PHASES = 8
_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}
_TEXT, _TEXT_REPEATED = 150_000, 5
_TIMES = ("text",) * 80
"""A short text, read often: what a program keeps of it stays small, and so does its probe."""


@dataclass(frozen=True)
class KeptProgram:
    """A program with a kept probe. `package`: the distribution's; empty for a program of data/programs, of which the
    probe's own copy is run in full, whatever compiler a machine has."""

    name: str
    argv: tuple[str, ...]
    kind: str
    package: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def probe(self) -> Path:
        return PROBES / f"{self.name}.probe"

    @property
    def env(self) -> dict[str, str]:
        return {**_ENVIRONMENT, **self.environment}


def _own(name: str, size: str, kind: str) -> KeptProgram:
    return KeptProgram(name, (str(FOLDER / name), size), kind)


KEPT = (
    _own("nbody", "2500", "floating point in the caches"),
    _own("matmul", "1400", "floating point, streams through 16 MB"),
    KeptProgram("gzip", ("/usr/bin/gzip", "-9", "-c", *_TIMES), "integers, branches", "gzip"),
    KeptProgram("perl", ("/usr/bin/perl", "words.pl", *_TIMES), "interpreter, hashes", "perl-base",
                {"PERL_HASH_SEED": "0"}),
    KeptProgram("python3", ("/usr/bin/python3", "objects.py"), "interpreter, small objects", "python3",
                {"PYTHONHASHSEED": "0"}),
    KeptProgram("bc", ("/usr/bin/bc", "-l", "digits.bc"), "long numbers", "bc"),
    KeptProgram("dd", ("/usr/bin/dd", "if=/dev/zero", "of=/dev/null", "bs=16384", "count=5000000", "status=none"),
                "system calls", "coreutils"),
)  # fmt: skip


def make_inputs() -> None:
    """The inputs, by data/make_bench_data.py from its fixed seed and from data/programs: the same on every machine."""
    FOLDER.mkdir(mode=0o755, exist_ok=True)
    if (FOLDER / "text").exists():
        return
    subprocess.run([sys.executable, ROOT / "data" / "make_bench_data.py", FOLDER], check=True)
    with (FOLDER / "small.txt").open("rb") as whole:
        (FOLDER / "text").write_bytes(whole.read(_TEXT) * _TEXT_REPEATED)
    for name in ("words.pl", "objects.py"):
        shutil.copy(ROOT / "data" / "programs" / name, FOLDER / name)
    for name in ("small.txt", "large.txt", "queries.sql", "source.i", "facilities.lp"):
        (FOLDER / name).unlink()


def build_probes(names: Sequence[str], say: Callable[[str], None]) -> None:
    """Build the named probes, or all of them, anew, and note where. Needs root and a quiet machine."""
    make_inputs()
    PROBES.mkdir(exist_ok=True)
    subprocess.run(["make", "-s", "-C", ROOT / "data" / "programs"], check=True)
    index = read_index()
    for program in KEPT:
        if names and program.name not in names:
            continue
        say(f"bench: building the kept probe of {program.name}")
        if not program.package:
            shutil.copy(ROOT / "data" / "programs" / "bin" / program.name, FOLDER / program.name)
        options = BuildOptions(interval=_INTERVAL, selection=SelectionOptions(max_phases=_PHASES))
        built = build(program.argv, program.probe, options=options, cwd=str(FOLDER), env=program.env)
        # Read by everybody: the memory in it is of public programs and made inputs.
        program.probe.chmod(0o644)
        index[program.name] = {"probe": built.manifest.id, "argv": list(program.argv), "built_on": this_processor()}
        INDEX.write_text(json.dumps(index, indent=1) + "\n")


def read_index() -> dict[str, Any]:
    """Of each kept probe, by name: its id, its full command, and the processor it was built on."""
    found: dict[str, Any] = json.loads(INDEX.read_text()) if INDEX.exists() else {}
    return found
