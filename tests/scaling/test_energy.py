# SPDX-License-Identifier: Apache-2.0
"""Energy: the integral against sums by hand, counters that wrap in a tree like the kernel's, and a stand-in ipmitool.

The hardware behind powercap and IPMI is not here: these tests prove the formulas and the reading, not the watts.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from published import schema_errors

from checkpoint.errors import NotInStore, ProbeError, ToolMissing
from probe.cli.main import cli
from probe.scaling.energy import integral, of_power, watts
from probe.scaling.meters import _ACCOUNTING, Meter, Unmeasured, consumed, watts_by_ipmi, zones
from probe.store.opening import open_store
from probe.store.runs import NodePower, set_power, stored_power

POWER = NodePower("haswell", 24, ((0.0, 100.0), (0.5, 220.0), (1.0, 300.0)), "hand", 0.0)


def test_power_is_straight_between_points() -> None:
    assert [watts(POWER, load) for load in (0.0, 0.25, 0.5, 0.75, 1.0)] == [100, 160, 220, 260, 300]


def test_the_integral() -> None:
    """10 s idle, a rise of 10 s to half load, 10 s at half."""
    assert integral(POWER, [0, 10, 20, 30], [0, 0, 0.5, 0.5]) == pytest.approx(1000 + 1600 + 2200)


def test_whole_nodes_and_the_share_of_cores() -> None:
    """36 cores fill a node and half of another one, whose idle half is not theirs."""
    found = of_power(POWER, 36, 10.0)
    assert found.whole == pytest.approx((300 + 220) * 10)
    assert found.share == pytest.approx((300 + 50 + 120) * 10)
    assert found.source == "hand"


@given(st.integers(1, 1 << 40), st.data())
def test_a_counter_that_wraps(largest: int, data: st.DataObject) -> None:
    before = data.draw(st.integers(0, largest))
    spent = data.draw(st.integers(0, largest))
    after = (before + spent) % (largest + 1)
    assert consumed(before, after, largest) == spent


@pytest.mark.parametrize("values", [(-1, 5, 10), (5, 11, 10), (11, 5, 10)])
def test_a_counter_that_lies(values: tuple[int, int, int]) -> None:
    with pytest.raises(Unmeasured, match=r"the counter says -?\d+ and \d+, and its largest value is 10"):
        consumed(*values)


def zone(folder: Path, path: str, name: str, value: int, largest: int = 1_000_000) -> Path:
    place = folder / path
    place.mkdir(parents=True)
    (place / "name").write_text(f"{name}\n")
    (place / "energy_uj").write_text(f"{value}\n")
    (place / "max_energy_range_uj").write_text(f"{largest}\n")
    return place


def says(place: Path, value: int) -> None:
    """In one step, as the kernel has it: never an empty file."""
    (place / "next").write_text(f"{value}\n")
    (place / "next").replace(place / "energy_uj")


def test_a_meter_over_powercap(tmp_path: Path) -> None:
    """Packages and memory count, cores inside a package do not; one counter wraps while it is read."""
    first = zone(tmp_path, "intel-rapl:0", "package-0", 900_000)
    second = zone(tmp_path, "intel-rapl:1", "package-1", 10)
    zone(tmp_path, "intel-rapl:0:0", "core", 5)
    memory = zone(tmp_path, "intel-rapl:0:1", "dram", 50)
    (tmp_path / "intel-rapl:2").mkdir()
    assert [one.path.name for one in zones(tmp_path)] == ["intel-rapl:0", "intel-rapl:0:1", "intel-rapl:1"]
    with Meter(tmp_path, ("false",), poll_seconds=0.01) as meter:
        says(first, 100_000)
        deadline = time.monotonic() + 30
        while not meter._total and time.monotonic() < deadline:
            time.sleep(0.01)
        for place, value in ((first, 950_000), (second, 500_010), (memory, 100_050)):
            says(place, value)
    assert meter.source == "powercap" and [one.source for one in meter.passed_over] == ["accounting"]
    assert meter.joules == pytest.approx((200_001 + 850_000 + 500_000 + 100_000) / 1e6)


def test_counters_that_two_drivers_show_count_once(tmp_path: Path) -> None:
    """As with intel-rapl-mmio beside intel-rapl; a processor of two dies has a counter for each of them."""
    for driver in ("intel-rapl-mmio", "intel-rapl"):
        zone(tmp_path, f"{driver}:0", "package-0-die-0", 1)
        zone(tmp_path, f"{driver}:0:0", "dram", 1)
    zone(tmp_path, "intel-rapl:1", "package-0-die-1", 1)
    zone(tmp_path, "intel-rapl:1:0", "dram", 1)
    zone(tmp_path, "intel-rapl:2", "psys", 1)
    found = ["intel-rapl:0", "intel-rapl:0:0", "intel-rapl:1", "intel-rapl:1:0"]
    assert [one.path.name for one in zones(tmp_path)] == found


def test_a_counter_that_goes_away_or_lies_is_half_a_measurement(tmp_path: Path) -> None:
    """No joules, rather than too few, and no thread that waits."""
    place = zone(tmp_path, "intel-rapl:0", "package-0", 900)
    with Meter(tmp_path, ("false",), poll_seconds=0.01) as meter:
        says(place, 1_000_001)
    assert (meter.joules, meter.source) == (None, "")
    said = f"while it was read: {place}: the counter says 900 and 1000001, and its largest value is 1000000"
    assert [(one.source, one.reason) for one in meter.passed_over][1:] == [("powercap", said)]
    says(place, 900)
    with Meter(tmp_path, ("false",), poll_seconds=0.01) as meter:
        (place / "energy_uj").unlink()
    assert meter.joules is None and "No such file" in meter.passed_over[1].reason


def test_why_there_are_no_counters(tmp_path: Path) -> None:
    with pytest.raises(Unmeasured, match="has no counter of a processor"):
        zones(tmp_path / "none")
    place = zone(tmp_path, "intel-rapl:0", "package-0", 1)
    (place / "energy_uj").unlink()
    (place / "energy_uj").mkdir()
    with pytest.raises(Unmeasured, match="intel-rapl:0: Is a directory; the kernel lets root alone read its counters"):
        zones(tmp_path)


def test_this_machine() -> None:
    """Whatever it has: joules by a named source, or a reason for each."""
    with Meter() as meter:
        sum(range(100_000))
    passed = [one.source for one in meter.passed_over]
    assert passed == ["accounting", "powercap", "ipmi"][: passed.index(passed[-1]) + 1]
    assert (meter.source, meter.joules) == ("", None) if "ipmi" in passed else (meter.joules or 0) >= 0
    assert all(one.reason for one in meter.passed_over)


def ipmitool(folder: Path, text: str) -> tuple[str, ...]:
    script = folder / "ipmitool"
    script.write_text(f"#!/bin/sh\nprintf '{text}'\n")
    script.chmod(0o755)
    return (str(script), "dcmi", "power", "reading")


def test_a_meter_over_ipmi(tmp_path: Path) -> None:
    command = ipmitool(tmp_path, "\\n    Instantaneous power reading:                   214 Watts\\n")
    assert watts_by_ipmi(command) == 214
    begun = time.monotonic()
    with Meter(tmp_path, command, poll_seconds=0.02) as meter:
        time.sleep(0.2)
    assert meter.source == "ipmi" and "has no counter of a processor" in meter.passed_over[1].reason
    assert 214 * 0.2 <= (meter.joules or 0) <= 214 * (time.monotonic() - begun)


def test_a_controller_that_falls_silent(tmp_path: Path) -> None:
    """Some answers may be missing; what was measured before many of them is no measurement of the whole."""
    command = ipmitool(tmp_path, "Instantaneous power reading: 100 Watts")
    with Meter(tmp_path, command, poll_seconds=1000.0) as meter:
        ipmitool(tmp_path, "busy")
    assert meter.source == "ipmi" and (meter.joules or 0) > 0
    ipmitool(tmp_path, "Instantaneous power reading: 100 Watts")
    with Meter(tmp_path, command, poll_seconds=0.001) as meter:
        ipmitool(tmp_path, "gone")
        deadline = time.monotonic() + 60
        while meter.source and time.monotonic() < deadline:
            time.sleep(0.01)
    assert meter.joules is None and meter.passed_over[-1].reason.endswith("names no power: gone")


@pytest.mark.parametrize("text", ["", "DCMI request failed", "Instantaneous power reading: many Watts"])
def test_a_controller_without_a_sensor(tmp_path: Path, text: str) -> None:
    with pytest.raises(Unmeasured, match=f"names no power: {text or 'it printed nothing'}"):
        watts_by_ipmi(ipmitool(tmp_path, text))
    with Meter(tmp_path / "none", ipmitool(tmp_path, text)) as meter:
        pass
    assert (meter.joules, meter.source) == (None, "")
    assert [one.source for one in meter.passed_over] == ["accounting", "powercap", "ipmi"]
    with pytest.raises(Unmeasured, match="missing: No such file"):
        watts_by_ipmi((str(tmp_path / "missing"),))


def test_the_most_trusted_source_goes_first(tmp_path: Path) -> None:
    with open_store(tmp_path / "store.db") as store:
        set_power(store, "haswell", 24, [(0, 90), (1, 310)], "hand")
        set_power(store, "haswell", 24, [(1, 300), (0, 100)], "powercap")
        set_power(store, "haswell", 24, [(0, 95), (1, 305)], "hand")
        found = stored_power(store, "haswell")
        assert [(one.source, one.points[0][1]) for one in found] == [("powercap", 100), ("hand", 95)]
        with pytest.raises(NotInStore, match="no power of 'skylake'"):
            stored_power(store, "skylake")
        for points in ([(0, 90)], [(0, 90), (0, 91), (1, 300)], [(0, -1), (1, 300)], [(0, 90), (1, float("nan"))]):
            with pytest.raises(ProbeError):
                set_power(store, "haswell", 24, points, "hand")


def test_commands(tmp_path: Path) -> None:
    store = ["--store", str(tmp_path / "store.db")]
    run = CliRunner().invoke
    entered = ["energy", "set", "haswell", "--cores", "24", "--idle", "100", "--full", "300", "--point", "50%=220"]
    done = run(cli, [*entered, "--json", *store])
    assert schema_errors("probe-energy-set", json.loads(done.stdout)) == []
    shown = run(cli, ["energy", "show", "--json", *store])
    assert schema_errors("probe-energy-show", json.loads(shown.stdout)) == []
    assert json.loads(shown.stdout)["power"][0]["points"][1] == {"load": 0.5, "watts": 220.0}
    zone(tmp_path / "cap", "intel-rapl:0", "package-0", 1)
    measured = run(cli, ["energy", "measure", "--seconds", "0.1", "--powercap", str(tmp_path / "cap"), "--json"])
    said = json.loads(measured.stdout)
    assert schema_errors("probe-energy-measure", said) == [] and said["source"] == "powercap" and said["joules"] == 0
    assert said["passed_over"] == [{"source": "accounting", "reason": _ACCOUNTING.reason}]
    nowhere = ["energy", "measure", "--seconds", "0.1", "--powercap", str(tmp_path / "none")]
    refused = run(cli, nowhere, env={"PATH": str(tmp_path)})
    assert isinstance(refused.exception, ToolMissing)
    assert str(refused.exception).endswith(
        f"powercap: {tmp_path}/none has no counter of a processor; a virtual machine has none, nor have many "
        "processors; ipmi: ipmitool: No such file or directory); enter watts with `probe energy set`"
    )
