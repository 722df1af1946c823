# SPDX-License-Identifier: Apache-2.0
"""Seconds of fuzzing for every reader of foreign bytes, kept inputs first; and that the harness finds what is wrong.

`scripts/fuzz --hours 2` is the same for longer, with other seeds.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from interruption import status_when_told_to_end

from checkpoint.errors import ProbeFileDamaged
from fuzzing import harness
from fuzzing.harness import CORPUS, fuzz, read_last
from fuzzing.mutation import damaged, forged
from fuzzing.reader import Reader
from fuzzing.readers import READERS
from fuzzing.turn import ENVIRONMENT, turn

_SECONDS = 1.5
_FEWEST = 5
"""Inputs that even the slowest reader has read by then on a busy machine, besides the kept ones."""


@pytest.mark.parametrize("name", READERS)
def test_no_input_does_anything_but_be_read_or_refused(name: str) -> None:
    outcome = turn(name, _SECONDS, seed=1)
    assert not outcome.found, "\n".join(f"{kind}: {said}" for kind, (_, said) in outcome.found.items())
    assert outcome.inputs >= _FEWEST


def test_each_kept_input_has_a_reader() -> None:
    assert {folder.name for folder in CORPUS.iterdir()} <= READERS.keys()
    assert sum(path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()) < 1 << 20


def _hang(data: bytes, folder: Path) -> None:
    end = time.process_time() + 60
    while time.process_time() < end:
        pass


def _swallow(data: bytes, folder: Path) -> None:
    with contextlib.suppress(Exception):
        _hang(data, folder)


_opened: list[Any] = []


def _leak(data: bytes, folder: Path) -> None:
    _opened.append((folder / "x").open("wb"))


def _grow(data: bytes, folder: Path) -> None:
    _opened.append(b"x" * (1 << 19))


def _fill(data: bytes, folder: Path) -> None:
    bytearray(1 << 40)


@pytest.mark.parametrize(
    ("read", "found"),
    [
        (lambda data, _: {}[data], "KeyError"), (_hang, "hang"), (_swallow, "hang"), (_leak, "descriptors"),
        (_grow, "memory"), (_fill, "MemoryError"), (lambda data, _: data, "another result"), (lambda data, _: None, ""),
    ],
)  # fmt: skip
def test_what_is_wrong_is_found(
    read: Callable[[bytes, Path], Any], found: str, monkeypatch: pytest.MonkeyPatch, own_places: Path
) -> None:
    monkeypatch.setattr(harness, "HANG_SECONDS", 0.3)
    monkeypatch.setattr(harness.resource, "setrlimit", lambda *_: None)
    first: list[bytes] = []

    def reads(data: bytes, folder: Path) -> Any:
        # What nobody has changed is read well.
        first.append(data)
        return read(data, folder) if len(first) > 1 else data

    reader = Reader("x", lambda _: [b"seed" * 9], reads, (ProbeFileDamaged,), exact=found == "another result")
    monkeypatch.setitem(harness.READERS, "x", reader)
    try:
        outcome = fuzz("x", 20.0, 1, most=1200 if found in ("descriptors", "memory", "") else 5)
    finally:
        for one in _opened:
            if not isinstance(one, bytes):
                one.close()
        _opened.clear()
    assert [kind for kind in outcome.found if kind.startswith(found)] if found else not outcome.found, outcome


def test_a_process_that_ends_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "ended" in turn("no such reader", 0.1, 1).found


def test_the_input_that_ended_a_process_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A crash takes the process along, but not what it was reading."""
    seeds: list[bytes] = []

    def reads(data: bytes, folder: Path) -> None:
        if seeds:
            os.kill(os.getpid(), signal.SIGSEGV)
        seeds.append(data)

    monkeypatch.setitem(harness.READERS, "x", Reader("x", lambda _: [b"seed" * 9], reads, (ProbeFileDamaged,)))
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            tempfile.tempdir = str(tmp_path)
            fuzz("x", 20.0, 1, last=tmp_path / "last")
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGSEGV
    kept = read_last(tmp_path / "last")
    assert kept and kept != b"seed" * 9


def test_a_signal_ends_the_turn_too() -> None:
    command = [sys.executable, "-m", "fuzzing", "--hours", "1", next(iter(READERS))]
    assert status_when_told_to_end(command, ENVIRONMENT) == 128 + signal.SIGTERM


def test_the_same_seed_makes_the_same_inputs() -> None:
    value = {"a": [1, 2, {"b": "c"}], "d": 0.5}
    data = b"0123456789" * 9
    assert damaged(Random(7), data) == damaged(Random(7), data) != data
    assert repr(forged(Random(7), value)) == repr(forged(Random(7), value))
    assert value == {"a": [1, 2, {"b": "c"}], "d": 0.5}
