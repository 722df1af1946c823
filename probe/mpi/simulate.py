# SPDX-License-Identifier: Apache-2.0
"""Simulate a recorded program on a network: SimGrid plays the recorded calls, and computing takes its recorded time."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from checkpoint.compiled import built
from checkpoint.errors import ModelInvalid, ProbeError, ProbeFileDamaged, StorageError
from probe.formats.arrays import FloatArray
from probe.mpi.epochs import Epochs, epochs_of
from probe.mpi.library.generate import player_source
from probe.mpi.platforms import costs_of, hosts_of, placed, settings_of, with_other_links
from probe.mpi.play import Played, write_plays
from probe.mpi.recording import Recording
from probe.mpi.trace import RankCalls, read_calls
from probe.simulation.networks import network_of
from probe.simulation.platform import Links, write_platform
from probe.simulation.smpirun import COMMAND, installed, simulated
from reducer.output_file import storage_errors

COMPILER = "smpicc"
_OPTIONS = ("-O2", "-std=gnu11", "-Wall", "-Wextra", "-DPROBE_SIMULATED")
_TIMES, _LINKS = "times", "links"
"""What the player may write."""

_COUNTS_LINKS = "--cfg=plugin:link_load"
"""SimGrid's plugin. Version 3.32 counts a link's bandwidth during the latency of a message, too."""

_COLLECTIVES = ("--cfg=smpi/coll-selector:ompi", "--cfg=smpi/alltoallv:ring")
"""Algorithms by counts and sizes, as MPI libraries have them. SimGrid 3.32 fails with the selector of MPICH,
and, unless it is told another, with the algorithm that it selects for MPI_Alltoallv of three ranks."""

_STANDS = "Deadlock|Stalling SMPI instance"
_PLAYED = re.compile(r"^played (\d+) ([0-9.]+) ([0-9.]+)$", re.M)


@dataclass(frozen=True)
class Where:
    """A network to play on: a platform file of SimGrid, or the name of a network with its links.

    times_latency, times_bandwidth: of all links, in place of theirs.
    """

    platform: Path | None = None
    network: str = ""
    links: Links = Links(2e9, 1e-6)  # noqa: RUF009 - frozen
    per_node: int = 1
    mapping: str = "block"
    times_latency: float = 1.0
    times_bandwidth: float = 1.0

    @property
    def name(self) -> str:
        return self.network if self.platform is None else str(self.platform)


@dataclass(frozen=True)
class LinkLoad:
    """Bytes that a link carried. bandwidth: bytes a second."""

    name: str
    bandwidth: float
    carried: float


@dataclass(frozen=True)
class Simulated:
    """Simulated seconds of the whole program, of each rank, and of each rank's computing. calls: of all ranks.

    wall: seconds that simulating took. played: calls that were simulated; epochs: that they stand for, 0 where all
    were. error: half width of the 95 % interval of `seconds` that comes of it, seconds. whole: why there are no epochs.
    """

    seconds: float
    ranks: tuple[float, ...]
    computing: tuple[float, ...]
    calls: int
    wall: float
    played: int = 0
    epochs: int = 0
    error: float = 0.0
    whole: str = ""

    @property
    def share(self) -> float:
        """Of all ranks' time: computing."""
        return sum(self.computing) / max(sum(self.ranks), 1e-12)


@dataclass(frozen=True)
class Watched:
    """A simulation with its times. calls: of each rank, (calls, 2) seconds at which each was entered and left."""

    simulated: Simulated
    calls: tuple[FloatArray, ...]


@dataclass(frozen=True)
class Prepared:
    """What is played of a recording, written once for several simulations. epochs: None where that is all of it."""

    folder: Path
    played: tuple[Played, ...]
    epochs: Epochs | None = None
    whole: str = ""


@contextmanager
def prepared(recording: Recording, *, epochs: bool = False) -> Iterator[Prepared]:
    """Write what is played; it goes away with the context. epochs: some of each kind alone, where there are such.

    Raises ProbeFileDamaged, ProgramUnsupported, StorageError.
    """
    with tempfile.TemporaryDirectory(prefix="probe-mpi-plays-") as made:
        yield _prepared(recording, Path(made), epochs)


def _prepared(recording: Recording, folder: Path, epochs: bool = False) -> Prepared:
    found = epochs_of(recording) if epochs else ""
    chosen = None if isinstance(found, str) else found
    played = write_plays(_calls(recording, chosen), folder)
    return Prepared(folder, played, chosen, found if isinstance(found, str) else "")


def _calls(recording: Recording, chosen: Epochs | None) -> Iterator[RankCalls]:
    """The calls of each rank that are played."""
    for rank in range(len(recording.ranks)):
        calls = read_calls(recording.folder, rank)
        if calls.ranks != len(recording.ranks):
            raise ProbeFileDamaged(
                f"{recording.folder}: rank {rank} is of a run of {calls.ranks} ranks, the recording of "
                f"{len(recording.ranks)}"
            )
        yield calls if chosen is None else chosen.reduced(calls)


def simulate(
    recording: Recording,
    where: Where,
    *,
    scale: float = 1.0,
    scales: Mapping[int, float] | None = None,
    limit: float = 3600.0,
    plays: Prepared | None = None,
    epochs: bool = False,
) -> Simulated:
    """Play a recording on a network. scale: computing takes so many times its recorded time; scales: of each rank.

    plays: what `prepared` wrote of this recording. epochs: without it, as `prepared` takes it.
    Raises ToolMissing without SimGrid; ModelInvalid: too few hosts, a bad platform, a simulation that fails or takes
    longer than `limit` seconds; ProbeFileDamaged, ProgramUnsupported, StorageError.
    """
    with tempfile.TemporaryDirectory(prefix="probe-mpi-simulate-") as made:
        folder, wanted = Path(made), _scales(recording, scale, scales)
        done, plays = _simulated(recording, where, wanted, limit, folder, plays, epochs=epochs)
        if plays.epochs is None:
            return replace(done, whole=plays.whole)
        return _whole(done, plays.epochs, wanted, folder)


def _whole(done: Simulated, epochs: Epochs, scales: Mapping[int, float], folder: Path) -> Simulated:
    """The whole program, of which some epochs were simulated."""
    left = np.zeros(int(epochs.kept.sum()))
    for rank in range(len(done.ranks)):
        ends = epochs.ends(rank)
        left = np.maximum(left, _times(folder / f"times.{rank}", int(ends[-1]))[ends - 1, 1])
    seconds, error = epochs.whole(left, scales)
    computing = tuple(float(own.sum()) * scales[rank] for rank, own in enumerate(epochs.computing))
    # Ranks end as long before the last one as in what was simulated.
    ranks = tuple(seconds - (done.seconds - end) for end in done.ranks)
    return replace(
        done, seconds=seconds, ranks=ranks, computing=computing, calls=epochs.calls, epochs=len(epochs.kind),
        error=error,
    )  # fmt: skip


def refuse_unusable(recording: Recording, where: Where) -> None:
    """Raise ModelInvalid or StorageError where the network cannot have the program's ranks, or is none."""
    with tempfile.TemporaryDirectory(prefix="probe-mpi-simulate-") as made:
        _platform(where, len(recording.ranks), Path(made))


def watch(
    recording: Recording,
    where: Where,
    *,
    scale: float = 1.0,
    limit: float = 3600.0,
    plays: Prepared | None = None,
) -> Watched:
    """The same, with the times of all calls. Raises what `simulate` raises."""
    with tempfile.TemporaryDirectory(prefix="probe-mpi-simulate-") as made:
        folder = Path(made)
        done, plays = _simulated(recording, where, _scales(recording, scale), limit, folder, plays, _TIMES)
        times = (_times(folder / f"times.{rank}", one.calls) for rank, one in enumerate(plays.played))
        return Watched(done, tuple(times))


def link_loads(
    recording: Recording,
    where: Where,
    *,
    scale: float = 1.0,
    limit: float = 3600.0,
    plays: Prepared | None = None,
) -> tuple[LinkLoad, ...]:
    """The links that carry something, in the platform's order. Raises what `simulate` raises."""
    # What is carried does not depend on latency; the plugin counts right where there is none.
    there = replace(where, times_latency=0.0)
    with tempfile.TemporaryDirectory(prefix="probe-mpi-simulate-") as made:
        _simulated(recording, there, _scales(recording, scale), limit, Path(made), plays, _LINKS)
        return tuple(_links(Path(made) / "links"))


def _scales(recording: Recording, scale: float, scales: Mapping[int, float] | None = None) -> Mapping[int, float]:
    if not scale >= 0:
        raise ProbeError(f"computing cannot take {scale} times its time")
    return dict.fromkeys(range(len(recording.ranks)), scale) if scales is None else scales


def _simulated(
    recording: Recording,
    where: Where,
    scales: Mapping[int, float],
    limit: float,
    folder: Path,
    plays: Prepared | None,
    written: str = "",
    epochs: bool = False,
) -> tuple[Simulated, Prepared]:
    ranks = len(recording.ranks)
    installed(COMMAND)
    platform = _platform(where, ranks, folder)
    plays = plays or _prepared(recording, folder, epochs)
    if plays.epochs is not None:
        assert not written, "what some epochs are played of has times and links of these alone"
        written = _TIMES
    with storage_errors("write", folder):
        for rank in range(ranks):
            if plays.folder != folder:
                (folder / f"play.{rank}").symlink_to(plays.folder / f"play.{rank}")
        (folder / "scales").write_bytes(np.array([scales[rank] for rank in range(ranks)], dtype="<f8").tobytes())
    words = [str(_player(folder)), str(folder), str(max(one.largest for one in plays.played))]
    # Behind the options that leave links as they are described, and so in their place.
    measured = [] if where.platform is None else settings_of(where.platform)
    options = [*measured, *_quietly(), *([_COUNTS_LINKS] if written == _LINKS else [])]
    words += [written] if written else []
    done = simulated(ranks, platform, [*options, *words], folder, limit, collectives=_COLLECTIVES)
    found = {int(rank): (float(end), float(computed)) for rank, end, computed in _PLAYED.findall(done.printed)}
    if re.search(_STANDS, done.printed):
        raise ModelInvalid(
            f"{COMMAND}: the simulation stands still: ranks wait for messages that nobody sends. Programs with "
            "MPI_Bsend, MPI_Cancel or messages that are never received are not simulated"
        )
    if sorted(found) != list(range(ranks)):
        raise ModelInvalid(f"{COMMAND} played {len(found)} of {ranks} ranks: {done.printed[-400:].strip()}")
    ends = tuple(found[rank][0] for rank in range(ranks))
    computing = tuple(found[rank][1] for rank in range(ranks))
    calls = sum(one.calls for one in plays.played)
    return Simulated(max(ends), ends, computing, calls, done.wall, calls), plays


def _times(path: Path, calls: int) -> FloatArray:
    try:
        return np.fromfile(path, dtype="<f8").reshape(calls, 2)
    except (OSError, ValueError) as error:
        raise ModelInvalid(f"{COMMAND}: times of {calls} calls were not written ({error})") from error


def _links(path: Path) -> Iterator[LinkLoad]:
    """Loads of the links that carried something."""
    # Names are the platform's, in whatever encoding.
    for line in path.read_bytes().decode("utf-8", "replace").split("\n")[:-1]:
        bandwidth, carried, name = line.split(" ", 2)
        if float(carried) > 0:
            yield LinkLoad(name, float(bandwidth), float(carried))


def _player(folder: Path) -> Path:
    source = folder / "player.c"
    try:
        source.write_text(player_source())
    except OSError as error:
        raise StorageError(f"{folder}: cannot be written ({error.strerror})") from error
    return built("player", [source], _OPTIONS, compiler=installed(COMPILER))


def _platform(where: Where, ranks: int, folder: Path) -> tuple[Path, Path]:
    """The platform file, and the file with the host of each rank."""
    if where.platform is None:
        nodes = -(-ranks // where.per_node)
        links = Links(where.links.bandwidth * where.times_bandwidth, where.links.latency * where.times_latency)
        platform, listed = write_platform(network_of(where.network), nodes, links, folder, cores=where.per_node)
        hosts: Sequence[str] = listed.read_text().split()
    else:
        hosts = hosts_of(where.platform)
        platform, listed = folder / "platform.xml", folder / "hosts.txt"
        text = where.platform.read_bytes().decode("latin-1")
        described = with_other_links(text, where.times_latency, where.times_bandwidth)
        platform.write_bytes(described.encode("latin-1"))
        (folder / "costs").write_bytes(costs_of(where.platform))
    listed.write_text("".join(f"{host}\n" for host in placed(hosts, ranks, where.per_node, where.mapping)))
    return platform, listed


def _quietly() -> list[str]:
    """No privatization, since the player has no variables of its own, and no time of this machine."""
    return ["--cfg=smpi/privatization:no", "--cfg=smpi/simulate-computation:no"]
