# SPDX-License-Identifier: Apache-2.0
"""Describe a measured network to SimGrid: a platform file whose factors give the measured time of each size back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from xml.sax.saxutils import quoteattr

import numpy as np

from checkpoint.errors import ModelInvalid
from probe.formats.arrays import FloatArray
from probe.mpi.network.measuring import Measured
from probe.mpi.platforms import BEGUN, REDUCED
from probe.simulation.platform import HOST, OWN_BANDWIDTH, OWN_LATENCY
from reducer.output_file import check_target, storage_errors

_LEAST_SHARE = 0.05
"""Of a message's time: what is left to the network, whatever its two ranks take."""

_FREE = 1e9
"""Factor of bandwidth for what takes no link."""

_STEPS = 4
"""Of latency between two measured sizes."""


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
    # Within a node both ways share one link: it has what both carry together.
    bandwidth = max(both, one_way) if is_own else one_way
    latency = float(measured.half[0])
    yield "<?xml version='1.0'?>"
    yield '<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">'
    yield '<platform version="4.1">'
    yield '<config id="measured">'
    for name, value in factors(measured, latency, bandwidth).items():
        yield f"<prop id={quoteattr(name)} value={quoteattr(value)}/>"
    yield "</config>"
    properties = "".join(
        f"<prop id={quoteattr(name)} value={quoteattr(value)}/>" for name, value in costs(measured).items()
    )
    own = f'bandwidth="{bandwidth!r}Bps" latency="{latency!r}s"'
    if is_own:
        yield f'<zone id="all" routing="Full">{properties}'
        yield f'<host id="{HOST}0" speed="1000000000.0f" core="1024"/><link id="own" {own}/>'
        yield f'<route src="{HOST}0" dst="{HOST}0"><link_ctn id="own"/></route></zone>'
    else:
        link = f'bw="{bandwidth!r}Bps" lat="{latency / 2!r}s"'
        # Other ranks of a host were not measured.
        memory = f'loopback_bw="{OWN_BANDWIDTH!r}Bps" loopback_lat="{OWN_LATENCY!r}s"'
        yield (
            f'<cluster id="all" prefix="{HOST}" suffix="" radical="0-{nodes - 1}" speed="1000000000.0f" core="1024" '
            f'{link} sharing_policy="SPLITDUPLEX" {memory}>{properties}</cluster>'
        )
    yield "</platform>"


def factors(measured: Measured, latency: float, bandwidth: float) -> dict[str, str]:
    """SimGrid's settings by name. Between two measured sizes a message takes a time on the line between theirs.

    The sender of an eager message takes what one among many under way takes. Its receiver does, too, of which a part is
    the begin of the receive (`costs`). The network has the rest.
    """
    sizes, whole = measured.sizes, _ascending(measured.half)
    streamed = _ascending(measured.streamed)
    is_eager = sizes <= measured.eager
    sent = np.where(is_eager, np.minimum(streamed, (1 - _LEAST_SHARE) / 2 * whole), 0.0)
    got = np.where(is_eager, np.clip(streamed - _begun(measured), 0.0, (1 - _LEAST_SHARE) * whole - sent), 0.0)
    moved = whole - sent - got
    starts = _starts(sizes)
    sending, receiving = (
        _joined(starts, [_line(sizes, own, n) if is_eager[n] else (0.0, 0.0) for n in range(len(sizes))])
        for own in (sent, got)
    )
    return {
        **_network(measured, moved, latency, bandwidth),
        "smpi/os": sending,
        "smpi/ois": sending,
        "smpi/or": receiving,
        "smpi/async-small-thresh": str(measured.eager + 1),
        "smpi/send-is-detached-thresh": str(measured.eager + 1),
    }


def costs(measured: Measured) -> dict[str, str]:
    """What SimGrid has no time for, in its form: receives that begin, and sums of reductions."""
    begun = _begun(measured)
    sizes, seconds = measured.reduced.T
    return {
        BEGUN: _joined(_starts(measured.sizes), [_line(measured.sizes, begun, n) for n in range(len(begun))]),
        REDUCED: _joined(_starts(sizes), [_line(sizes, _ascending(seconds), n) for n in range(len(sizes))]),
    }


def _network(measured: Measured, moved: FloatArray, latency: float, bandwidth: float) -> dict[str, str]:
    """Factors that give these seconds to messages of the measured sizes.

    A message with a factor of a half takes a link for twice as long, and so from others on it. Eager ones are moved by
    their ranks: their time is latency alone, in small steps.
    """
    sizes = measured.sizes
    latencies, rates = [(0, moved[0] / latency)], [(0, _FREE)]
    for n in range(len(sizes)):
        if n + 1 < len(sizes) and sizes[n + 1] <= measured.eager:
            edges = np.unique(np.linspace(sizes[n], sizes[n + 1], _STEPS + 1).astype(int))
            for begin, end in pairwise(edges.tolist()):
                latencies.append((begin, float(np.interp((begin + end) / 2, sizes, moved)) / latency))
            rates.append((int(sizes[n]), _FREE))
        else:
            fixed, each = _line(sizes, moved, n) if sizes[n] > measured.eager else (float(moved[n]), 0.0)
            latencies.append((int(sizes[n]), fixed / latency))
            rates.append((int(sizes[n]), 1 / max(each * bandwidth, 1 / _FREE)))
    return {
        name: _joined([start for start, _ in found], [(value,) for _, value in found])
        for name, found in (("smpi/lat-factor", latencies), ("smpi/bw-factor", rates))
    }


def _begun(measured: Measured) -> FloatArray:
    """Seconds to begin a receive: what ranks that send to each other take beyond half a round trip, which hides it.

    Large messages within a node share its memory in the simulation: what that takes is not counted.
    """
    sizes, whole = measured.sizes, _ascending(measured.half)
    shared = whole.copy()
    if measured.hosts[0] == measured.hosts[1]:
        each = np.array([_line(sizes, whole, n)[1] for n in range(len(sizes))])
        shared += np.where(sizes > measured.eager, each * sizes, 0.0)
    more = _ascending(measured.both) - shared
    found: FloatArray = np.clip(more, 0.0, np.minimum(_ascending(measured.streamed), whole))
    return found


def _ascending(seconds: FloatArray) -> FloatArray:
    """No message takes longer than a larger one: what does was disturbed, since other load only takes time."""
    found: FloatArray = np.minimum.accumulate(seconds[::-1])[::-1]
    return found


def _starts(sizes: FloatArray) -> list[int]:
    return [0, *(int(size) for size in sizes[1:])]


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


def _joined(starts: Sequence[int], values: Sequence[Sequence[float]]) -> str:
    pieces = (":".join(f"{value:.9g}" for value in one) for one in values)
    return ";".join(f"{start}:{piece}" for start, piece in zip(starts, pieces, strict=True))
