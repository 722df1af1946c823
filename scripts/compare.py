#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Run a program in full and print its time beside the one a probe predicted.

Usage: compare.py PREDICTION.json -- PROGRAM [ARG...]
PREDICTION.json is what `probe run --json` printed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path


def main() -> None:
    if len(sys.argv) < 4 or sys.argv[2] != "--":
        sys.exit((__doc__ or "").strip())
    prediction = json.loads(Path(sys.argv[1]).read_text())["prediction"]
    program = sys.argv[3:]
    start = time.perf_counter()
    subprocess.run(program, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)
    measured = time.perf_counter() - start
    predicted, low, high = (prediction[key] for key in ("seconds", "low", "high"))
    coverage = prediction.get("coverage")
    print(f"predicted  {predicted:8.2f} s   (95 % interval {low:.2f} to {high:.2f} s)")
    print(f"measured   {measured:8.2f} s")
    print(f"difference {100 * (predicted / measured - 1):+8.1f} %")
    if coverage is not None:
        print(f"coverage   {100 * coverage:8.1f} % of the run time is represented by the phases measured")


if __name__ == "__main__":
    main()
