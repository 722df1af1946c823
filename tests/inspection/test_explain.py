# SPDX-License-Identifier: Apache-2.0
"""Explanations of phases: names for code, the probe's member about it, and `probe explain` on a real probe."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import PHASED, build, symbols
from small_probe import SmallProbe, command, small_probe

from checkpoint.binary.symbols import names_of
from checkpoint.binary.syscall_names import call_name
from checkpoint.errors import ProbeFileDamaged
from checkpoint.flat.image import NAME
from checkpoint.flat.image import decode as decode_image
from probe.formats.manifest import Manifest
from probe.formats.phase_code import NO_FILE, PhaseCode, ProbeCode, decode, encode
from reducer.repacking import Kept, repack
from reducer.unpack import open_probe

# -- names


@pytest.fixture(scope="module")
def debugged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """sorter with DWARF."""
    path = tmp_path_factory.mktemp("debugged") / "sorter"
    subprocess.run(["gcc", "-g", "-O1", "-o", str(path), str(PHASED / "sorter.c"), "-lm"], check=True)
    return path


def by_binutils(program: Path, addresses: list[int]) -> list[tuple[str, int]]:
    """(file, line) of each address, as addr2line has it."""
    done = subprocess.run(
        ["addr2line", "-e", str(program), *map(hex, addresses)], check=True, capture_output=True, text=True
    )
    found = [line.split(" (")[0].rsplit(":", 1) for line in done.stdout.splitlines()]
    return [(file, int(line) if line.isdigit() else 0) for file, line in found]


def test_functions_and_lines(debugged: Path) -> None:
    at = symbols(debugged)["main"]
    names = names_of(debugged, debugged, [at, 4])
    assert names.functions[at].name == "main"
    assert names.lines[at][0] == str(PHASED / "sorter.c")
    assert 4 not in names.functions and 4 not in names.lines


def test_lines_are_those_of_addr2line(debugged: Path) -> None:
    start = symbols(debugged)["quicksort"]
    addresses = list(range(start, start + 200))
    lines = names_of(debugged, debugged, addresses).lines
    assert [lines.get(at, ("??", 0)) for at in addresses] == by_binutils(debugged, addresses)
    assert len(set(lines.values())) > 5


def test_a_stripped_program_has_addresses(debugged: Path, tmp_path: Path) -> None:
    at = symbols(debugged)["main"]
    stripped = tmp_path / "stripped"
    subprocess.run(["strip", "-o", str(stripped), str(debugged)], check=True)
    names = names_of(stripped, stripped, [at + 1])
    assert names.functions[at + 1].name == f"+{at:#x}"
    assert names.lines == {}


def test_a_separate_debug_file_is_taken_only_if_it_fits(debugged: Path, tmp_path: Path) -> None:
    at = symbols(debugged)["main"]
    program, debug = tmp_path / "program", tmp_path / ".debug" / "program.debug"
    debug.parent.mkdir()
    subprocess.run(["objcopy", "--only-keep-debug", str(debugged), str(debug)], check=True)
    subprocess.run(["objcopy", "-S", f"--add-gnu-debuglink={debug}", str(debugged), str(program)], check=True)
    names = names_of(program, program, [at])
    assert names.functions[at].name == "main" and [names.lines[at]] == by_binutils(debugged, [at])
    with debug.open("ab") as file:
        file.write(b"other")
    assert names_of(program, program, [at]).functions[at].name == f"+{at:#x}"


@pytest.mark.parametrize("size", [0, 4, 64, 4000])
def test_a_damaged_program_has_no_names(debugged: Path, tmp_path: Path, size: int) -> None:
    (tmp_path / "cut").write_bytes(debugged.read_bytes()[:size])
    assert names_of(tmp_path / "cut", debugged, [symbols(debugged)["main"]]).functions == {}


def test_call_names() -> None:
    known = {0: "read", 39: "getpid", 228: "clock_gettime", 257: "openat", 334: "rseq", 424: "pidfd_send_signal"}
    assert {number: call_name(number) for number in known} == known
    assert call_name(450) == "set_mempolicy_home_node" and call_name(400) == "call 400"


# -- the member


def example() -> dict[str, Any]:
    phase = PhaseCode(
        3, 100.0, ((0, 0x1000, 16, 60.0), (NO_FILE, 7, 1, 40.0)), ((0, 0x1004, 9),), ((1, 2),), True,
        (("file", "/bin/x", 10, 3),),
    )  # fmt: skip
    return json.loads(encode(ProbeCode((("/bin/x", "ab" * 32),), (phase,))))


def decoded(value: Any) -> ProbeCode:
    return decode(json.dumps(value).encode())


def test_the_member_comes_back() -> None:
    code = decoded(example())
    assert code.phases[0].blocks == ((0, 0x1000, 16, 60.0), (NO_FILE, 7, 1, 40.0))
    assert decode(encode(code)) == code


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("blocks", [[1, 0, 1, 1.0]]),
        ("blocks", [[-2, 0, 1, 1.0]]),
        ("blocks", [[0, -1, 1, 1.0]]),
        ("blocks", [[0, 1 << 64, 1, 1.0]]),
        ("blocks", [[0, 0, 1, -1.0]]),
        ("blocks", [[0, 0, 1, float("nan")]]),
        ("blocks", [[0, 0, 1, 101.0]]),
        ("blocks", [[0, n, 1, 0.0] for n in range(513)]),
        ("seen", [[1, 0, 1]]),
        ("seen", [[0, 0, 0]]),
        ("calls", [[1]]),
        ("all_calls", 1),
        ("memory", [["file", 3, 1, 1]]),
        ("memory", [["file", "x" * 9000, 1, 1]]),
        ("id", -1),
        ("instructions", "many"),
    ],
)
def test_wrong_members_are_refused(key: str, value: Any) -> None:
    wrong = example()
    wrong["phases"][0][key] = value
    with pytest.raises(ProbeFileDamaged, match="data/code is damaged"):
        decoded(wrong)


def test_another_version_is_named() -> None:
    with pytest.raises(ProbeFileDamaged, match="has version 2; this program reads 1"):
        decoded({**example(), "version": 2})


@given(st.binary(max_size=60) | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_anything_else_is_refused(data: bytes | str) -> None:
    with pytest.raises(ProbeFileDamaged):
        decode(data if isinstance(data, bytes) else data.encode())


# -- a real probe


@pytest.fixture(scope="module")
def sorter(builds: Path) -> SmallProbe:
    return small_probe(builds)


def explained(path: Path, *arguments: str) -> dict[str, Any]:
    return json.loads(command("explain", "--json", *arguments, path).stdout)


@pytest.mark.slow
def test_phases_are_in_the_functions_of_the_program(sorter: SmallProbe) -> None:
    found = explained(sorter.path)
    assert [p["id"] for p in found["phases"]] == sorted(p["id"] for p in found["phases"])
    assert sum(p["time_share"] for p in found["phases"]) == pytest.approx(1, abs=0.02)
    program = sorter.arguments[-2]
    for phase in found["phases"]:
        # Optimised as it is, everything has been inlined into two functions.
        assert {f["name"] for f in phase["functions"] if (f["time"] or 0) > 0.02} <= {"quicksort", "main"}
        assert {f["image"] for f in phase["functions"]} == {program}
        assert sum(f["instructions"] for f in phase["functions"]) == pytest.approx(1)
        assert phase["looks"] == 0 or sum(f["time"] for f in phase["functions"]) == pytest.approx(1)
        assert sum(m["touched"] for m in phase["mappings"]) == phase["pages"]["touched"]
        assert phase["all_calls"] is True and phase["calls"] == []
    assert sum(p["looks"] for p in found["phases"]) > 50


@pytest.mark.slow
def test_looking_at_a_phase_hides_none_of_its_calls(sorter: SmallProbe, tmp_path: Path) -> None:
    """Those by which the stubs stop it come last, when a look may have stopped it just before."""
    with open_probe(sorter.path) as archive:
        for phase in archive.phases:
            archive.extract_phase(phase.id, tmp_path / str(phase.id))
            assert {39, 62, 228} <= set(decode_image(tmp_path / str(phase.id) / NAME).calls)


@pytest.mark.slow
def test_one_phase_for_people(sorter: SmallProbe) -> None:
    number = explained(sorter.path)["phases"][-1]["id"]
    assert command("explain", "--top", "1", sorter.path).stdout.startswith("phase ")
    said = command("explain", "--phase", str(number), "--top", "1", sorter.path).stdout
    assert said.startswith(f"phase {number}: ") and "quicksort" in said and "system calls: none" in said
    refused = command("explain", "--phase", "77", sorter.path, status=1)
    assert "no phase 77; its phases are" in refused.stderr


def without_code(sorter: SmallProbe, target: Path) -> None:
    with open_probe(sorter.path) as archive:
        names = [name for name in archive.data_names if name != "code"]
        kept = Kept(archive.manifest, list(archive.phases), list(archive.files), names)
        repack(archive, kept, target, compression="gzip")


@pytest.mark.slow
def test_a_probe_from_before_is_explained_as_far_as_it_goes(sorter: SmallProbe, tmp_path: Path) -> None:
    old = tmp_path / "old.probe"
    without_code(sorter, old)
    found = explained(old)
    assert "built by an older version" in found["warnings"][0]
    assert [p["pages"] for p in found["phases"]] == [p["pages"] for p in explained(sorter.path)["phases"]]
    assert all(p["functions"] == [] and p["all_calls"] is None for p in found["phases"])
    assert "older version" in command("explain", old).stdout
    command("show", old)


@pytest.mark.slow
def test_a_program_left_out_is_named_only_if_it_is_the_same(sorter: SmallProbe, tmp_path: Path, builds: Path) -> None:
    from probe.formats.manifest import ExternalFile

    program = sorter.arguments[-2]
    apart = tmp_path / "apart.probe"
    with open_probe(sorter.path) as archive:
        stored = next(f for f in archive.files if f.path == program)
        manifest = Manifest.from_json(archive.manifest)
        external = (ExternalFile(stored.path, stored.size, stored.sha256, stored.mode),)
        changed = replace(manifest, files=replace(manifest.files, external=external)).to_json()
        files = [f for f in archive.files if f.path != program]
        kept = Kept(changed, list(archive.phases), files, list(archive.data_names))
        repack(archive, kept, apart, compression="gzip")
    # Not each function is counted in each probe: sites that are executed too often are taken out.
    assert {"quicksort", "main"} & {f["name"] for f in explained(apart)["phases"][0]["functions"]}
    aside = tmp_path / "aside"
    shutil.move(program, aside)
    try:
        shutil.copy(build("short", builds), program)
        names = {f["name"] for f in explained(apart)["phases"][0]["functions"]}
        assert names and all(name.startswith("+0x") for name in names)
    finally:
        shutil.move(aside, program)
