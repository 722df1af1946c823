# SPDX-License-Identifier: Apache-2.0
"""The resource profile's format: what is written is read; what was damaged or is foreign is refused with the reason."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_usage import made_usage

from checkpoint import strict_json
from checkpoint.errors import ProbeFileDamaged, StorageError
from probe.emulation.usage import AMOUNT, LEVEL, UNITS, Column, Usage, load_usage, save_usage
from probe.formats import checked

RELAXED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,20}", fullmatch=True)


@st.composite
def usages(draw: st.DrawFn) -> Usage:
    samples = draw(st.integers(1, 8))
    numbers = st.one_of(st.sampled_from((float("nan"), 0.0)), st.floats(checked.LEAST, 1e15))
    columns, values = {}, {}
    for name in draw(st.lists(NAMES, max_size=4, unique=True)):
        known = draw(st.booleans())
        said = draw(TEXT.filter(bool))
        kind, unit = draw(st.sampled_from([AMOUNT, LEVEL])), draw(st.sampled_from(UNITS))
        columns[name] = Column(kind, unit, said if known else "", "" if known else said)
        drawn = draw(st.lists(numbers, min_size=samples, max_size=samples))
        values[name] = np.array(drawn) if known else np.full(samples, np.nan)
    steps = draw(st.lists(st.floats(1e-3, 1e3), min_size=samples, max_size=samples))
    header = replace(
        made_usage(1).header,
        command=tuple(draw(st.lists(TEXT, min_size=1, max_size=3))),
        tags=draw(st.dictionaries(TEXT, TEXT, max_size=3)),
        exit_status=draw(st.integers(0, 255)),
        columns=columns,
        notes=tuple(draw(st.lists(TEXT, max_size=3))),
    )
    return Usage(header, np.cumsum(steps), values)


@RELAXED
@given(usages())
def test_what_is_written_is_read(tmp_path: Path, usage: Usage) -> None:
    path = tmp_path / "a.usage"
    save_usage(usage, path)
    read = load_usage(path)
    assert read.header == usage.header
    assert np.array_equal(read.end, usage.end)
    assert read.values.keys() == usage.values.keys()
    assert all(np.array_equal(read.values[name], usage.values[name], equal_nan=True) for name in usage.values)


def test_the_owner_alone_reads_it(tmp_path: Path) -> None:
    save_usage(made_usage(3), tmp_path / "a.usage")
    assert stat.S_IMODE((tmp_path / "a.usage").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["a.usage"]


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="could not be written"):
        save_usage(made_usage(1), tmp_path / "none" / "a.usage")
    with pytest.raises(StorageError, match="no such resource profile"):
        load_usage(tmp_path / "a.usage")


def test_totals_are_sums_of_amounts_and_the_largest_of_levels() -> None:
    usage = made_usage(4)
    assert usage.total("cpu_user") == pytest.approx(4 * 0.04)
    assert usage.total("resident") == 4e6
    assert usage.total("flops") is None
    assert usage.total("nothing_of_that_name") is None
    assert usage.seconds == pytest.approx(0.2)


def changed(tmp_path: Path, header: dict[str, Any] | None = None, **arrays: Any) -> Path:
    """A profile whose header or arrays are others; None takes an array out."""
    path = tmp_path / "a.usage"
    save_usage(made_usage(3), path)
    with np.load(path) as stored:
        whole = dict(stored)
    if header is not None:
        said = strict_json.loads(bytes(whole["header"])) | header
        whole["header"] = np.frombuffer(strict_json.dumps(said).encode(), dtype=np.uint8)
    whole = {name: value for name, value in {**whole, **arrays}.items() if value is not None}
    with path.open("wb") as file:
        np.savez_compressed(file, **whole)
    return path


COLUMN = {"kind": "amount", "unit": "s", "source": "a", "missing": "b"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"header": {"magic": "probe profile"}}, "not a resource profile"),
        ({"header": {"format_version": 2}}, "resource profile format 2; this version reads 1"),
        ({"header": {"samples": 4}}, "another number of samples"),
        ({"header": {"exit_status": 256}}, "exit_status"),
        ({"header": {"columns": {"x": COLUMN}}}, "a column has a source, or a reason"),
        ({"header": {"columns": {"x": {**COLUMN, "missing": ""}}}}, "column_x"),
        ({"end": np.array([0.1, 0.1, 0.2])}, "go back in time"),
        ({"end": np.array([-0.1, 0.1, 0.2])}, "go back in time"),
        ({"end": np.array([0.1, np.nan, 0.2])}, "go back in time"),
        ({"end": np.array([0.1, 0.2, np.inf])}, "go back in time"),
        ({"end": np.array([0.1, 0.2])}, "another number of samples"),
        ({"column_cpu_user": np.array([0.1, -0.1, 0.1])}, "column cpu_user has values that nothing can use"),
        ({"column_cpu_user": np.array([0.1, np.inf, 0.1])}, "column cpu_user has values that nothing can use"),
        # Quotients of such numbers have no bounds.
        ({"column_cpu_user": np.array([0.1, 5e-324, 0.1])}, "column cpu_user has values that nothing can use"),
        ({"end": np.array([5e-324, 0.1, 0.2])}, "go back in time"),
        ({"column_cpu_user": np.array([0.1, 0.1])}, "column cpu_user has another number of samples"),
        ({"column_cpu_user": np.array([1, 2, 3])}, "cpu_user is no array of numbers"),
        ({"column_cpu_user": None}, "column_cpu_user"),
    ],
)
def test_what_no_writer_wrote_is_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(ProbeFileDamaged, match=said):
        load_usage(changed(tmp_path, **change))


@pytest.mark.parametrize("keep", [0, 1, 100, -1])
def test_a_truncated_file_is_refused(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "a.usage"
    save_usage(made_usage(50), path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ProbeFileDamaged, match="not a readable resource profile"):
        load_usage(path)
