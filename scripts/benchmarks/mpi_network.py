#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare pure communication of recorded programs under a real MPI with the simulation on a measured network.

    scripts/benchmarks/mpi_network.py --platform net.xml --rounds 9 -- mpirun -n 2 RECORDING...

The launcher's words stand before the recordings, the arguments that are folders. The player makes the recorded calls
without any computing; of its rounds the least counts, since other load only takes time.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from checkpoint.compiled import built
from probe.mpi.library.generate import player_source
from probe.mpi.play import write_plays
from probe.mpi.recording import Recording, read_recording
from probe.mpi.simulate import Where, simulate
from probe.mpi.trace import read_calls

_OPTIONS = ("-O2", "-std=gnu11", "-Wall", "-Wextra")


def real_seconds(recording: Recording, launcher: list[str], rounds: int) -> list[float]:
    """Seconds of each round: those of the slowest rank."""
    found = []
    with tempfile.TemporaryDirectory(prefix="probe-mpi-player-") as made:
        folder = Path(made)
        (folder / "player.c").write_text(player_source())
        compiler = shutil.which(recording.compiler) or recording.compiler
        player = built("player", [folder / "player.c"], _OPTIONS, compiler=compiler)
        calls = (read_calls(recording.folder, run.rank) for run in recording.ranks)
        played = write_plays(calls, folder, scale=0.0)
        words = [*launcher, str(player), made, str(max(one.largest for one in played))]
        for _ in range(rounds):
            done = subprocess.run(words, capture_output=True, text=True, check=True)
            found.append(max(float(end) for end in re.findall(r"^played \d+ (\S+)", done.stdout, re.M)))
    return found


def main() -> None:
    """Print a line of JSON for each recording."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--platform", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("words", nargs="+")
    given = parser.parse_args()
    recordings = [word for word in given.words if Path(word).is_dir()]
    launcher = [word for word in given.words if word not in recordings]
    for word in recordings:
        recording = read_recording(Path(word))
        real = sorted(real_seconds(recording, launcher, given.rounds))
        where = Where(given.platform, per_node=len(recording.ranks))
        simulated = simulate(recording, where, scale=0.0).seconds
        told = {"real": real[0], "median": real[len(real) // 2], "simulated": simulated, "off": simulated / real[0] - 1}
        print(
            json.dumps(
                {
                    "recording": word,
                    "calls": sum(len(read_calls(recording.folder, n.rank).calls) for n in recording.ranks),
                    **told,
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
