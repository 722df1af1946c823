# SPDX-License-Identifier: Apache-2.0
"""The folder a build works in: one file per stage, so that a build can be resumed and looked at."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

from checkpoint import strict_json
from checkpoint.errors import ProbeError, ProbeFileDamaged, StorageError, WorkFolderBusy
from checkpoint.private_file import write_private
from reducer.output_file import full_disk_named

T = TypeVar("T")

_WARMUP, _WARMUP_FILE = "warm-up", "warmup.json"

_STATE = "state.json"
_LOCK = "lock"
_MAGIC = "work folder of probe build"
_VERSION = 1
_BEGUN = {_LOCK, "state.partial"}
"""All there is where a build was killed while it opened a new folder."""


@dataclass(frozen=True)
class StageFiles:
    """A stage as its work folder knows it: name, patterns of its files, options that concern it before any other."""

    name: str
    files: tuple[str, ...]
    options: tuple[str, ...]


class WorkFolder:
    """An open, locked work folder. `finished` stages need not run again. `seconds`: what stages have taken."""

    def __init__(
        self, path: Path, parameters: Mapping[str, Any], finished: list[str], seconds: Mapping[str, float] | None = None
    ) -> None:
        self.path = path
        self._parameters = dict(parameters)
        self._finished = finished
        self._seconds = dict(seconds or {})

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Those that the results in the folder were made with."""
        return self._parameters

    def file(self, name: str) -> Path:
        return self.path / name

    def is_finished(self, stage: str) -> bool:
        return stage in self._finished

    def finish(self, stage: str, seconds: float = 0.0) -> None:
        """Record that `stage` is complete, after its files are on disk, and what it has taken."""
        self._finished.append(stage)
        self._seconds[stage] = seconds
        self._save()

    @property
    def seconds(self) -> float:
        """What all finished stages have taken, in this build and in those that it goes on with."""
        return sum(self._seconds.get(stage, 0.0) for stage in self._finished)

    def write_json(self, name: str, value: Any) -> None:
        """Write one stage's result, whole or not at all."""
        target = self.path / name
        partial = target.with_suffix(".partial")
        with full_disk_named(target):
            # The parameters have the environment: who may look into the folder learns no password from them.
            write_private(partial, strict_json.dumps(value).encode())
            partial.replace(target)

    def read_json(self, name: str) -> Any:
        try:
            return strict_json.loads((self.path / name).read_text())
        except (OSError, ValueError) as error:
            raise StorageError(f"{self.path / name}: cannot be read: {error}; build without --resume") from error

    def read(self, name: str, parse: Callable[[Any], T]) -> T:
        """One stage's result as `parse` makes it of the JSON. Raises StorageError where it was damaged."""
        try:
            return parse(self.read_json(name))
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, ProbeFileDamaged) as error:
            raise StorageError(f"{self.path / name}: damaged ({error!r}); build without --resume") from error

    def _save(self) -> None:
        state = {"magic": _MAGIC, "version": _VERSION, "parameters": self._parameters, "finished": self._finished,
                 "seconds": self._seconds}  # fmt: skip
        self.write_json(_STATE, state)


@contextmanager
def work_folder(
    wanted: Path | None,
    parameters: Mapping[str, Any],
    *,
    resume: bool,
    stages: Sequence[StageFiles] = (),
    concern_no_stage: Sequence[str] = (),
    kept: Sequence[str] = (),
) -> Iterator[WorkFolder]:
    """Open (and make) the folder, alone. Without `wanted` it is temporary and removed at the end.

    `stages`: those that leave their results here, in order. `concern_no_stage`: options that change none of them.
    `kept`: names of parameters, such as "program.env", whose stored values take the place of those given.

    Raises WorkFolderBusy if another build holds it, StorageError if it holds something else, ProbeError if it is
    to be resumed with other parameters. Options that concern only later stages may differ: the results of those stages
    are then gone, and the stages no longer finished.
    """
    if wanted is None:
        if resume:
            raise ProbeError("--resume needs --work DIR: the folder of the build to go on with")
        with full_disk_named(Path(tempfile.gettempdir())):
            path = Path(tempfile.mkdtemp(prefix="probe-build-"))
        try:
            yield WorkFolder(path, parameters, [])
        finally:
            shutil.rmtree(path, ignore_errors=True)
        return
    with full_disk_named(wanted):
        try:
            wanted.mkdir(mode=0o700, parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise StorageError(f"{wanted}: not a folder; give an empty or new folder as --work") from error
        _refuse_others(wanted)
        _refuse_foreign(wanted)
    with full_disk_named(wanted), _open_lock(wanted / _LOCK) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise WorkFolderBusy(
                f"{wanted}: another build is working in this folder; wait for it or use another --work"
            ) from error
        except OSError as error:
            # Lustre without -o flock, NFS without its lock server.
            raise StorageError(
                f"{wanted}: its file system takes no locks ({error.strerror}); give --work on another one"
            ) from error
        yield _opened(wanted, parameters, resume, stages, concern_no_stage, kept)


def _refuse_others(path: Path) -> None:
    """Others could put links there, for our files to be written through."""
    status = path.stat()
    # Who became root by sudo may have made it before.
    caller = os.environ.get("SUDO_UID", "0")
    ours = {os.geteuid(), 0, int(caller) if caller.isdecimal() and os.geteuid() == 0 else 0}
    if status.st_uid not in ours or status.st_mode & stat.S_IWOTH:
        raise StorageError(
            f"{path}: belongs to somebody else, or everybody may write to it; give a folder of your own as --work"
        )


def _open_lock(path: Path) -> IO[str]:
    """Never through a link, which would empty another file."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise StorageError(f"{path}: is a link; remove it, or give another folder as --work") from error
    return os.fdopen(descriptor, "w")


def _refuse_foreign(path: Path) -> None:
    """A build empties its folder: only one that says it is a work folder may be emptied, whatever its files' names."""
    if {entry.name for entry in path.iterdir()} <= _BEGUN:
        return
    try:
        state = strict_json.loads((path / _STATE).read_bytes())
    except FileNotFoundError:
        state = None
    except ValueError as error:
        raise StorageError(
            f"{path / _STATE}: damaged ({error}): remove {path} if it is a build's work folder, or give another folder"
        ) from error
    if not isinstance(state, dict) or state.get("magic") != _MAGIC:
        raise StorageError(f"{path}: not empty and not a work folder of a build; give an empty or new folder")


def _opened(
    path: Path,
    parameters: Mapping[str, Any],
    resume: bool,
    stages: Sequence[StageFiles],
    concern_no_stage: Sequence[str],
    kept: Sequence[str],
) -> WorkFolder:
    state_file = path / _STATE
    if resume and state_file.exists():
        state = strict_json.loads(state_file.read_bytes())
        # Through JSON, as the stored parameters went: tuples become lists.
        now = strict_json.loads(strict_json.dumps(dict(parameters)))
        before, finished, seconds = state.get("parameters"), state.get("finished"), state.get("seconds", {})
        if not isinstance(before, dict) or not isinstance(finished, list) or not _are_seconds(seconds):
            raise StorageError(f"{state_file}: damaged; build without --resume")
        if state_file.stat().st_uid != os.geteuid():
            raise StorageError(f"{state_file}: belongs to another user, who chose what is run there; build anew")
        for name in kept:
            _keep(before, now, name)
        changed = _changed(before, now)
        redone = _done_again(changed, stages, concern_no_stage)
        other_version = state.get("version") != _VERSION
        if other_version or redone is None:
            what = "another version" if other_version else ", ".join(changed)
            raise ProbeError(
                f"{path}: was begun with other parameters ({what}); "
                "repeat the same command line, or build without --resume"
            )
        if (path / _WARMUP_FILE).exists() and _WARMUP not in finished:
            # The version before called this file a part of the capture stage.
            finished.append(_WARMUP)
        names = {stage.name for stage in redone}
        folder = WorkFolder(path, now, [str(stage) for stage in finished if stage not in names], seconds)
        if changed:
            folder._save()
            _remove(entry for stage in redone for pattern in stage.files for entry in path.glob(pattern))
        return folder
    _remove(entry for entry in path.iterdir() if entry.name != _LOCK)
    folder = WorkFolder(path, parameters, [])
    folder._save()
    return folder


def _are_seconds(value: Any) -> bool:
    return isinstance(value, dict) and all(type(one) in (int, float) and one >= 0 for one in value.values())


def _keep(before: Mapping[str, Any], now: dict[str, Any], name: str) -> None:
    """Put the stored value of the parameter `name`, such as "program.env", in place of the one of now."""
    *above, last = name.split(".")
    for part in above:
        before, now = before.get(part, {}), now.setdefault(part, {})
    if isinstance(before, dict) and last in before:
        now[last] = before[last]


def _changed(before: Mapping[str, Any], now: Mapping[str, Any], above: str = "") -> list[str]:
    """Names of the parameters that differ, such as "options.interval" or "program.env.LANG"."""
    names = []
    for name in sorted(before.keys() | now.keys()):
        value, other = now.get(name), before.get(name)
        if isinstance(value, dict) and isinstance(other, dict):
            names += _changed(other, value, f"{above}{name}.")
        elif value != other:
            names.append(above + name)
    return names


def _done_again(
    changed: Sequence[str], stages: Sequence[StageFiles], concern_no_stage: Sequence[str]
) -> Sequence[StageFiles] | None:
    """The stages to be done again where these parameters differ; None where the first stages rest on one of them."""
    first = len(stages)
    place = {option: number for number, stage in enumerate(stages) for option in stage.options}
    for name in changed:
        kind, _, option = name.partition(".")
        option = option.partition(".")[0]
        if kind == "options" and option in place:
            first = min(first, place[option])
        elif kind != "options" or option not in concern_no_stage:
            return None
    return stages[first:]


def _remove(entries: Iterable[Path]) -> None:
    for entry in list(entries):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


def link_or_copy(source: Path, target: Path) -> None:
    """Another name for a file, or a copy where its file system has no hard links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def each(parse: Callable[[Any], T]) -> Callable[[Any], list[T]]:
    """A parser of a stage's result that is a list with one entry for every phase."""

    def parsed(value: Any) -> list[T]:
        if not isinstance(value, list) or not value:
            raise ValueError("not a list of phases")
        return [parse(entry) for entry in value]

    return parsed
