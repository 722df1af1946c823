# SPDX-License-Identifier: Apache-2.0
"""Values in what a node says, checked one by one: NodeMisbehaved for those that no agent of ours would say.

Texts come out fit to be shown (probe/foreign_text.py), numbers finite.
"""

from __future__ import annotations

from typing import Any

from checkpoint import errors
from checkpoint.errors import NodeMisbehaved, NodeUnfit, ProbeError
from checkpoint.restore.criu_restore import RESTORE_SECONDS, RegionTime
from probe.foreign_text import printable

MOST_TEXT = 600
_LEAST_SECONDS = 1e-9
_LATE = 1.1
"""An agent that ends a region at its limit does so a little later."""

_MOST_NUMBER = 1e18
_TIMES = (4, 6)
"""How many numbers a time is, without and with what its region did in the kernel."""


def text(message: dict[str, Any], key: str) -> str:
    """The text of `key`; "" if there is none."""
    value = message.get(key, "")
    if not isinstance(value, str):
        raise NodeMisbehaved(f"its {key} is no text")
    return printable(value, MOST_TEXT)


def scalar(value: Any) -> Any:
    """A number, a truth value or nothing as it is, anything else as text."""
    if isinstance(value, bool) or value is None:
        return value
    # A comparison with NaN is never true.
    if isinstance(value, (int, float)) and -_MOST_NUMBER < value < _MOST_NUMBER:
        return value
    return printable(str(value), 200)


def quiet(message: dict[str, Any]) -> dict[str, Any]:
    """What the node says of its load (probe/node/quietness.py)."""
    value = message.get("quiet")
    if not isinstance(value, dict):
        raise NodeMisbehaved("it does not say how quiet it was")
    return {
        printable(str(key), 40): [scalar(x) for x in item[:8]] if isinstance(item, list) else scalar(item)
        for key, item in list(value.items())[:20]
    }


def region_time(value: Any, phase: int, most: float) -> RegionTime:
    """The seconds of one repeat of `phase`, whose warm-up and region together an agent ends after `most` seconds."""
    if not isinstance(value, list) or len(value) not in _TIMES:
        raise NodeMisbehaved("it reports a time that is none")
    allowed = (most, most, most, RESTORE_SECONDS, most, _MOST_NUMBER)
    for number, limit in zip(value, allowed, strict=False):
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 <= number < _MOST_NUMBER:
            raise NodeMisbehaved(f"it reports a time of {printable(str(number), 40)} s")
        if number > _LATE * limit:
            raise NodeMisbehaved(
                f"it reports {number:.6g} s in phase {phase}, which no agent lets go on for more than {limit:.6g} s"
            )
    if min(value[:2]) < _LEAST_SECONDS:
        raise NodeMisbehaved("it reports a region that took no time")
    wall, cpu, warm, restore = map(float, value[:4])
    if wall + warm > _LATE * most:
        raise NodeMisbehaved(
            f"it reports {wall + warm:.6g} s in phase {phase}, which no agent lets go on for more than {most:.6g} s"
        )
    if len(value) == min(_TIMES):
        return RegionTime(wall, cpu, warm, restore)
    kernel, faults = value[4:]
    if kernel > cpu or not isinstance(faults, int):
        raise NodeMisbehaved("it reports more time in the kernel than there was, or no number of page faults")
    return RegionTime(wall, cpu, warm, restore, float(kernel), faults)


def failure(message: dict[str, Any]) -> ProbeError:
    """The error that a "failed" message stands for."""
    return error(text(message, "kind"), text(message, "message"))


def error(kind: str, said: str) -> ProbeError:
    """The error of that name; NodeUnfit for those that only nodes have."""
    found, said = getattr(errors, kind, None), said or "it failed and does not say why"
    return found(said) if isinstance(found, type) and issubclass(found, ProbeError) else NodeUnfit(said)
