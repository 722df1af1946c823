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
from checkpoint.errors import ModelInvalid, ProbeError, StorageError
from probe.formats.arrays import FloatArray
from probe.mpi.generate import player_source
from probe.mpi.platforms import costs_of, hosts_of, placed, settings_of, with_other_links
from probe.mpi.play import Played, write_play
from probe.mpi.recording import Recording
from probe.mpi.trace import read_calls
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

_COLLECTIVES = ("--cfg=smpi/coll-selector:ompi",)
"""Algorithms by counts and sizes, as MPI libraries have them. SimGrid 3.32 fails with the selector of MPICH."""

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
    """Simulated seconds of the whole program, of each rank, and of each rank's computing. calls: played by all.

    wall: seconds that simulating took.
    """

    seconds: float
    ranks: tuple[float, ...]
    computing: tuple[float, ...]
    calls: int
    wall: float

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
    """What is played of a recording, written once for several simulations."""

    folder: Path
    played: tuple[Played, ...]


@contextmanager
def prepared(recording: Recording) -> Iterator[Prepared]:
    """Write what is played; it goes away with the context.

    Raises ProbeFileDamaged, ProgramUnsupported, StorageError.
    """
    with tempfile.TemporaryDirectory(prefix="probe-mpi-plays-") as made:
        yield _prepared(recording, Path(made))


def _prepared(recording: Recording, folder: Path) -> Prepared:
    played = (write_play(read_calls(recording.folder, rank), folder) for rank in range(len(recording.ranks)))
    return Prepared(folder, tuple(played))


def simulate(
    recording: Recording,
    where: Where,
    *,
    scale: float = 1.0,
    scales: Mapping[int, float] | None = None,
    limit: float = 3600.0,
    plays: Prepared | None = None,
) -> Simulated:
    """Play a recording on a network. scale: computing takes so many times its recorded time; scales: of each rank.

    plays: what `prepared` wrote of this recording.
    Raises ToolMissing without SimGrid; ModelInvalid: too few hosts, a bad platform, a simulation that fails or takes
    longer than `limit` seconds; ProbeFileDamaged, ProgramUnsupported, StorageError.
    """
    with tempfile.TemporaryDirectory(prefix="probe-mpi-simulate-") as made:
        return _simulated(recording, where, _scales(recording, scale, scales), limit, Path(made), plays)[0]


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
        done, played = _simulated(recording, where, _scales(recording, scale), limit, folder, plays, _TIMES)
        return Watched(done, tuple(_times(folder / f"times.{rank}", one.calls) for rank, one in enumerate(played)))


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
) -> tuple[Simulated, tuple[Played, ...]]:
    ranks = len(recording.ranks)
    installed(COMMAND)
    platform = _platform(where, ranks, folder)
    plays = plays or _prepared(recording, folder)
    played = plays.played
    with storage_errors("write", folder):
        for rank in range(ranks):
            if plays.folder != folder:
                (folder / f"play.{rank}").symlink_to(plays.folder / f"play.{rank}")
        (folder / "scales").write_bytes(np.array([scales[rank] for rank in range(ranks)], dtype="<f8").tobytes())
    words = [str(_player(folder)), str(folder), str(max(one.largest for one in played))]
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
    return Simulated(max(ends), ends, computing, sum(one.calls for one in played), done.wall), played


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
