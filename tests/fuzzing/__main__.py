# SPDX-License-Identifier: Apache-2.0
"""`scripts/fuzz`: every reader by turns, for hours, each turn with another seed and in a process of its own."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from fuzzing.harness import keep, names, summary
from fuzzing.turn import turn
from probe.signals import leave_as_commands_do

_TURN_SECONDS = 60.0


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description=__doc__)
    parser.add_argument("--hours", type=float, default=1 / 60, help="in all, default: a minute")
    parser.add_argument("--seed", type=int, default=None, help="of the first turn, default: by the clock")
    parser.add_argument("--turn", type=float, default=None, help="seconds of each reader before the next one's turn")
    parser.add_argument("--keep", action="store_true", help="put what goes wrong into the corpus")
    parser.add_argument("readers", nargs="*", metavar="READER", help="default: all")
    given = parser.parse_args()
    leave_as_commands_do()
    wanted = names(given.readers)
    seconds = 3600 * given.hours
    each = given.turn or min(_TURN_SECONDS, seconds / len(wanted))
    seed = int(time.time()) if given.seed is None else given.seed
    end, wrong = time.monotonic() + seconds, 0
    totals: Counter[str] = Counter()
    while time.monotonic() < end:
        for name in wanted:
            outcome = turn(name, each, seed)
            totals[name] += outcome.inputs
            print(f"seed {seed}  {summary(name, outcome)}", flush=True)
            for kind, (data, said) in outcome.found.items():
                wrong += 1
                where = f" ({keep(name, data)})" if given.keep and data else ""
                print(f"WRONG  {name}: {kind}{where}\n{said}", flush=True)
        seed += 1
    print(f"{sum(totals.values()):,} inputs, {wrong} went wrong")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
