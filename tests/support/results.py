# SPDX-License-Identifier: Apache-2.0
"""Results as `probe run --json` prints them, for tests that need many.

tests/store/test_store.py compares them with a real one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any


def result(
    seconds: float = 10.0,
    *,
    probe: str = "solver",
    node: str = "n1",
    arguments: Sequence[str] = ("--steps", "200"),
    cpu: str = "Example CPU 1",
    kernel: str = "6.1.0",
    width: float = 0.1,
    threads: int = 1,
    phases: Sequence[float] = (0.05, 0.04),
    **node_more: Any,
) -> dict[str, Any]:
    """A prediction of `seconds` on `node`, with an interval of +-`width` and one phase per time in `phases`."""
    return {
        "format_version": 1,
        "probe": f"/data/{probe}.probe",
        "probe_id": hashlib.sha256(probe.encode()).hexdigest()[:32],
        "program": [f"./{probe}", *arguments],
        "node": {"name": node, "cpu": cpu, "cores": 8, "kernel": kernel, "load": 0.01} | node_more,
        "threads": threads,
        "yardsticks": {"node": {}, "reference": {}},
        "clock": "cpu",
        "prediction": {
            "seconds": seconds,
            "low": seconds * (1 - width),
            "high": seconds * (1 + width),
            "coverage": 0.99,
        },
        "undisturbed": {},
        "estimators": {"calibrated": seconds, "direct": seconds * 1.01, "strube": None, "combined": seconds},
        "variances": {"repeats_candidate": 1e-6},
        "degrees_of_freedom": 8.0,
        "disturbed": {},
        "target_error": {},
        "phases": [
            {
                "id": number,
                "weight": 1 / len(phases),
                "time_share": 1 / len(phases),
                "t_ref": 0.05,
                "t_cand": time,
                "status": "ok",
                "failure": "",
                "restorer": "direct",
                "kernel": {"ref": 0.01, "ref_error": 0.002, "cand": 0.012, "cand_error": 0.003},
                "repeats": [{"wall": time, "cpu": time, "warm": 0.05, "restore": 0.01, "kernel": 0.0, "faults": 3}],
            }
            for number, time in enumerate(phases)
        ],
        "warnings": [],
    }
