# SPDX-License-Identifier: Apache-2.0
"""Performance probes: seconds on a candidate node instead of a whole run.

    import probe
    built = probe.build(["hmmsearch", "--cpu", "0", "profile.hmm", "proteins.fa"], "hmmsearch.probe")
    result = probe.run("hmmsearch.probe")
    result.prediction.seconds, result.prediction.low, result.prediction.high     # seconds, 95 % interval

Every time is in seconds, every share between 0 and 1. Errors are ProbeError and its kinds in checkpoint.errors, each
with the exit code that the command line ends with.
"""

from __future__ import annotations

from checkpoint.errors import ProbeError
from probe.candidates.agent_client import Orders
from probe.candidates.local import run
from probe.candidates.remote import CandidateResult, run_on
from probe.candidates.result import RunResult
from probe.formats.choices import SelectionOptions
from probe.formats.profile import Profile
from probe.inspection.description import show
from probe.inspection.explanation import explain
from probe.inspection.trimming import TrimmedProbe, trim
from probe.pipeline.build import BuiltProbe, build
from probe.pipeline.options import BuildOptions
from probe.pipeline.trace import trace
from probe.prediction.estimators import Prediction
from probe.ssh.interface import SshOptions

__all__ = [
    "BuildOptions",
    "BuiltProbe",
    "CandidateResult",
    "Orders",
    "Prediction",
    "ProbeError",
    "Profile",
    "RunResult",
    "SelectionOptions",
    "SshOptions",
    "TrimmedProbe",
    "build",
    "explain",
    "run",
    "run_on",
    "show",
    "trace",
    "trim",
]
