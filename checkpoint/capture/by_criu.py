# SPDX-License-Identifier: Apache-2.0
"""Capture a process that we trace by CRIU, as root: its images instead of a state of our own."""

from __future__ import annotations

import contextlib
from pathlib import Path

from checkpoint.capture.direct import Captured
from checkpoint.capture.stored import read_state
from checkpoint.criu.tool import Criu
from checkpoint.criu.unsupported import unsupported
from checkpoint.errors import CriuError
from checkpoint.process.descriptors import LARGEST_DELETED
from checkpoint.process.maps import huge_ranges
from checkpoint.process.tracee import Tracee
from checkpoint.state.process_state import STOPPED

DUMP_SECONDS = 300.0


def dump_process(tracee: Tracee, folder: Path, criu: Criu) -> Captured:
    """Put CRIU's images of the stopped process into `folder`. Afterwards it is attached, and in the stopped state.

    Raises CriuError, ProgramFailed where it ends meanwhile.
    """
    huge = tuple(huge_ranges(tracee.pid))
    if tracee.attached:
        tracee.detach(leave_stopped=True)
    tracee.wait_until_stopped()
    criu.dump(tracee.pid, folder, leave_stopped=True, timeout=DUMP_SECONDS, largest_deleted=LARGEST_DELETED)
    tracee.wait_until_stopped()
    tracee.reattach()
    # A time namespace image makes CRIU enter a new one, for which a restored process has no use.
    for image in folder.glob("timens-*.img"):
        image.unlink()
    with contextlib.suppress(FileNotFoundError):
        (folder / "dump.log").unlink()
    state = read_state(folder)
    if not unsupported(state) and state.state != STOPPED:
        raise CriuError(f"{folder}: the process was not dumped in its stopped state; use CRIU 4.1 or newer")
    return Captured(state, huge)
