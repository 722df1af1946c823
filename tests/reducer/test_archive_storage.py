# SPDX-License-Identifier: Apache-2.0
"""Links, full disks, interruptions and files that change while a probe is written or unpacked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from small_archive import contents, file_size_limit, make_checkpoint, small

from checkpoint.errors import StorageError
from checkpoint.linux import PAGE_SIZE
from reducer import archive
from reducer.archive import ContainedFile, PhaseCheckpoint, open_probe, write_probe

__all__ = ["small"]

REPOSITORY = Path(__file__).resolve().parent.parent


def test_unpacking_never_follows_or_overwrites(small: Path, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "core-7.img").symlink_to(tmp_path / "victim")
    with open_probe(small) as probe:
        with pytest.raises(StorageError, match="not empty"):
            probe.extract_phase(5, tmp_path / "out")
        (tmp_path / "link").symlink_to(tmp_path / "victim")
        probe.extract_file(probe.files[0].sha256, tmp_path / "link")
    assert (tmp_path / "victim").read_text() == "precious"
    assert not (tmp_path / "link").is_symlink()


def test_what_a_killed_process_left_is_neither_used_nor_followed(small: Path, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    for name in ("x.probe", "copy"):
        (tmp_path / f".{name}.{os.getpid()}.part").symlink_to(tmp_path / "victim")
    write_probe(tmp_path / "x.probe", {}, [PhaseCheckpoint(0, tmp_path / "first")])
    with open_probe(small) as probe:
        probe.extract_file(probe.files[0].sha256, tmp_path / "copy")
    assert (tmp_path / "victim").read_text() == "precious"
    assert not list(tmp_path.glob(".*part"))


@pytest.mark.parametrize("name", ["core-7.img", "pages-1.img"])
def test_a_link_that_appears_while_unpacking_is_not_followed(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "victim").write_text("precious")
    inner = os.open

    def open_late(path: Path, *arguments: int, **names: int) -> int:
        if Path(path).name == name:
            Path(path).symlink_to(tmp_path / "victim")
        return inner(path, *arguments, **names)

    monkeypatch.setattr("reducer.unpack.os.open", open_late)
    with open_probe(small) as probe, pytest.raises(StorageError, match="File exists"):
        probe.extract_phase(5, tmp_path / "out")
    assert (tmp_path / "victim").read_text() == "precious"


def test_too_little_room_leaves_no_half_probe_and_keeps_the_old_one(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "c", [], big=os.urandom(1 << 20))
    (tmp_path / "p").mkdir()
    path = tmp_path / "p" / "x.probe"
    path.write_text("old")
    with (
        file_size_limit(100_000),
        pytest.raises(StorageError, match=r"x\.probe: .*; up to 1048580 bytes are needed"),
    ):
        write_probe(path, {}, [PhaseCheckpoint(0, folder)])
    assert [item.name for item in path.parent.iterdir()] == ["x.probe"]
    assert path.read_text() == "old"


def test_too_little_room_leaves_no_half_checkpoint(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "c", list(range(1, 100)))
    (tmp_path / "tool").write_bytes(os.urandom(300_000))
    write_probe(
        tmp_path / "x.probe",
        {},
        [PhaseCheckpoint(0, folder)],
        [ContainedFile("/tool", tmp_path / "tool", 0o755, "program")],
    )
    with open_probe(tmp_path / "x.probe") as probe:
        with file_size_limit(100_000):
            with pytest.raises(StorageError, match="bytes are needed"):
                probe.extract_phase(0, tmp_path / "out" / "phase")
            with pytest.raises(StorageError, match="300000 bytes are needed"):
                probe.extract_file(probe.files[0].sha256, tmp_path / "copy")
        assert not (tmp_path / "out" / "phase").exists()
        assert not list(tmp_path.glob("*copy*"))
        # And with room again the same probe works.
        probe.extract_phase(0, tmp_path / "out" / "phase")
        assert contents(tmp_path / "out" / "phase") == contents(folder)


FULL_DISK = """
import sys
from pathlib import Path
sys.path[:0] = [sys.argv[1]]
from checkpoint.errors import StorageError
from reducer.archive import PhaseCheckpoint, open_probe, write_probe
small, source, path = map(Path, sys.argv[2:5])
def full(action, *arguments):
    try:
        action(*arguments)
    except StorageError as error:
        assert "No space left on device" in str(error) and "bytes are needed" in str(error), error
        assert list(small.iterdir()) == [], list(small.iterdir())
        print("full")
full(write_probe, small / "x.probe", {}, [PhaseCheckpoint(0, source)])
with open_probe(path) as probe:
    full(probe.extract_phase, 0, small / "phase")
with open_probe(path, scratch=small) as probe:
    full(probe.extract_phase, 0, small.parent / "phase")
assert not (small.parent / "phase").exists()
"""


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "c", [], big=os.urandom(1 << 20))
    with (folder / "pages-1.img").open("wb") as out:
        out.write(os.urandom(256 * PAGE_SIZE))
    write_probe(tmp_path / "x.probe", {}, [PhaseCheckpoint(0, folder)])
    (tmp_path / "full").mkdir()
    # A file system of its own in a mount namespace of its own: both end with the shell.
    script = 'mount -t tmpfs -o size=300k none "$3" && exec "$0" -c "$1" "$2" "$3" "$4" "$5"'
    arguments = [sys.executable, FULL_DISK, REPOSITORY, tmp_path / "full", folder, tmp_path / "x.probe"]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "full\n" * 3), done.stderr


INTERRUPTED = """
import sys, time
from pathlib import Path
sys.path[:0] = [sys.argv[1]]
import reducer.archive as archive
inner = archive.write_member
def slow(*arguments):
    result = inner(*arguments)
    print("writing", flush=True)
    time.sleep(60)
    return result
archive.write_member = slow
archive.write_probe(Path(sys.argv[2]), {}, [archive.PhaseCheckpoint(0, Path(sys.argv[3]))])
"""


def test_ctrl_c_leaves_no_half_probe(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "c", [1, 2, 3])
    (tmp_path / "p").mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(REPOSITORY), str(tmp_path / "p" / "x.probe"), str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"writing\n"
    assert len(list((tmp_path / "p").iterdir())) == 1
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert b"KeyboardInterrupt" in errors
    assert list((tmp_path / "p").iterdir()) == []


def test_input_that_changes_meanwhile_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_checkpoint(tmp_path / "c", [1])
    (tmp_path / "tool").write_bytes(b"before")
    fingerprint = archive._fingerprint

    def then_change(path: Path) -> tuple[str, int]:
        result = fingerprint(path)
        path.write_bytes(b"after!")
        return result

    monkeypatch.setattr(archive, "_fingerprint", then_change)
    with pytest.raises(StorageError, match="tool changed while it was packed"):
        write_probe(
            tmp_path / "x.probe",
            {},
            [PhaseCheckpoint(0, folder)],
            [ContainedFile("/tool", tmp_path / "tool", 0o755, "program")],
        )
    assert not list(tmp_path.glob("*x.probe*"))
