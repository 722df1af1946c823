# SPDX-License-Identifier: Apache-2.0
"""Builds the small programs that the tests trace, checkpoint and restore.

`PROGRAMS` says what each one is for and how to run it quickly; `build` compiles one on demand. A program
prints `count NAME N` (or `count IMAGE:NAME N`) when the instruction at that label is executed exactly N times
in its run, so that a counting tracer can be compared with the truth (`expected_counts`, `symbols`).
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import random
import re
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from checkpoint.linux import ADDR_NO_RANDOMIZE

TRAPS = Path(__file__).parents[1] / "programs"
PHASED = Path(__file__).parents[2] / "data" / "programs"

WARNINGS = ("-O2", "-Wall", "-Wextra", "-Werror")
VARIANTS: Mapping[str, tuple[str, ...]] = {
    "pie": ("-fPIE", "-pie"),
    "nopie": ("-fno-pie", "-no-pie"),
    "static": ("-fno-pie", "-static"),
    "static-pie": ("-fPIE", "-static-pie"),
    "stripped": ("-fPIE", "-pie", "-s"),
    "cet": ("-fPIE", "-pie", "-fcf-protection=full"),
}
DYNAMIC = ("pie", "nopie", "stripped", "cet")


@dataclass(frozen=True)
class Program:
    """One program: its purpose, its sources, and arguments that make a run of some milliseconds.

    `beside` names what is built into the same folder: NAME.so from NAME.c, another program, a script, or
    text.txt. `status` is the exit status as subprocess reports it, minus the signal for a killed program.
    `steady` is false where two runs with equal arguments and addresses execute different instructions.
    """

    purpose: str
    sources: tuple[str, ...] = ()
    quick: tuple[str, ...] = ("10",)
    flags: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    variants: tuple[str, ...] = tuple(VARIANTS)
    status: int = 0
    steady: bool = True
    folder: Path = TRAPS


def _with_assembly(purpose: str, name: str, quick: str, *flags: str) -> Program:
    return Program(purpose, (f"{name}.c", f"{name}.S"), (quick,), flags)


def _phased(purpose: str, quick: str) -> Program:
    return Program(purpose, quick=(quick,), folder=PHASED)


PROGRAMS: Mapping[str, Program] = {
    # Known phases.
    "matmul": _phased("one phase carries more than 95 % of the time", "200"),
    "everchanging": Program("64 functions one after the other, none of them twice", quick=("1",)),
    "sleeper": Program("computes and sleeps by turns", quick=("3", "1")),
    "inkernel": Program("turns of computing, of system calls and of page faults", quick=("1",)),
    "nbody": _phased("all-pairs forces, the energy now and then", "10"),
    "sweep": _phased("a wavefront through a grid in eight directions", "2"),
    "chase": _phased("one dependent load after another through 64 MB", "1"),
    "sorter": _phased("generate, quicksort, verify; working sets of five sizes", "1"),
    "stencil": _phased("five-point relaxation of a plate", "50"),
    "multigrid": Program("V-cycles in a cube", quick=("1", "3"), folder=PHASED),
    "conjugate": _phased("conjugate gradients on a sparse matrix", "3"),
    "fourier": _phased("transforms there and back", "2"),
    "molecules": _phased("forces between neighbours in a list", "3"),
    "phases": _phased("kernels whose CPI differs a hundredfold take turns", "1"),
    "bigheap": Program("a table that fills the memory, little of it used at a time", quick=("4", "1"), folder=PHASED),
    # Stubs.
    "redzone": _with_assembly("live data below the stack pointer across displaced instructions", "redzone", "10"),
    "flags": _with_assembly("every flag live across stores, calls and jumps that are displaced", "flags", "3"),
    "riprel": _with_assembly("RIP-relative operands of every form at the heads of blocks", "riprel", "10"),
    "avx": Program("sixteen full AVX registers live across a stub", quick=("1",), flags=("-mavx2",)),
    "callpop": _with_assembly("calls as the only site; code that reads its return address", "callpop", "20"),
    "flat": _with_assembly("a long stretch with one hot site; with a second argument, one with none", "flat", "5"),
    # Control flow and decoding.
    "jumptable": _with_assembly("indirect jumps to heads of blocks and into the middle of one", "jumptable", "2"),
    "overlap": _with_assembly("direct jumps into the middle of instructions; overlapping blocks", "overlap", "100"),
    "datacode": _with_assembly("data, decodable and not, inside functions", "datacode", "1000"),
    "selfcheck": Program("compares its code with its file: notices patches, exits with 4 (documented limit)"),
    "callreader": Program("looks where the call leads that led to it, aborts where it was redirected", quick=("2",)),
    "resumes": Program("goes on from the file that its last run has left: its first run is another", steady=False),
    "jit": Program("writes and rewrites code at run time"),
    "ifunc": Program("code chosen for the CPU: GNU ifunc, __builtin_cpu_supports, memcpy, strlen", quick=("20",)),
    "rep": Program("string instructions of 8 MB that count as one"),
    "vdso": Program("lives in the vDSO"),
    "bigtext": Program("100,000 blocks in 2,500 functions", ("bigtext.c", "bigtext_source.py")),
    # Signals.
    "signals": Program("4 kHz timer signals inside stubs; exact counts in the file of the 2nd argument", quick=("5",)),
    "altstack": Program("the handler on an alternate stack, the red zone live", ("altstack.c", "redzone.S"), ("20",)),
    "raiser": Program("signals sent to itself, handler counts exact", quick=("1",)),
    "faults": Program(
        "SIGSEGV at a displaced instruction and siglongjmp; 'skip' moves the saved RIP, prints ok or moved",
        quick=("2",),
    ),
    # Libraries.
    "dlopen": Program(
        "a library opened, closed and opened again",
        flags=("-Wl,-rpath,$ORIGIN",),
        beside=("plugin.so",),
        variants=DYNAMIC,
    ),
    "farlib": Program(
        "a library more than 2 GB away",
        flags=("-Wl,-rpath,$ORIGIN",),
        beside=("libfar.so",),
        variants=DYNAMIC,
    ),
    # Processes.
    "threads": Program("starts two threads: to be refused", flags=("-pthread",)),
    "team": Program(
        "threads that share the work, in one of many ways", flags=("-fopenmp", "-pthread"), variants=("pie",)
    ),
    "crews": Program("the first thread waits for others that work", flags=("-pthread",), variants=("pie",)),
    "astray": Program(
        "who tells places leaves, faults, starts a process or stops before the first of them",
        flags=("-pthread",),
        variants=("pie",),
        quick=("none",),
    ),
    "queue": Program(
        "the first thread hands out work; with a file, another number of pieces ahead in each run",
        flags=("-pthread",),
        variants=("pie",),
        quick=("40",),
    ),
    "waiters": Program("one thread works, others wait in one of many ways", flags=("-pthread",)),
    "forker": Program("forks two workers: to be refused"),
    "vforker": Program("spawns a helper: to be refused"),
    "helpers": Program("starts processes in one of many ways", quick=("60", "start"), steady=False),
    "execer": Program("replaces itself by execed", beside=("execed",)),
    "execed": Program("what execer and execscript.sh turn into"),
    "execscript.sh": Program("a script that execs execed", ("execscript.sh",), beside=("execed",)),
    # Bad input and bad ends.
    "short": Program("exits at once", quick=()),
    "crash": Program("SIGSEGV after a second", status=-11),
    "fail": Program("exit status 3 after a second", status=3),
    "verdict": Program("exit status 10 after some work, or by turns; its process number if asked", status=10),
    "abort": Program("SIGABRT after a second", status=-6),
    # What a checkpoint must refuse or carry.
    "socket": Program("holds a socket pair and a socket that leads elsewhere"),
    "pipe": Program("holds a pipe with data in it"),
    "inside": Program(
        "descriptors that lead to itself (pipes, sockets, epoll sets, deleted files), checked in a region",
        quick=("events",),
    ),
    "shares": Program(
        "shared memory (anonymous, memfds, deleted files) and pending signals, checked in a region",
        quick=("memfd",),
    ),
    "shm": Program("works in shared mappings, anonymous and of a memory file"),
    "scratch": Program("needs a file for a while, by a name that is new in each run"),
    "fileread": Program(
        "reads text.txt at offsets; 'FILE reopen' opens it for every piece",
        quick=("1",),
        beside=("text.txt",),
    ),
    "filewrite": Program("writes and appends to filewrite.out beside it, or to the 2nd argument", quick=("1",)),
    "records": Program("reads numbered records from standard input, dies at one that is not the next", quick=()),
    "inplace": Program("shortens the file that it is given", quick=(), status=2),
    "reports": Program("reports its progress in a region where a file is there", quick=(), status=2),
    "holder": Program("holds what its second argument names: to be refused", quick=("10", "inotify")),
    "gigabytes": Program("prints megabytes of text, faster than a disk takes them", variants=("pie",)),
    "tally": Program("counts its runs in a file, and prints something else in one of them", variants=("pie",)),
    "elsewhere": Program("misbehaves as the host's name says once that changes"),
    "household": Program(
        "reads, writes, renames and removes files of its folder, and dies when they are not as it left them",
        flags=("-Wl,-rpath,$ORIGIN",),
        beside=("libown.so",),
        variants=DYNAMIC,
        quick=(),
    ),
    "crowd": Program("memory of many pieces: mappings, or single touched pages", quick=("10", "areas", "100")),
    "manycalls": Program("a region that makes system calls by the million"),
    "mappings": Program("has a mapping of the kind its argument names: to be refused", quick=()),
    "touches": Program("regions that touch known pages, and check what they find there", quick=()),
    "clocks": Program("a region that looks at clocks, or waits for them", quick=()),
    "arrays": Program("arrays whose contents are numbers alone, addresses, or control flow", quick=("plate",)),
    "state": Program("everything the kernel keeps for a process, unusual, checked in a region", quick=(), status=2),
    "appends": Program("writes to a file, and more of it in its region", quick=("end", "appends.out")),
    "traps": Program("memory and signals that are hard to capture", quick=("advised",)),
    "wide": Program("vector registers live across the start of a region; 3 where the CPU has none", quick=("avx",)),
    "hostile": Program("a region that does harm of the kind its second argument names", quick=("-", "metadata")),
    "paths": Program("a region that opens, makes and renames files by their paths", quick=(), status=2),
    # Divergence.
    "random": Program("control flow from time, pid and random bytes, output equal unless 'loud'", steady=False),
    "addrhash": Program("control flow from addresses: steady with ASLR off; 'mmap' adds a mapping's address"),
}


def _gcc(arguments: list[str], folder: Path) -> None:
    done = subprocess.run(["gcc", *arguments], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"gcc {' '.join(arguments)} failed:\n{done.stderr}")


@cache
def _compiler() -> bytes:
    return subprocess.run(["gcc", "--version"], check=True, capture_output=True).stdout


def _key(name: str, variant: str) -> str:
    program = PROGRAMS[name]
    digest = hashlib.sha256(repr((program, WARNINGS, VARIANTS[variant], _compiler())).encode())
    # All of a folder's sources: headers and companions need no dependency lists that way.
    for path in sorted(program.folder.iterdir()):
        if path.suffix in (".c", ".h", ".S", ".py", ".sh"):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _text(path: Path, size: int = 8 << 20) -> None:
    chance = random.Random(1)
    words = ["".join(chance.choices("etaoinshrdlu", k=chance.randint(2, 10))) for _ in range(2000)]
    page = " ".join(chance.choices(words, k=20000))
    lines = "\n".join(page[at : at + 72] for at in range(0, len(page), 72)) + "\n"
    path.write_text((lines * (size // len(lines) + 1))[:size])


def _make(name: str, variant: str, folder: Path) -> None:
    flags = [*WARNINGS, *VARIANTS[variant]]
    if name == "text.txt":
        _text(folder / name)
        return
    if name.endswith(".so"):
        strip = ["-s"] if variant == "stripped" else []
        source = TRAPS / f"{Path(name).stem}.c"
        _gcc([*WARNINGS, "-fPIC", "-shared", f"-Wl,-soname,{name}", *strip, "-o", name, str(source)], folder)
        return
    program = PROGRAMS[name]
    for other in program.beside:
        _make(other, variant, folder)
    if name.endswith(".sh"):
        shutil.copy(program.folder / name, folder / name)
        (folder / name).chmod(0o755)
        return
    inputs = []
    for path in [program.folder / source for source in program.sources or (f"{name}.c",)]:
        if path.suffix == ".py":
            generated = folder / f"{path.stem}.S"
            subprocess.run([sys.executable, str(path), str(generated)], check=True)
            inputs.append(str(generated))
        else:
            inputs.append(str(path))
    libraries = [other for other in program.beside if other.startswith("lib")]
    _gcc([*flags, *program.flags, "-o", name, *inputs, *libraries, "-lm"], folder)


def build(name: str, folder: Path, variant: str = "pie") -> Path:
    """Path of program `name` of `PROGRAMS`, built as `variant` of `VARIANTS`, with what it needs beside it.

    `folder` keeps finished builds, one subfolder each, by content of sources and flags; concurrent callers
    may share it. Raises KeyError for an unknown name, ValueError for a variant the program cannot have, and
    RuntimeError with the compiler's words when it does not compile.
    """
    program = PROGRAMS[name]
    if variant not in program.variants:
        raise ValueError(f"{name} cannot be built as {variant}, only as {', '.join(program.variants)}")
    home = folder / f"{name}-{variant}-{_key(name, variant)}"
    if not home.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=f".{name}-") as temporary:
            made = Path(temporary) / "made"
            made.mkdir()
            _make(name, variant, made)
            try:
                made.rename(home)
            except OSError:
                if not home.exists():
                    raise
    return home / name


def _settle(aslr: bool) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if not aslr:
        ctypes.CDLL(None).personality(ADDR_NO_RANDOMIZE)


def run(path: Path, *arguments: str, aslr: bool = False, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
    """A plain run in a fixed environment and in the program's folder, no core file, no ASLR unless asked for; `timeout`
    in seconds."""
    return subprocess.run(
        [str(path), *arguments],
        cwd=path.parent,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        env={"PATH": os.defpath, "LC_ALL": "C"},
        preexec_fn=lambda: _settle(aslr),
    )


def expected_counts(output: str) -> dict[str, int]:
    """Executions per label, keyed NAME or IMAGE:NAME, from the `count` lines of a program's output."""
    return {name: int(count) for name, count in re.findall(r"^count (\S+) (\d+)$", output, re.MULTILINE)}


def symbols(path: Path) -> dict[str, int]:
    """Link-time address of every defined symbol of an unstripped ELF file; stripping moves none of them."""
    with path.open("rb") as file:
        table = ELFFile(file).get_section_by_name(".symtab")
        if not isinstance(table, SymbolTableSection):
            raise ValueError(f"{path} has no symbol table; ask the pie variant, whose addresses are the same")
        return {symbol.name: symbol["st_value"] for symbol in table.iter_symbols() if symbol["st_shndx"] != "SHN_UNDEF"}


def _elf32_exit() -> bytes:
    base, headers = 0x08048000, 52 + 32
    code = bytes.fromhex("31db 31c0 40 cd80")  # xor ebx,ebx; xor eax,eax; inc eax; int 0x80: exit(0)
    size = headers + len(code)
    header = b"\x7fELF\x01\x01\x01" + bytes(9)
    header += struct.pack("<HHIIIIIHHHHHH", 2, 3, 1, base + headers, 52, 0, 0, 52, 32, 1, 0, 0, 0)
    return header + struct.pack("<IIIIIIII", 1, 0, base, base, size, size, 5, 0x1000) + code


def _elf64_aarch64() -> bytes:
    base, headers = 0x400000, 64 + 56
    code = bytes.fromhex("000080d2 a80b80d2 010000d4")  # mov x0,#0; mov x8,#93; svc #0: exit(0)
    size = headers + len(code)
    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    header += struct.pack("<HHIQQQIHHHHHH", 2, 183, 1, base + headers, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    return header + struct.pack("<IIQQQQQQ", 1, 5, 0, base, base, size, size, 0x1000) + code


BAD_FILES: Mapping[str, str] = {
    "notelf": "text without an interpreter line, executable",
    "empty": "no bytes at all, executable",
    "elf32": "a working 32-bit x86 program",
    "aarch64": "a program for another machine",
    "truncated": "the first 64 bytes of a program",
    "nointerpreter": "a script whose interpreter does not exist",
    "noexec": "a good program without the permission to execute it (root is refused too)",
    "folder": "a folder",
}


def bad_file(kind: str, folder: Path) -> Path:
    """A file of `BAD_FILES` that no probe can be made of, written into `folder`."""
    path = folder / kind
    if kind == "folder":
        path.mkdir(parents=True, exist_ok=True)
        return path
    folder.mkdir(parents=True, exist_ok=True)
    if kind == "noexec":
        shutil.copyfile(build("short", folder), path)
        path.chmod(0o644)
        return path
    contents: Mapping[str, Callable[[], bytes]] = {
        "notelf": lambda: b"just some words,\nand no program\n",
        "empty": lambda: b"",
        "elf32": _elf32_exit,
        "aarch64": _elf64_aarch64,
        "truncated": lambda: build("short", folder).read_bytes()[:64],
        "nointerpreter": lambda: b"#!/nonexistent/interpreter\n",
    }
    path.write_bytes(contents[kind]())
    path.chmod(0o755)
    return path
