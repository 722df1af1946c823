# SPDX-License-Identifier: Apache-2.0
"""The test programs themselves: they build without warnings, end as promised, and repeat themselves."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from programs import BAD_FILES, PROGRAMS, VARIANTS, bad_file, build, expected_counts, run, symbols

# Where a variant changes the code that matters, not just its addresses.
IN_EVERY_VARIANT = [
    "redzone",
    "flags",
    "riprel",
    "jumptable",
    "overlap",
    "datacode",
    "callpop",
    "ifunc",
    "matmul",
]


@pytest.fixture(scope="session")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("builds")


def owner(name: str, program: Path) -> tuple[Path, str]:
    image, _, label = name.rpartition(":")
    return (program.parent / image if image else program), label


@pytest.mark.parametrize("name", PROGRAMS)
def test_ends_as_promised_and_repeats_itself(name: str, builds: Path) -> None:
    program = build(name, builds)
    first, second = (run(program, *PROGRAMS[name].quick) for _ in range(2))
    assert first.returncode == PROGRAMS[name].status, first.stderr
    assert first.stdout and "WRONG" not in first.stdout
    assert (first.stdout, first.stderr, first.returncode) == (second.stdout, second.stderr, second.returncode)
    for site, count in expected_counts(first.stdout).items():
        image, label = owner(site, program)
        assert count > 0, f"{site} is never executed"
        assert label in symbols(image), f"{image} has no label {label}"


@pytest.mark.parametrize("name", IN_EVERY_VARIANT)
def test_every_variant_computes_the_same(name: str, builds: Path) -> None:
    plain = run(build(name, builds), *PROGRAMS[name].quick)
    for variant in VARIANTS:
        other = run(build(name, builds, variant), *PROGRAMS[name].quick)
        assert (variant, other.returncode, other.stdout) == (variant, 0, plain.stdout)


@pytest.mark.parametrize("name", ["dlopen", "farlib", "execer"])
def test_companions_follow_the_variant(name: str, builds: Path) -> None:
    for variant in PROGRAMS[name].variants:
        other = run(build(name, builds, variant), *PROGRAMS[name].quick)
        assert other.returncode == 0 and "NEAR" not in other.stdout, other.stderr


def test_variants_are_what_they_say(builds: Path) -> None:
    kinds = {variant: build("short", builds, variant).read_bytes() for variant in VARIANTS}
    assert {variant: data[16] for variant, data in kinds.items()} == {
        "pie": 3, "nopie": 2, "static": 2, "static-pie": 3, "stripped": 3, "cet": 3,
    }  # fmt: skip
    dynamic = {variant for variant, data in kinds.items() if b"ld-linux-x86-64.so.2" in data[:4096]}
    assert dynamic == {"pie", "nopie", "stripped", "cet"}
    with pytest.raises(ValueError, match="no symbol table"):
        symbols(build("short", builds, "stripped"))


def test_a_second_build_is_the_first(builds: Path) -> None:
    first = build("short", builds)
    before = first.stat().st_mtime_ns
    assert build("short", builds) == first and first.stat().st_mtime_ns == before
    assert not [path for path in builds.iterdir() if path.name.startswith(".")]


def test_signal_counts_go_to_the_file(builds: Path, tmp_path: Path) -> None:
    for name in ("signals", "altstack"):
        counts = tmp_path / name
        assert run(build(name, builds), "100" if name == "signals" else "8000", str(counts)).returncode == 0
        assert expected_counts(counts.read_text())["site_handler"] > 20


def test_only_random_differs_where_it_must(builds: Path) -> None:
    loud = {run(build("random", builds), "5", "loud").stdout for _ in range(3)}
    assert len(loud) == 3
    spread = {run(build("addrhash", builds), "60", aslr=True).stdout for _ in range(3)}
    assert len(spread) == 3


@pytest.mark.parametrize("kind", BAD_FILES)
def test_bad_files_do_not_start(kind: str, tmp_path: Path) -> None:
    path = bad_file(kind, tmp_path)
    try:
        status = subprocess.run([path], capture_output=True).returncode
    except OSError as error:
        status = -(error.errno or 0)
    # A kernel without 32-bit support refuses elf32, every other runs it.
    assert status == 0 if kind == "elf32" and status != -8 else status < 0
