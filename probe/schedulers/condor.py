# SPDX-License-Identifier: Apache-2.0
"""Machine attributes for HTCondor: what a job's `rank` expression can use.

The attribute is a speed, runs per hour, not a time: a rank that is undefined counts as 0, and machines of which nothing
is known must come last, not first.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from probe.schedulers.usable import Predicted

_HOUR = 3600.0


def machine_ads(predicted: Sequence[Predicted]) -> dict[str, str]:
    """The attributes of every node, as lines `Name = value`; the first one is `Machine`."""
    names = _attribute_names(predicted)
    ads: dict[str, list[str]] = {}
    for item, name in zip(predicted, names, strict=True):
        for node in item.nodes:
            lines = ads.setdefault(node.node, [f'Machine = "{_quoted(node.node)}"'])
            lines += [
                f"ProbeSpeed_{name} = {_HOUR / node.seconds!r}",
                f"ProbeSeconds_{name} = {node.seconds!r}",
                f"ProbeSecondsLow_{name} = {node.low!r}",
                f"ProbeSecondsHigh_{name} = {node.high!r}",
                f"ProbePrediction_{name} = {node.prediction}",
                f"ProbeCpus_{name} = {item.probe.threads}",
            ]
    return {node: "".join(f"{line}\n" for line in ads[node]) for node in sorted(ads)}


def _attribute_names(predicted: Sequence[Predicted]) -> list[str]:
    """What follows the underscore, for each probe: its name in letters that attributes may have, unique."""
    names = [re.sub(r"\W", "_", item.probe.name, flags=re.ASCII) for item in predicted]
    # Attribute names do not tell capital letters from small ones.
    often = Counter(name.lower() for name in names)
    keyed = [f"{name}_{item.probe.key[:8]}" for name, item in zip(names, predicted, strict=True)]
    return [full if often[name.lower()] > 1 else name for name, full in zip(names, keyed, strict=True)]


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
