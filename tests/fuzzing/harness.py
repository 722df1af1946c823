# SPDX-License-Identifier: Apache-2.0
"""Run one reader on many changed inputs, in a process of its own with limits, and tell what went wrong."""

from __future__ import annotations

import gc
import hashlib
import mmap
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any, NoReturn

from fuzzing.reader import Reader
from fuzzing.readers import READERS

CORPUS = Path(__file__).with_name("corpus")
"""A folder for each reader: inputs that once went wrong. They are read first, and changed further."""

HANG_SECONDS = 10.0
"""Of processor time for one input, none of which is larger than some hundred kilobytes."""

_MEMORY = 2 << 30
_LEAK_BYTES = 200 << 20
_LEAK_ROUNDS = 500
_LARGEST_KEPT, _LENGTH = 4 << 20, 8
"""Bytes of the file with the input that is being read, and of the number before it."""


class Hangs(BaseException):
    """One input took too long. No Exception: readers must not take it for damage."""


@dataclass
class Outcome:
    """What came of one reader: inputs read, taken and refused; `found`: input and what happened, one of each kind."""

    inputs: int = 0
    taken: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    found: dict[str, tuple[bytes, str]] = field(default_factory=dict)
    last: mmap.mmap | None = None


def corpus_of(reader: Reader) -> list[bytes]:
    folder = CORPUS / reader.name
    return [path.read_bytes() for path in sorted(folder.iterdir())] if folder.is_dir() else []


def fuzz(name: str, seconds: float, seed: int, *, most: int | None = None, last: Path | None = None) -> Outcome:
    """Read the corpus, then changed inputs for so many seconds, or `most` of them. To be run in a process alone.

    `last`: a file that holds each input while it is read, for those that end the process (`read_last`).
    """
    reader, choose = READERS[name], Random(f"{name} {seed}")
    outcome = Outcome(last=_shared(last) if last else None)
    signal.signal(signal.SIGVTALRM, _too_long)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with tempfile.TemporaryDirectory(prefix="probe-fuzz-") as made:
        folder = Path(made)
        for part in ("seeds", "around", "input"):
            (folder / part).mkdir()
        seeds = list(reader.seeds(folder / "seeds"))
        kept = corpus_of(reader)
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY + _address_space(), resource.RLIM_INFINITY))
        with reader.prepared(folder / "around"):
            right = {}
            for number, data in enumerate(seeds):
                right[number] = _whole(reader, data, folder / "input")
            for data in kept:
                _one(reader, data, folder / "input", outcome)
            end, before = time.monotonic() + seconds, (0, set[str]())
            while time.monotonic() < end and (most is None or outcome.inputs < most):
                if outcome.inputs == _LEAK_ROUNDS:
                    before = _held()
                number = choose.randrange(len(seeds))
                data = choose.choice(kept) if kept and choose.random() < 0.1 else seeds[number]
                changed = reader.change(choose, data, seeds)
                gave = _one(reader, changed, folder / "input", outcome)
                if reader.exact and gave is not None and gave not in right.values():
                    _note(outcome, "another result", changed, "it was taken and gives something else")
                if sys.stdout.closed or "ended" in outcome.found:
                    break
            if outcome.inputs > 2 * _LEAK_ROUNDS:
                _look_for_leaks(before, outcome)
    outcome.last = None
    return outcome


def _shared(path: Path) -> mmap.mmap:
    """What is written there stays in the file although the process crashes."""
    with path.open("w+b") as file:
        file.truncate(_LARGEST_KEPT)
        return mmap.mmap(file.fileno(), _LARGEST_KEPT)


def read_last(path: Path) -> bytes:
    """The input that was being read, or was read last; b"" where there was none, or it was very large."""
    held = path.read_bytes() if path.exists() else b""
    return held[_LENGTH : _LENGTH + int.from_bytes(held[:_LENGTH], "little")]


def _whole(reader: Reader, data: bytes, folder: Path) -> Any:
    """What the reader gives of an input that nobody changed. It may end in a refusal that its writer meant."""
    try:
        return reader.read(data, folder)
    except reader.refuses:
        assert not reader.exact
        return None
    finally:
        _empty(folder)


def _one(reader: Reader, data: bytes, folder: Path, outcome: Outcome) -> Any:
    outcome.inputs += 1
    if outcome.last is not None and _LENGTH + len(data) <= _LARGEST_KEPT:
        outcome.last[: _LENGTH + len(data)] = len(data).to_bytes(_LENGTH, "little") + data
    signal.setitimer(signal.ITIMER_VIRTUAL, HANG_SECONDS)
    try:
        gave = reader.read(data, folder)
    except reader.refuses as error:
        outcome.refused[type(error).__name__] += 1
        return None
    except Hangs:
        _note(outcome, "hang", data, f"it took over {HANG_SECONDS:g} s\n{traceback.format_exc()}")
        return None
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        ours = [f for f in traceback.extract_tb(error.__traceback__) if "/fuzzing/" not in f.filename][-1:] or [last]
        kind = f"{type(error).__name__} in {Path(ours[0].filename).name} line {ours[0].lineno}"
        _note(outcome, kind, data, traceback.format_exc())
        return None
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        _empty(folder)
    outcome.taken += 1
    return gave


def _too_long(number: int, frame: FrameType | None) -> NoReturn:
    raise Hangs


def _note(outcome: Outcome, kind: str, data: bytes, said: str) -> None:
    held = outcome.found.get(kind)
    if held is None or len(data) < len(held[0]):
        outcome.found[kind] = data, said


def _empty(folder: Path) -> None:
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            Path(entry.path).unlink()


def _held() -> tuple[int, set[str]]:
    """Resident bytes, and what descriptors lead to."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    opened = set()
    for entry in os.scandir("/proc/self/fd"):
        try:
            opened.add(f"{entry.name} {Path(entry.path).readlink()}")
        except OSError:
            continue
    return pages * resource.getpagesize(), opened


def _look_for_leaks(before: tuple[int, set[str]], outcome: Outcome) -> None:
    size, opened = _held()
    more = {entry for entry in opened - before[1] if "/proc/" not in entry}
    if len(more) > 2:
        _note(outcome, "descriptors", b"", f"still open: {sorted(more)[:20]}")
    if size - before[0] > _LEAK_BYTES:
        _note(outcome, "memory", b"", f"{size - before[0]} bytes more than after {_LEAK_ROUNDS} inputs")


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def keep(reader: str, data: bytes) -> Path:
    """Put an input into the corpus."""
    folder = CORPUS / reader
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / hashlib.sha256(data).hexdigest()[:12]
    path.write_bytes(data)
    return path


def summary(name: str, outcome: Outcome) -> str:
    """One line."""
    refused = ", ".join(f"{kind} {count}" for kind, count in outcome.refused.most_common(3))
    return f"{name:16} {outcome.inputs:9,} inputs  {outcome.taken:9,} taken  refused: {refused or 'none'}"


def names(wanted: Sequence[str]) -> list[str]:
    """The readers asked for, all where none is."""
    unknown = sorted(set(wanted) - READERS.keys())
    if unknown:
        raise SystemExit(f"fuzz: no reader {unknown[0]!r}; there are {', '.join(READERS)}")
    return list(wanted) or list(READERS)
