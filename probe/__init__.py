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

# Of its own: the command waits for this module, and typing takes longer to load than all else here.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from checkpoint.errors import ProbeError
    from probe.candidates.agent_client import Orders
    from probe.candidates.local import run
    from probe.candidates.remote import CandidateResult, run_on
    from probe.candidates.result import RunResult
    from probe.emulation.elsewhere.remote import EmulatedNode, emulate_on
    from probe.emulation.elsewhere.talk import NodeOrders
    from probe.emulation.plan import EmulateOptions
    from probe.emulation.running import EmulationResult, emulate
    from probe.emulation.sampling import profile_usage
    from probe.emulation.usage import Usage
    from probe.formats.choices import SelectionOptions
    from probe.formats.profile import Profile
    from probe.inspection.description import show
    from probe.inspection.explanation import explain
    from probe.inspection.trimming import TrimmedProbe, trim
    from probe.pipeline.build import BuiltProbe, build
    from probe.pipeline.options import BuildOptions
    from probe.pipeline.trace import trace
    from probe.prediction.estimators import Prediction
    from probe.scaling.asking import ScalingFit, ScalingPrediction
    from probe.scaling.interface import fit_scaling, plan_scaling, predict_scaling
    from probe.scaling.planning import ScalingPlan
    from probe.ssh.interface import SshOptions

_HOMES = {
    "BuildOptions": "probe.pipeline.options",
    "BuiltProbe": "probe.pipeline.build",
    "CandidateResult": "probe.candidates.remote",
    "EmulateOptions": "probe.emulation.plan",
    "EmulatedNode": "probe.emulation.elsewhere.remote",
    "EmulationResult": "probe.emulation.running",
    "NodeOrders": "probe.emulation.elsewhere.talk",
    "Orders": "probe.candidates.agent_client",
    "Prediction": "probe.prediction.estimators",
    "ProbeError": "checkpoint.errors",
    "Profile": "probe.formats.profile",
    "RunResult": "probe.candidates.result",
    "ScalingFit": "probe.scaling.asking",
    "ScalingPlan": "probe.scaling.planning",
    "ScalingPrediction": "probe.scaling.asking",
    "SelectionOptions": "probe.formats.choices",
    "SshOptions": "probe.ssh.interface",
    "TrimmedProbe": "probe.inspection.trimming",
    "Usage": "probe.emulation.usage",
    "build": "probe.pipeline.build",
    "emulate": "probe.emulation.running",
    "emulate_on": "probe.emulation.elsewhere.remote",
    "explain": "probe.inspection.explanation",
    "fit_scaling": "probe.scaling.interface",
    "plan_scaling": "probe.scaling.interface",
    "predict_scaling": "probe.scaling.interface",
    "profile_usage": "probe.emulation.sampling",
    "run": "probe.candidates.local",
    "run_on": "probe.candidates.remote",
    "show": "probe.inspection.description",
    "trace": "probe.pipeline.trace",
    "trim": "probe.inspection.trimming",
}
"""Name -> module that is imported when the name is first used: `import probe` and the command line load no library.

No module or folder beside this one may have one of these names: importing it would replace the function.
"""

__all__ = [
    "BuildOptions",
    "BuiltProbe",
    "CandidateResult",
    "EmulateOptions",
    "EmulatedNode",
    "EmulationResult",
    "NodeOrders",
    "Orders",
    "Prediction",
    "ProbeError",
    "Profile",
    "RunResult",
    "ScalingFit",
    "ScalingPlan",
    "ScalingPrediction",
    "SelectionOptions",
    "SshOptions",
    "TrimmedProbe",
    "Usage",
    "build",
    "emulate",
    "emulate_on",
    "explain",
    "fit_scaling",
    "plan_scaling",
    "predict_scaling",
    "profile_usage",
    "run",
    "run_on",
    "show",
    "trace",
    "trim",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})


# Hidden from type checkers, which would take every misspelled name for one that is found here.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib

        found = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = found
        return found
