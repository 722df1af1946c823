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


def refuse_own(folder: str, patterns: Sequence[str], own: Iterable[Path | None]) -> None:
    """Raises ProbeError where `patterns` may name one of these absolute paths, which a build itself makes."""
    for path in filter(None, own):
        for pattern in patterns:
            if path.is_relative_to(folder) and _may_name(pattern, path.relative_to(folder)):
                raise ProbeError(f"--makes {pattern}: names {path}, which is this build's own; give others")


def _may_name(pattern: str, path: Path) -> bool:
    """Whether it names the path or a folder above it; a `*` may stand for several folders."""
    return any(fnmatchcase(str(part), str(Path(pattern))) for part in (path, *path.parents))


def refuse_present(folder: str, patterns: Sequence[str]) -> None:
    """Raises ProbeError where what `patterns` name is in the folder before the program runs, and for patterns that
    `remove_made` refuses."""
    for pattern in patterns:
        for path in _made(folder, [pattern]):
            raise ProbeError(f"{path}: is there before the program runs, and --makes {pattern} names it: move it away")


def remove_made(folder: str, patterns: Sequence[str]) -> None:
    """Remove what they name in the folder, folders with all that is in them; nothing behind a link.

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
        if leads_out or "**" in pattern or not _WILD.sub("", pattern):
            raise ProbeError(
                f"--makes {pattern!r}: give names of files in the program's folder, or patterns such as '*.out'"
            )
        found.update(Path(folder).glob(pattern))
    inside = Path(folder).resolve()
    return sorted(path for path in found if path.parent.resolve().is_relative_to(inside))


def hint_of(left: Sequence[str], makes: Sequence[str] = ()) -> str:
    """What to try where a run goes another way than the first, which has left these files; empty: nothing.

    makes: patterns of files that it began without.
    """
    left = [name for name in left if not any(_may_name(pattern, Path(name)) for pattern in makes)]
    if not left:
        return ""
    more = "" if len(left) <= _MOST_NAMED else f" and {len(left) - _MOST_NAMED} more"
    return (
        f"; an earlier run left {', '.join(left[:_MOST_NAMED])}{more} in its folder; if the program goes other ways "
        "where it finds them, name them with --makes, and each run begins without them"
    )
