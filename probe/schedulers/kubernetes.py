# SPDX-License-Identifier: Apache-2.0
"""The answer of a Kubernetes scheduler extender to `prioritize`.

Request and answer are ExtenderArgs and HostPriorityList of k8s.io/kube-scheduler/extender/v1; scores are integers from
0 to 10 (MaxExtenderPriority).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from checkpoint.errors import ProbeError
from probe.schedulers.usable import Predicted

LABEL: Final = "probe"
"""Label of a pod that names its probe."""

_HIGHEST: Final = 10


def probe_of(arguments: Mapping[str, Any]) -> str | None:
    """Name of the probe that the pod's label gives, None without. Raises ProbeError for what is no ExtenderArgs."""
    try:
        metadata = (_field(arguments, "Pod") or {}).get("metadata") or {}
        label = (metadata.get("labels") or {}).get(LABEL)
    except AttributeError as error:
        raise ProbeError(f"not the ExtenderArgs of a scheduler: {error}; pass on what it sent") from error
    return None if label is None else str(label)


def asked_nodes(arguments: Mapping[str, Any]) -> list[str]:
    """Names of the nodes to be scored, in their order. Raises ProbeError."""
    try:
        names = _field(arguments, "NodeNames")
        if names is None:
            listed = _field(arguments, "Nodes")
            names = [node["metadata"]["name"] for node in listed["items"]]
        return [str(name) for name in names]
    except (KeyError, TypeError, AttributeError) as error:
        raise ProbeError(f"not the ExtenderArgs of a scheduler: {error!r}; pass on what it sent") from error


def prioritize(predicted: Predicted | None, asked: list[str] | None = None) -> list[dict[str, Any]]:
    """HostPriorityList: the fastest node gets 10, the others as much less as they are slower, unknown ones 0.

    asked: nodes to be scored, None for all that have a prediction. predicted: None where nothing is known of the pod.
    """
    seconds = {node.node: node.seconds for node in predicted.nodes} if predicted else {}
    names = list(seconds) if asked is None else asked
    known = [seconds[name] for name in names if name in seconds]
    best = min(known, default=0.0)
    return [{"Host": n, "Score": round(_HIGHEST * best / seconds[n]) if n in seconds else 0} for n in names]


def _field(arguments: Mapping[str, Any], name: str) -> Any:
    """A field of a Go structure without JSON names: decoding does not tell capital letters from small ones."""
    return next((value for key, value in arguments.items() if key.lower() == name.lower()), None)
