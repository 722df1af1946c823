# SPDX-License-Identifier: Apache-2.0
"""Text that nodes send: printable, short, and of a long complaint the end."""

from __future__ import annotations

import base64

from hypothesis import example, given
from hypothesis import strategies as st

from probe.foreign_text import TAIL_BYTES, Tail, printable, printable_end


@given(st.one_of(st.text(), st.binary()), st.integers(1, 100))
def test_text_of_nodes_is_printable_and_short(text: str | bytes, most: int) -> None:
    shown = printable(text, most)
    assert shown.isprintable() and len(shown) <= most + 3


@given(st.text(), st.integers(1, 100))
def test_of_a_long_complaint_the_end_is_shown(text: str, most: int) -> None:
    shown = printable_end(text, most)
    assert shown.isprintable() and len(shown) <= most + 3
    assert printable_end(f"{text}\nValueError:\a no\n", 18).endswith("ValueError: no")
    assert printable_end("Traceback\nValueError: no\n", 16) == "...ValueError: no"
    assert printable_end("\nValueError: no\n", 16) == "ValueError: no"


@example([b"\xe2", b"\x80\x80"])
@given(st.lists(st.binary(max_size=TAIL_BYTES)))
def test_the_end_of_messages_is_kept(parts: list[bytes]) -> None:
    tail = Tail(100)
    for part in parts:
        tail.add(part)
    assert all(c.isprintable() or c in "\n\t" for c in tail.text()) and len(tail.text()) <= 100
    plain = Tail(100)
    for part in parts:
        plain.add(base64.b64encode(part))
    assert plain.text() == b"".join(map(base64.b64encode, parts)).decode()[-100:]


def test_direction_marks_and_escapes_are_taken_out() -> None:
    assert printable("a\x1b[31mb\u202ec\r\nd\u2028e\x07") == "a [31mb c d e"
