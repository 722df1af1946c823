# SPDX-License-Identifier: Apache-2.0
"""Options that the direct restorer is started with, and what it reports in its control file.

A test compares these with checkpoint/restorer/image.h. Python 3.8, standard library.
"""

from __future__ import annotations

import ctypes

_U32, _I32, _U64 = ctypes.c_uint32, ctypes.c_int32, ctypes.c_uint64


class Option:
    """What the restorer is asked to do besides (enum option)."""

    TOUCH_IN_ORDER, ONLY_RECORDED_CALLS, CONFINE_WRITES, FILTER_CALLS, ANY_FOLDER = 1, 2, 4, 8, 16
    MAP_LAZILY, TRACE_MAPPINGS, ASK_KERNEL, STAY_APART, STOP_RESTORED = 32, 64, 128, 256, 512


class Confined:
    """What could be taken away from a phase on a node, and how its pages show (enum confinement)."""

    WRITES, CALLS, TOUCHES_IN_GROUPS = 1, 2, 4


class Report(ctypes.LittleEndianStructure):
    """First page of the control file (struct report)."""

    _fields_ = [
        ("progress", _U32), ("step", _U32), ("error", _I32), ("copied", _U32), ("address", _U64), ("detail", _U64),
        ("restored_s", _U64), ("restored_ns", _U64), ("confined", _U32), ("unused", _U32),
    ]  # fmt: skip
