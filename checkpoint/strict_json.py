# SPDX-License-Identifier: Apache-2.0
"""JSON as its standard has it (RFC 8259), both ways: NaN, infinity and numbers too large for a double are none.

Everything that reads or writes JSON does it here; a test sees to that. Standard library alone.
"""

from __future__ import annotations

import json
import math
from typing import Any


def loads(text: str | bytes) -> Any:
    """The value of a JSON text. Raises ValueError for anything else, too deeply nested values included."""
    try:
        return json.loads(text, parse_constant=_refused, parse_float=_finite)
    except RecursionError as error:
        raise ValueError("its values are nested too deeply") from error


def dumps(value: Any, **layout: Any) -> str:
    """The JSON text of a value, in ASCII unless `layout`, as for json.dumps, says otherwise.

    Raises ValueError for NaN and infinity.
    """
    return json.dumps(value, allow_nan=False, **layout)


def _refused(name: str) -> Any:
    raise ValueError(f"{name} is no number")


def _finite(digits: str) -> float:
    value = float(digits)
    return value if math.isfinite(value) else _refused(digits[:40])
