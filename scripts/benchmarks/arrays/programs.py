# SPDX-License-Identifier: Apache-2.0
"""Array kernels of data/programs, each at a size that takes 2 to 5 s on a processor of 2021 or later."""

from __future__ import annotations

from benchmarks.programs import OWN, Benchmark

_KERNELS = (
    ("triad", "arrays", ("triad", "900"), "streams"),
    ("stencil", "stencil", ("6000",), "stencil of five points"),
    ("smooth", "arrays", ("smooth", "2000"), "stencil of seven points"),
    ("matmul", "matmul", ("1500",), "matrix product"),
    ("lu", "arrays", ("lu", "300"), "dense elimination"),
    ("fft", "arrays", ("fft",), "recursive Fourier transform"),
    ("fourier", "fourier", ("400",), "iterative Fourier transform"),
    ("histogram", "arrays", ("histogram", "4000"), "random writes"),
    ("spmv", "arrays", ("spmv", "1500"), "sparse product"),
    ("transpose", "arrays", ("transpose", "300"), "strides"),
    ("gather", "arrays", ("gather", "300"), "random reads"),
)

KERNELS = {name: Benchmark(name, (str(OWN / file), *words), kind) for name, file, words, kind in _KERNELS}
"""By name on the command line."""

FILES = tuple(dict.fromkeys(file for _, file, _, _ in _KERNELS))
"""What `make` has to build in data/programs."""
