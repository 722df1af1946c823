# SPDX-License-Identifier: Apache-2.0
"""Performance probes: seconds on a candidate node instead of a whole run.

    import probe
    built = probe.build(["hmmsearch", "--cpu", "0", "profile.hmm", "proteins.fa"], "hmmsearch.probe")
    result = probe.run("hmmsearch.probe")
    result.prediction.seconds, result.prediction.low, result.prediction.high     # seconds, 95 % interval

Every time is in seconds, every share between 0 and 1. Errors are ProbeError and its kinds in checkpoint.errors, each
with the exit code that the command line ends with.
"""

from checkpoint.errors import ProbeError
from probe.building import BuildOptions, BuiltProbe, build, trace
from probe.candidates.connection import SshOptions
from probe.candidates.probing import CandidateResult, run_on
from probe.candidates.session import Orders
from probe.prediction import Prediction
from probe.profile import Profile
from probe.running import RunResult, run
from probe.selection import SelectionOptions
from probe.showing import show
from probe.trimming import TrimmedProbe, trim

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
    "run",
    "run_on",
    "show",
    "trace",
    "trim",
]
