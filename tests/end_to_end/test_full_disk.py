# SPDX-License-Identifier: Apache-2.0
"""A disk that is full when a stage of a build begins: one sentence, nothing left, and with room again it goes on."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest
from command import Command, in_mounts, interrupt
from conftest import MakeProgram

from probe.pipeline.build import ANEW, KEPT

pytestmark = pytest.mark.slow(minutes=4)

STAGES = [stage.NAME for stage in (*KEPT, *ANEW) if stage.NAME != "warm-up"]
_SMALL_MB = 400
FULL = ("disk is full", "No space left", "no room for a copy of the process")

# A file system in memory with a copy of everything, temporary folders included, full but for so many kilobytes. The
# command once so, and once with room again.
_TWICE = """
cp -a "$FOLDER" "$FOLDER.whole"
mount -t tmpfs -o size={size}m,mode=0755 small "$FOLDER"
cp -a "$FOLDER.whole/." "$FOLDER"
rm -rf "$FOLDER.whole"
dd if=/dev/zero of="$FOLDER/fill" bs=64k 2>/dev/null || true
truncate -s -{free}k "$FOLDER/fill"
"$@" >&2 && first=0 || first=$?
rm "$FOLDER/fill"
find "$FOLDER/command/temporary" -mindepth 1 | sed 's/^/left /' >&2
"$@" && second=0 || second=$?
echo "statuses $first $second" >&2
exit 0
"""


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory, program: MakeProgram) -> tuple[Path, Command, list[str]]:
    """The folder of a build with every stage finished that leaves something, and the command that goes on with it."""
    folder = tmp_path_factory.mktemp("begun")
    command, work = Command(folder / "command"), folder / "work"
    arguments = ["build", "-o", str(folder / "out"), "--interval", "20ms", "--max-phases", "2", "--resume", "--json"]
    arguments += ["--budget", "0", "--work", str(work), "--", str(program("nbody")), "150"]
    interrupt(command, command.start(*arguments), "self-check", signal.SIGTERM)
    return folder, command, arguments


@pytest.mark.parametrize(
    ("stage", "free"), [*((stage, 0) for stage in STAGES), ("capture", 200), ("reduce", 200), ("pack", 200)]
)
def test_a_full_disk(stage: str, free: int, begun: tuple[Path, Command, list[str]]) -> None:
    folder, command, arguments = begun
    state = folder / "work" / "state.json"
    whole = state.read_text()
    given = json.loads(whole)
    given["finished"] = [name for name in given["finished"] if STAGES.index(name) < STAGES.index(stage)]
    state.write_text(json.dumps(given))
    script = _TWICE.format(size=_SMALL_MB, free=free)
    try:
        prefix = in_mounts("set +e", script)
        done = command(*arguments, prefix=prefix, environment={"FOLDER": str(folder)})
    finally:
        state.write_text(whole)
        shutil.rmtree(f"{folder}.whole", ignore_errors=True)
    said = done.stderr.splitlines()
    told = [line for line in said if line.startswith("probe: ")]
    assert [line for line in said if line.startswith("left ")] == []
    if said[-1] != "statuses 0 0":
        # With 200 kB a stage may have all the room it needs.
        assert said[-1] == "statuses 10 0", done.stderr
        assert len(told) == 1 and any(words in told[0] for words in FULL), told
    assert free or said[-1] == "statuses 10 0", "nothing was written"
