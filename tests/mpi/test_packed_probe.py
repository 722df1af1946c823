# SPDX-License-Identifier: Apache-2.0
"""Probes of MPI programs as one file: packed, unpacked, damaged, foreign."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpi_packed import packed_probe
from small_archive import file_size_limit

from checkpoint.errors import ProbeFileDamaged, StorageError
from probe.mpi.probes.packing import MEMBERS, opened, pack, unpack


def test_a_file_is_read_as_it_was_packed(tmp_path: Path) -> None:
    path = packed_probe(tmp_path)
    assert path.stat().st_mode & 0o777 == 0o600
    with opened(path) as found:
        assert [one.ranks for one in found.clusters] == [(0, 1)]
        assert found.probe_of(found.clusters[0]).read_bytes() == b"a probe"
        folder = found.recording.folder
    assert not folder.exists()
    with opened(tmp_path / "folder") as found:
        assert found.recording.folder == tmp_path / "folder"


@pytest.mark.parametrize(
    ("probed", "words"), [((True, False), ""), ((False, False), "has no probe of any cluster"), ((True, 1), "may have")]
)
def test_clusters_without_probes(probed: tuple[object, ...], words: str, tmp_path: Path) -> None:
    packed_probe(tmp_path)
    folder = tmp_path / "folder"
    one = json.loads((folder / "clusters.json").read_text())["clusters"][0]
    alone = {**one, "verified": None, "error": None}
    listed = [{**alone, "representative": n, "ranks": [n], "probed": said} for n, said in enumerate(probed)]
    (folder / "clusters.json").write_text(json.dumps({"format_version": 1, "clusters": listed}))
    if words:
        with pytest.raises(ProbeFileDamaged, match=words), opened(folder):
            pass
        return
    with opened(folder) as found:
        assert [one.probed for one in found.clusters] == list(probed)


@pytest.mark.parametrize(("said", "found"), [(7, 7), (None, 0), (-1, None), (True, None), (0.5, None)])
def test_messages_that_differ_are_counted(said: float | None, found: int | None, tmp_path: Path) -> None:
    """None: a probe from before they were."""
    packed_probe(tmp_path)
    described = tmp_path / "folder" / "clusters.json"
    one = json.loads(described.read_text())["clusters"][0]
    told = {} if said is None else {"differing": said}
    one.pop("differing", None)
    described.write_text(json.dumps({"format_version": 1, "clusters": [{**one, **told}]}))
    if found is None:
        with pytest.raises(ProbeFileDamaged, match="are not counted"), opened(tmp_path / "folder"):
            pass
        return
    with opened(tmp_path / "folder") as probe:
        assert probe.clusters[0].differing == found


@settings(max_examples=200)
@given(st.data())
def test_a_changed_byte_is_seen_or_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("packed")
    path = packed_probe(folder)
    made = bytearray(path.read_bytes())
    with tarfile.open(path) as tar:
        ends = max(one.offset_data + one.size for one in tar.getmembers())
    place = data.draw(st.integers(0, ends - 1))
    made[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(made)
    (folder / "out").mkdir()
    try:
        unpack(path, folder / "out")
    except ProbeFileDamaged:
        return
    for one in (folder / "folder").iterdir():
        assert (folder / "out" / one.name).read_bytes() == one.read_bytes()


@given(st.data())
def test_a_file_cut_short_is_seen(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("packed")
    path = packed_probe(folder)
    with tarfile.open(path) as tar:
        ends = max(one.offset_data + one.size for one in tar.getmembers())
    path.write_bytes(path.read_bytes()[: data.draw(st.integers(0, ends - 1))])
    (folder / "out").mkdir()
    with pytest.raises(ProbeFileDamaged):
        unpack(path, folder / "out")


def member(name: str, contents: bytes = b"x", **said: Any) -> dict[str, Any]:
    return {"name": name, "size": len(contents), "sha256": hashlib.sha256(contents).hexdigest(), **said}


def tar_of(path: Path, members: Sequence[tuple[str, bytes, bytes]]) -> None:
    """name, type, contents."""
    with tarfile.open(path, "w") as tar:
        for name, kind, contents in members:
            made = tarfile.TarInfo(name)
            made.type, made.size, made.linkname = kind, len(contents), "/etc/passwd"
            tar.addfile(made, io.BytesIO(contents))


FILE = tarfile.REGTYPE
X, NOTHING = member("clusters.json"), member("clusters.json", b"")
FOREIGN: dict[str, tuple[list[dict[str, Any]], list[tuple[str, bytes, bytes]], str]] = {
    "outside": ([member("../clusters.json")], [("../clusters.json", FILE, b"x")], "the name '../clusters.json'"),
    "absolute": ([member("/tmp/a")], [("/tmp/a", FILE, b"x")], "the name '/tmp/a'"),
    "another name": ([X], [("recording.json", FILE, b"x")], "'recording.json' in place of clusters.json"),
    "link": ([NOTHING], [("clusters.json", tarfile.SYMTYPE, b"")], "in place of clusters.json"),
    "hard link": ([NOTHING], [("clusters.json", tarfile.LNKTYPE, b"")], "in place of clusters.json"),
    "folder": ([NOTHING], [("clusters.json", tarfile.DIRTYPE, b"")], "in place of clusters.json"),
    "device": ([NOTHING], [("clusters.json", tarfile.CHRTYPE, b"")], "in place of clusters.json"),
    "size": ([X], [("clusters.json", FILE, b"xx")], "in place of clusters.json"),
    "contents": ([X], [("clusters.json", FILE, b"y")], "has not the SHA-256"),
    "missing": ([X], [], "is cut short: clusters.json is missing"),
    "more": ([], [("clusters.json", FILE, b"x")], "which it does not list"),
    "twice": ([X, X], [("clusters.json", FILE, b"x")] * 2, "a name twice"),
    "huge": ([member("clusters.json", size=2**50)], [("clusters.json", FILE, b"x")], "more bytes than the file's"),
    "no size": ([member("clusters.json", size=True)], [], "the size of clusters.json"),
    "no digest": ([member("clusters.json", sha256="0")], [], "the SHA-256 of clusters.json"),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_a_tar_that_was_not_packed_here(case: str, tmp_path: Path) -> None:
    listed, members, message = FOREIGN[case]
    text = json.dumps({"format_version": 1, "members": listed}).encode()
    tar_of(tmp_path / "a.mpiprobe", [(MEMBERS, FILE, text), *members])
    (tmp_path / "out").mkdir()
    with pytest.raises(ProbeFileDamaged, match=message):
        unpack(tmp_path / "a.mpiprobe", tmp_path / "out")
    assert not (tmp_path / "clusters.json").exists()


def header(kind: bytes, size: int = 0, contents: bytes = b"") -> bytes:
    """A member as it stands in a tar, in GNU's form: sizes may be larger than 8 GB, and what follows missing."""
    made = tarfile.TarInfo("a")
    made.type, made.size = kind, size or len(contents)
    return made.tobuf(tarfile.GNU_FORMAT) + contents + bytes(-len(contents) % tarfile.BLOCKSIZE)


NOTED = b"13 comment=x\n"
SPARSE = b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n20 GNU.sparse.name=a\n24 GNU.sparse.realsize=9\n"
CRAFTED: dict[str, tuple[bytes, str]] = {
    "chain": (header(tarfile.XHDTYPE, contents=NOTED) * 2000, "headers longer than any"),
    "chain of two": (header(tarfile.XGLTYPE, contents=NOTED) + header(tarfile.XHDTYPE, contents=NOTED), "longer than"),
    "chain of names": (header(tarfile.GNUTYPE_LONGNAME, contents=b"a") * 2000, "headers longer than any"),
    "long name": (header(tarfile.GNUTYPE_LONGNAME, 2**40), "headers longer than any"),
    "long link": (header(tarfile.GNUTYPE_LONGLINK, 2**40), "headers longer than any"),
    "long header": (header(tarfile.XHDTYPE, 2**17, NOTED * 2**13), "headers longer than any"),
    "less than nothing": (header(tarfile.XHDTYPE, -512), "a negative size"),
    "sparse": (header(tarfile.GNUTYPE_SPARSE), "a sparse member"),
    "sparse by header": (header(tarfile.XHDTYPE, contents=SPARSE) + header(FILE, 2**33), "a sparse member"),
}


@pytest.mark.parametrize("place", ["first", "behind"])
@pytest.mark.parametrize("case", CRAFTED)
def test_headers_that_were_never_packed(case: str, place: str, tmp_path: Path) -> None:
    contents, message = CRAFTED[case]
    path = tmp_path / "a.mpiprobe"
    path.write_bytes(b"")
    if place == "behind":
        tar_of(path, [(MEMBERS, FILE, b'{"format_version": 1, "members": []}')])
        path.write_bytes(path.read_bytes()[:1024])
    with path.open("ab") as file:
        file.write(contents)
        file.truncate(file.tell() + (1 << 33))
    with pytest.raises(ProbeFileDamaged, match=f"is no probe of an MPI program, or damaged .*{message}"):
        unpack(path, tmp_path)


@pytest.mark.parametrize("error", [RecursionError, MemoryError])
def test_what_python_cannot_take(error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = packed_probe(tmp_path)

    def failing(_: tarfile.TarFile) -> None:
        raise error("too much")

    monkeypatch.setattr(tarfile.TarFile, "next", failing)
    with pytest.raises(ProbeFileDamaged, match=r"or damaged \(too much\)"):
        unpack(path, tmp_path)


@pytest.mark.parametrize("contents", [b"", b"not one of ours" * 100, b"\x7fELF" + bytes(2000)])
def test_what_is_no_tar(contents: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.mpiprobe").write_bytes(contents)
    with pytest.raises(ProbeFileDamaged, match="is no probe of an MPI program"):
        unpack(tmp_path / "a.mpiprobe", tmp_path)


def test_another_tar(tmp_path: Path) -> None:
    tar_of(tmp_path / "a.mpiprobe", [("clusters.json", FILE, b"x")])
    with pytest.raises(ProbeFileDamaged, match=f"does not begin with {MEMBERS}"):
        unpack(tmp_path / "a.mpiprobe", tmp_path)
    tar_of(tmp_path / "b.mpiprobe", [(MEMBERS, FILE, b'{"format_version": 2}')])
    with pytest.raises(ProbeFileDamaged, match="reads version 1"):
        unpack(tmp_path / "b.mpiprobe", tmp_path)


def test_a_target_that_cannot_be_written(tmp_path: Path) -> None:
    packed_probe(tmp_path)
    with pytest.raises(StorageError, match="is a folder; give the name of a file"):
        pack(tmp_path / "folder", tmp_path)
    with pytest.raises(StorageError, match="cannot open"), opened(tmp_path / "nothing.mpiprobe"):
        pass


def test_members_are_for_nobody_else(tmp_path: Path) -> None:
    path = packed_probe(tmp_path)
    (tmp_path / "out").mkdir()
    unpack(path, tmp_path / "out")
    assert {one.stat().st_mode & 0o777 for one in (tmp_path / "out").iterdir()} == {0o600}


def test_a_full_disk_below_the_members(tmp_path: Path) -> None:
    path = packed_probe(tmp_path)
    needed = sum(one.stat().st_size for one in (tmp_path / "folder").iterdir())
    out = tmp_path / "out"
    out.mkdir()
    message = rf"cannot unpack {out}/recording.json: .*; up to {needed} bytes are needed in {out}, \d+ are free: make"
    with pytest.raises(StorageError, match=message), file_size_limit(300):
        unpack(path, out)
    assert not (out / "recording.json").exists()


def test_no_room_for_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = packed_probe(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(StorageError, match=r"cannot unpack .*: No such file"), opened(path):
        pass


def test_a_pipe_that_nobody_writes_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.mpiprobe")
    command = [sys.executable, "-m", "probe", "mpi", "run", "--network", "torus:2", str(tmp_path / "a.mpiprobe")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 11
    assert "is no probe of an MPI program: it is not a regular file" in done.stderr
