# SPDX-License-Identifier: Apache-2.0
"""Aspen files read: the paper's listings, and every complaint with its file and line."""

from __future__ import annotations

import contextlib
import string
from pathlib import Path

import pytest
from aspen_models import application, written
from hypothesis import given
from hypothesis import strategies as st

from checkpoint.errors import ModelInvalid, ProbeError, StorageError
from probe.models import syntax as s
from probe.models.expressions import Settings, number
from probe.models.reader import read_model

LISTING_1 = """
model example
{
    param nelem = 23
    param wordsize = 8

    kernel main
    {
        execute{flops [8*nelem^3] from Domain as
            simd}
        execute{comm [1] of size [word] as allreduce,
            min}
        execute{comm [nelem] of size [3*word] as nn3d,
            face}
    }
}
"""


def test_the_papers_first_listing(tmp_path: Path) -> None:
    found = application(tmp_path, LISTING_1)
    blocks = found.kernels["main"].body.statements
    assert [use.resource for block in blocks if isinstance(block, s.Execute) for use in block.uses] == [
        "flops", "comm", "comm",
    ]  # fmt: skip
    last = blocks[2]
    assert isinstance(last, s.Execute)
    assert [trait.name for trait in last.uses[0].traits] == ["nn3d", "face"]
    assert last.uses[0].place.line == 13


def test_everything_that_the_language_has(tmp_path: Path) -> None:
    found = application(
        tmp_path,
        """
        model whole {
          param n = 4 in 1..10   // a comment
          param half = n / 2
          data field as Array(n^3, 8)
          kernel inner(param times, data d) { execute [times] "inside" { flops [n] as dp, simd(2) } }
          control main {
            iterate [n] "loop" { call inner(2) inner(3) }
            map [n] { seq { call inner(1) } }
            par { call inner(1) call inner(2) }
            if (n > 2 and not (n == 9)) { call inner(1) } else if (n < 0 or n != 4) { } else { call inner(2) }
            probability [0.25] { call inner(4) } else { call inner(5) }
            switch (n) { case [4] { call inner(6) } case [5] { } default { call inner(7) } }
            sample x from uniform(0, 1)
            param local = x + -n ^ 2 ^ 0.5
            execute { loads [local + 100] of size [word] from field stores [1] to field }
          }
        }
        """,
    )
    assert list(found.kernels) == ["inner", "main"] and found.kernels["inner"].formals == ("times",)
    assert [type(x).__name__ for x in found.kernels["main"].body.statements] == [
        "Repeat", "Repeat", "Beside", "Branch", "Chance", "Switch", "Sample", "Let", "Execute",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2 ^ 3 ^ 2", 512.0), ("-2 ^ 2", -4.0), ("1 - 2 - 3", -4.0), ("8 / 2 / 2", 2.0), ("2 + 3 * 4", 14.0),
        ("(2 + 3) * 4", 20.0), ("1.5e3", 1500.0), ("2 * giga", 2e9), ("max(1, 2, 3) + floor(2.5)", 5.0),
        ("log2(8)", 3.0), ("3. * .5", 1.5),
    ],
)  # fmt: skip
def test_expressions_have_the_usual_precedence(text: str, value: float, tmp_path: Path) -> None:
    source = read_model(written(tmp_path, f"param x = {text}"))
    assert source.parameters[0].value is not None
    assert number(source.parameters[0].value, {}) == pytest.approx(value)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("model m {\n kernel main {\n  execute { flops [1 }\n }\n}", 3, "'}' cannot stand here; expected"),
        ("model m {\n kernel main { }", 2, "the file ends here; expected"),
        ("model m {\n kernel main { }\n}\n?", 4, "cannot stand here"),
        ("model m {\n kernel other { }\n}", 1, "has no kernel main"),
        ("model m { kernel main { }\n kernel main { } }", 2, "main is already defined at"),
        ('include "../other.aspen"', 1, "outside the model's folder"),
        ('include "absent.aspen"', 1, "is no file"),
        ("param x = " + "(" * 200 + "1" + ")" * 200, 1, "brackets inside each other"),
    ],
)
def test_a_complaint_names_its_line(text: str, line: int, words: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ModelInvalid) as refused:
        read_model(path)
    assert str(refused.value).startswith(f"{path}:{line}: ") and words in str(refused.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("param a = b\nparam b = a", "a needs b needs a"),
        ("param a = a", "a needs a"),
        ("param a", "a has no value: --set a=VALUE"),
        ("param a = 1 / 0", "divided by zero"),
        ("param a = 11 in 1..10", "a = 11 is outside of 1..10"),
        ("param a = missing", "missing is not defined"),
        ("param a = sine(1)", "there is no function sine"),
        ("param a = 10 ^ 400", "has no value"),
        ("param a = exp(1000)", "has no value"),
        ("param a = log(0)", "has no value"),
    ],
)
def test_parameters_without_a_value_are_refused(text: str, words: str, tmp_path: Path) -> None:
    source = read_model(written(tmp_path, text))
    with pytest.raises(ModelInvalid) as refused:
        Settings({}).resolve(source.parameters, {})
    assert words in str(refused.value)


def test_settings_take_the_place_of_values_and_of_what_needs_them(tmp_path: Path) -> None:
    source = read_model(written(tmp_path, "param b = a * 2\nparam a = 1 / 0"))
    assert Settings({"a": 3.0}).resolve(source.parameters, {}) == {"a": 3.0, "b": 6.0}


def test_includes_are_followed_once(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "own.aspen").write_text("param a = 1\ncore c { resource flops(n) [n] }")
    both = 'include "parts/own.aspen"\nimport "parts/own.aspen"\nmodel m { kernel main { } }'
    source = read_model(written(tmp_path, both))
    assert list(source.components) == ["c"] and {p.name for p in source.parameters} == {"a"}


def test_files_that_are_no_models(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no such file"):
        read_model(tmp_path / "absent")
    with pytest.raises(StorageError, match="no such file"):
        read_model(Path("/dev/zero"))
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ModelInvalid, match="not text"):
        read_model(tmp_path / "bytes")
    (tmp_path / "large").write_bytes(b" " * 4_000_001)
    with pytest.raises(ModelInvalid, match="not a model"):
        read_model(tmp_path / "large")


@given(text=st.text(alphabet=string.printable, max_size=80))
def test_nonsense_is_refused_or_read(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Never another exception."""
    with contextlib.suppress(ProbeError):
        read_model(written(tmp_path_factory.getbasetemp(), f"model m {{ kernel main {{ {text} }} }}"))
