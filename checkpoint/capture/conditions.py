# SPDX-License-Identifier: Apache-2.0
"""Find out before a run whether this user may trace the program."""

from __future__ import annotations

import os
from pathlib import Path

from checkpoint.errors import PrivilegeMissing, ProgramUnsupported

_YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
_ONLY_CHILDREN = 1
_CAPABILITIES = "security.capability"


def check_traceable(name: str, executable: str, scope: Path = _YAMA) -> None:
    """Raise PrivilegeMissing where a policy keeps this user from tracing own children, ProgramUnsupported for a program
    with file capabilities, which it does not get under a tracer without privileges. `name` stands in messages."""
    if not os.geteuid():
        return
    try:
        strictness = int(scope.read_text())
    except (OSError, ValueError):
        strictness = 0
    if strictness > _ONLY_CHILDREN:
        raise PrivilegeMissing(
            f"{name}: users may not trace programs here (yama ptrace_scope {strictness}): ask for 1, or build as root"
        )
    if has_capabilities(executable):
        raise ProgramUnsupported(
            f"{name}: has file capabilities, which it loses when traced: build as root, or probe a copy without them"
        )


def has_capabilities(executable: str) -> bool:
    """Whether the file gives capabilities to whoever executes it."""
    try:
        return bool(os.getxattr(executable, _CAPABILITIES))
    except OSError:
        return False
