# SPDX-License-Identifier: Apache-2.0
"""Command line and randomness of the scripts that make inputs."""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from pathlib import Path


def folder_and_seeds(doc: str | None) -> tuple[Path, Callable[[str], random.Random]]:
    """The folder named on the command line, made, and a stream of random numbers for each file by its name: a change
    to one file leaves the others as they were. `doc`: the script's own words."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0] if doc else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=2011)
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    return folder, lambda name: random.Random(f"{arguments.seed} {name}")
