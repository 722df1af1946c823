# SPDX-License-Identifier: Apache-2.0
"""Numbers of the kernel's interface, against the headers of this machine and what C and assembly say of their own."""

from __future__ import annotations

import os
import re
import struct
import subprocess
from collections.abc import Iterable
from pathlib import Path

from checkpoint import event, linux
from checkpoint.binary import syscall_names

ROOT = Path(__file__).parents[2]
RESTORER = ROOT / "checkpoint/restorer"
HEADERS = (
    *("sched.h", "fcntl.h", "signal.h", "sys/mman.h", "sys/mount.h", "sys/prctl.h", "sys/ptrace.h", "sys/wait.h"),
    *("sys/syscall.h", "linux/auxvec.h", "linux/personality.h", "asm/ptrace-abi.h", "linux/ptrace.h", "linux/kcmp.h"),
)
OTHERWISE_NAMED = {"PERSONALITY_QUERY": "0xffffffff", "PAGE_SIZE": "sysconf(_SC_PAGESIZE)", "WALL": "__WALL"}


def values(folder: Path, names: Iterable[tuple[str, str]], headers: Iterable[str], options: Iterable[str] = ()) -> dict:
    """What a C program finds (name, expression) to be, of those whose expression the headers define."""
    source = folder / "numbers.c"
    lines = [f"#include <{header}>" for header in ("stdio.h", "unistd.h", *headers)]
    lines.append("int main(void)\n{")
    lines += [f'\tprintf("{name} %lld\\n", (long long)({expression}));' for name, expression in names]
    source.write_text("\n".join([*lines, "}\n"]))
    subprocess.run(["cc", "-D_GNU_SOURCE", "-w", *options, "-o", folder / "numbers", source], check=True)
    said = subprocess.run([folder / "numbers"], check=True, capture_output=True, text=True).stdout
    return {name: int(value) for name, value in map(str.split, said.splitlines())}


def test_numbers_are_those_of_the_kernels_headers(tmp_path: Path) -> None:
    ours = {name: value for name, value in vars(linux).items() if isinstance(value, int)}
    assert len(ours) > 50
    theirs = values(tmp_path, [(name, OTHERWISE_NAMED.get(name, name)) for name in ours], HEADERS)
    assert ours == theirs


def test_system_calls_are_those_of_the_kernels_headers(tmp_path: Path) -> None:
    listing = subprocess.run(
        ["cc", "-E", "-dM", "-include", "asm/unistd_64.h", "-x", "c", "/dev/null"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    known = {name: int(number) for name, number in re.findall(r"#define __NR_(\w+) (\d+)", listing)}
    ours = {name: syscall_names.call_number(name) for name in known if name in syscall_names._NUMBERS}
    assert len(ours) > 300 and ours == {name: known[name] for name in ours}
    assert all(syscall_names.call_name(number) == name for name, number in ours.items())


def enumerated(path: Path, pattern: str) -> dict[str, int]:
    """NAME = NUMBER of a C file, those that match."""
    found = re.findall(rf"\b({pattern})\s*=\s*(-?\w+)", path.read_text())
    return {name: int(number, 8 if re.fullmatch("0[0-7]+", number) else 0) for name, number in found}


def test_the_restorers_numbers_are_ours(tmp_path: Path) -> None:
    calls = enumerated(RESTORER / "kernel.h", r"SYS_\w+")
    otherwise = {"pread": "pread64", "pwrite": "pwrite64", "prlimit": "prlimit64"}
    assert len(calls) > 35
    for name, number in calls.items():
        plain = name[len("SYS_") :]
        assert syscall_names.call_number(otherwise.get(plain, plain)) == number, name
    others = enumerated(RESTORER / "kernel.h", r"(?!SYS_)[A-Z]\w*")
    assert len(others) > 40
    headers = ["errno.h", "time.h", "asm/prctl.h", "sys/resource.h", "sys/socket.h", "sys/epoll.h", "linux/futex.h"]
    headers += ["sys/ioctl.h", *HEADERS]
    # Headers of Linux before 6.3 lack these (include/uapi/linux/fcntl.h, memfd.h).
    assert {name: others.pop(name) for name in ("F_SEAL_EXEC", "MFD_EXEC")} == {"F_SEAL_EXEC": 0x20, "MFD_EXEC": 0x10}
    # linux/timerfd.h, which has this, does not go with fcntl.h.
    said = {"TFD_IOC_SET_TICKS": "_IOW('T', 0, unsigned long long)"}
    assert values(tmp_path, [(name, said.get(name, name)) for name in others], headers) == others


def test_an_event_record_is_what_the_stubs_write() -> None:
    """Offsets in the assembly's instructions, not only in its comment."""
    source = (ROOT / "checkpoint/stubs/stubs.S").read_text()
    fire = source[source.index("\n\t.macro\thandler") : source.index("\nstop_in_fire:")]
    step = re.search(r"lea\s+(\d+)\(%rdx\), %rax", fire)
    assert step is not None and int(step[1]) == event.EVENT_BYTES
    stamps = [int(offset) for offset in re.findall(r"lea\s+(\d+)\(%rdx\), %rsi", fire)]
    counted = [int(offset) for offset in re.findall(r"mov\s+%rcx, (\d+)\(%rdx\)", fire)]
    (action_at,) = {int(offset) for offset in re.findall(r"testl\s+\$\d+, (\d+)\(%rdx\)", fire)}
    (marks_at,) = {int(offset) for offset in re.findall(r"orl\s+\$\d+, (\d+)\(%rdx\)", fire)}
    actions = [int(bit) for bit in re.findall(r"testl\s+\$(\d+), \d+\(%rdx\)", fire)]
    assert actions == [event.STOP_BEFORE, event.STAMP, event.STOP_AFTER]
    assert re.findall(r"orl\s+\$(\d+), ", fire) == [str(event.USAGE_KNOWN), str(event.FIRED)]
    asked = event.event_record(1 << 40, event.STOP_AFTER)
    assert struct.unpack_from("<I", asked, action_at) == (event.STOP_AFTER,)
    assert struct.unpack_from("<q", asked, int(re.findall(r"mov\s+(\d*)\(%rdx\), %rax", fire)[0] or 0)) == (1 << 40,)
    names = {"wall": stamps[0], "cpu": stamps[1], "kernel": counted[0], "faults": counted[1]}
    for name, offset in names.items():
        record = bytearray(event.EVENT_BYTES)
        struct.pack_into("<I", record, marks_at, event.FIRED | event.USAGE_KNOWN)
        struct.pack_into("<q", record, offset, 3_000_000)
        fired, wall, cpu, kernel, faults = event.event_of(bytes(record))
        assert fired
        found = {"wall": wall, "cpu": cpu, "kernel": (kernel or 0) * 1e6, "faults": faults}
        assert found == {other: 3_000_000 if other == name else 0 for other in found}


def test_pages_are_of_the_size_assumed() -> None:
    assert os.sysconf("SC_PAGE_SIZE") == linux.PAGE_SIZE
    (size,) = re.findall(r"#define PAGE (\d+)UL", (RESTORER / "image.h").read_text())
    assert int(size) == linux.PAGE_SIZE
