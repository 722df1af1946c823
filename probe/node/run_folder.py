# SPDX-License-Identifier: Apache-2.0
"""A folder for what an agent unpacks, as long as it lives; what a killed one left, the next one takes away.

Folders may lie in a home that several nodes share: whether a folder's agent lives is told by a lock on a file in it,
since process numbers mean nothing elsewhere. Where the file system has no locks, nothing is taken away.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from probe.node.member_cache import own_folder

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


@dataclass(frozen=True)
class Run:
    """The `folder` of one agent, among those of others in `runs`."""

    runs: Path
    folder: Path

    def when_alone(self, action: Callable[[bool], None]) -> None:
        """Call `action`, while no other agent starts; it is told whether there is none."""
        with _locked(self.runs.with_suffix(".lock")) as locked:
            action(locked and len(list(self.runs.iterdir())) == 1)


@contextlib.contextmanager
def own_run(folder: Path) -> Iterator[Run]:
    """A folder below `folder`, gone at the end; those of agents that were killed are taken away. Raises OSError."""
    runs = own_folder(folder / "runs")
    with contextlib.ExitStack() as held:
        # One at a time: a folder whose file is not locked is nobody's.
        with _locked(runs.with_suffix(".lock")) as locked:
            for left in runs.iterdir() if locked else ():
                with contextlib.suppress(OSError), _locked(left / "lock", wait=False):
                    remove(left)
            own = Path(tempfile.mkdtemp(prefix="run-", dir=runs))
            held.callback(remove, own)
            held.enter_context(_locked(own / "lock"))
        inner = own / "work"
        inner.mkdir(mode=0o700)
        yield Run(runs, inner)


@contextlib.contextmanager
def _locked(path: Path, wait: bool = True) -> Iterator[bool]:
    """Hold the lock of a file, which is made; False where there are no locks. Raises OSError."""
    # Over NFS only what is open for writing can be locked for ourselves alone.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            locked = True
        except OSError as error:
            if error.errno not in _NO_LOCKS or not wait:
                raise
            locked = False
        yield locked
    finally:
        os.close(descriptor)


def remove(folder: Path) -> None:
    """Remove a folder with all that is in it, as far as that can be done."""
    # Overlays leave folders behind that nobody may look into.
    for path, folders, _ in os.walk(folder):
        for inner in (Path(path) / name for name in folders):
            if not inner.is_symlink():
                with contextlib.suppress(OSError):
                    inner.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)
