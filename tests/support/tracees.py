# SPDX-License-Identifier: Apache-2.0
"""A traced process of one test program."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tracing import program_of, streams_of

from checkpoint.process.tracee import Tracee


@contextmanager
def started(path: Path, *arguments: str) -> Iterator[Tracee]:
    with streams_of() as streams, Tracee.start(program_of(path, *arguments), streams) as tracee:
        yield tracee
