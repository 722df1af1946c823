# SPDX-License-Identifier: Apache-2.0
"""Record ranks on nodes that share no folder: the recorder goes with the command, the ranks send what they wrote."""

from __future__ import annotations

import base64
import gzip
import re
import secrets
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from checkpoint.errors import ProbeFileDamaged
from checkpoint.foreign_file import read_foreign
from reducer.output_file import create_file, storage_errors

TOKEN, GATHERED = "token", "gathered"
PATIENCE = 60
"""Seconds that ranks wait for one that does not run under the recorder."""

_PIECE = 30_000
_MOST_SAID = 300
_MOST_DIGITS = 20
_SAID = re.compile(rb"probe: (rank (?:\d{1,7}|of [\w.-]{1,64})): ([^\r\n]+)")

# The loader splits LD_PRELOAD at blanks and colons, and looks for names behind a dollar.
# A rank that ends by a signal ends the others under every launcher; one that only exits leaves MPICH's waiting for it.
_SCRIPT = r"""
fail() {{ echo "probe: rank of $(uname -n): $1" >&2; rm -rf "$folder"; kill -KILL $$; }}
folder=
for place in "${{TMPDIR:-/tmp}}" /tmp; do
    case $place in [!/]* | *[[:space:]:\\$]*) continue ;; esac
    folder=$(mktemp -d "$place/probe-mpi-XXXXXX" 2>&-) || continue
    {{ echo '#!/bin/sh' >"$folder/text" && chmod 700 "$folder/text" && "$folder/text"; }} 2>&- && break
    rm -rf "$folder"
    folder=
done
[ -n "$folder" ] || fail "neither TMPDIR nor /tmp can hold programs"
left={pieces}
while [ $left -gt 0 ]; do printf %s "$1"; shift; left=$((left-1)); done >"$folder/text"
base64 -d <"$folder/text" | gzip -dc >"$folder/recorder.so" || fail "$place cannot hold the recorder"
rm "$folder/text"
program=$(command -v "$1") || fail "$1 is not there"
command -v sha256sum >/dev/null || fail "sha256sum is not there"
digest=$(sha256sum <"$program") && [ -n "$digest" ] || fail "$program cannot be read"
export {orders} PROBE_MPI_PLACE="$place" PROBE_MPI_DIGEST="${{digest%% *}}"
export PROBE_MPI_LIBRARY="$folder/recorder.so" PROBE_MPI_PRELOAD="${{LD_PRELOAD-}}"
export LD_PRELOAD="$folder/recorder.so${{LD_PRELOAD:+ $LD_PRELOAD}}"
trap 'fail "$1 cannot be started"' EXIT
exec "$@"
"""


@dataclass(frozen=True)
class Carried:
    """A launcher's command whose ranks bring the recorder along. token: by which they know the recording's folder."""

    command: tuple[str, ...]
    token: str


def carried(command: Sequence[str], programs: Sequence[Path], library: Path, orders: Mapping[str, str]) -> Carried:
    """The command with a shell before each program, which unpacks the recorder on the rank's node and loads it.

    `programs`: those of `programs_in`. The first in each part of a command with several (`:` between them) is one that
    the launcher starts.
    """
    token = secrets.token_hex(16)
    packed = base64.b64encode(gzip.compress(library.read_bytes(), mtime=0)).decode()
    pieces = [packed[at : at + _PIECE] for at in range(0, len(packed), _PIECE)]
    told = {**orders, "PROBE_MPI_TOKEN": token, "PROBE_MPI_PATIENCE": str(PATIENCE)}
    script = _SCRIPT.format(
        pieces=len(pieces), orders=" ".join(f"{name}={shlex.quote(value)}" for name, value in told.items())
    )
    return Carried(tuple(_with(command, set(programs), ["sh", "-c", script, "probe", *pieces])), token)


def _with(command: Sequence[str], programs: set[Path], before: Sequence[str]) -> Iterator[str]:
    is_open = True
    for word in command:
        if word == ":":
            is_open = True
        elif is_open and (path := shutil.which(word)) is not None and Path(path).resolve() in programs:
            yield from before
            is_open = False
        yield word


def put_token(folder: Path, token: str) -> None:
    """Write the file by which ranks know the folder, where only its owner can write then. Raises StorageError."""
    with storage_errors("write", folder), ExitStack() as undo:
        folder.chmod(folder.stat().st_mode & 0o755)
        with create_file(folder / TOKEN, undo) as file:
            file.write(token.encode())
        undo.pop_all()


def gathering_seconds(folder: Path) -> float:
    """How long the ranks sent what they wrote, by one rank's clock; the files of this module are gone afterwards.

    Raises StorageError and ProbeFileDamaged: the program has touched them.
    """
    seconds = 0.0
    with storage_errors("use", folder):
        (folder / TOKEN).unlink()
        for path in folder.glob(f"{GATHERED}.*"):
            found = read_foreign(path, _MOST_DIGITS) or b"0"
            if not found.isdigit():
                raise ProbeFileDamaged(f"{path}: is no number of nanoseconds; record the program again")
            seconds = max(seconds, int(found) * 1e-9)
            path.unlink()
    return seconds


def printed_reason(printed: bytes) -> tuple[str, str] | None:
    """(rank, why it ends) of the first that said so, where it could write no file; where it had none yet, its node."""
    said = _SAID.search(printed)
    return (said[1].decode(), said[2][:_MOST_SAID].decode(errors="replace").strip()) if said else None
