# SPDX-License-Identifier: Apache-2.0
"""The resource profile (.usage): what one run of a command used over time, and where each figure came from.

A .npz file, readable by numpy alone: a JSON header and an array for each column. `docs/usage-format.md` lists them. A
column without a source is NaN throughout, and its reason is in the header: nothing unknown is ever 0.
"""

from __future__ import annotations

import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from checkpoint import strict_json
from checkpoint.errors import ProbeFileDamaged, StorageError
from probe.formats import checked
from probe.formats.arrays import FloatArray, check_archive, write_arrays

FORMAT_VERSION = 1
MOST_SAMPLES = 1 << 18
MOST_PROCESSES = 1000
_MAGIC = "probe usage"
_UNREADABLE = (
    OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, EOFError, RuntimeError,
    NotImplementedError, MemoryError, zipfile.BadZipFile, zlib.error, SyntaxError, tokenize.TokenError,
)  # fmt: skip

_NAME = checked.text(60, r"[a-z][a-z0-9_]*", "a name of small letters, digits and _")
_MOST_COLUMNS = 1000
_MOST_HEADER = 16 << 20
_OUTSIDE_COLUMNS = ("header", "end")

AMOUNT, LEVEL = "amount", "level"
"""Kinds of columns: used within a sample, or had at its end."""

UNITS = ("s", "B", "calls", "faults", "count", "cycles", "instructions", "operations")


@dataclass(frozen=True)
class Column:
    """A column: `kind` is AMOUNT or LEVEL; `source` says what measured it, `missing` why nothing did. One is empty."""

    kind: str = field(metadata=checked.one_of(AMOUNT, LEVEL))
    unit: str = field(metadata=checked.one_of(*UNITS))
    source: str = field(metadata=checked.text(400))
    missing: str = field(default="", metadata=checked.text(400))

    def flaw(self) -> str:
        return "" if bool(self.source) != bool(self.missing) else "a column has a source, or a reason why it has none"


@dataclass(frozen=True)
class Endpoint:
    """The other end of TCP connections: address, port, and the bytes seen from and to it."""

    address: str = field(metadata=checked.WORD)
    port: int = field(metadata=checked.whole(0, 65535))
    received: float = field(metadata=checked.AMOUNT)
    sent: float = field(metadata=checked.AMOUNT)


@dataclass(frozen=True)
class ProcessRow:
    """One process that looks met: its number, the first and the last time it was there, and its own CPU seconds."""

    pid: int = field(metadata=checked.COUNT)
    name: str = field(metadata=checked.text(100))
    begin: float = field(metadata=checked.AMOUNT)
    end: float = field(metadata=checked.AMOUNT)
    cpu: float = field(metadata=checked.AMOUNT)


@dataclass(frozen=True)
class ProfiledNode:
    """The node of a profile. Bytes, hertz and load average; a highest frequency of 0 is not known."""

    name: str = field(metadata=checked.WORD)
    cpu: str = field(metadata=checked.WORD)
    machine: str = field(metadata=checked.WORD)
    kernel: str = field(metadata=checked.WORD)
    cores: int = field(metadata=checked.whole(1, 1 << 20))
    frequency: float = field(metadata=checked.AMOUNT)
    memory: int = field(metadata=checked.COUNT)
    load: float = field(metadata=checked.AMOUNT)
    file_system: str = field(metadata=checked.WORD)


@dataclass(frozen=True)
class Header:
    """All of a profile but its numbers over time.

    command      its words; a Python callable is named, between < and >
    tags         given by the user; command and tags are the key under which runs are repetitions of each other
    folder       in which it ran
    started      seconds since 1970
    exit_status  of the command; it was not ended by a signal
    kernels      iterations per CPU second of each kernel on the profiled node; empty where they are not known
    notes        what makes the profile less complete, in sentences
    processes    in the order of their beginnings; of very many those with the most CPU time
    """

    command: tuple[str, ...] = field(metadata=checked.many(checked.TEXT, 1))
    tags: dict[str, str] = field(metadata=checked.by_name(checked.WORD, checked.text(1000), 100))
    folder: str = field(metadata=checked.PATH)
    started: float = field(metadata=checked.AMOUNT)
    exit_status: int = field(metadata=checked.whole(0, 255))
    node: ProfiledNode = field(metadata=checked.record(ProfiledNode))
    columns: dict[str, Column] = field(metadata=checked.by_name(_NAME, checked.record(Column), _MOST_COLUMNS))
    endpoints: tuple[Endpoint, ...] = field(metadata=checked.many(checked.record(Endpoint), 0, 100000))
    kernels: dict[str, float] = field(metadata=checked.by_name(checked.WORD, checked.LENGTH, 100))
    notes: tuple[str, ...] = field(metadata=checked.many(checked.text(2000), 0, 1000))
    processes: tuple[ProcessRow, ...] = field(
        default=(), metadata=checked.many(checked.record(ProcessRow), 0, MOST_PROCESSES)
    )


@dataclass(frozen=True)
class Usage:
    """A resource profile of N samples, which follow each other without a gap.

    end     N, seconds from the command's start to the end of each sample; increasing
    values  column name -> N values of its unit; NaN where they are not known
    """

    header: Header
    end: FloatArray = field(repr=False)
    values: Mapping[str, FloatArray] = field(repr=False)

    @property
    def samples(self) -> int:
        return len(self.end)

    @property
    def seconds(self) -> float:
        """Of the whole run."""
        return float(self.end[-1])

    def column(self, name: str) -> FloatArray:
        """N values; NaN throughout where there is no such column."""
        return self.values.get(name, np.full(self.samples, np.nan))

    def total(self, name: str) -> float | None:
        """The sum of an amount, the largest of a level; None where nothing of it is known."""
        known = self.column(name)
        known = known[~np.isnan(known)]
        if not len(known):
            return None
        return float(known.max() if self.header.columns[name].kind == LEVEL else known.sum())


def save_usage(usage: Usage, path: Path) -> None:
    """Write atomically, readable by the owner alone: commands may hold secrets. Raises StorageError."""
    header = {"magic": _MAGIC, "format_version": FORMAT_VERSION, "samples": usage.samples, **asdict(usage.header)}
    arrays = {name: value for name, value in usage.values.items() if not usage.header.columns[name].missing}
    stored = {
        "header": np.frombuffer(strict_json.dumps(header).encode(), dtype=np.uint8),
        "end": usage.end,
        **{f"column_{name}": value for name, value in arrays.items()},
    }
    write_arrays(path, stored, "the resource profile")


def load_usage(path: Path) -> Usage:
    """Read and check a resource profile. Raises ProbeFileDamaged with the reason, StorageError if there is none."""
    try:
        check_archive(path)
        with np.load(path, allow_pickle=False) as stored:
            header = strict_json.loads(bytes(_plain("header", stored["header"], "u")[:_MOST_HEADER]))
            if not isinstance(header, dict) or header.get("magic") != _MAGIC:
                raise ProbeFileDamaged(f"{path}: not a resource profile (.usage); `probe profile` writes them")
            if header["format_version"] != FORMAT_VERSION:
                raise ProbeFileDamaged(
                    f"{path}: resource profile format {str(header['format_version'])[:20]}; this version reads "
                    f"{FORMAT_VERSION}"
                )
            return _from_arrays(header, stored)
    except FileNotFoundError as error:
        raise StorageError(f"{path}: no such resource profile") from error
    except ProbeFileDamaged:
        raise
    except _UNREADABLE as error:
        raise ProbeFileDamaged(
            f"{path}: not a readable resource profile: {error}; profile the command again"
        ) from error


def _from_arrays(said: dict[str, Any], stored: Any) -> Usage:
    header = checked.read(Header, said)
    end = _plain("end", stored["end"])
    samples = said["samples"]
    if type(samples) is not int or not 1 <= samples <= MOST_SAMPLES or len(end) != samples:
        raise ValueError("another number of samples than the header says")
    if not (np.diff(end, prepend=0.0) >= checked.LEAST).all() or not end[-1] <= checked.MOST_SECONDS:
        raise ValueError("its samples go back in time, or do not end")
    values = {}
    for name, column in header.columns.items():
        if column.missing:
            values[name] = np.full(samples, np.nan)
            continue
        found = values[name] = _plain(name, stored[f"column_{name}"])
        if len(found) != samples:
            raise ValueError(f"column {name} has another number of samples")
        known = found[~np.isnan(found) & (found != 0)]
        if len(known) and not (known.min() >= checked.LEAST and known.max() <= checked.MOST_AMOUNT):
            raise ValueError(f"column {name} has values that nothing can use")
    return Usage(header, end, values)


def _plain(name: str, value: Any, kind: str = "f") -> Any:
    """One array of numbers in one dimension, whatever else may be in such a file."""
    sound = isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind == kind
    if not sound or value.dtype.itemsize != (8 if kind == "f" else 1):
        raise ValueError(f"{name} is no array of numbers")
    return value
