# SPDX-License-Identifier: Apache-2.0
"""Files that commands are given and that are none: devices, pipes, endless or deeply nested ones, forbidden folders."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from made_probe import made_manifest, made_probe, made_result

from checkpoint.errors import NotInStore, ProbeError, StorageError
from checkpoint.foreign_file import read_foreign, read_foreign_json
from probe.cli import main
from probe.cli.build import WITHOUT_PROBE, _otherwise

ROOT = Path(__file__).parents[2]
_MEMORY = 3 << 30
"""Address space that each command may take: a report's libraries take most of one GiB."""


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    manifest, table = made_manifest(3, 60)
    path = made_probe(tmp_path_factory.mktemp("made") / "solver.probe", manifest, table)
    path.with_suffix(".json").write_text(json.dumps(made_result(manifest, "node1")))
    return path


def command(*arguments: str | Path, folder: Path, given: Path | str = "/dev/null") -> subprocess.CompletedProcess[str]:
    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (60, 60))

    with open(given, "rb") as stdin:
        done = subprocess.run(
            [sys.executable, "-m", "probe", *map(str, arguments)], stdin=stdin, capture_output=True, text=True,
            timeout=100, preexec_fn=limited, cwd="/",
            env={**os.environ, "PYTHONPATH": str(ROOT), "PROBE_STORE": str(folder / "store")},
        )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    assert "not enough memory" not in done.stderr, done.stderr
    return done


def readers(probe: Path, folder: Path, given: Path | str) -> list[Sequence[str | Path]]:
    """Every command that reads a small foreign file, with this one."""
    return [
        ("store", "import", given),
        ("report", probe, given, "-o", folder / "page.html"),
        ("rank", "solver", "--pool", given, "--tasks", "5"),
        ("export", "--format", "k8s", "--arguments", given),
        ("slurm", "submit", "--probe", "solver", "--", given),
        ("build", "-o", folder / "new.probe", "--tracer", "valgrind", "--simpoints", given, "--weights", given, "--",
         "true"),
    ]  # fmt: skip


@pytest.mark.parametrize("odd", ["/dev/zero", "pipe", "folder"])
def test_only_regular_files_are_read(probe: Path, tmp_path: Path, odd: str) -> None:
    command("store", "import", probe.with_suffix(".json"), folder=tmp_path)
    given = Path(odd) if odd.startswith("/") else tmp_path / odd
    if odd == "pipe":
        os.mkfifo(given)
    elif odd == "folder":
        given.mkdir()
    for arguments in readers(probe, tmp_path, given):
        done = command(*arguments, folder=tmp_path)
        assert done.returncode in (1, 2, 10, 33), (arguments, done)
        assert str(given) in done.stderr, (arguments, done.stderr)
        assert odd == "folder" or "not a regular file" in done.stderr, (arguments, done.stderr)
    assert not (tmp_path / "page.html").exists()


def test_files_and_standard_input_are_read_up_to_a_size(probe: Path, tmp_path: Path) -> None:
    large = tmp_path / "large.json"
    large.touch()
    os.truncate(large, 40 << 30)
    command("store", "import", probe.with_suffix(".json"), folder=tmp_path)
    for arguments in readers(probe, tmp_path, large):
        done = command(*arguments, folder=tmp_path)
        assert done.returncode in (1, 10) and "larger than" in done.stderr, (arguments, done.stderr)
    for arguments in (("store", "import", "-"), ("report", probe, "-", "-o", tmp_path / "page.html")):
        done = command(*arguments, folder=tmp_path, given="/dev/zero")
        assert done.returncode == 10 and "larger than" in done.stderr, done.stderr
        done = command(*arguments, folder=tmp_path, given=probe.with_suffix(".json"))
        assert done.returncode == 0, done.stderr


def test_reading(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    whole.write_bytes(b"[1]")
    (tmp_path / "link").symlink_to(whole)
    assert read_foreign(whole, 3) == read_foreign(tmp_path / "link", 3) == b"[1]"
    with pytest.raises(StorageError, match="larger than 2 bytes"):
        read_foreign(whole, 2)
    for bad in (b"[" * 100_000, b"NaN", b"[-Infinity]", b"[1e999]", b"\xff", b"", b"9" * 5000, b'{"a":1}x'):
        whole.write_bytes(bad)
        with pytest.raises(ProbeError, match=r"not JSON .*; do better"):
            read_foreign_json(whole, "do better")


@pytest.mark.parametrize("reader", range(4))
def test_deeply_nested_json(probe: Path, tmp_path: Path, reader: int) -> None:
    deep = tmp_path / "deep.json"
    command("store", "import", probe.with_suffix(".json"), folder=tmp_path)
    for text in ("[" * 200_000, '{"candidates":[' * 100_000, '{"result":' + "[" * 990 + "]" * 990 + "}"):
        deep.write_text(text)
        done = command(*readers(probe, tmp_path, deep)[reader], folder=tmp_path)
        assert done.returncode == 1 and "probe: " in done.stderr, done.stderr


@pytest.mark.parametrize("number", ["9" * 30, "9" * 5000, "-1", "0", "٣", "1e3", "", " 1", "2147483648", "0x1"])
def test_row_numbers_that_are_none(probe: Path, tmp_path: Path, number: str) -> None:
    command("store", "import", probe.with_suffix(".json"), folder=tmp_path)
    done = command("compare", f"#{number}", "#1", folder=tmp_path)
    assert done.returncode == NotInStore.exit_code and "probe: " in done.stderr, done.stderr
    assert command("compare", "#1", "#1", folder=tmp_path).returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_folders_that_the_user_may_not_enter(
    probe: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], own_places: Path
) -> None:
    monkeypatch.setattr(main, "leave_as_commands_do", lambda: None)
    forbidden = own_places / "forbidden"
    forbidden.mkdir(mode=0o700)
    try:
        for arguments in (
            ("trim", probe, "--phases", "1", "-o", forbidden / "one.probe"),
            ("trim", probe, "--phases", "1", "-o", probe / "one.probe"),
            ("trim", probe, "--phases", "1", "-o", forbidden / ("x" * 300)),
            ("report", probe, "-o", forbidden / "page.html"),
            ("report", probe, forbidden / "result.json", "-o", "/dev/null/x"),
            ("trace", "-o", forbidden / "x.profile", "--", "/bin/true"),
            ("show", forbidden / "x.probe"),
            ("store", "import", forbidden / "result.json", "--store", f"{own_places}/none"),
            ("history", "--store", f"{forbidden}/store"),
        ):
            # Loaded before that user would have to: the code may lie where only root goes.
            for user in (0, 65534):
                capsys.readouterr()
                os.seteuid(user)
                try:
                    with pytest.raises(SystemExit) as ended:
                        main.main([str(argument) for argument in arguments])
                        raise SystemExit(0)
                finally:
                    os.seteuid(0)
                for made in (own_places / "none", *forbidden.iterdir()):
                    made.unlink(missing_ok=True)
            said = capsys.readouterr().err
            assert ended.value.code in (1, 2, 10, 30) and said.startswith(("probe: ", "Usage")), (arguments, said)
    finally:
        shutil.rmtree(forbidden)


def test_a_refusal_outlives_files_that_are_no_sound_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = tmp_path / "odd"
    odd.write_bytes(b"\x7fELF" + b"\xff" * 60)
    odd.chmod(0o755)
    assert _otherwise((str(odd),)) == WITHOUT_PROBE
    # No ldd.
    monkeypatch.setenv("PATH", str(tmp_path))
    assert _otherwise(("/bin/true",)) == WITHOUT_PROBE
