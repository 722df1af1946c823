# SPDX-License-Identifier: Apache-2.0
"""What must hold before a build begins, or goes on: the machine, the place of its result, the program as traced."""

from __future__ import annotations

import os
from pathlib import Path

from checkpoint.criu.tool import Criu, find_criu
from checkpoint.errors import Diverged, PrivilegeMissing
from checkpoint.process.program import check_randomisation_control
from probe.formats.profile import Profile
from probe.node.files import file_sha256
from reducer.output_file import check_target


def check_unchanged(profile: Profile) -> None:
    """Raise Diverged where the program, or a library it was traced with, is not the file it was."""
    for path, sha256 in profile.images:
        try:
            same = file_sha256(Path(path)) == sha256
        except OSError:
            same = False
        if not same:
            raise Diverged(f"{path}: changed since it was traced; build the probe again")


def check_machine(target: Path) -> Criu:
    """The CRIU to build with. Raises StorageError, PrivilegeMissing, CriuError, ToolMissing."""
    check_target(target)
    if os.geteuid() != 0:
        raise PrivilegeMissing("building a probe needs root for its checkpoints: run it as root or with `sudo -n`")
    check_randomisation_control()
    return find_criu()
