# SPDX-License-Identifier: Apache-2.0
"""Record the flow of phases where they are made."""

from __future__ import annotations

from checkpoint.errors import NodeUnfit, PhaseFailed
from checkpoint.flow.flow import Plan
from checkpoint.flow.points import choose_points
from checkpoint.flow.watching import FlowWatcher
from probe.flow.stored import PhaseFlow

STEPS = 512
"""Steps at each point: what a probe holds of addresses."""


def record_flow(watcher: FlowWatcher) -> PhaseFlow:
    """The flow of one phase, seen twice: of one that does not repeat itself there is none, but the reason."""
    try:
        once = watcher.watch()
        flow = watcher.watch(Plan(choose_points(once), STEPS))
    except (PhaseFailed, NodeUnfit) as error:
        return PhaseFlow(None, 0, str(error))
    differing = [place for place, count in flow.counts.items() if once.counts.get(place) != count]
    if once.counts != flow.counts:
        blocks = f"{max(len(differing), 1)} of {len(flow.counts)} blocks"
        return PhaseFlow(None, 0, f"it does not repeat itself here: in a second run {blocks} are not executed as often")
    return PhaseFlow(flow, STEPS)
