# SPDX-License-Identifier: Apache-2.0
"""The direct restorer: a process comes back whole, as an ordinary user, and never half."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from direct_runs import as_nobody, flat_job, for_anybody, open_to_anybody
from direct_state import flat_state, places, plain, state, timed
from elftools.elf.elffile import ELFFile
from programs import build
from regions import captured_regions

from checkpoint.compiled import restorer
from checkpoint.criu.tool import find_criu
from checkpoint.flat.image import NAME, decode
from checkpoint.restore.criu_restore import RestoreJob, time_phase
from checkpoint.restore.direct_agent import Control
from checkpoint.restore.direct_restore import DirectAgent

__all__ = ["flat_state", "places", "plain", "state"]


def test_everything_a_process_has_comes_back(flat_state: RestoreJob, tmp_path: Path) -> None:
    time = timed(flat_state, tmp_path)
    assert 0 < time.wall < 5 and 0 < time.cpu <= time.wall * 1.1 and 0 < time.restore < 5


def test_it_comes_back_again_and_again(flat_state: RestoreJob, tmp_path: Path) -> None:
    with DirectAgent(flat_state, restorer(), scratch=tmp_path) as agent:
        assert len([agent.repeat() for _ in range(3)]) == 3
    assert list(tmp_path.iterdir()) == []


def test_written_files_are_copies(flat_state: RestoreJob, tmp_path: Path) -> None:
    ((copy, path),) = [(Path(c), Path(p)) for c, p in flat_state.written if p.endswith("/output")]
    before = copy.read_bytes()
    timed(flat_state, tmp_path)
    assert copy.read_bytes() == before == b"before "
    assert not path.exists()


def test_criu_agrees(plain: RestoreJob, tmp_path: Path) -> None:
    assert len(time_phase(plain, find_criu(), repeats=1, scratch=tmp_path)) == 1


def test_an_ordinary_user_can(flat_state: RestoreJob, builds: Path, places: Path, tmp_path: Path) -> None:
    open_to_anybody(places)
    open_to_anybody(builds)
    tmp_path.chmod(0o777)
    (tmp_path / "scratch").mkdir(mode=0o777)
    (tmp_path / "scratch").chmod(0o777)
    for_anybody(tmp_path / "code")
    program = tmp_path / "restorer"
    shutil.copy(restorer(), program)
    program.chmod(0o755)

    def restored() -> float:
        import checkpoint.restore.direct_restore

        checkpoint.restore.direct_restore._AGENT = tmp_path / "code" / "checkpoint" / "restore" / "direct_agent.py"
        with DirectAgent(flat_state, program, scratch=tmp_path / "scratch") as agent:
            return agent.repeat().wall

    open_to_anybody(places)
    assert 0 < as_nobody(restored) < 5


def test_avx_512_registers_live_across_the_start(builds: Path, tmp_path: Path) -> None:
    path = build("wide", builds)
    if subprocess.run([path]).returncode == 3:
        pytest.skip("this processor has no AVX-512")
    (job,) = captured_regions(path, folder=tmp_path / "wide")
    flat = flat_job(job, tmp_path, watched=False)
    assert flat.header.xstate >> 5 & 7 == 7
    timed(job, tmp_path)


def test_avx_registers_live_across_the_start(builds: Path, tmp_path: Path) -> None:
    """The upper halves of sixteen registers; a frame of the wrong size would lose them without a word."""
    path = build("wide", builds)
    if subprocess.run([path, "avx"]).returncode == 3:
        pytest.skip("this processor has no AVX")
    (job,) = captured_regions(path, "avx", folder=tmp_path / "wide")
    flat = flat_job(job, tmp_path, watched=False)
    assert flat.header.xstate == 7
    timed(job, tmp_path)


def test_state_that_is_not_used_is_not_demanded(plain: RestoreJob) -> None:
    assert decode(plain.images / NAME).header.xstate >> 5 == 0


@pytest.mark.parametrize("variant", ["nopie", "static", "static-pie", "cet"])
def test_every_kind_of_executable(variant: str, builds: Path, tmp_path: Path) -> None:
    (job,) = captured_regions(build("touches", builds, variant), "plain", folder=tmp_path / variant)
    flat_job(job, tmp_path)
    timed(job, tmp_path)


@pytest.mark.parametrize("scenario", ["border", "kernel", "stack"])
def test_memory_is_as_it_was(scenario: str, builds: Path, tmp_path: Path) -> None:
    (job,) = captured_regions(build("touches", builds), scenario, folder=tmp_path / scenario)
    flat_job(job, tmp_path)
    timed(job, tmp_path)


def test_the_restorer_is_small_static_and_without_data() -> None:
    path = restorer()
    assert path.stat().st_size < 64 << 10
    with path.open("rb") as file:
        elf = ELFFile(file)
        assert not any(s.header.p_type == "PT_INTERP" for s in elf.iter_segments())
        assert not any(s["sh_type"] in ("SHT_RELA", "SHT_REL") for s in elf.iter_sections())
        assert not any(s.name in (".data", ".bss", ".got") for s in elf.iter_sections())


def test_the_control_file_is_read_as_it_is_laid_out(tmp_path: Path) -> None:
    control = Control([0x1000, 0x5000], str(tmp_path))
    try:
        os.pwrite(control.fd, bytes(12) + b"\1\0\0\0", 2 * 4096 + 64)
        assert control.event(0x5040)[0] and not control.event(0x1040)[0]
    finally:
        control.close()
