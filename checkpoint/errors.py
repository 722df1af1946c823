"""Errors that a user can meet, and the exit code each one ends the command with.

The message of an error says what happened, to which file, phase or node, and what to do next. Exit codes are
part of the interface: scripts rely on them, so a number is never reused for another meaning.
"""

from __future__ import annotations


class ProbeError(Exception):
    """Base of all errors raised on purpose. `exit_code` is what the command line ends with."""

    exit_code = 1


class ProgramNotRunnable(ProbeError):
    """The program is missing, not executable, not x86-64, or not an ELF file."""

    exit_code = 3


class ProgramUnsupported(ProbeError):
    """The program does what a probe cannot hold yet: threads, child processes, sockets, pipes, shared memory.

    `for_criu`: what direct capture cannot hold, and CRIU can, where that is at fault."""

    exit_code = 4

    def __init__(self, message: str = "", for_criu: str = "") -> None:
        super().__init__(message)
        self.for_criu = for_criu


class ProgramTooShort(ProbeError):
    """The program ended before enough intervals were seen to choose phases from, or is over before its probe is."""

    exit_code = 5


class ProgramFailed(ProbeError):
    """The program was killed by a signal, or failed before there was enough to trace."""

    exit_code = 6


class Diverged(ProbeError):
    """Two runs that must be equal were not: output differs, or markers are missing or out of order."""

    exit_code = 7


class PrivilegeMissing(ProbeError):
    """The step needs a privilege the user does not have."""

    exit_code = 8


class CriuError(ProbeError):
    """CRIU is missing, too old for this kernel, or failed; the message quotes CRIU's own error."""

    exit_code = 9


class StorageError(ProbeError):
    """A file could not be written or read: disk full, no permission, too large."""

    exit_code = 10


class ProbeFileDamaged(ProbeError):
    """A .probe or .profile file is damaged, truncated, foreign, or of an unknown version."""

    exit_code = 11


class PhaseFailed(ProbeError):
    """A restored phase was killed, timed out, or fired its markers out of order."""

    exit_code = 12


class WorkFolderBusy(ProbeError):
    """Another build is using the work folder."""

    exit_code = 13


class NodeUnfit(ProbeError):
    """This node cannot run the probe: CPU feature, file, memory or page size."""

    exit_code = 14


class NoPrediction(ProbeError):
    """Too little of the run was measured to predict from."""

    exit_code = 15


class ToolMissing(ProbeError):
    """A tool the step needs (compiler, tracer) is not installed or does not work."""

    exit_code = 16


class NodeUnreachable(ProbeError):
    """The node cannot be reached or logged in to, its host key is not trusted, or the connection was lost."""

    exit_code = 17


class NodeBusy(ProbeError):
    """Another measurement is running on the node, and did not end in time."""

    exit_code = 18


class NodeMisbehaved(ProbeError):
    """The node answered what no agent of ours answers: nonsense, too much, or something else than was asked for."""

    exit_code = 19


class NodesFailed(ProbeError):
    """Some of several candidate nodes have no prediction; the table says which, and why."""

    exit_code = 20


class StoreUnusable(ProbeError):
    """A store cannot be reached, is damaged or foreign, or has another schema version."""

    exit_code = 30


class StoreBusy(ProbeError):
    """Other processes have been writing to the store for too long."""

    exit_code = 31


class NotInStore(ProbeError):
    """The store has no such probe, node, cluster or prediction, or more than one by that name."""

    exit_code = 32


class SlurmError(ProbeError):
    """Slurm is absent, down, or refused."""

    exit_code = 33


class Unpredictable(ProbeError):
    """What was measured says that a prediction would mislead: a limit is exceeded."""

    exit_code = 34


class ModelInvalid(ProbeError):
    """An analytic model cannot be read, is contradictory, or uses what the machine model does not have."""

    exit_code = 36


INTERRUPTED_EXIT_CODE = 130
"""Exit code after Ctrl-C, as shells use it."""
