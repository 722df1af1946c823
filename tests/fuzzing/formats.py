# SPDX-License-Identifier: Apache-2.0
"""Readers of profiles, of members of a probe, of programs, and of points chosen elsewhere."""

from __future__ import annotations

import io
import json
import subprocess
import zipfile
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import scipy.sparse as sp
from made_probe import made_manifest
from made_usage import made_usage

from checkpoint.binary.elf import read_image
from checkpoint.binary.symbols import names_of
from checkpoint.errors import ProbeError
from checkpoint.flow.flow import Calls, Flow, Passed, Point, Window, state_of
from checkpoint.process.program import Program
from fuzzing.mutation import damaged, forged_json
from fuzzing.reader import Reader
from probe.emulation.metrics import usage_json
from probe.emulation.plan import SECONDS, WORK, EmulateOptions, make_plan
from probe.emulation.usage import load_usage, save_usage
from probe.flow import stored
from probe.formats import interval_table, phase_code
from probe.formats.profile import BlockTable, Markers, Profile, load_profile, save_profile
from probe.selection.simpoint import read_points


def _profiles(folder: Path) -> Sequence[bytes]:
    rows = np.array([0, 0, 1, 2, 3, 3])
    counts = sp.csr_array((np.arange(1, 7), (rows, np.array([0, 1, 0, 2, 1, 2]))), shape=(4, 3))
    blocks = BlockTable(
        np.zeros(3, np.int32), np.arange(3), np.arange(3), np.full(3, 9, np.int32), np.full(3, 3, np.int32)
    )
    profile = Profile(
        program=Program(("./solver", "x"), "/usr/bin/solver", "/", env={"A": "1"}), tracer="native", unit="seconds",
        interval=0.05, counts=counts, seconds=np.full(4, 0.05), blocks=blocks, executed=blocks,
        images=(("/usr/bin/solver", "0" * 64),), cpu_seconds=0.2, prologue=0.01, removed_sites=0, installed_sites=3,
        install_seconds=0.1, written=("/tmp/out",),
        markers=Markers(np.array([1, 2]), np.array([0, 1]), np.array([5, 7])),
    )  # fmt: skip
    path = folder / "a.profile"
    save_profile(profile, path)
    return [path.read_bytes()]


def _repacked(choose: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """One array of the profile changed, the archive around it whole."""
    if choose.random() < 0.2:
        return damaged(choose, data, others)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as held:
            members = {name: held.read(name) for name in held.namelist()}
    except Exception:
        return damaged(choose, data, others)
    name = choose.choice(sorted(members))
    content = members[name]
    if name == "header.npy" and choose.random() < 0.8:
        array = np.frombuffer(forged_json(choose, bytes(np.load(io.BytesIO(content)))), dtype=np.uint8)
        made = io.BytesIO()
        np.save(made, array)
        members[name] = made.getvalue()
    elif choose.random() < 0.1:
        del members[name]
    else:
        members[name] = damaged(choose, content)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as held:
        for name, content in members.items():
            held.writestr(name, content)
    return packed.getvalue()


def _profile(data: bytes, folder: Path) -> str:
    (folder / "a").write_bytes(data)
    profile = load_profile(folder / "a")
    # What commands do with it: the numbers they print, and the export.
    return json.dumps(
        [profile.intervals, float(profile.instructions().sum()), float(profile.seconds.sum()), profile.cpu_seconds],
        allow_nan=False,
    )


_RATES = dict.fromkeys(["matrix", "syscalls", "read", "write", "touch"], 1e6)


def _usages(folder: Path) -> Sequence[bytes]:
    save_usage(made_usage(5, _RATES), folder / "a.usage")
    return [(folder / "a.usage").read_bytes()]


def _usage(data: bytes, folder: Path) -> str:
    (folder / "a").write_bytes(data)
    usage = load_usage(folder / "a")
    said = json.dumps(usage_json([("a", usage)]), allow_nan=False)
    for equal in (WORK, SECONDS):
        options = EmulateOptions(equal=equal, keep_waits=True)
        plan = make_plan(usage, options, {**_RATES, **usage.header.kernels})
        assert "nan" not in plan.text(options) and "inf" not in plan.text(options)
    return said


def _tables(folder: Path) -> Sequence[bytes]:
    return [interval_table.encode(made_manifest(3, 20)[1])]


def _table(data: bytes, folder: Path) -> Any:
    table = interval_table.decode(data, "a")
    if table is not None:
        assert np.isfinite(table.coordinates).all() and np.isfinite(table.seconds).all()
    return None


def _codes(folder: Path) -> Sequence[bytes]:
    phase = phase_code.PhaseCode(
        3, 1e6, ((0, 4096, 16, 5e5),), ((0, 4100, 3),), ((1, 7),), True, (("file", "/usr/bin/solver", 10, 4),)
    )
    return [phase_code.encode(phase_code.ProbeCode((("/usr/bin/solver", "0" * 64),), (phase,)))]


def _flows(folder: Path) -> Sequence[bytes]:
    place, words = ("/usr/bin/solver", 4096), np.arange(3, dtype=np.uint64)
    window = Window(words, words, words, np.zeros(3, dtype=np.bool_))
    passed = (Passed(Point(place, 2), 2, state_of({place: 2}), window),)
    flow = Flow({place: 5}, Calls.of([(1, 2, 3)], True), passed, {"/usr/bin/solver": "0" * 64})
    return [stored.encode({3: stored.PhaseFlow(flow, 3), 4: stored.PhaseFlow(None, 0, "it sleeps")})]


_SOURCE = """
static volatile int kept;
__attribute__((noinline)) static int twice(int x) { return 2 * x + kept; }
int main(int argc, char **argv) { (void)argv; for (int i = 0; i < argc; i++) kept += twice(i); return kept; }
"""


def _programs(folder: Path) -> Sequence[bytes]:
    (folder / "a.c").write_text(_SOURCE)
    made = []
    for options in (["-g", "-gdwarf-5"], ["-g", "-gdwarf-4", "-static-pie", "-nostdlib", "-Wl,-e,main"], ["-s"]):
        command = ["cc", "-O1", "-o", str(folder / "a"), str(folder / "a.c"), *options]
        subprocess.run(command, check=True, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True)
        made.append((folder / "a").read_bytes())
    return made


def _program(data: bytes, folder: Path) -> Any:
    path = folder / "a"
    path.write_bytes(data)
    names_of(path, Path("/usr/bin/solver"), [0x1129, 0x1139, 0x1000, 0x401126])
    return len(read_image(str(path)).functions)


def _points(folder: Path) -> Sequence[bytes]:
    return [b"3 0\n17 1\n40 2\n|0.25 0\n0.5 1\n0.25 2\n"]


def _point(data: bytes, folder: Path) -> Any:
    points, _, weights = data.partition(b"|")
    (folder / "a.simpoints").write_bytes(points)
    (folder / "a.weights").write_bytes(weights)
    found = read_points(folder / "a.simpoints", folder / "a.weights")
    assert all(p.interval >= 0 and 0 < p.weight < 1.1 for p in found)
    return None


READERS = (
    Reader("profile", _profiles, _profile, (ProbeError,), change=_repacked),
    Reader("usage", _usages, _usage, (ProbeError,), change=_repacked),
    Reader("interval-table", _tables, _table, (ProbeError,)),
    Reader("flow", _flows, lambda data, _: stored.decode(data) and None, (ProbeError,), change=forged_json),
    Reader("phase-code", _codes, lambda data, _: phase_code.decode(data) and None, (ProbeError,), change=forged_json),
    Reader("program", _programs, _program, (ProbeError,)),
    Reader("simpoint", _points, _point, (ProbeError,)),
)
