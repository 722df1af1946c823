# SPDX-License-Identifier: Apache-2.0
"""Give one reader its turn in a process of its own, which may crash or hang for good."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

from fuzzing.harness import HANG_SECONDS, Outcome, fuzz, read_last

_TESTS = Path(__file__).parents[1]
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{_TESTS.parent}:{_TESTS}:{_TESTS / 'support'}"}
_LAST = "last"
_GRACE_SECONDS = 60.0 + 2 * HANG_SECONDS


def turn(name: str, seconds: float, seed: int, most: int = 0) -> Outcome:
    """`fuzz` in a child."""
    with tempfile.TemporaryDirectory(prefix="probe-fuzz-turn-") as folder:
        answer = Path(folder) / "outcome"
        command = [sys.executable, "-m", "fuzzing.turn", str(answer), name, str(seconds), str(seed), str(most)]
        with (Path(folder) / "said").open("wb") as said:
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=ENVIRONMENT)
            try:
                child.wait(seconds + _GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                pass
            finally:
                child.kill()
                child.wait()
        if not answer.exists():
            told = (Path(folder) / "said").read_text(errors="replace")[-3000:]
            data = read_last(Path(folder) / _LAST)
            return Outcome(found={"ended": (data, f"seed {seed}: hung or ended with {child.returncode}: {told}")})
        outcome = pickle.loads(answer.read_bytes())
        assert isinstance(outcome, Outcome)
        return outcome


if __name__ == "__main__":
    place, reader, given, number, limit = sys.argv[1:]
    held = Path(place).with_name(_LAST)
    found = pickle.dumps(fuzz(reader, float(given), int(number), most=int(limit) or None, last=held))
    Path(place).write_bytes(found)
