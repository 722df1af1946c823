# SPDX-License-Identifier: Apache-2.0
"""CPU features that a probe needs, found by decoding the blocks that ran."""

from __future__ import annotations

from collections.abc import Iterable

import iced_x86
import numpy as np
from iced_x86 import Instruction

from checkpoint.binary.elf import ElfImage, read_image
from checkpoint.binary.functions import decode_functions
from checkpoint.binary.isa import ISA_BASELINES
from checkpoint.binary.sites import find_sites
from checkpoint.flat.convert import uses_protection_keys
from checkpoint.process.program import Program
from checkpoint.state.process_state import ProcessState
from probe.formats.profile import BlockTable, Profile
from probe.node.facts import cpu_flags

# Names of /proc/cpuinfo, which every node can tell, for the features iced-x86 reports. What every x86-64
# processor has (SSE2, CMOV ...) is left out.
_CPUINFO_NAMES = {
    "SSE3": "pni", "SSSE3": "ssse3", "SSE4_1": "sse4_1", "SSE4_2": "sse4_2", "SSE4A": "sse4a", "POPCNT": "popcnt",
    "AVX": "avx", "AVX2": "avx2", "FMA": "fma", "FMA4": "fma4", "F16C": "f16c", "BMI1": "bmi1", "BMI2": "bmi2",
    "LZCNT": "abm", "MOVBE": "movbe", "ADX": "adx", "AES": "aes", "PCLMULQDQ": "pclmulqdq", "SHA": "sha_ni",
    "RDRAND": "rdrand", "RDSEED": "rdseed", "XSAVE": "xsave", "GFNI": "gfni", "VAES": "vaes",
    "VPCLMULQDQ": "vpclmulqdq", "AVX512F": "avx512f", "AVX512VL": "avx512vl", "AVX512BW": "avx512bw",
    "AVX512DQ": "avx512dq", "AVX512CD": "avx512cd", "AVX512_IFMA": "avx512ifma", "AVX512_VBMI": "avx512vbmi",
    "AVX512_VBMI2": "avx512_vbmi2", "AVX512_VNNI": "avx512_vnni", "AVX512_BITALG": "avx512_bitalg",
    "AVX512_VPOPCNTDQ": "avx512_vpopcntdq", "AVX512_BF16": "avx512_bf16", "AVX512_FP16": "avx512_fp16",
    "AVX_VNNI": "avx_vnni", "CLWB": "clwb", "CLFLUSHOPT": "clflushopt", "WBNOINVD": "wbnoinvd", "RDPID": "rdpid",
    "RTM": "rtm", "MOVDIRI": "movdiri", "MOVDIR64B": "movdir64b", "SERIALIZE": "serialize", "XOP": "xop",
    "TBM": "tbm", "FSGSBASE": "fsgsbase", "PREFETCHW": "3dnowprefetch", "MONITORX": "mwaitx",
    "PKU": "ospke",
}  # fmt: skip

# What glibc's own functions may use, per CPU feature it is allowed to see (program.ISA_BASELINES).
_LIBRARY_FEATURES = {
    "avx": "AVX", "avx2": "AVX2", "fma": "FMA", "bmi1": "BMI1", "bmi2": "BMI2", "abm": "LZCNT", "movbe": "MOVBE",
    "sse4_1": "SSE4_1", "sse4_2": "SSE4_2", "ssse3": "SSSE3", "popcnt": "POPCNT", "avx512f": "AVX512F",
    "avx512vl": "AVX512VL", "avx512bw": "AVX512BW", "rtm": "RTM",
}  # fmt: skip

_FEATURE_NAMES = {
    value: name for name, value in vars(iced_x86.CpuidFeature).items() if isinstance(value, int) and name.isupper()
}


def needed_features(profile: Profile, states: Iterable[ProcessState] = ()) -> list[str]:
    """CPU features the run really used, sorted, by the names of /proc/cpuinfo.

    The program's own code: every instruction of a function that ran, but for blocks known not to have run. The C
    library's code is not counted; there, all that it was allowed to choose by on this machine is taken as used.
    `states`: of the checkpoints, which tell of protection keys, since it is the C library that restricts them.
    """
    used: set[str] = set()
    for number, (path, sha256) in enumerate(profile.images):
        image = read_image(path)
        if image.sha256 == sha256:
            mine = profile.executed.image == number
            used |= _features_of(_executed_instructions(image, profile.executed, mine))
    keys = {"ospke"} if any(map(uses_protection_keys, states)) else set()
    return sorted(used | _library_features(profile.program) | keys)


def _library_features(program: Program) -> set[str]:
    masked = set(ISA_BASELINES[program.isa])
    found = {flag for flag, name in _LIBRARY_FEATURES.items() if name not in masked} & cpu_flags()
    # Functions for AVX-512 are taken first, and use no transactions.
    return found - {"rtm"} if {"avx512vl", "avx512bw"} <= found else found


def _executed_instructions(image: ElfImage, executed: BlockTable, mine: np.ndarray) -> Iterable[Instruction]:
    sites = find_sites(image)
    ran = set(executed.start[mine].tolist())
    skipped = {
        start: start + size
        for start, size in zip(sites.block_start.tolist(), sites.block_bytes.tolist(), strict=True)
        if start not in ran
    }
    starts = np.array(sorted(ran), dtype=np.int64)
    for function in decode_functions(image):
        low, high = np.searchsorted(starts, (function.start, function.end))
        if low == high:
            continue
        until = 0
        for instruction in function.instructions:
            until = max(until, skipped.get(instruction.ip, 0))
            if instruction.ip >= until:
                yield instruction


def _features_of(instructions: Iterable[Instruction]) -> set[str]:
    codes: dict[int, Instruction] = {}
    for instruction in instructions:
        codes.setdefault(instruction.code, instruction)
    names = {_FEATURE_NAMES.get(value, "") for i in codes.values() for value in i.cpuid_features()}
    return {_CPUINFO_NAMES[name] for name in names if name in _CPUINFO_NAMES}
