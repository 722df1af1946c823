# SPDX-License-Identifier: Apache-2.0
"""Two phases, a slow one and a fast one, whose prediction can be worked out by hand."""

from __future__ import annotations

from probe.prediction.estimators import PhaseTiming, ReferenceRun

# Two phases of one unit of work each, 10 s and 1 s (CPI 5 against 0.5); regions of 0.1 unit. On the candidate
# the slow one takes twice as long and the fast one as long as before: 21 s in all.
REFERENCE = ReferenceRun(runs=[11.0, 11.0, 11.0], total_work=2.0)
SLOW = PhaseTiming(0, 0.5, 10 / 11, 0.1, t_ref=[1.0] * 3, t_cand=[2.0] * 3, t_run=1.0)
FAST = PhaseTiming(1, 0.5, 1 / 11, 0.1, t_ref=[0.1] * 3, t_cand=[0.1] * 3, t_run=0.1)
