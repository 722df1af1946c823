# SPDX-License-Identifier: Apache-2.0
"""Taking variables out of a program's environment before it is run: what it never had cannot be in its probe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from checkpoint.errors import ProbeError

ALL = "all"
KEPT = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "PWD", "LANG", "LANGUAGE", "LC_*", "TZ", "TERM", "TMPDIR",
    "LD_LIBRARY_PATH", "GLIBC_TUNABLES", "MALLOC_*", "OMP_*", "MKL_*", "OPENBLAS_*", "PYTHONHASHSEED",
)  # fmt: skip
"""What `all` leaves: variables that programs need to start and to compute the same, by convention without secrets."""


def scrubbed(environment: Mapping[str, str], patterns: Sequence[str]) -> dict[str, str]:
    """`environment` without the variables whose names match one of `patterns` (as in a shell, in any case).

    The pattern `all` stands for all variables but those in KEPT; a variable that another pattern names is taken out
    even so. Raises ProbeError for a pattern that can match no name.
    """
    if wrong := [p for p in patterns if not p or "=" in p]:
        raise ProbeError(
            f"--scrub-env {wrong[0]!r}: not the name of a variable; give names, patterns such as *TOKEN*, or all"
        )
    named = [p.upper() for p in patterns if p != ALL]
    everything = ALL in patterns

    def stays(name: str) -> bool:
        if any(fnmatchcase(name.upper(), pattern) for pattern in named):
            return False
        return not everything or any(fnmatchcase(name, kept) for kept in KEPT)

    return {name: value for name, value in environment.items() if stays(name)}
