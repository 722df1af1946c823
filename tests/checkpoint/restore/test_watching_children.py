# SPDX-License-Identifier: Apache-2.0
"""The child that watches a phase: it ends with us, whatever of its answer is read."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NoReturn

import pytest

from checkpoint.process.waiting import process_state
from checkpoint.restore.watched_phase import answer_of_child, answering_child

MORE = 1 << 20
"""Bytes: more than a pipe holds."""


def say(writer: int, _parent: int) -> NoReturn:
    try:
        for _ in range(MORE // 4096):
            os.write(writer, bytes(4096))
    finally:
        os._exit(0)


def test_a_child_that_says_more_than_is_read_ends() -> None:
    assert answer_of_child(say) == bytes(MORE)
    assert answer_of_child(say, 1000) == bytes(1000)


def test_a_child_whose_answer_nobody_waits_for_is_ended() -> None:
    children = []

    def sleep(_writer: int, _parent: int) -> NoReturn:
        time.sleep(60)
        os._exit(0)

    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt), answering_child(sleep):
        children += [int(n) for n in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
        raise KeyboardInterrupt
    assert time.monotonic() - begun < 30
    assert children and process_state(children[-1]) == ""
