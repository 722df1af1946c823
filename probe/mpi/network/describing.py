# SPDX-License-Identifier: Apache-2.0
"""Describe a measured network to SimGrid: a platform file whose factors give the measured time of each size back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.sax.saxutils import quoteattr

import numpy as np

from checkpoint.errors import ModelInvalid
from probe.formats.arrays import FloatArray
from probe.mpi.network.measuring import Measured
from probe.simulation.platform import HOST, OWN_BANDWIDTH, OWN_LATENCY
from reducer.output_file import check_target, storage_errors

_LEAST_SHARE = 0.05
"""Of a message's time: what is left to the network, whatever its two ranks take."""


def write_measured(measured: Measured, target: Path, *, nodes: int) -> None:
    """Write a platform of so many hosts. Ranks of one host were measured: its memory is. Else: links between hosts.

    Raises ModelInvalid where two hosts were measured and one is asked for, or one and several. Raises StorageError.
    """
    check_target(target)
    if nodes < 2 and measured.hosts[0] != measured.hosts[1]:
        raise ModelInvalid("the ranks measured were on two nodes: describe two nodes at least with --nodes")
    if nodes > 1 and measured.hosts[0] == measured.hosts[1]:
        raise ModelInvalid(
            f"the ranks measured were both on {measured.hosts[0]}: leave --nodes out, or name two nodes to the "
            "launcher (--host a,b)"
        )
    with storage_errors("write", target):
        target.write_text("".join(f"{line}\n" for line in _platform(measured, nodes)))


def _platform(measured: Measured, nodes: int) -> Iterator[str]:
    is_own = measured.hosts[0] == measured.hosts[1]
    largest = measured.sizes > measured.sizes[-1] / 16
    one_way = float((measured.sizes / np.minimum(measured.half, measured.streamed))[largest].max())
    both = float((2 * measured.sizes / measured.both)[largest].max())
    # Within a node both ways share one link: it has what both carry together, and each message its own bound.
    bandwidth = max(both, one_way) if is_own else one_way
    latency = float(measured.half[0])
    yield "<?xml version='1.0'?>"
    yield '<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">'
    yield '<platform version="4.1">'
    yield '<config id="measured">'
    for name, value in factors(measured, latency, bandwidth).items():
        yield f"<prop id={quoteattr(name)} value={quoteattr(value)}/>"
    yield "</config>"
    own = f'bandwidth="{bandwidth!r}Bps" latency="{latency!r}s"'
    if is_own:
        yield '<zone id="all" routing="Full">'
        yield f'<host id="{HOST}0" speed="1000000000.0f" core="1024"/><link id="own" {own}/>'
        yield f'<route src="{HOST}0" dst="{HOST}0"><link_ctn id="own"/></route></zone>'
    else:
        link = f'bw="{bandwidth!r}Bps" lat="{latency / 2!r}s"'
        # Other ranks of a host were not measured.
        memory = f'loopback_bw="{OWN_BANDWIDTH!r}Bps" loopback_lat="{OWN_LATENCY!r}s"'
        yield (
            f'<cluster id="all" prefix="{HOST}" suffix="" radical="0-{nodes - 1}" speed="1000000000.0f" core="1024" '
            f'{link} sharing_policy="SPLITDUPLEX" {memory}/>'
        )
    yield "</platform>"


def factors(measured: Measured, latency: float, bandwidth: float) -> dict[str, str]:
    """SimGrid's settings by name. Between two measured sizes a message takes a time on the line between theirs.

    Sender and receiver of an eager message both take what one among many under way takes; the network has the rest.
    """
    sizes, whole = measured.sizes, np.maximum.accumulate(measured.half)
    own = np.where(sizes <= measured.eager, np.minimum(measured.streamed, (1 - _LEAST_SHARE) / 2 * whole), 0.0)
    sent = [_line(sizes, own, n) if sizes[n] <= measured.eager else (0.0, 0.0) for n in range(len(sizes))]
    moved = [_line(sizes, whole - 2 * own, n) for n in range(len(sizes))]
    starts = [0, *(int(size) for size in sizes[1:])]
    took = _joined(starts, [f"{fixed:.9g}:{each:.9g}" for fixed, each in sent])
    return {
        "smpi/lat-factor": _joined(starts, [f"{fixed / latency:.9g}" for fixed, _ in moved]),
        "smpi/bw-factor": _joined(starts, [f"{1 / max(each * bandwidth, 1e-9):.9g}" for _, each in moved]),
        "smpi/os": took,
        "smpi/ois": took,
        "smpi/or": took,
        "smpi/async-small-thresh": str(measured.eager + 1),
        "smpi/send-is-detached-thresh": str(measured.eager + 1),
    }


def _line(sizes: FloatArray, seconds: FloatArray, n: int) -> tuple[float, float]:
    """Seconds at no bytes, and of each byte, of the line from size n to the next; neither below zero."""
    end = min(n + 1, len(sizes) - 1)
    begin = end - 1 if end == n else n
    each = max(float((seconds[end] - seconds[begin]) / (sizes[end] - sizes[begin])), 0.0)
    fixed = float(seconds[begin] - each * sizes[begin])
    if fixed < 0:
        middle = float(np.sqrt(sizes[begin] * sizes[end]))
        return 0.0, float(np.interp(middle, sizes, seconds)) / middle
    return fixed, each


def _joined(starts: Sequence[int], values: Sequence[str]) -> str:
    return ";".join(f"{start}:{value}" for start, value in zip(starts, values, strict=True))
