# SPDX-License-Identifier: Apache-2.0
"""Make the emulator's plan from a resource profile: what each sample reads, writes, holds and computes."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from checkpoint.errors import NodeUnfit, NodeUnreachable, ProbeError, StorageError, ToolMissing
from probe.emulation.kernels import AUTO, BLAS, COMPUTING, DEFAULT, INSTEAD, MIX, MOVED, NO_BLAS, STALLING, USER
from probe.emulation.load import check_load
from probe.emulation.usage import Usage
from probe.formats.arrays import FloatArray
from probe.ssh.addresses import parse_address

WORK, SECONDS = "work", "seconds"
"""What is equal to the profile: iterations of the kernel, or CPU seconds."""

SCALES = ("compute", "memory", "read", "write")
MOST_THREADS, MOST_RANKS, MOST_FILES, MOST_BLOCK = 1024, 1024, 1024, 1 << 30
_MOST_ITERATIONS = 1 << 62
_MOST_BYTES = 1 << 60
_MOST_SECONDS = 1e9


@dataclass(frozen=True)
class EmulateOptions:
    """How a profile is emulated.

    kernel      a name out of COMPUTING, or AUTO: the profile's mix of them
    own_kernel  a user's file in C, assembly or Python, in place of `kernel`
    efficiency  share of the computing that `kernel` does; the rest waits for memory. None: all of it
    equal       WORK or SECONDS
    scale       factors by names of SCALES
    threads     that compute, of each rank; None: as many processors as the profiled command used, or 1 with ranks
    ranks       processes that share the computing; each of them reads, writes, holds and sends all
    read_block, write_block  bytes of each call
    folder      where files are made, and nowhere else
    files       that are written by turns
    send_to, receive_from  endpoints, HOST:PORT: one takes all bytes, the other sends without end; None: no network
    load        of this node meanwhile: processes that compute and write, bytes of memory (probe/emulation/load.py)
    keep_waits  sleep where the command neither computed nor waited for a processor
    """

    kernel: str = DEFAULT
    own_kernel: Path | None = None
    equal: str = WORK
    scale: Mapping[str, float] = field(default_factory=dict)
    efficiency: float | None = None
    threads: int | None = None
    ranks: int = 1
    read_block: int = MOVED
    write_block: int = MOVED
    folder: Path = Path()
    files: int = 1
    send_to: str | None = None
    receive_from: str | None = None
    load: Mapping[str, int] = field(default_factory=dict)
    keep_waits: bool = False


@dataclass(frozen=True)
class Plan:
    """What the emulator is to do: N samples. `cpu` counts from the beginning, all else is of each sample.

    computed: iterations of each kernel, by its name.
    """

    computed: Mapping[str, FloatArray]
    system_calls: FloatArray
    cpu: FloatArray
    read: FloatArray
    written: FloatArray
    resident: FloatArray
    sent: FloatArray
    received: FloatArray
    waits: FloatArray
    threads: int
    warnings: tuple[str, ...]
    ranks: int = 1

    @property
    def iterations(self) -> FloatArray:
        """Of all kernels together."""
        return np.asarray(sum(self.computed.values()))

    @property
    def most_resident(self) -> int:
        """Bytes of memory where it holds most, in all ranks."""
        return int(self.resident.max()) * self.ranks

    @property
    def all_written(self) -> int:
        """Bytes written in all, by all ranks."""
        return int(self.written.sum()) * self.ranks

    def text(self, options: EmulateOptions, folder: str = "") -> str:
        """As the emulator reads it. `folder`: on the node where it runs, without that of the options, here."""
        head = [
            "emulation 1",
            *(f"kernel {name}" for name in self.computed),
            f"folder {folder or options.folder.absolute()}",
            f"equal {options.equal}",
            f"threads {self.threads}",
            f"ranks {self.ranks}",
            f"files {options.files}",
            f"read_block {options.read_block}",
            f"write_block {options.write_block}",
            *(f"send_to {numeric(options.send_to)}" for _ in [0] if options.send_to),
            *(f"receive_from {numeric(options.receive_from)}" for _ in [0] if options.receive_from),
            f"samples {len(self.cpu)}",
        ]
        first = np.stack([*self.computed.values(), self.system_calls], axis=1).astype(np.int64).tolist()
        columns = [self.read, self.written, self.resident, self.sent, self.received]
        then = np.stack(columns, axis=1).astype(np.int64).tolist()
        rows = [
            f"{' '.join(map(str, made))} {cpu:.6f} {' '.join(map(str, moved))} {wait:.6f}"
            for made, cpu, moved, wait in zip(first, self.cpu, then, self.waits, strict=True)
        ]
        return "\n".join([*head, *rows, "end\n"])


def make_plan(
    usage: Usage, options: EmulateOptions, rates: Mapping[str, float], *, cores: int | None = None, blas: bool = True
) -> Plan:
    """The plan of a profile. `rates`: iterations per CPU second on the profiled node, for WORK; of the node that
    emulates `cores`, without of this one, and whether it has OpenBLAS.

    Raises ProbeError for a profile without CPU time, or options that nothing can follow, ToolMissing without OpenBLAS.
    """
    check_options(options)
    scale = {name: options.scale.get(name, 1.0) for name in SCALES}
    user, kernel = usage.column("cpu_user"), usage.column("cpu_kernel")
    if np.isnan(user).any() or np.isnan(kernel).any():
        raise ProbeError("the profile does not know its CPU time; profile the command again")
    warnings: list[str] = []
    known = {}
    for name in ("read", "written", "resident"):
        known[name] = np.nan_to_num(usage.column(name))
        if np.isnan(usage.column(name)).all():
            about = usage.header.columns.get(name)
            warnings.append(f"{name} is not known, and not emulated: {about.missing if about else 'no such column'}")
    sent = _carried(usage, "net_sent", options.send_to, warnings)
    received = _carried(usage, "net_received", options.receive_from, warnings)
    read, written = known["read"] * scale["read"], known["written"] * scale["write"]
    resident = known["resident"] * scale["memory"]
    threads = options.threads or (1 if options.ranks > 1 else _threads(usage, cores or os.cpu_count() or 1))
    busy = (user + kernel) * scale["compute"]
    waits = np.zeros(usage.samples)
    if options.keep_waits:
        length = np.diff(usage.end, prepend=0.0)
        waits = np.maximum(
            0.0, length - (user + kernel) / (threads * options.ranks) - np.nan_to_num(usage.column("run_queue"))
        )
    system_calls = np.zeros(usage.samples)
    shares = kernel_seconds(usage, options)
    if BLAS in shares and not blas:
        shares = _without_blas(shares, options, warnings)
    computed = {name: np.zeros(usage.samples) for name in shares}
    if options.equal == WORK:
        computed = {name: np.rint(took * scale["compute"] * rates[name]) for name, took in shares.items()}
        system_calls = _rest(kernel, known, rates) * scale["compute"] * rates["syscalls"]
    plan = Plan(
        computed=computed, system_calls=np.rint(system_calls), cpu=np.cumsum(busy), read=np.rint(read),
        written=np.rint(written), resident=np.rint(resident), sent=sent, received=received, waits=waits,
        threads=threads, warnings=tuple(warnings), ranks=options.ranks,
    )  # fmt: skip
    if max(plan.iterations.max(), plan.system_calls.max()) > _MOST_ITERATIONS or plan.cpu[-1] > _MOST_SECONDS:
        raise ProbeError("the profile computes for longer than any program; check it and --scale compute")
    moved = options.ranks * sum(map(np.sum, (plan.read, plan.written, sent, received)))
    if max(moved, options.ranks * plan.resident.max()) > _MOST_BYTES:
        raise NodeUnfit("the profile, scaled, uses more bytes than any node has; check it and --scale")
    return plan


def _without_blas(
    shares: Mapping[str, FloatArray], options: EmulateOptions, warnings: list[str]
) -> dict[str, FloatArray]:
    """A mix computes something else where there is no OpenBLAS; whoever names dgemm wants nothing else."""
    if options.kernel != AUTO:
        raise ToolMissing(NO_BLAS)
    warnings.append(f"the node has no OpenBLAS, which is part of the mix; kernel {INSTEAD} is in its place")
    rest = {name: took for name, took in shares.items() if name != BLAS}
    return {**rest, INSTEAD: shares[BLAS] + rest.get(INSTEAD, 0.0)}


def _carried(usage: Usage, column: str, endpoint: str | None, warnings: list[str]) -> FloatArray:
    """Bytes of each sample that go over the network: none where the user has named no endpoint for them."""
    values = np.rint(np.nan_to_num(usage.column(column)))
    if endpoint is None and values.sum():
        option = "--send-to" if column == "net_sent" else "--receive-from"
        warnings.append(f"{values.sum():.0f} bytes of {column} are not emulated: no endpoint is named with {option}")
    return values if endpoint is not None else np.zeros(usage.samples)


def numeric(endpoint: str) -> str:
    """ADDRESS PORT of an endpoint that the user names. Raises ProbeError for one that is none, NodeUnreachable."""
    address = parse_address(endpoint)
    if address.user or address.port is None:
        raise ProbeError(f"{endpoint}: not an endpoint; write HOST:PORT")
    try:
        found = socket.getaddrinfo(address.host, address.port, 0, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise NodeUnreachable(f"{endpoint}: the endpoint's name has no address: {error}") from error
    return f"{found[0][4][0]} {address.port}"


def kernel_seconds(usage: Usage, options: EmulateOptions) -> dict[str, FloatArray]:
    """CPU seconds in user code that each kernel stands for, sample by sample: one kernel, or the profile's mix.

    Raises ProbeError for a profile that has no mix.
    """
    if options.own_kernel is not None or options.kernel != AUTO:
        name, user, share = USER if options.own_kernel else options.kernel, usage.column("cpu_user"), options.efficiency
        if share is None or name == STALLING:
            return {name: user}
        return {name: user * share, STALLING: user * (1 - share)}
    if options.equal != WORK:
        raise ProbeError("--kernel auto mixes iterations; name a kernel with --equal seconds")
    named = {column.removeprefix(MIX): column for column in usage.header.columns if column.startswith(MIX)}
    found = {name: usage.column(column) for name, column in named.items() if name in COMPUTING}
    known = {name: values for name, values in found.items() if not np.isnan(values).any()}
    if not known:
        reason = next((usage.header.columns[column].missing for column in named.values()), "it was made without")
        raise ProbeError(f"the profile does not say which kernels are like the command: {reason}; name a kernel")
    return {name: values for name, values in known.items() if values.sum() > 0} or known


def _rest(kernel: FloatArray, known: Mapping[str, FloatArray], rates: Mapping[str, float]) -> FloatArray:
    """CPU seconds in the kernel that moving bytes and touching pages will not take by themselves."""
    growth = np.maximum(0.0, np.diff(known["resident"], prepend=0.0))
    moving = sum(
        amount / MOVED / rates[name]
        for name, amount in (("read", known["read"]), ("write", known["written"]), ("touch", growth))
    )
    return np.asarray(np.maximum(0.0, kernel - moving))


def _threads(usage: Usage, cores: int) -> int:
    """Processors that the command used where it was busiest, as a whole number."""
    used = (usage.column("cpu_user") + usage.column("cpu_kernel")) / np.diff(usage.end, prepend=0.0)
    most = min(MOST_THREADS, cores)
    return max(1, round(float(np.quantile(np.minimum(used, most), 0.9))))


def check_options(options: EmulateOptions) -> None:
    """Raise ProbeError for values that nothing can follow, StorageError for a folder that cannot be named."""
    limits = (
        ("threads", options.threads or 1, MOST_THREADS), ("ranks", options.ranks, MOST_RANKS),
        ("files", options.files, MOST_FILES), ("read_block", options.read_block, MOST_BLOCK),
        ("write_block", options.write_block, MOST_BLOCK),
    )  # fmt: skip
    for name, value, most in limits:
        if not 1 <= value <= most:
            raise ProbeError(f"{name}: {value} is not from 1 to {most}")
    check_load(options.load)
    for endpoint in (options.send_to, options.receive_from):
        if endpoint is not None:
            numeric(endpoint)
    for name, factor in options.scale.items():
        if name not in SCALES or not 0 <= factor <= 1e9:
            raise ProbeError(f"scale {name}={factor:g}: scales are {', '.join(SCALES)}, factors from 0 to 1e9")
    if options.efficiency is not None and not 0 <= options.efficiency <= 1:
        raise ProbeError(f"efficiency {options.efficiency:g}: a share from 0 to 1 of the computing is the kernel's")
    if options.efficiency is not None and (options.equal == SECONDS or options.kernel == AUTO):
        raise ProbeError("--efficiency takes a part of one kernel's iterations: name a kernel, and leave out --equal")
    if options.equal not in (WORK, SECONDS):
        raise ProbeError(f"equal {options.equal!r}: {WORK} or {SECONDS} can be equal to the profile")
    if "\n" in str(options.folder.absolute()):
        raise StorageError(f"{options.folder}: no folder for files of an emulation: its name has a line end")
