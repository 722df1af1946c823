# SPDX-License-Identifier: Apache-2.0
"""Files left out of a probe: named at the build, demanded on the node before anything is restored."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from small_probe import SmallProbe, command, small_probe

from checkpoint.errors import NodeUnfit, ProbeError
from probe.contents.carried_files import external_files, set_apart
from probe.formats.manifest import ExternalFile
from probe.node.files import check_external, file_sha256
from probe.pipeline.options import BuildOptions
from reducer.archive import ContainedFile


@pytest.fixture
def files(tmp_path: Path) -> list[ContainedFile]:
    found = []
    for name in ("bin/tool", "data/one", "data/two", "database/three"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(name.encode() * 10)
        path.chmod(0o640)
        found.append(ContainedFile(str(path), path, 0o100640, "input"))
    return found


def names(files: list[ContainedFile], folder: Path) -> list[str]:
    return [os.path.relpath(file.original_path, folder) for file in files]


@pytest.mark.parametrize(
    ("external", "out"),
    [
        ((), []),
        (("data/one",), ["data/one"]),
        # A folder is not a prefix of the text: `database` stays.
        (("data",), ["data/one", "data/two"]),
        (("data/",), ["data/one", "data/two"]),
        (("data/one", "database", "data/one"), ["data/one", "database/three"]),
        (("data/../bin/tool",), ["bin/tool"]),
        ((".",), ["bin/tool", "data/one", "data/two", "database/three"]),
    ],
)
def test_files_and_folders_are_set_apart(
    files: list[ContainedFile], tmp_path: Path, external: tuple[str, ...], out: list[str]
) -> None:
    carried, left_out = set_apart(files, [f"{tmp_path}/{name}" for name in external])
    assert names(left_out, tmp_path) == out
    assert sorted(names(carried + left_out, tmp_path)) == sorted(names(files, tmp_path))


def test_names_are_relative_to_where_the_command_runs_and_links_are_followed(
    files: list[ContainedFile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to("data")
    monkeypatch.chdir(tmp_path)
    for name in ("data/one", "link/one"):
        assert names(set_apart(files, [name])[1], tmp_path) == ["data/one"]


def test_a_name_that_is_no_needed_file_is_an_error_that_lists_them(files: list[ContainedFile], tmp_path: Path) -> None:
    for name in ("elsewhere", "dat", "data/one/more"):
        with pytest.raises(ProbeError, match=f"{name}: no file that the probe needs") as raised:
            set_apart(files, [f"{tmp_path}/data", f"{tmp_path}/{name}"])
        for file in files:
            assert f"{file.original_path} (" in str(raised.value)
    assert f"{files[0].original_path} (80 bytes)" in str(raised.value)


@pytest.fixture
def demanded(files: list[ContainedFile]) -> ExternalFile:
    (found,) = external_files(files[1:2])
    assert found == ExternalFile(files[1].original_path, 80, file_sha256(files[1].local_path), 0o640)
    return found


def test_the_file_as_it_was_is_fit(demanded: ExternalFile) -> None:
    check_external([demanded])
    os.utime(demanded.path, (1, 1))
    check_external([demanded])


def change_one_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[40] ^= 1
    path.write_bytes(content)


def make_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def make_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


CHANGES = {
    "is missing here": Path.unlink,
    "has 81 bytes here, 80 at capture": lambda path: path.write_bytes(b"x" * 81),
    "has other contents here than at capture": change_one_byte,
    "has permissions 0600 here, 0640 at capture": lambda path: path.chmod(0o600),
    "is not a regular file here": make_a_folder,
    "is not a regular file": make_a_pipe,
    "cannot be read here (Too many levels of symbolic links)": lambda path: (path.unlink(), path.symlink_to(path)),
}


@pytest.mark.parametrize("reason", CHANGES)
def test_any_other_file_is_unfit(demanded: ExternalFile, reason: str) -> None:
    CHANGES[reason](Path(demanded.path))
    with pytest.raises(NodeUnfit, match=re.escape(f"{demanded.path}: {reason}")) as raised:
        check_external([demanded])
    assert "copy it from the reference node" in str(raised.value)


def test_what_concerns_packing_alone_is_no_reason_to_build_anew() -> None:
    plain = BuildOptions().to_json()
    assert BuildOptions(external=("/x",), compress="zstd").to_json() == plain
    assert BuildOptions(reduce="zero").to_json() != plain


# -- a real probe


@pytest.fixture
def small(builds: Path) -> SmallProbe:
    return small_probe(builds)


@pytest.mark.slow
def test_a_file_left_out_is_demanded_and_used(small: SmallProbe, tmp_path: Path) -> None:
    path = tmp_path / "external.probe"
    small.again(path, "--external", "input.dat")
    assert path.stat().st_size < small.path.stat().st_size - 290_000
    said = json.loads(command("show", "--json", path).stdout)
    assert said["external_files"] == [
        {"path": str(small.stdin), "size": 300_000, "sha256": file_sha256(small.stdin), "mode": 0o640}
    ]
    assert str(small.stdin) not in {file["path"] for file in said["files"]}
    assert f"external {small.stdin} (0.3 MB)" in command("show", path).stdout
    command("run", "-q", "--repeat", "1", path)

    trimmed = tmp_path / "trimmed.probe"
    command("trim", path, "--phases", "1", "-o", trimmed)
    assert json.loads(command("show", "--json", trimmed).stdout)["external_files"] == said["external_files"]

    moved = small.stdin.with_name("moved")
    small.stdin.rename(moved)
    try:
        for probe in (path, trimmed):
            refused = command("run", "-q", "--min-coverage", "0", probe, status=14)
            assert refused.stdout == "" and f"{small.stdin}: is missing here" in refused.stderr
        small.stdin.write_bytes(os.urandom(300_000))
        small.stdin.chmod(0o640)
        assert "has other contents" in command("run", "-q", path, status=14).stderr
        # The probe that carries the file does not care.
        command("run", "-q", "--repeat", "1", small.path)
    finally:
        moved.replace(small.stdin)


@pytest.mark.slow
def test_wrong_names_end_the_build_and_list_what_there_is(small: SmallProbe, tmp_path: Path) -> None:
    path = tmp_path / "x.probe"
    (tmp_path / "unused").touch()
    assert "no such file or folder" in small.again(path, "--external", "absent", status=1).stderr
    refused = small.again(path, "--external", str(tmp_path / "unused"), status=1).stderr
    assert f"{small.stdin} (300000 bytes)" in refused and "libc.so.6" in refused
    assert not path.exists()
