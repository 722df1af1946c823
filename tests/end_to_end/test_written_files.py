# SPDX-License-Identifier: Apache-2.0
"""Files that a program writes must be the same under the tracer: its output is more than what it prints."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from command import Command
from tracing import compile_small

from checkpoint.errors import Diverged, StorageError
from checkpoint.process.descriptors import written_files
from probe import BuildOptions, SelectionOptions, build, run
from probe.formats.checkpoints import CapturedPhase
from probe.formats.profile import load_profile
from probe.pipeline import capture
from probe.pipeline.outputs import Compared, compare_written_files, note_written_files
from probe.pipeline.reduce import reduced_at_once
from probe.pipeline.stage import Build

# Looks up in /proc whether it is traced, as programs with copy protection do, and writes down what it found.
TELLTALE = r"""
#include <stdio.h>
#include <string.h>

int main(int count, char **words)
{
    char line[256];
    int traced = 0;
    volatile double sum = 0;
    FILE *status = fopen("/proc/self/status", "r"), *out = fopen(words[1], "w");
    while (fgets(line, sizeof line, status))
        if (sscanf(line, "TracerPid: %d", &traced) == 1)
            break;
    fclose(status);
    fprintf(out, "%s\n", traced && count > 2 ? "traced" : "alone");
    for (int i = 0; i < 40; i++)
        for (int k = 0; k < 3000000; k++)
            sum += k * 1e-9;
    fclose(out);
    puts("done");
    return 0;
}
"""


@pytest.fixture(scope="module")
def telltale(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("telltale")
    (folder / "telltale.c").write_text(TELLTALE)
    command = ["cc", "-O1", "-Wall", "-Wextra", "-Werror", "-o", folder / "telltale", folder / "telltale.c"]
    subprocess.run(command, check=True)
    return folder / "telltale"


@pytest.mark.slow
def test_a_file_written_otherwise_under_the_tracer_is_told(telltale: Path, command: Command, tmp_path: Path) -> None:
    written = tmp_path / "written"
    target = tmp_path / "out.probe"
    arguments = ["--interval", "20ms", "--max-phases", "2", "-o", target, "--", telltale, written, "look"]
    done = command("build", "-q", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    warnings = json.loads(done.stdout)["warnings"]
    assert any(f"the traced run: {written}, which it writes, differs" in warning for warning in warnings)


@pytest.mark.slow
def test_a_file_written_the_same_does_not(telltale: Path, command: Command, tmp_path: Path) -> None:
    written, target = tmp_path / "written", tmp_path / "out.profile"
    assert command("trace", "-q", "--interval", "20ms", "-o", target, "--", telltale, written).returncode == 0
    assert load_profile(target).written == (str(written),)


def test_open_files_are_told_by_how_they_are_open(tmp_path: Path) -> None:
    read, write = tmp_path / "read", tmp_path / "write"
    read.write_text("x")
    with read.open() as _, write.open("w") as _, Path("/dev/null").open("w") as _:
        found = written_files(os.getpid())
    assert str(write) in found and str(read) not in found and "/dev/null" not in found
    assert written_files(2**22 - 1) == set()


def _notes(folder: Path, *contents: str | None) -> list[Path]:
    written, notes = folder / "w", []
    for number, text in enumerate(contents):
        written.unlink(missing_ok=True)
        if text is not None:
            written.write_text(text)
        notes.append(folder / f"{number}.json")
        note_written_files([str(written)], notes[-1])
    return notes


def test_equal_files_pass_and_others_do_not(tmp_path: Path) -> None:
    *plain, run = _notes(tmp_path, "a", "a", "a")
    assert compare_written_files(plain, run, "the run") == Compared([], [])
    for other in ("b", None):
        *plain, run = _notes(tmp_path, "a", "a", other)
        found = compare_written_files(plain, run, "the run")
        assert found.notes == [] and "differs from what plain runs leave there" in found.warnings[0]


def test_files_that_differ_between_plain_runs_are_named_not_compared(tmp_path: Path) -> None:
    *plain, run = _notes(tmp_path, "a", "b", "c")
    assert "was not compared" in compare_written_files(plain, run, "the run").notes[0]


def test_damaged_notes_are_a_storage_error(tmp_path: Path) -> None:
    *plain, run = _notes(tmp_path, "a", "a", "a")
    run.write_text(json.dumps({})[:1])
    with pytest.raises(StorageError, match="without --resume"):
        compare_written_files(plain, run, "the run")


@pytest.mark.slow
def test_the_length_of_what_is_appended_to_is_carried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six megabytes, of each phase a part."""
    work, probe, numbers = tmp_path / "work", tmp_path / "x.probe", tmp_path / "numbers"
    numbers.write_text("\n".join(map(str, range(3_000_000))))
    options = BuildOptions(
        interval=0.02, warmup=1, runs=0, repeats=2, capture="direct", selection=SelectionOptions(max_phases=6)
    )
    argv = ["/usr/bin/gzip", "-9", "-k", "-f", str(numbers)]
    whole = list[int]()

    def noted(build: Build, phase: CapturedPhase, folder: Path) -> CapturedPhase:
        done = reduced_at_once(build, phase, folder)
        copies = [path.stat() for path in folder.glob("written-*/*")]
        whole.append(sum(one.st_blocks for one in copies if one.st_size > 1 << 20))
        return done

    monkeypatch.setattr(capture, "reduced_at_once", noted)
    built = build(argv, probe, options=options, work=work, cwd=str(tmp_path))
    copies = [path.stat() for path in work.glob("written-*/*")]
    assert len(copies) == len(built.manifest.files.private) >= 3 and not any(one.st_blocks for one in copies)
    # Those of more than a megabyte become holes one by one, while phases are captured.
    assert len(whole) == len(copies) and not any(whole) and max(one.st_size for one in copies) > 1 << 20
    assert run(probe, repeats=2).prediction.seconds > 0


# Reads what the run before has noted, as TeX does, and has failed where that is not complete.
NOTING = r"""
#include <stdio.h>
__attribute__((noipa)) static unsigned sum(unsigned x) { for (int i = 0; i < 900; i++) x += x >> 3 ^ i; return x; }
__attribute__((noipa)) static unsigned mix(unsigned x) { for (int i = 0; i < 700; i++) x = x * 31 ^ x >> 5; return x; }
int main(int count, char **words)
{
    unsigned x = count, last = 0, number;
    FILE *notes = fopen(words[1], "r");
    if (notes) {
        while (fscanf(notes, "%u", &number) == 1)
            last++;
        fclose(notes);
        if (last != 40)
            return 3;
    }
    notes = fopen(words[1], "w");
    for (int i = 0; i < 40; i++) {
        for (int k = 0; k < 8000; k++)
            x = i < 10 ? sum(x) : mix(x);
        fprintf(notes, "%u\n", x);
        fflush(notes);
    }
    return fclose(notes);
}
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["direct", "criu", "for ever"])
def test_no_run_begins_with_half_a_file(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The capture run goes on behind the last checkpoint: the next would read what it has left. But not for ever."""
    program, notes = compile_small(tmp_path, "noting", NOTING), tmp_path / "notes"
    selection = SelectionOptions(max_phases=2)
    options = BuildOptions(interval=0.02, runs=1, repeats=2, capture=way, selection=selection)
    argv, target = [str(program), str(notes)], tmp_path / "x.probe"
    if way == "for ever":
        monkeypatch.setattr(capture, "_REST", 0.0)
        monkeypatch.setattr(capture, "_GRACE_SECONDS", 0.0)
        with pytest.raises(Diverged, match="exited with status 3"):
            build(argv, target, options=replace(options, capture="direct"))
        return
    build(argv, target, options=options)
    assert len(notes.read_text().split()) == 40
