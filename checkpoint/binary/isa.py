# SPDX-License-Identifier: Apache-2.0
"""Baselines of processor features: what the C library may choose its functions by, so that they run elsewhere too."""

from __future__ import annotations

_AVX512 = (
    "AVX512F", "AVX512VL", "AVX512BW", "AVX512DQ", "AVX512CD", "AVX512ER", "AVX512PF", "AVX512_VBMI", "AVX512_VNNI",
)  # fmt: skip

_TRANSACTIONS = ("RTM",)
"""No baseline has them: with them glibc's functions for AVX2 ask by `xtest` whether a transaction is under way, which
is an illegal instruction on AMD's processors and on Intel's newer small ones. Beside AVX-512 they do not ask."""

_AVX = ("AVX2", "AVX", "FMA", "FMA4", "BMI1", "BMI2", "LZCNT", "MOVBE", "F16C", "ERMS", "FSRM")

_SSE4 = ("SSE4_2", "SSE4_1", "SSSE3", "POPCNT")

ISA_BASELINES: dict[str, tuple[str, ...]] = {
    "native": (),
    "x86-64-v4": (),
    "x86-64-v3": _AVX512 + _TRANSACTIONS,
    "x86-64-v2": _AVX512 + _TRANSACTIONS + _AVX,
    "x86-64": _AVX512 + _TRANSACTIONS + _AVX + _SSE4,
}
"""CPU features that glibc is told not to choose its functions by (glibc.cpu.hwcaps), per baseline."""

DEFAULT_ISA = "x86-64-v3"
