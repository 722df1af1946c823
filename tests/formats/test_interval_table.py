# SPDX-License-Identifier: Apache-2.0
"""The probe's table of intervals: written, read back, and refused where it is damaged or of another probe."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from made_probe import changed, made_manifest, made_probe
from small_probe import command, small_probe

from checkpoint.errors import ProbeFileDamaged
from probe.contents.members import principal
from probe.formats.interval_table import (
    MEMBER,
    MOST_COORDINATES,
    IntervalTable,
    decode,
    encode,
    read_intervals,
    size_of,
)
from probe.formats.manifest import Manifest
from reducer.unpack import open_probe


def tables() -> st.SearchStrategy[IntervalTable]:
    shapes = st.tuples(st.integers(0, 40), st.integers(0, MOST_COORDINATES))
    positive = st.floats(0, 2.0**100, width=32)

    def of(shape: tuple[int, int]) -> st.SearchStrategy[IntervalTable]:
        count, width = shape
        times = arrays.arrays(np.float64, count, elements=positive)
        return st.builds(
            IntervalTable,
            arrays.arrays(np.int64, count, elements=st.integers(-1, 2**31 - 1)),
            times,
            times,
            times,
            arrays.arrays(np.float64, (count, width), elements=st.floats(-(2.0**20), 2.0**20, width=32)),
            arrays.arrays(np.float64, width, elements=st.floats(0, 1, width=32)),
        )

    return shapes.flatmap(of)


@given(tables())
def test_round_trip(table: IntervalTable) -> None:
    data = encode(table)
    assert len(data) == size_of(len(table), table.coordinates.shape[1])
    again = decode(data, "a.probe")
    assert again is not None
    for name in ("phases", "seconds", "cpu", "work", "explained"):
        np.testing.assert_array_equal(getattr(again, name), getattr(table, name))
    if table.coordinates.size:
        reach = np.ptp(table.coordinates, axis=0) / 65535 + 1e-6 * np.abs(table.coordinates).max(axis=0)
        assert (np.abs(again.coordinates - table.coordinates) <= reach + 1e-30).all()


@given(st.binary(max_size=300))
def test_no_bytes_do_harm(data: bytes) -> None:
    try:
        decode(data, "a.probe")
    except ProbeFileDamaged as error:
        assert "a.probe: its table of intervals is damaged" in str(error)


@given(st.data())
def test_a_changed_byte_is_refused_or_harmless(data: st.DataObject) -> None:
    whole = bytearray(encode(made_manifest(3, 9)[1]))
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        table = decode(bytes(whole), "a.probe")
    except ProbeFileDamaged:
        return
    if table is not None:
        assert len(table) == 9 and (table.phases >= -1).all()
        assert np.isfinite(table.coordinates).all() and np.isfinite(table.seconds).all()


def test_every_length_but_the_right_one_is_refused() -> None:
    data = encode(made_manifest(3, 9)[1])
    for wrong in [*(data[:n] for n in range(len(data))), data + b"\0"]:
        with pytest.raises(ProbeFileDamaged):
            decode(wrong, "a.probe")


@pytest.mark.parametrize("name", ["seconds", "cpu", "work"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0])
def test_no_such_times(name: str, value: float) -> None:
    table = made_manifest(3, 9)[1]
    values = getattr(table, name).copy()
    values[4] = value
    with pytest.raises(ProbeFileDamaged, match="that is none"):
        decode(encode(replace(table, **{name: values})), "a.probe")


def test_no_such_phase() -> None:
    table = made_manifest(3, 9)[1]
    with pytest.raises(ProbeFileDamaged, match="a phase that is none"):
        decode(encode(replace(table, phases=np.where(table.phases == 1, -2, table.phases))), "a.probe")


def test_a_later_version_is_left_alone() -> None:
    assert decode(struct.pack("<IIII", 2, 9, 9, 9) + b"whatever", "a.probe") is None


def read(path: Path) -> IntervalTable | None:
    with open_probe(path) as archive:
        return read_intervals(archive, Manifest.from_json(archive.manifest), str(path))


def test_a_probe_without_one(tmp_path: Path) -> None:
    assert read(made_probe(tmp_path / "old.probe", made_manifest(3, 9)[0])) is None


def test_a_table_of_another_probe_is_refused(tmp_path: Path) -> None:
    manifest, table = made_manifest(3, 9)
    with pytest.raises(ProbeFileDamaged, match="it has 9 intervals, the probe 10"):
        read(made_probe(tmp_path / "a.probe", changed(manifest, timing__intervals=10), table))
    with pytest.raises(ProbeFileDamaged, match="interval 1 does not belong to phase 1"):
        read(
            made_probe(
                tmp_path / "b.probe", manifest, replace(table, phases=np.where(table.phases == 1, 2, table.phases))
            )
        )


def test_a_table_that_is_too_large_is_not_unpacked(tmp_path: Path) -> None:
    manifest, _ = made_manifest(3, 9)
    path = made_probe(tmp_path / "large.probe", manifest, **{MEMBER: bytes(30_000_000)})
    with pytest.raises(ProbeFileDamaged, match="it claims 30000000 bytes"):
        read(path)


def test_principal_coordinates_keep_what_varies() -> None:
    rng = np.random.default_rng(3)
    points = rng.normal(size=(500, 15)) * np.array([5.0, 3.0, *[0.0] * 13])
    turned = points @ np.linalg.qr(rng.normal(size=(15, 15)))[0]
    coordinates, explained = principal(turned)
    assert coordinates.shape == (500, MOST_COORDINATES) and (np.diff(explained) <= 0).all()
    assert explained[:2].sum() == pytest.approx(1.0)
    apart, before = (np.linalg.norm(p[:-1] - p[1:], axis=1) for p in (coordinates, points))
    np.testing.assert_allclose(apart, before, atol=1e-9)
    np.testing.assert_allclose(principal(turned)[0], coordinates)
    assert principal(np.ones((4, 15)))[1].sum() == 0


@pytest.mark.slow
def test_a_real_probe_has_its_own(builds: Path, tmp_path: Path) -> None:
    probe = small_probe(builds).path
    table = read(probe)
    assert table is not None
    with open_probe(probe) as archive:
        manifest = Manifest.from_json(archive.manifest)
    times = np.maximum(table.cpu if manifest.reference.clock == "cpu" else table.seconds, 1e-9)
    for phase in manifest.phases:
        mine = table.phases == phase.id
        assert mine.sum() == phase.intervals
        assert times[mine].sum() / times.sum() == pytest.approx(phase.time_share, rel=1e-4)
        assert table.work[mine].sum() / table.work.sum() == pytest.approx(phase.weight, rel=1e-4)
    assert 0 < table.explained[0] <= 1
    command("trim", probe, "-o", tmp_path / "one.probe", "--phases", "1")
    trimmed = read(tmp_path / "one.probe")
    assert trimmed is not None and len(trimmed) == len(table)
