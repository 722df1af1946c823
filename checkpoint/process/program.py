# SPDX-License-Identifier: Apache-2.0
"""Describe what is run: a program, its arguments and the environment every run of it shares.

All runs that have to agree (plain, traced, timed, captured) start from one `Program`, with address space
randomisation off and the same environment, so that addresses and control flow repeat.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import signal
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from checkpoint.binary.elf import check_runnable
from checkpoint.binary.isa import DEFAULT_ISA, ISA_BASELINES
from checkpoint.errors import PrivilegeMissing, ProgramNotRunnable, ProgramUnsupported
from checkpoint.linux import ADDR_NO_RANDOMIZE, PERSONALITY_QUERY
from checkpoint.made_files import remove_made
from checkpoint.memory_shortage import note_start
from checkpoint.parent import die_with_parent
from checkpoint.processors import processors

_NOTHING_INHERITED_ABOVE = 3


@dataclass(frozen=True)
class Worker:
    """The process that does the work of a wrapper: from when on it executes `executable` as the run's `ordinal`-th
    execve of that file, counted from 0. Its command line and working folder are those of the run it was found in."""

    executable: str
    ordinal: int
    argv: tuple[str, ...]
    cwd: str

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "argv": list(self.argv)}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Worker:
        return Worker(**{**value, "argv": tuple(value["argv"])})


Lineage = tuple[int, ...]
"""Which thread: (2, 0) is the first that the third one started by the first thread starts itself. Threads that start
others at the same time are told apart by it in every run."""


@dataclass(frozen=True)
class Program:
    """A command line with everything that decides how it runs. `executable` is absolute.

    `worker`: the process to probe, where it is another one than what the command line starts. `threads`: how many
    threads share its work, and so how many processors every run gets. `marking`: which threads tell places in the
    first one's stead while they live, each by its lineage. `choosing`: libraries that choose their code by the
    processor carry counters, too. `reads_calls`: it looks where its own calls lead, so none is redirected. `seed`: of
    the random numbers that it draws; a secret of the build's. `began`: nanoseconds of the time of day that it is told
    when it first asks; 0: the node's. `makes`: patterns of files in `cwd` that are removed before each run.
    """

    argv: tuple[str, ...]
    executable: str
    cwd: str
    stdin: str = "/dev/null"
    isa: str = DEFAULT_ISA
    env: dict[str, str] = field(default_factory=dict, repr=False)
    worker: Worker | None = None
    threads: int = 1
    marking: tuple[Lineage, ...] = ()
    choosing: bool = False
    reads_calls: bool = False
    seed: str = field(default="", repr=False)
    began: int = 0
    makes: tuple[str, ...] = ()

    @property
    def probed_executable(self) -> str:
        """The file that the probed process executes."""
        return self.worker.executable if self.worker else self.executable

    @property
    def name(self) -> str:
        """What messages call the probed process: the first word of its own command line."""
        return self.worker.argv[0] if self.worker else self.argv[0]

    @property
    def probed_cwd(self) -> str:
        """The working folder that the probed process starts in."""
        return self.worker.cwd if self.worker else self.cwd

    def environment(self) -> dict[str, str]:
        """The environment of every run that has to agree: the caller's, held to the ISA baseline.

        rseq is off because the kernel may move the saved instruction pointer of a checkpoint (criu, "rseq").
        Binding happens at start-up, so that no region pays for it. Perl orders its tables by what it reads from
        /dev/urandom, unless it is told the seed (perlrun, PERL_HASH_SEED). Open MPI starts a daemon beside a program
        that mpirun did not start, unless it is told that nobody will want that (orte/mca/ess/singleton, "isolated").
        """
        env = dict(self.env)
        tunables = [t for t in env.get("GLIBC_TUNABLES", "").split(":") if t]
        masked = ISA_BASELINES[self.isa]
        if masked:
            tunables.append("glibc.cpu.hwcaps=" + ",".join(f"-{name}" for name in masked))
        tunables.append("glibc.pthread.rseq=0")
        env["GLIBC_TUNABLES"] = ":".join(tunables)
        env["LD_BIND_NOW"] = "1"
        env.setdefault("PERL_HASH_SEED", "0")
        env.setdefault("OMPI_MCA_ess_singleton_isolated", "1")
        return env

    def to_json(self) -> dict[str, Any]:
        said = {**asdict(self), "argv": list(self.argv)}
        # No key where there is none: older versions read these files, too.
        del said["worker"], said["seed"], said["began"], said["reads_calls"], said["makes"]
        said["marking"] = lineages_to_json(self.marking)
        for name, usual in (("threads", 1), ("marking", []), ("choosing", False)):
            if said[name] == usual:
                del said[name]
        return said if self.worker is None else {**said, "worker": self.worker.to_json()}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Program:
        worker = value.get("worker")
        found = {} if worker is None else {"worker": Worker.from_json(worker)}
        marking = lineages_from_json(value.get("marking", ()))
        return Program(**{**value, "argv": tuple(value["argv"]), "marking": marking, **found})


def lineages_to_json(lineages: Sequence[Lineage]) -> list[int | list[int]]:
    """A number alone for threads that the first one starts: older versions know no others."""
    return [line[0] if len(line) == 1 else list(line) for line in lineages]


def lineages_from_json(value: Sequence[int | Sequence[int]]) -> tuple[Lineage, ...]:
    """Raises TypeError or ValueError where these are no lineages."""
    found = tuple((line,) if isinstance(line, int) else tuple(line) for line in value)
    if not all(line and all(type(number) is int and number >= 0 for number in line) for line in found):
        raise ValueError("a thread that is told by no numbers")
    return found


def resolve_program(
    argv: Sequence[str],
    *,
    isa: str = DEFAULT_ISA,
    stdin: str = "/dev/null",
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
) -> Program:
    """Find `argv[0]` as a shell would. Raises ProgramNotRunnable or ProgramUnsupported with the reason."""
    if not argv:
        raise ProgramNotRunnable("no program given: put it after `--`")
    if isa not in ISA_BASELINES:
        raise ProgramNotRunnable(f"unknown ISA baseline {isa!r}: one of {', '.join(ISA_BASELINES)}")
    name = argv[0]
    found = shutil.which(name)
    if found is None:
        path = Path(name)
        if path.is_dir():
            raise ProgramNotRunnable(f"{name}: a folder, not a program")
        if "/" in name and path.exists():
            raise ProgramNotRunnable(f"{name}: not executable (chmod +x?)")
        raise ProgramNotRunnable(f"{name}: program not found")
    executable = Path(found).absolute()
    check_runnable(executable)
    mode = executable.stat().st_mode
    if mode & 0o6000:
        raise ProgramUnsupported(f"{executable}: is setuid or setgid; such a program cannot be traced")
    source = Path(stdin)
    if not os.access(source, os.R_OK) or not (source.is_file() or source.is_char_device()):
        raise ProgramNotRunnable(f"{stdin}: cannot serve as standard input (a readable file or /dev/null can)")
    return Program(
        argv=tuple(argv),
        executable=str(executable),
        cwd=str(Path(cwd or os.getcwd()).absolute()),  # noqa: PTH109
        stdin=str(Path(stdin).absolute()),
        isa=isa,
        env=dict(os.environ if env is None else env),
        seed=secrets.token_hex(),
    )


@dataclass(frozen=True)
class Streams:
    """Files that take standard output and error. Appending: a checkpoint then records no size for them."""

    stdout: Path
    stderr: Path


def become_program(
    program: Program,
    streams: Streams,
    environment: Mapping[str, str],
    *,
    parent: int,
    cpu: int | None,
    before_exec: int = 0,
) -> None:
    """In a forked child: take on the state every run shares and execute. Returns only by raising OSError.

    `before_exec`: signal the child sends itself just before execve, so that its parent can attach (0: none).
    A session of its own keeps the terminal's Ctrl-C away; dying with the parent keeps nothing behind.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    os.setsid()
    # What is ignored or blocked here, by Python or by whoever started it (nohup), would stay so in the program.
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # Else it would stand stopped for ever where its parent was killed.
    die_with_parent(parent)
    if libc.personality(ADDR_NO_RANDOMIZE) == -1:
        raise OSError(ctypes.get_errno(), "personality(ADDR_NO_RANDOMIZE) refused: a container's seccomp filter?")
    os.chdir(program.cwd)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    for standard, fd in (
        (0, os.open(program.stdin, os.O_RDONLY)),
        (1, os.open(streams.stdout, flags, 0o600)),
        (2, os.open(streams.stderr, flags, 0o600)),
    ):
        os.dup2(fd, standard)
        os.set_inheritable(standard, True)  # dup2 onto itself, where we had none of our own, leaves it to be closed
    os.closerange(_NOTHING_INHERITED_ABOVE, os.sysconf("SC_OPEN_MAX"))
    if cpu is not None:
        os.sched_setaffinity(0, processors(cpu, program.threads))
    if before_exec:
        os.kill(os.getpid(), before_exec)
    os.execve(program.executable, list(program.argv), dict(environment))


def fork_stopped(program: Program, streams: Streams, environment: Mapping[str, str], cpu: int | None) -> int:
    """A child that stops itself (SIGSTOP) right before it executes `program`. Raises StorageError."""
    remove_made(program.cwd, program.makes)
    note_start()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        become_program(program, streams, environment, parent=parent, cpu=cpu, before_exec=signal.SIGSTOP)
    finally:
        os._exit(127)


def check_randomisation_control() -> None:
    """Raise PrivilegeMissing where address space randomisation cannot be switched off."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = libc.personality(PERSONALITY_QUERY)
    if libc.personality(before | ADDR_NO_RANDOMIZE) == -1:
        raise PrivilegeMissing("personality(ADDR_NO_RANDOMIZE) is refused here; run outside the container's filter")
    libc.personality(before)
