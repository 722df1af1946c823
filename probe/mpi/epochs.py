# SPDX-License-Identifier: Apache-2.0
"""Epochs of a recording, between calls that all ranks meet in: some of each kind are simulated, and stand for the rest.

An epoch ends where all ranks leave such a call, with no message under way and no request open. So it can be left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from checkpoint.errors import ProbeFileDamaged
from probe.formats.arrays import FloatArray
from probe.mpi.play import BOTH, ENDS, NEW, NUMBERS, SENDS
from probe.mpi.recording import Recording
from probe.mpi.trace import RankCalls, read_calls

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]

FEWEST = 20
"""Epochs that are worth choosing from."""

LARGEST = 0.01
"""Share of rank 0's calls that an epoch has at most, where there are calls to cut it at."""

SPREAD = 0.05
"""Relative difference in computing time at which epochs with equal calls are told apart, as ranks are."""

MOST_PARTS = 8
"""Kinds of epochs with equal calls: where computing varies more, they differ by twice the spread, and so on."""

SAMPLES = 6
"""Fewest epochs of a kind that stand for it; the root of their number where that is more."""

MOST_EPOCHS = 1 << 25
"""Of all ranks together: each takes 16 bytes, and as much again while a whole is estimated."""

LEAST_ERROR = 0.001
"""Of the whole, where some is left out: rare epochs may be in no sample, and samples may all be alike."""

MOST_KEPT = 0.5
"""Share of the calls above which all are simulated: little would be gained."""

_MEETINGS: Final = [
    NUMBERS[name]
    for name in ("Barrier", "Allreduce", "Allgather", "Allgatherv", "Alltoall", "Alltoallv", "Alltoallw",
                 "Reduce_scatter", "Reduce_scatter_block")
]  # fmt: skip
"""Calls that no rank leaves before all have entered."""

_BEGINS: Final = [
    number
    for name, number in NUMBERS.items()
    if name[0] == "I" and name[1:].capitalize() in NUMBERS and name not in ("Iprobe", "Improbe")
]  # fmt: skip
"""Calls that open a request."""


@dataclass(frozen=True, eq=False)
class Epochs:
    """All epochs in order; they begin and end with the program.

    bounds: (ranks, epochs + 1), each rank's first call of each, and one more for the end. computing: (ranks, epochs),
    seconds as recorded. kind: of each, from 0. kept: simulated. counted: those that stand for their kind. The epoch
    before each of them is simulated, too, so that ranks enter it as late as they did.
    """

    bounds: Ints
    computing: FloatArray
    kind: Ints
    kept: Flags
    counted: Flags

    @property
    def calls(self) -> int:
        """Of all ranks, those left out included."""
        return int(self.bounds[:, -1].sum())

    def reduced(self, found: RankCalls) -> RankCalls:
        """The calls of a rank that are simulated."""
        return found.only(np.repeat(self.kept, np.diff(self.bounds[found.rank])))

    def ends(self, rank: int) -> Ints:
        """Place behind the last call of each epoch that is simulated, among the simulated calls of the rank."""
        ends: Ints = np.cumsum(np.diff(self.bounds[rank])[self.kept])
        return ends

    def whole(self, left: FloatArray, scales: Mapping[int, float]) -> tuple[float, float]:
        """Seconds of the whole program, and the half width of their 95 % interval, from some epochs' simulated ends.

        left: of each simulated epoch, seconds at which the last rank left it. scales: times that each rank's computing
        took there. An epoch lasts as long as its longest computing, and a time that epochs of a kind have in common.
        """
        longest = np.max(self.computing * np.array([[scales[rank]] for rank in range(len(self.computing))]), axis=0)
        lasted = np.zeros(len(self.kind))
        lasted[self.kept] = np.diff(left, prepend=0.0)
        beyond = (lasted - longest)[self.counted]
        kind = self.kind[self.counted]
        members = np.bincount(self.kind).astype(float)
        samples = np.bincount(kind).astype(float)
        mean = np.bincount(kind, beyond) / samples
        squares = np.bincount(kind, (beyond - mean[kind]) ** 2).astype(float)
        seconds = float(longest.sum() + (members * mean).sum())
        if self.counted.all():
            return seconds, 0.0
        return seconds, max(_half_width(members, samples, squares), LEAST_ERROR * seconds)


def _half_width(members: FloatArray, samples: FloatArray, squares: FloatArray) -> float:
    """Of a stratified sample's total: Student's t with Satterthwaite's degrees of freedom."""
    from scipy import stats

    some = samples < members
    members, samples, squares = members[some], samples[some], squares[some]
    variances = members**2 * squares / (samples - 1) / samples * (1 - samples / members)
    total = float(variances.sum())
    if total <= 0:
        return 0.0
    freedom = total**2 / float((variances**2 / (samples - 1)).sum())
    return float(stats.t.ppf(0.975, freedom)) * math.sqrt(total)


def epochs_of(recording: Recording) -> Epochs | str:
    """The epochs of a recording, with those chosen that stand for others; or why it is simulated whole.

    Raises ProbeFileDamaged and StorageError.
    """
    met = _meetings(recording)
    if isinstance(met, str):
        return met
    cut = _cuts(met)
    if cut.sum() < FEWEST:
        return (
            f"the ranks meet {len(cut)} times, {int(met.clean.sum())} of them without messages under way or open "
            f"requests: epochs take {FEWEST} or more"
        )
    if (most := len(recording.ranks) * int(cut.sum())) > MOST_EPOCHS:
        return f"{most} epochs of all ranks are more than {MOST_EPOCHS}: choosing among them would take too much memory"
    measured = _measured(recording, cut)
    kind, always = _kinds(measured)
    counted = _sampled(measured, kind, always)
    kept = counted.copy()
    kept[:-1] |= counted[1:]
    found = Epochs(measured.bounds, measured.computing, kind, kept, counted)
    share = float(np.diff(found.bounds, axis=1)[:, kept].sum()) / max(found.calls, 1)
    if share > MOST_KEPT:
        return f"{share:.0%} of the calls would be simulated for {len(kind)} epochs of {int(kind.max()) + 1} kinds"
    return found


# -- where to cut


@dataclass(frozen=True, eq=False)
class _Meetings:
    """Calls that all ranks meet in. at, sites: place and caller's address on rank 0, which makes so many calls.

    clean: nothing is under way when all have left it.
    """

    at: Ints
    sites: Words
    calls: int
    clean: Flags


def _meetings(recording: Recording) -> _Meetings | str:
    first: RankCalls | None = None
    at0 = np.zeros(0, np.int64)
    for run in recording.ranks:
        one = read_calls(recording.folder, run.rank)
        at = _met(one)
        if first is None:
            first, at0 = one, at
            is_open, under_way = np.zeros(len(at), bool), np.zeros(len(at), np.uint64)
        if not np.array_equal(one.calls["function"][at], first.calls["function"][at0]):
            return f"rank {one.rank} does not meet all others in the same calls as rank 0"
        opened, sent = _balances(one)
        is_open |= opened[at] != 0
        under_way += sent[at]
    assert first is not None
    return _Meetings(at0, first.calls["site"][at0], len(first.calls), ~is_open & (under_way == 0))


def _met(one: RankCalls) -> Ints:
    """Places of the calls in which the rank meets all others: on MPI_COMM_WORLD, or another communicator of all."""
    calls = one.calls
    made = np.flatnonzero(np.isin(calls["function"], list(NEW)) & (calls["extras"] == one.ranks))
    everybody = [0, *calls["other"][made].tolist()]
    places: Ints = np.flatnonzero(np.isin(calls["function"], _MEETINGS) & np.isin(calls["comm"], everybody))
    return places


def _cuts(met: _Meetings) -> Flags:
    """The meetings to cut at: callers that are rare first, so that epochs are iterations, until none is large."""
    cut = np.zeros(len(met.at), bool)
    sites, counts = np.unique(met.sites[met.clean], return_counts=True)
    for site in sites[np.argsort(counts, kind="stable")]:
        cut |= met.clean & (met.sites == site)
        largest = np.diff(np.concatenate([[-1], met.at[cut], [met.calls - 1]])).max()
        if largest <= LARGEST * met.calls:
            break
    return cut


def _balances(one: RankCalls) -> tuple[Ints, Words]:
    """Behind each call: requests that are open, and a hash of what was sent, less the hash of what was received."""
    calls, function = one.calls, one.calls["function"]
    opened = np.isin(function, _BEGINS).astype(np.int64)
    ending = np.isin(function, list(ENDS))
    words = calls["extras"].astype(np.int64)
    opened -= np.where(ending, words // 3, 0)
    change = np.zeros(len(calls), np.uint64)
    peer, other, tag = calls["peer"], calls["other"], calls["tag"]
    both = np.flatnonzero(np.isin(function, list(BOTH)))
    sends = np.flatnonzero(np.isin(function, list(SENDS | BOTH)) & (peer >= 0))
    change[sends] += _message(one.rank, peer[sends], tag[sends])
    receives = np.flatnonzero((function == NUMBERS["Recv"]) & (peer >= 0))
    change[receives] -= _message(peer[receives], one.rank, tag[receives])
    both = both[(other[both] >= 0) & (words[both] > 0)]
    change[both] -= _message(other[both], one.rank, one.extras[one.first[both]])
    ended, owner = _ended(one, ending)
    answered = ended[:, 1] >= 0
    np.subtract.at(change, owner[answered], _message(ended[answered, 1], one.rank, ended[answered, 2]))
    return np.cumsum(opened), np.cumsum(change, dtype=np.uint64)


def _ended(one: RankCalls, ending: Flags) -> tuple[npt.NDArray[np.int32], Ints]:
    """(request, who answered, tag) of each completed request, and the call that completed it."""
    words = np.where(ending, one.calls["extras"], 0).astype(np.int64)
    behind = np.repeat(ending, np.diff(one.first))
    if (words % 3).any():
        raise ProbeFileDamaged(f"rank {one.rank}: call {int(np.argmax(words % 3 > 0))} waits for half of a request")
    return one.extras[behind].reshape(-1, 3), np.repeat(np.arange(len(words)), words // 3)


def _message(source: object, to: object, tag: object) -> Words:
    """A hash of a message: its ranks and tag."""
    parts = (np.asarray(part, dtype=np.int64).astype(np.uint64) for part in (source, to, tag))
    return _hashed(*parts)


def _hashed(*parts: Words) -> Words:
    """One word of several, each well mixed: sums of such words differ where what they are of differs."""
    found = np.uint64(0)
    with np.errstate(over="ignore"):
        for part in parts:
            found = (found ^ part) + np.uint64(0x9E3779B97F4A7C15)
            found = (found ^ (found >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            found = (found ^ (found >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            found = found ^ (found >> np.uint64(31))
    return np.asarray(found)


# -- what epochs are like


@dataclass(frozen=True, eq=False)
class _Measured:
    """As in Epochs; alike: of each epoch, a word that tells what all ranks call in it. new: it makes communicators."""

    bounds: Ints
    computing: FloatArray
    alike: Words
    new: Flags


def _measured(recording: Recording, cut: Flags) -> _Measured:
    ranks, count = len(recording.ranks), int(cut.sum()) + 1
    found = _Measured(
        np.zeros((ranks, count + 1), np.int64), np.zeros((ranks, count)), np.zeros(count, np.uint64),
        np.zeros(count, bool),
    )  # fmt: skip
    for run in recording.ranks:
        one = read_calls(recording.folder, run.rank)
        bounds = found.bounds[one.rank]
        bounds[1:-1], bounds[-1] = _met(one)[cut] + 1, len(one.calls)
        found.computing[one.rank] = _summed(one.calls["computing"].astype(np.uint64), bounds) * 1e-9
        found.new[:] |= _summed(np.isin(one.calls["function"], list(NEW)).astype(np.uint64), bounds) > 0
        found.alike[:] += _hashed(_calls_of(one, bounds), np.full(count, one.rank, np.uint64))
    return found


def _summed(words: Words, bounds: Ints) -> Words:
    """Sums of the epochs, modulo 2^64."""
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(words, dtype=np.uint64)])
    summed: Words = np.diff(sums[bounds])
    return summed


def _calls_of(one: RankCalls, bounds: Ints) -> Words:
    """Of each epoch, a word that tells what the rank calls in it, in which order, with whom and how much.

    In which calls requests are completed is left to chance by programs that test or wait for some of them.
    """
    ending = np.isin(one.calls["function"], list(ENDS))
    before = np.concatenate([[0], np.cumsum(~ending)])
    order: Ints = before[1:] - np.repeat(before[bounds[:-1]], np.diff(bounds))
    fields = (one.calls[name].astype(np.int64).astype(np.uint64) for name in
              ("function", "peer", "tag", "comm", "other", "count", "element"))  # fmt: skip
    words = np.where(ending, np.uint64(0), _hashed(*fields, order.astype(np.uint64)))
    ended, owner = _ended(one, ending)
    np.add.at(words, owner, _message(ended[:, 1], ended[:, 2], 1))
    behind = np.repeat(~ending, np.diff(one.first))
    owner = np.repeat(np.arange(len(words)), np.diff(one.first))[behind]
    place = np.flatnonzero(behind) - one.first[owner]
    np.add.at(words, owner, _message(one.extras[behind], place, order[owner]))
    return _summed(words, bounds)


# -- which stand for others


def _kinds(measured: _Measured) -> tuple[Ints, Flags]:
    """The kind of each epoch, and those that are the only one of theirs: head, tail, with new communicators."""
    count = len(measured.alike)
    alone = measured.new.copy()
    alone[[0, -1]] = True
    kind = np.full(count, -1, np.int64)
    parts = [np.array([one]) for one in np.flatnonzero(alone)]
    longest, mean = measured.computing.max(axis=0), measured.computing.mean(axis=0)
    free = np.flatnonzero(~alone)
    free = free[np.argsort(measured.alike[free], kind="stable")]
    for group in np.split(free, np.flatnonzero(np.diff(measured.alike[free])) + 1):
        parts += _parts(group, longest, mean)
    for number, part in enumerate(parts):
        kind[part] = number
    return kind, alone


def _parts(group: Ints, longest: FloatArray, mean: FloatArray) -> list[Ints]:
    """Epochs with equal calls, in parts with alike computing of the slowest rank and in the mean."""
    spread = SPREAD
    while True:
        parts = [part for one in _parted(group, longest, spread) for part in _parted(one, mean, spread)]
        if len(parts) <= MOST_PARTS:
            return parts
        spread *= 2


def _parted(group: Ints, values: FloatArray, spread: float) -> Iterator[Ints]:
    group = group[np.argsort(values[group], kind="stable")]
    ordered, begin = values[group], 0
    while begin < len(group):
        end = max(int(np.searchsorted(ordered, ordered[begin] * (1 + spread), side="right")), begin + 1)
        yield group[begin:end]
        begin = end


def _sampled(measured: _Measured, kind: Ints, alone: Flags) -> Flags:
    """Epochs that stand for their kind: evenly spread over the order of the slowest rank's computing."""
    counted: Flags = np.array(alone)
    longest = measured.computing.max(axis=0)
    order = np.lexsort((longest, kind))
    for part in np.split(order, np.flatnonzero(np.diff(kind[order])) + 1):
        samples = min(max(SAMPLES, math.isqrt(len(part))), len(part))
        counted[part[((np.arange(samples) + 0.5) / samples * len(part)).astype(np.int64)]] = True
    return counted
