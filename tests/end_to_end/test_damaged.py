# SPDX-License-Identifier: Apache-2.0
"""A probe that is not as it was written is refused before anything of it is restored."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest
from command import Command, criu_script
from conftest import Sample


def cut_short(data: bytes) -> bytes:
    return data[:-1]


def cut_in_half(data: bytes) -> bytes:
    return data[: len(data) // 2]


def only_the_head(data: bytes) -> bytes:
    return data[:20]


def longer(data: bytes) -> bytes:
    return data + b"\0"


def flipped_at(share: float) -> Callable[[bytes], bytes]:
    def flipped(data: bytes) -> bytes:
        at = int(share * (len(data) - 1))
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

    return flipped


def empty(data: bytes) -> bytes:
    return b""


def archive(data: bytes) -> bytes:
    return gzip.compress(data)


def text(data: bytes) -> bytes:
    return b"name: a probe of something else\n" * 100


DAMAGE = {
    "cut short": cut_short,
    "cut in half": cut_in_half,
    "only the head": only_the_head,
    "longer": longer,
    "empty": empty,
    "another archive": archive,
    "text": text,
    **{f"a bit flipped at {share}": flipped_at(share) for share in (0.0, 0.001, 0.25, 0.5, 0.75, 0.999, 1.0)},
}


@pytest.fixture
def failing(command: Command, tmp_path: Path) -> Command:
    """The command with a CRIU that restores nothing: who asks it ends with exit status 9."""
    body = 'case " $* " in *" restore "*) echo "Error (criu/x.c:1): asked to restore"; exit 1 ;; esac; exec $REAL "$@"'
    command.environment.update(criu_script(tmp_path / "criu", body))
    return command


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_found_before_any_restore(kind: str, sample: Sample, failing: Command, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.probe"
    damaged.write_bytes(DAMAGE[kind](sample.path.read_bytes()))
    said = failing.refused(11, "run", "-q", "--restorer", "criu", "--repeat", "1", damaged)
    assert str(damaged) in said


def test_a_whole_probe_comes_to_a_restore(sample: Sample, failing: Command) -> None:
    failing.refused(9, "run", "-q", "--restorer", "criu", "--repeat", "1", sample.path)


def test_other_files_are_no_probes(sample: Sample, command: Command, tmp_path: Path) -> None:
    profile = tmp_path / "nbody.profile"
    assert command("trace", "-q", "--interval", "20ms", "-o", profile, "--", *sample.argv).returncode == 0
    for path in (profile, tmp_path, Path(sample.argv[0]), Path("/dev/null")):
        for action in ("run", "show"):
            assert str(path) in command.refused(11, action, path)
