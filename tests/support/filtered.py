# SPDX-License-Identifier: Apache-2.0
"""Commands for which single system calls fail, as in containers and on file systems that lack something."""

from __future__ import annotations

import errno
import sys
from pathlib import Path

from checkpoint.binary.syscall_names import call_number

_SUPPORT = Path(__file__).parent
_FILTERED = f"""
import os, sys
sys.path[:0] = [{str(_SUPPORT)!r}, {str(_SUPPORT.parents[1])!r}]
from direct_runs import refuse_calls
refuse_calls(*map(int, sys.argv[2].split(",")), error=int(sys.argv[1]))
os.execvp(sys.argv[3], sys.argv[3:])
"""


def filtered(*names: str, error: int = errno.EPERM) -> list[str]:
    """A prefix under which these system calls fail with `error`."""
    return [sys.executable, "-c", _FILTERED, str(error), ",".join(str(call_number(name)) for name in names)]
