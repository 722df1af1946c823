# SPDX-License-Identifier: Apache-2.0
"""The direct restorer: a process comes back whole, as an ordinary user, and never half."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest
from direct_runs import (
    as_nobody,
    flat_job,
    for_anybody,
    mount,
    open_to_anybody,
    python_for_anybody,
    report_of,
)
from elftools.elf.elffile import ELFFile
from programs import build
from regions import captured_regions

from checkpoint.compiled import restorer
from checkpoint.criu.images import CheckpointImages, read_checkpoint
from checkpoint.criu.tool import find_criu
from checkpoint.errors import NodeUnfit, PhaseFailed, ProbeFileDamaged
from checkpoint.flat.convert import NotFlat, flatten
from checkpoint.flat.image import NAME, Header, Kind, Mapping, OpenDescriptor, Run, decode, encode
from checkpoint.restore.criu_restore import RegionTime, RestoreJob, time_phase
from checkpoint.restore.direct_agent import Control, limit
from checkpoint.restore.direct_restore import DirectAgent, DirectRefused, landlock_version
from checkpoint.restore.recorded_calls import plain_path
from probe.contents.carried_files import copy_written_files
from probe.pipeline.capture import RegionPlan
from reducer.member_table import is_plain_absolute

FAILED, RESTORED = 1, 2
FORMAT, CHECKSUM, TABLE, PARK, PAGES = 4, 5, 6, 7, 8
MAPPINGS, RUNS, PATCHES, DESCRIPTORS, STAMPS, TOUCH_ORDER, CALLS, STRINGS, RSEQ = range(9)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("direct")


@pytest.fixture(scope="module")
def state(builds: Path, places: Path) -> RestoreJob:
    """A phase of a process whose every property is unusual."""
    folder = places / "state"
    folder.mkdir()
    (folder / "input").write_bytes(random.Random(1).randbytes(5000))
    begun = time.time()

    def copies(plan: RegionPlan, images: CheckpointImages) -> dict[str, Path]:
        return dict(
            copy_written_files(images, folder / f"written-{plan.phase}", (str(folder / "stdout"),), since=begun)
        )

    (job,) = captured_regions(
        build("state", builds), str(folder / "input"), str(folder / "output"), folder=folder, on_dump=copies
    )
    (folder / "output").unlink()
    return job


@pytest.fixture(scope="module")
def flat_state(state: RestoreJob, places: Path) -> RestoreJob:
    flat_job(state, places)
    return state


@pytest.fixture(scope="module")
def plain(builds: Path, places: Path) -> RestoreJob:
    """A phase that makes no system call, 96 pages of it touched."""
    (job,) = captured_regions(build("touches", builds), "plain", folder=places / "plain")
    flat_job(job, places)
    return job


def timed(job: RestoreJob, scratch: Path, **more: object) -> RegionTime:
    with DirectAgent(job, restorer(), scratch=scratch, **more) as agent:  # type: ignore[arg-type]
        return agent.repeat()


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


# Damage and malice.


def flat_bytes(job: RestoreJob) -> bytes:
    return (job.images / NAME).read_bytes()


def pages_of(job: RestoreJob) -> Path:
    return read_checkpoint(job.images).pages_image


def test_an_image_cut_off_anywhere_is_refused(plain: RestoreJob, tmp_path: Path) -> None:
    data, pages = flat_bytes(plain), pages_of(plain)
    header = Header.from_buffer_copy(data)
    sizes = {*range(0, 64), *range(64, len(data), 509), len(data) - 1}
    assert header.size == len(data)
    for size in sorted(sizes):
        status, progress, step, _ = report_of(data[:size], pages, tmp_path / "run")
        assert os.WIFEXITED(status) and progress == FAILED and step in (3, FORMAT, CHECKSUM), size


def test_a_changed_byte_anywhere_is_refused(plain: RestoreJob, tmp_path: Path) -> None:
    data, pages = flat_bytes(plain), pages_of(plain)
    for at in [*range(0, 200, 7), *random.Random(2).sample(range(200, len(data)), 100)]:
        changed = data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]
        status, progress, step, _ = report_of(changed, pages, tmp_path / "run")
        assert os.WIFEXITED(status) and progress == FAILED and step in (FORMAT, CHECKSUM, 3, PARK), at


@pytest.mark.parametrize(
    ("what", "step", "table"),
    [
        ("overlap", TABLE, MAPPINGS), ("kernel address", TABLE, MAPPINGS), ("beyond the end", TABLE, MAPPINGS),
        ("inside the park", TABLE, MAPPINGS), ("shared and writable", TABLE, MAPPINGS), ("page zero", TABLE, MAPPINGS),
        ("run outside", TABLE, RUNS), ("runs not rising", TABLE, RUNS), ("stamp outside", TABLE, STAMPS),
        ("touch outside", TABLE, TOUCH_ORDER), ("rseq outside", TABLE, RSEQ), ("park in the kernel", FORMAT, None),
        ("descriptor twice", TABLE, DESCRIPTORS), ("patch outside", TABLE, PATCHES), ("many calls", TABLE, CALLS),
        ("folder outside", TABLE, STRINGS), ("park too small", FORMAT, None),
    ],
)  # fmt: skip
def test_an_image_made_to_harm_is_refused(
    what: str, step: int, table: int | None, plain: RestoreJob, tmp_path: Path
) -> None:
    flat = decode(plain.images / NAME)
    flat.touch_order = flat.touch_order or [flat.mappings[0].start]
    changes = {
        "overlap": lambda: setattr(flat.mappings[1], "start", flat.mappings[0].start + 4096),
        "kernel address": lambda: setattr(flat.mappings[-1], "end", 0xFFFF800000000000),
        "beyond the end": lambda: setattr(flat.mappings[-1], "end", 0x7FFFFFFFF000 + 4096),
        "inside the park": lambda: flat.mappings.insert(
            next(i for i, m in enumerate(flat.mappings) if m.start > flat.header.park),
            Mapping(flat.header.park, flat.header.park + 4096, 0, 0, 3, 2, 0, 1),
        ),
        "shared and writable": lambda: (setattr(flat.mappings[0], "flags", 1), setattr(flat.mappings[0], "prot", 3)),
        "page zero": lambda: flat.mappings.insert(0, Mapping(0, 4096, 0, 0, 3, 2, 0, 1)),
        "run outside": lambda: flat.runs.append(Run(0x7FFFFFF00000, 1)),
        "runs not rising": lambda: flat.runs.append(flat.runs[0]),
        "stamp outside": lambda: flat.stamps.append(4096),
        "touch outside": lambda: flat.touch_order.append(4096),
        "rseq outside": lambda: setattr(flat.header, "rseq", 4096),
        "park in the kernel": lambda: setattr(flat.header, "park", 0xFFFF800000000000),
        "descriptor twice": lambda: flat.descriptors.append(flat.descriptors[0]),
        "patch outside": lambda: flat.patches.append((4096, bytes(4096))),
        "many calls": lambda: setattr(flat, "calls", list(range(600))),
        "folder outside": lambda: setattr(flat.header, "cwd", 1 << 40),
        "park too small": lambda: None,
    }
    changes[what]()
    data = bytearray(encode(flat))
    if what == "park too small":
        data[Header.park_size.offset : Header.park_size.offset + 8] = (0x41000).to_bytes(8, "little")
    status, progress, found, _ = report_of(bytes(data), pages_of(plain), tmp_path / "run", stamps=4)
    assert os.WIFEXITED(status) and (progress, found) == (FAILED, step)


def test_pages_that_are_missing_are_noticed(plain: RestoreJob, tmp_path: Path) -> None:
    short = tmp_path / "pages"
    short.write_bytes(pages_of(plain).read_bytes()[:-4096])
    (tmp_path / "run").mkdir()
    for number, path in enumerate(decode(plain.images / NAME).files):
        (tmp_path / "run" / str(number)).symlink_to(path)
    status, progress, step, _ = report_of(flat_bytes(plain), short, tmp_path / "run", stamps=4)
    assert os.WIFEXITED(status) and (progress, step) == (FAILED, PAGES)


def moved(job: RestoreJob, folder: Path) -> RestoreJob:
    shutil.copytree(job.images, folder)
    return replace(job, images=folder)


def test_a_damaged_image_ends_with_the_word_damaged(plain: RestoreJob, tmp_path: Path) -> None:
    job = moved(plain, tmp_path / "images")
    data = bytearray(flat_bytes(job))
    data[-1] ^= 1
    (job.images / NAME).write_bytes(data)
    with pytest.raises(ProbeFileDamaged, match="checksum"):
        timed(job, tmp_path)


def test_an_image_of_another_checkpoint_is_refused(plain: RestoreJob, flat_state: RestoreJob, tmp_path: Path) -> None:
    job = moved(plain, tmp_path / "images")
    shutil.copy(flat_state.images / NAME, job.images / NAME)
    with pytest.raises(ProbeFileDamaged, match="another checkpoint"):
        timed(job, tmp_path)


def test_a_probe_without_a_flat_image_is_for_criu(plain: RestoreJob, tmp_path: Path) -> None:
    job = moved(plain, tmp_path / "images")
    (job.images / NAME).unlink()
    with pytest.raises(DirectRefused, match="for CRIU alone"):
        timed(job, tmp_path)


def test_an_image_cannot_have_the_nodes_files_for_writing(flat_state: RestoreJob, tmp_path: Path) -> None:
    """A copy opened for writing is opened for reading; a path that is no harmless device is refused."""
    job = moved(flat_state, tmp_path / "images")
    target = tmp_path / "precious"
    target.write_text("precious")
    target.chmod(0o666)
    flat = decode(job.images / NAME)
    (opened,) = [d for d in flat.descriptors if d.kind == Kind.PATH and d.number == 0]
    opened.path, opened.flags = flat.string(str(target)), os.O_RDWR
    (job.images / NAME).write_bytes(encode(flat))
    with pytest.raises(DirectRefused, match=f"descriptor 0 \\({target}\\): Permission denied"):
        timed(job, tmp_path)
    opened.kind, opened.file = Kind.COPY, len(flat.files)
    flat.files.append(str(target))
    (job.images / NAME).write_bytes(encode(flat))
    timed(job, tmp_path)
    assert target.read_text() == "precious"


# What a node may refuse.


def test_a_missing_copy_is_named(plain: RestoreJob, tmp_path: Path) -> None:
    library = next(path for path in decode(plain.images / NAME).files if "libc" in path)
    job = replace(plain, binds=[(str(tmp_path / "nowhere"), library)])
    with pytest.raises(DirectRefused, match=f"opening the copy of {library}: No such file"):
        timed(job, tmp_path)


def test_a_folder_that_is_not_here_is_any_folder_to_a_phase_without_paths(plain: RestoreJob, tmp_path: Path) -> None:
    job = moved(plain, tmp_path / "images")
    flat = decode(job.images / NAME)
    flat.header.cwd = flat.string(str(tmp_path / "nowhere"))
    place = flat.string(str(tmp_path / "nowhere"))
    flat.descriptors.append(OpenDescriptor(number=9, kind=Kind.PATH, flags=os.O_DIRECTORY, path=place))
    (job.images / NAME).write_bytes(encode(flat))
    assert timed(job, tmp_path).wall > 0
    flat.opened = ["/etc/hostname"]
    (job.images / NAME).write_bytes(encode(flat))
    with pytest.raises(DirectRefused, match="No such file"):
        timed(job, tmp_path)


def test_too_little_address_space_is_named(plain: RestoreJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import checkpoint.restore.direct_restore

    monkeypatch.setattr(checkpoint.restore.direct_restore, "_MEMORY_SLACK", -(10**12))
    original = checkpoint.restore.direct_restore.direct_spec

    def tight(*a: object, **k: object) -> dict[str, object]:
        return {**original(*a, **k), "memory_bytes": 2 << 20}  # type: ignore[arg-type]

    monkeypatch.setattr(checkpoint.restore.direct_restore, "direct_spec", tight)
    with pytest.raises(DirectRefused, match=r"mapping .*Cannot allocate memory.*ulimit -v"):
        timed(plain, tmp_path)


def test_an_address_below_the_kernels_minimum_is_named(plain: RestoreJob, tmp_path: Path) -> None:
    flat = decode(plain.images / NAME)
    flat.mappings.insert(0, Mapping(4096, 8192, 0, 0, 3, 2, 0, 1))
    if int(Path("/proc/sys/vm/mmap_min_addr").read_text()) <= 4096:
        pytest.skip("this machine lets everybody map that")

    def as_user() -> tuple[int, int, int, int]:
        return report_of(encode(flat), tmp_path / "pages", tmp_path / "run", stamps=4)

    shutil.copy(pages_of(plain), tmp_path / "pages")
    (tmp_path / "run").mkdir(mode=0o777)
    open_to_anybody(tmp_path)
    (tmp_path / "run").chmod(0o777)
    program = tmp_path / "restorer"
    shutil.copy(restorer(), program)
    program.chmod(0o755)
    import direct_runs

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(direct_runs, "restorer", lambda: program)
        _status, progress, step, error = as_nobody(as_user)
    assert (progress, step, error) == (FAILED, 11, errno.EPERM)


def test_a_file_system_without_execution_is_no_obstacle(plain: RestoreJob, tmp_path: Path) -> None:
    """Libraries and the restorer itself lie on a noexec file system: contents are copied, the restorer is a memfd."""
    folder = tmp_path / "noexec"
    folder.mkdir()
    mount("tmpfs", str(folder), "tmpfs", 8, "size=64m")  # MS_NOEXEC
    try:
        shutil.copy(restorer(), folder / "restorer")
        flat = decode(plain.images / NAME)
        binds = []
        for number, path in enumerate(flat.files):
            shutil.copy(path, folder / str(number))
            binds.append((str(folder / str(number)), path))
        job = replace(plain, binds=binds)
        with DirectAgent(job, folder / "restorer", scratch=tmp_path) as agent:
            assert agent.repeat().wall > 0
        # The guard: a plain mapping is refused there.
        with pytest.raises(PermissionError):
            subprocess.run([folder / "restorer"])
    finally:
        ctypes.CDLL(None).umount2(str(folder).encode(), 2)


def test_a_kernel_without_rseq_is_told_to_the_c_library(flat_state: RestoreJob, tmp_path: Path) -> None:
    """The registration fails for a wrong size; sched_getcpu in the region must then ask the kernel."""
    job = moved(flat_state, tmp_path / "images")
    flat = decode(job.images / NAME)
    assert flat.header.rseq
    flat.header.rseq_size = 8
    (job.images / NAME).write_bytes(encode(flat))
    timed(job, tmp_path)


def test_a_taken_park_is_named(plain: RestoreJob, tmp_path: Path) -> None:
    """Put where the kernel puts every program's stack while addresses are not random."""
    flat = decode(plain.images / NAME)
    flat.header.park = 0x7FFFFFFFF000 - Header.from_buffer_copy(encode(flat)).park_size
    libc = ctypes.CDLL(None)
    before = libc.personality(0xFFFFFFFF)
    libc.personality(before | 0x40000)
    try:
        status, progress, step, _ = report_of(encode(flat), pages_of(plain), tmp_path / "run")
    finally:
        libc.personality(before)
    assert os.WIFEXITED(status) and (progress, step) == (FAILED, PARK)


# Confinement.


def test_only_recorded_calls(flat_state: RestoreJob, tmp_path: Path) -> None:
    assert timed(flat_state, tmp_path, only_recorded_calls=True).wall > 0
    job = moved(flat_state, tmp_path / "images")
    flat = decode(job.images / NAME)
    flat.calls.remove(95)  # umask
    (job.images / NAME).write_bytes(encode(flat))
    with pytest.raises(PhaseFailed, match="SIGSYS"):
        timed(job, tmp_path, only_recorded_calls=True)


def test_the_network_is_out_of_reach(builds: Path, tmp_path: Path) -> None:
    (job,) = captured_regions(build("paths", builds), "/etc/hostname", "socket", folder=tmp_path / "socket")
    flat_job(job, tmp_path, watched=False)
    assert timed(job, tmp_path).wall > 0


def test_nothing_is_written_outside_its_folder(builds: Path, tmp_path: Path) -> None:
    """Landlock: a phase that was not known to write by paths, and does, is refused by the kernel."""
    if not landlock_version():
        pytest.skip("this kernel has no landlock")
    folder = tmp_path / "paths"
    folder.mkdir()
    (folder / "input").write_text("hello")
    (job,) = captured_regions(
        build("paths", builds), f"{folder}/../paths//input", str(folder / "made"), folder=folder
    )  # fmt: skip
    (folder / "made.moved").unlink(missing_ok=True)
    flat_job(job, tmp_path, watched=False)
    with pytest.raises(PhaseFailed, match="exited with status 4"):
        timed(job, tmp_path)
    assert not (folder / "made").exists()


@pytest.mark.parametrize("view", [False, True])
def test_nothing_outlives_whoever_asked(
    view: bool, flat_state: RestoreJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent is killed at many moments; the phase, its child, goes with it every time, with no namespace to help."""
    import checkpoint.restore.direct_restore

    monkeypatch.setattr(checkpoint.restore.direct_restore, "may_unshare", lambda _flags: False)
    job = moved(flat_state, tmp_path / "images")
    flat = decode(job.images / NAME)
    flat.header.changes_paths = view
    (job.images / NAME).write_bytes(encode(flat))
    seen = 0
    for number in range(16):
        agent = DirectAgent(job, restorer(), scratch=tmp_path)
        pid = agent._agent._process.pid
        agent._agent.order()
        deadline = time.monotonic() + 5
        while not (family := _descendants(pid)) and time.monotonic() < deadline:
            time.sleep(0.0005)
        time.sleep(0.002 * number)
        family |= _descendants(pid)
        seen += len(family)
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 5
        while any(_alive(p) for p in family) and time.monotonic() < deadline:
            time.sleep(0.005)
        left = [p for p in family if _alive(p)]
        agent.close()
        assert not left
    assert seen >= 16


def _parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def _descendants(pid: int) -> set[int]:
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                parents[int(folder.name)] = _parent_of(int(folder.name))
    found: set[int] = set()
    while more := {p for p, parent in parents.items() if parent in found | {pid}} - found:
        found |= more
    return found


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


# Files used by their paths.


@pytest.fixture
def by_path(builds: Path, tmp_path: Path) -> RestoreJob:
    folder = tmp_path / "paths"
    folder.mkdir()
    (folder / "input").write_text("hello")
    (job,) = captured_regions(
        build("paths", builds), f"{folder}/../paths//input", str(folder / "made"), folder=folder
    )  # fmt: skip
    (folder / "made.moved").unlink(missing_ok=True)
    return job


def test_paths_are_recorded_as_the_kernel_takes_them(tmp_path: Path) -> None:
    """Probes hold files by plain paths; interpreters and compilers open many with `..` in them."""
    (tmp_path / "real" / "inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real" / "inner")
    (tmp_path / "real" / "name").symlink_to("inner")
    found = [plain_path(f"{tmp_path}/{path}") for path in ("./a//b", "link/../name/c", "link/./c", "x/", "real/..")]
    assert found == [f"{tmp_path}/{path}" for path in ("a/b", "real/name/c", "link/c", "x")] + [str(tmp_path)]
    assert plain_path("//etc/../etc/hosts") == "/etc/hosts" and plain_path("/..") == "/"
    assert all(is_plain_absolute(path) for path in found)


def test_files_opened_and_changed_in_a_region_are_recorded(by_path: RestoreJob, tmp_path: Path) -> None:
    flat = flat_job(by_path, tmp_path)
    assert flat.opened == [str(tmp_path / "paths" / "input")] and flat.header.changes_paths
    assert {2, 257} & set(flat.calls) and 82 in flat.calls


def test_changes_stay_in_a_view_of_their_own(by_path: RestoreJob, tmp_path: Path) -> None:
    folder = tmp_path / "paths"
    flat_job(by_path, tmp_path)
    before = sorted(folder.iterdir())
    with DirectAgent(by_path, restorer(), scratch=tmp_path) as agent:
        agent.repeat()
        agent.repeat()
    assert sorted(folder.iterdir()) == before


def test_a_file_that_is_not_here_comes_from_the_probe(by_path: RestoreJob, tmp_path: Path) -> None:
    flat_job(by_path, tmp_path)
    original = tmp_path / "paths" / "input"
    original.rename(tmp_path / "copy")
    job = replace(by_path, binds=[(str(tmp_path / "copy"), str(original))])
    assert timed(job, tmp_path).wall > 0


def test_an_ordinary_user_gets_a_view_too(by_path: RestoreJob, builds: Path, tmp_path: Path) -> None:
    flat_job(by_path, tmp_path)
    open_to_anybody(builds)
    code = for_anybody(tmp_path / "code")
    open_to_anybody(tmp_path)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    scratch.chmod(0o777)
    (tmp_path / "paths").chmod(0o777)
    program = tmp_path / "restorer"
    shutil.copy(restorer(), program)
    program.chmod(0o755)
    before = sorted((tmp_path / "paths").iterdir())
    by_path = replace(by_path, folders=(str(tmp_path / "paths"),))

    def restored() -> float:
        import checkpoint.restore.direct_restore

        checkpoint.restore.direct_restore._AGENT = code / "checkpoint" / "restore" / "direct_agent.py"
        with DirectAgent(by_path, program, scratch=scratch) as agent:
            agent.repeat()
            return agent.repeat().wall

    assert as_nobody(restored) > 0
    assert sorted((tmp_path / "paths").iterdir()) == before


def no_namespaces() -> None:
    """As in most containers: a filter refuses unshare."""
    import struct

    code = struct.pack("<HBBI", 0x20, 0, 0, 0) + struct.pack("<HBBI", 0x15, 0, 1, 272)
    code += struct.pack("<HBBI", 0x06, 0, 0, 0x00050001) + struct.pack("<HBBI", 0x06, 0, 0, 0x7FFF0000)
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(code)

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]

    program = Program(len(code) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, ctypes.byref(program)) == 0


def test_a_user_without_namespaces_is_told_what_the_phase_needs(by_path: RestoreJob, tmp_path: Path) -> None:
    flat_job(by_path, tmp_path)
    open_to_anybody(tmp_path)
    tmp_path.chmod(0o777)

    program = restorer()

    def refused() -> str:
        try:
            DirectAgent(by_path, program, scratch=tmp_path)
        except DirectRefused as error:
            return str(error)
        return "not refused"

    said = as_nobody(refused, no_namespaces)
    assert "it creates, changes or removes files" in said and "no user namespaces" in said


# What is refused when the probe is built.


def test_timers_of_posix_are_refused_by_name(plain: RestoreJob) -> None:
    images = read_checkpoint(plain.images)
    core = images.core
    task = core.message(3)
    timers = task.message(7) if task else None
    assert task is not None and timers is not None
    timers.set_bytes(4, b"\x08\x00")
    task.set_bytes(7, timers.encode())
    core.set_bytes(3, task.encode())
    with pytest.raises(NotFlat, match="POSIX timers"):
        flatten(replace(images, core=core), (plain.warm_event, plain.start_event, plain.end_event))


def test_memory_beyond_47_bits_is_refused_by_name(plain: RestoreJob) -> None:
    images = read_checkpoint(plain.images)
    far = replace(images.vmas[-1], start=1 << 50, end=(1 << 50) + 4096, status=1 << 9)
    vmas = tuple(v for v in images.vmas if not v.status & 4)
    with pytest.raises(NotFlat, match="5-level paging"):
        flatten(replace(images, vmas=(*vmas, far)), (plain.warm_event, plain.start_event, plain.end_event))
    assert issubclass(DirectRefused, NodeUnfit)


def test_a_container_of_sorts(flat_state: RestoreJob, builds: Path, places: Path, tmp_path: Path) -> None:
    """No capabilities, no new privileges, no namespaces, a read-only root, 64 MB of tmpfs to write to."""
    code = for_anybody(tmp_path / "code")
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    shutil.copy(restorer(), tmp_path / "restorer")
    (tmp_path / "restorer").chmod(0o755)
    for folder in (places, builds, tmp_path):
        open_to_anybody(folder)

    def contained() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.unshare(0x20000) == 0
        mount(None, "/", None, 0x44000)
        mount("tmpfs", str(scratch), "tmpfs", 6, "size=64m,mode=1777")  # nosuid, nodev
        mount(None, "/", None, 0x1000 | 0x20 | 1)  # bind, remount, read-only
        tempfile.tempdir = str(scratch)
        no_namespaces()

    def restored() -> float:
        import checkpoint.restore.direct_restore

        with pytest.raises(OSError) as refused:
            os.open("/dev/../tmp", os.O_TMPFILE | os.O_WRONLY)
        assert refused.value.errno == errno.EROFS
        checkpoint.restore.direct_restore._AGENT = code / "checkpoint" / "restore" / "direct_agent.py"
        with DirectAgent(flat_state, tmp_path / "restorer", scratch=scratch) as agent:
            return agent.repeat().wall

    assert python_for_anybody()
    assert 0 < as_nobody(restored, contained) < 5


def test_limits_are_only_lowered() -> None:
    import resource

    pid = os.fork()
    if not pid:
        wrong = 1
        try:
            limit(resource.RLIMIT_CORE, 1 << 40)
            limit(resource.RLIMIT_CORE, 0)
            limit(resource.RLIMIT_CORE, 1 << 40)
            wrong = int(resource.getrlimit(resource.RLIMIT_CORE)[1] != 0)
        finally:
            os._exit(wrong)
    assert os.waitpid(pid, 0)[1] == 0


def test_the_control_file_is_read_as_it_is_laid_out(tmp_path: Path) -> None:
    control = Control([0x1000, 0x5000], str(tmp_path))
    try:
        os.pwrite(control.fd, bytes(12) + b"\1\0\0\0", 2 * 4096 + 64)
        assert control.event(0x5040)[0] and not control.event(0x1040)[0]
    finally:
        control.close()
