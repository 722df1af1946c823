# SPDX-License-Identifier: Apache-2.0
"""Interpreted programs: the phases of a script are told apart, whatever interprets it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from phased_scripts import SCRIPTS, written
from tracing import streams_of

from checkpoint.process.program import resolve_program
from probe.formats.arrays import FloatArray
from probe.formats.choices import SelectionOptions
from probe.formats.profile import Profile
from probe.selection.clustering import bic_choice, project, sweep
from probe.tracers.native import trace

PURE = 0.9
"""Share of the intervals that must lie in a phase of their own kind: start and end of an interpreter are of no kind."""


def profile_of(name: str, phase: str, folder: Path) -> Profile:
    env = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "GUILE_AUTO_COMPILE": "0", "PERL_HASH_SEED": "0"}
    program = resolve_program(written(name, phase, folder), stdin="/dev/null", env=env)
    with streams_of() as streams:
        return trace(program, interval=0.01, streams=streams)


def beside(profiles: list[Profile]) -> tuple[sp.csr_array, FloatArray]:
    """Vectors of all intervals over the sites that any profile has, and which profile each is of."""
    keys = [
        [(p.images[i][0], s) for i, s in zip(p.blocks.image.tolist(), p.blocks.site.tolist(), strict=True)]
        for p in profiles
    ]
    number = {key: at for at, key in enumerate(sorted({key for one in keys for key in one}))}
    parts = []
    for profile, own in zip(profiles, keys, strict=True):
        vectors = sp.coo_array(profile.vectors())
        columns = np.array([number[key] for key in own])[vectors.coords[1]]
        shape = (profile.intervals, len(number))
        parts.append(sp.csr_array((vectors.data, (vectors.coords[0], columns)), shape=shape))
    return sp.csr_array(sp.vstack(parts)), np.repeat(np.arange(len(profiles)), [p.intervals for p in profiles])


@pytest.mark.parametrize("name", SCRIPTS)
def test_phases_of_scripts_are_told_apart(name: str, tmp_path: Path) -> None:
    vectors, kind = beside([profile_of(name, phase, tmp_path) for phase in ("numbers", "words")])
    options = SelectionOptions()
    found = sweep(
        project(vectors, options.dimensions, 1), max_k=8, seeds=[1, 2], iterations=100, resolution=options.resolution
    )
    chosen, _ = bic_choice(found, options.bic_threshold)
    assert chosen.k >= 2
    alike = sum(np.bincount(kind[chosen.labels == label]).max() for label in np.unique(chosen.labels))
    assert alike >= PURE * len(kind)
