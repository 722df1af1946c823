# SPDX-License-Identifier: Apache-2.0
"""Files that a program makes in its folder, and does not expect there: out of the way before each of its runs.

Nothing is removed but what its user has named (`--makes`): who made a file cannot be told.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from checkpoint.errors import ProbeError, StorageError

_MOST_NAMED = 3
_WILD = re.compile(r"\[.*?\]|[*?./]")
"""What names nothing in a pattern."""


def refuse_made(folder: str, patterns: Sequence[str], own: Iterable[Path | None] = ()) -> None:
    """Raises ProbeError where what `patterns` name is in the folder before the program runs, or is a file of this
    build's (`own`); and for patterns that `remove_made` refuses."""
    for pattern in patterns:
        for path in filter(None, own):
            if path.is_relative_to(folder) and _is_named(path.relative_to(folder), pattern):
                raise ProbeError(f"--makes {pattern}: names {path}, which is this build's own; give others")
        for path in _made(folder, [pattern]):
            raise ProbeError(f"{path}: is there before the program runs, and --makes {pattern} names it: move it away")


def _is_named(path: Path, pattern: str) -> bool:
    return any(fnmatchcase(str(part), pattern) for part in (path, *path.parents))


def remove_made(folder: str, patterns: Sequence[str]) -> None:
    """Remove what they name in the folder, folders with all that is in them.

    Raises ProbeError for a pattern that leads out of the folder, or is of wildcards alone. StorageError.
    """
    for path in _made(folder, patterns):
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(f"{error.filename or path}: cannot be removed ({error.strerror}) for --makes") from error


def _made(folder: str, patterns: Iterable[str]) -> list[Path]:
    found: set[Path] = set()
    for pattern in patterns:
        leads_out = Path(pattern).is_absolute() or ".." in Path(pattern).parts
        if leads_out or not _WILD.sub("", pattern):
            raise ProbeError(
                f"--makes {pattern!r}: give names of files in the program's folder, or patterns such as '*.out'"
            )
        found.update(Path(folder).glob(pattern))
    return sorted(found)


def hint_of(left: Sequence[str]) -> str:
    """What to try where a run goes another way than the first, which has left these files."""
    more = "" if len(left) <= _MOST_NAMED else f" and {len(left) - _MOST_NAMED} more"
    return (
        f"an earlier run left {', '.join(left[:_MOST_NAMED])}{more} in its folder; if the program goes other ways "
        "where it finds them, name them with --makes, and each run begins without them"
    )
