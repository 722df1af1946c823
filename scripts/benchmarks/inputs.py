# SPDX-License-Identifier: Apache-2.0
"""Programs by make, inputs by their scripts; nothing is made twice."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.programs import OWN

SCRIPTS = OWN.parents[1]
FEW_MODELS = 4


@dataclass(frozen=True)
class _Maker:
    """A script of data/, the file it makes last, and commands that prepare what it made."""

    script: str
    last: str
    commands: Sequence[Sequence[str]] = ()
    then: Callable[[Path], None] = field(default=lambda _: None)


def _few_models(data: Path) -> None:
    """The first of the profile models, for a search of seconds."""
    models = (data / "families.hmm").read_text().split("//\n")
    (data / "few.hmm").write_text("".join(f"{model}//\n" for model in models[:FEW_MODELS]))


BENCH = _Maker("make_bench_data.py", "source.i")
HMMER = _Maker(
    "make_hmmer_data.py", "few.hmm",
    [["hmmbuild", "--cpu", "0", "--amino", "-o", os.devnull, "families.hmm", "families.sto"]], _few_models,
)  # fmt: skip
MEDIA = _Maker(
    "make_media_data.py", "argon.tpr",
    [
        ["bwa", "index", "genome.fa"],
        ["gmx", "grompp", "-f", "argon.mdp", "-c", "argon.gro", "-p", "argon.top", "-o", "argon.tpr", "-maxwarn", "9"],
    ],
)  # fmt: skip


def make_programs(data: Path) -> None:
    """The programs of data/programs, and an empty folder `data` where there is none."""
    subprocess.run(["make", "-s", "-C", str(OWN.parent)], check=True)
    data.mkdir(parents=True, exist_ok=True)


def make_inputs(data: Path, *, media: bool, say: Callable[[str], None]) -> None:
    """Everything the programs read, in `data`; with `media` also what `scripts/bench accuracy` alone needs."""
    make_programs(data)
    for maker in (BENCH, HMMER, *([MEDIA] if media else [])):
        script, stamp = SCRIPTS / maker.script, data / f".{maker.script}.made"
        if stamp.exists() and stamp.stat().st_mtime >= script.stat().st_mtime and (data / maker.last).exists():
            continue
        say(f"bench: making inputs with {maker.script}")
        subprocess.run([sys.executable, str(script), str(data)], check=True)
        for command in maker.commands:
            subprocess.run(command, cwd=data, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        maker.then(data)
        stamp.touch()


_BEGINNINGS = (
    ("medium.txt", "large.txt", 24_000_000, b"\n"),
    ("tiny.txt", "small.txt", 6_000_000, b"\n"),
    ("few-proteins.fa", "proteins.fa", 19_500, b"\n>"),
    ("small-database.fa", "database.fa", 8_000_000, b"\n>"),
)
_FEW_DIGITS = "scale = 1800\n4 * a(1/5) * 4 - 4 * a(1/239)\nscale = 450\nfor (i = 1; i < 24; i++) e(1/i) * l(1 + 1/i)\n"


def make_short_inputs(data: Path) -> None:
    """Beginnings of the inputs in `data`, up to the end of a record, for programs of a second or two."""
    for name, source, size, end in _BEGINNINGS:
        whole = (data / source).read_bytes()
        (data / name).write_bytes(whole[: whole.index(end, size) + 1])
    (data / "few-digits.bc").write_text(_FEW_DIGITS)
