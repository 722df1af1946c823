# SPDX-License-Identifier: Apache-2.0
"""Work expressions: the paper's factors, Python's own arithmetic as the oracle, and whatever is no arithmetic."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint.errors import ProbeError
from probe.applications.expression import parse_expression

GEM = parse_expression("ns00*nx00*ny00*nftubes*nstep*(its_stop-its_start+1)")
SIZES = {"ns00": 32, "nx00": 128, "ny00": 128, "nftubes": 8, "nstep": 100, "its_start": 0}


@pytest.mark.parametrize(("its_stop", "factor"), [(3, "5.96046e-10"), (20, "1.13533e-10")])
def test_factors_of_the_paper(its_stop: int, factor: str) -> None:
    """ComPat D4.3, table 2, to its six digits."""
    assert f"{1 / GEM.positive({**SIZES, 'its_stop': its_stop}):.5e}" == factor


names = st.sampled_from(["a", "b", "c"])
leaves = names | st.integers(0, 1000).map(str) | st.floats(0.01, 100).map(repr)
texts = st.recursive(
    leaves,
    lambda inner: (
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", "%"]), inner).map(
            lambda parts: f"({parts[0]} {parts[1]} {parts[2]})"
        )
        | inner.map(lambda text: f"-{text}")
    ),
    max_leaves=20,
)


@given(texts, st.floats(0.5, 50), st.floats(0.5, 50), st.floats(0.5, 50))
def test_values_are_pythons(text: str, a: float, b: float, c: float) -> None:
    given_values = {"a": a, "b": b, "c": c}
    try:
        # Integers become decimals here, as they are in an expression.
        expected = eval(text, {"__builtins__": {}}, given_values)
    except ArithmeticError:
        expected = math.nan
    expression = parse_expression(text)
    assert set(expression.names) <= given_values.keys()
    if not abs(expected) < 1e300:
        with pytest.raises(ProbeError, match="has no value"):
            expression.value(given_values)
    else:
        assert expression.value(given_values) == pytest.approx(expected, rel=1e-12)


def test_functions_and_powers() -> None:
    assert parse_expression("n*log2(n) + max(2, sqrt(n)) + 2**10").value({"n": 16}) == 64 + 4 + 1024


@pytest.mark.parametrize(
    "text",
    [
        "", "n +", "__import__('os').system('true')", "n.real", "n[0]", "[1, 2]", "'text'", "n if n else 1", "n == 1",
        "lambda: 1", "f'{n}'", "open('x')", "n and 1", "print(n)", "log2(n, key=1)", "log2(*n)", "log2()", "True", "~n",
        "n @ n", "n := 3", "1j", "n << 3", "(" * 500 + "n" + ")" * 500, "n+" * 600 + "n", "x" * 3000, "a\0b",
        "1e400", "9" * 400,
    ],
)  # fmt: skip
def test_what_is_no_arithmetic_is_refused(text: str) -> None:
    with pytest.raises(ProbeError):
        parse_expression(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [("n/(n-3)", "has no value"), ("log2(n-4)", "has no value"), ("9**9**9", "has no value"), ("m*n", "needs m"),
     ("(0-n)**0.5", "has no value"), ("sqrt(n, n)", "another number")],
)  # fmt: skip
def test_no_value_is_said(text: str, said: str) -> None:
    with pytest.raises(ProbeError, match=said):
        parse_expression(text).value({"n": 3})


@pytest.mark.parametrize("text", ["n-3", "2-n", "-n"])
def test_no_or_negative_work_is_refused(text: str) -> None:
    with pytest.raises(ProbeError, match="work must be above 0"):
        parse_expression(text).positive({"n": 3})
