# SPDX-License-Identifier: Apache-2.0
"""Find CRIU, run it under a deadline, and quote its real error when it fails.

CRIU older than 4.1 starts on any kernel but fails at the dump on kernels from 6.13 on (the vDSO grew
another area), so its version decides, not its presence. A system without a recent one is served by a
private copy, see `checkpoint.criu.private_copy`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from checkpoint.errors import CriuError, PrivilegeMissing, StorageError
from checkpoint.paths import SHARED, is_shared, private_criu_dir
from checkpoint.run_command import run_group

MINIMUM_VERSION: Final = (4, 1)
"""First release that understands the vDSO of kernels >= 6.13."""

MULTIARCH: Final = "x86_64-linux-gnu"
"""Library folder name of the only architecture supported so far."""

_VERSION_TIMEOUT: Final = 20.0
_CHECK_TIMEOUT: Final = 60.0
_REMEDY: Final = "run `probe doctor --fix`, which installs a private CRIU beside this tool"

# One error line of a CRIU log, "Error (criu/mem.c:12): text": with a time stamp in front from -v3 on, and
# with "pie: 12: " or "  12: " when a restored task wrote it. One warning is the true cause of a failed
# dump: the process is gone or has a tracer.
_ERROR_LINE = re.compile(
    r"^(?:\(\d+\.\d+\)\s*)?(?:pie:\s*)?(?:\d+:\s*)?"
    r"(?:Error(?: \([^)]*\))?|Warn\s+\([^)]*\)(?=: Unable to interrupt task)):\s*(?P<text>.*\S)"
)
# Lines CRIU writes on its way out, or on every run: they never hold the cause.
_NO_CAUSE = re.compile(
    r"^(Dumping FAILED|Restoring FAILED|Unable to detach from|rlimit: Can't setup RLIMIT_NOFILE|"
    r"Dump \w+ \(pid: \d+\) failed with|Pages-dump failed|.*kdat cache|\d+ (?:exited|killed|stopped)\b)",
    re.IGNORECASE,
)
_DISK_FULL = re.compile(r"No space left on device|Disk quota exceeded|File too large|errno = (?:28|122|27)\b")
_PRIVILEGE = re.compile(
    r"Operation not permitted|Permission denied|need(?:s)? (?:to be run as|to have) (?:root|CAP_)|"
    r"requires? (?:root|CAP_|the CAP_)|CAP_\w+ capabilit|running as non-root|not running as root",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Criu:
    """One usable CRIU.

    `command` is the command prefix: `("/usr/sbin/criu",)` for the system's, loader and library path first for
    the private copy. `version` is `(major, minor, ...)`. `origin` is `"system"` or `"private"`.
    """

    command: tuple[str, ...]
    version: tuple[int, ...]
    origin: str

    def run(
        self,
        action: str,
        arguments: Sequence[str],
        *,
        timeout: float,
        log: Path | None = None,
        what: str = "",
        pass_fds: Sequence[int] = (),
    ) -> str:
        """Run `criu ACTION ARGUMENTS` and return what it printed.

        `timeout` is in seconds. `log` is the file the arguments make CRIU write; it is quoted on failure.
        `what` names the process or phase in messages. After a timeout the whole process group of CRIU is
        killed, but a process it was dumping may still hold CRIU's code: the caller must kill that one.

        Raises CriuError, PrivilegeMissing or StorageError.
        """
        command = [*self.command, action, "--no-default-config", *arguments]
        subject = f"criu {action}" + (f" of {what}" if what else "")
        try:
            status, printed = run_group(command, timeout, pass_fds=pass_fds)
        except subprocess.TimeoutExpired:
            raise CriuError(
                f"{subject} did not finish within {timeout:g} s and was killed; "
                f"{_log_hint(log)}try again on a quieter machine or with a longer deadline"
            ) from None
        if status != 0:
            raise failure(subject, status, printed, log)
        return printed

    def check(self) -> None:
        """Run `criu check`: does this kernel offer what dump and restore need.

        Raises PrivilegeMissing without root, CriuError with CRIU's own words otherwise.
        """
        if os.geteuid() != 0:
            raise PrivilegeMissing("criu check needs root (uid 0); run the command as root or with `sudo -n`")
        self.run("check", [], timeout=_CHECK_TIMEOUT)

    def dump(
        self, pid: int, folder: Path, *, leave_stopped: bool, timeout: float, largest_deleted: int = 1 << 20
    ) -> None:
        """Checkpoint the process tree rooted at `pid` into `folder`, which must exist.

        `pid` must be a session leader that nothing traces. With `leave_stopped` the process is stopped after
        the dump until SIGCONT (it may still run for a moment when this returns, on its way to the stop), else
        CRIU ends it. `timeout` is in seconds, `largest_deleted` the bytes of a deleted file that it may have open. The
        log is `folder/dump.log`.

        Raises CriuError, PrivilegeMissing or StorageError; the process must then be considered lost.
        """
        arguments = ["-t", str(pid), "-D", str(folder), "-o", "dump.log", "-v2", "--ghost-limit"]
        arguments.append(str(largest_deleted))
        if leave_stopped:
            arguments.append("--leave-stopped")
        self.run("dump", arguments, timeout=timeout, log=folder / "dump.log", what=f"process {pid}")


def find_criu() -> Criu:
    """The CRIU to use: the system's when it is recent enough, else the private copy.

    Raises CriuError, saying what was found and what to do.
    """
    seen = []
    # A user's PATH often lacks the sbin folders that distributions put CRIU into.
    on_path = shutil.which("criu", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin:/sbin")
    for origin, command in (
        ("system", (on_path,) if on_path else None),
        ("private", private_command(private_criu_dir())),
    ):
        if command is None:
            seen.append(f"no {origin} CRIU")
            continue
        if origin == "private" and is_shared(private_criu_dir()):
            seen.append(f"{private_criu_dir()} {SHARED}")
            continue
        try:
            version = read_version(command)
        except CriuError as error:
            seen.append(str(error))
            continue
        if version >= MINIMUM_VERSION:
            return Criu(command, version, origin)
        seen.append(f"the {origin} CRIU is {format_version(version)}")
    wanted = format_version(MINIMUM_VERSION)
    raise CriuError(f"CRIU >= {wanted} is needed ({'; '.join(seen)}): {_REMEDY}")


def private_command(root: Path) -> tuple[str, ...] | None:
    """Command prefix for a CRIU unpacked below `root`, run by the loader and libraries unpacked with it.

    None when `root` holds no CRIU. The system's own loader must not be used: it belongs to another libc.
    """
    program = root / "usr/sbin/criu"
    libraries = [d for d in (root / "usr/lib" / MULTIARCH, root / "lib" / MULTIARCH) if d.is_dir()]
    loaders = [d / "ld-linux-x86-64.so.2" for d in libraries if (d / "ld-linux-x86-64.so.2").is_file()]
    if not program.is_file() or not loaders:
        return None
    return (str(loaders[0]), "--library-path", ":".join(map(str, libraries)), str(program))


def read_version(command: Sequence[str]) -> tuple[int, ...]:
    """Version of the CRIU started by `command`, e.g. `(4, 1, 1)`. Raises CriuError when it does not start."""
    try:
        status, printed = run_group([*command, "--version"], _VERSION_TIMEOUT)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CriuError(f"{command[-1]} does not start ({error}): {_REMEDY}") from error
    found = re.search(r"Version:\s*(\d+(?:\.\d+)*)", printed)
    if status != 0 or found is None:
        raise CriuError(f"{command[-1]} does not start ({printed.strip()[:200]!r}): {_REMEDY}")
    return tuple(int(part) for part in found.group(1).split("."))


def format_version(version: Sequence[int]) -> str:
    """`(4, 1, 1)` as `4.1.1`."""
    return ".".join(map(str, version))


def failure(subject: str, status: int, printed: str, log: Path | None) -> CriuError | PrivilegeMissing | StorageError:
    """The exception for a CRIU run that ended with `status`, quoting the line that names the cause."""
    errors = real_errors(read_tail(log)) if log is not None else []
    errors = errors or real_errors(printed) or [printed.strip().splitlines()[-1] if printed.strip() else ""]
    ending = f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
    cause = "; ".join(errors).strip() or f"{ending}, no error message"
    where = f" (log: {log})" if log is not None and log.exists() else ""
    if _DISK_FULL.search(cause) or _folder_full(log):
        return StorageError(f"{subject} failed, the disk is full: {cause}{where}; free some space and repeat")
    if os.geteuid() != 0 and (_PRIVILEGE.search(cause) or _PRIVILEGE.search(printed)):
        return PrivilegeMissing(f"{subject} needs root: {cause}{where}; run as root or with `sudo -n`")
    return CriuError(f"{subject} failed: {cause}{where}; run `probe doctor` to check CRIU and the kernel")


def real_errors(log: str, limit: int = 2) -> list[str]:
    """The last `limit` error messages of a CRIU log that name a cause, oldest first.

    The first error line is often harmless (a missing cache, an optional feature) and the last ones only say
    that everything failed, so both kinds are passed over unless nothing else is there.
    """
    lines = [found["text"] for line in log.splitlines() if (found := _ERROR_LINE.match(line.strip()))]
    causes = [text for text in lines if not _NO_CAUSE.match(text)]
    return list(dict.fromkeys(causes or lines))[-limit:]


def read_tail(path: Path, size: int = 256 * 1024) -> str:
    """The last `size` bytes of a log as text, or "": a runaway restore writes gigabytes."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - size))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def _log_hint(log: Path | None) -> str:
    last = real_errors(read_tail(log)) if log is not None else []
    return f"its last error was {last[-1]!r}; " if last else ""


def _folder_full(log: Path | None) -> bool:
    """Whether the log's folder takes no more data: then CRIU could not log the reason either."""
    if log is None:
        return False
    trial = log.with_name(f".{log.name}.space")
    try:
        with trial.open("wb") as file:
            file.write(bytes(65536))
    except OSError as error:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    finally:
        with contextlib.suppress(OSError):
            trial.unlink()
    return False
