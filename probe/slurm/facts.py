# SPDX-License-Identifier: Apache-2.0
"""Ask Slurm about its nodes and partitions; the one place where its commands are called."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from checkpoint.errors import SlurmError
from probe.store.describing import describe_node
from probe.store.opening import Store
from probe.store.reading import all_nodes

_PATIENCE = 60.0
_UNUSABLE = ("DOWN", "DRAIN", "FAIL", "FUTURE", "NOT_RESPONDING", "POWERED_DOWN", "UNKNOWN")
_SHAPE = ("CPUTot", "Sockets", "CoresPerSocket", "ThreadsPerCore", "RealMemory", "Gres")


@dataclass(frozen=True)
class SlurmNode:
    """memory in MB. kind: equal for nodes that Slurm sees no difference between. available: jobs can start there."""

    name: str
    features: tuple[str, ...]
    cpus: int
    memory: int
    kernel: str
    partitions: tuple[str, ...]
    kind: tuple[object, ...]
    available: bool


@dataclass(frozen=True)
class SlurmPartition:
    """max_minutes: its longest time limit, None for none."""

    name: str
    default: bool
    max_minutes: int | None


@dataclass(frozen=True)
class SlurmFacts:
    """A cluster at one moment."""

    nodes: tuple[SlurmNode, ...]
    partitions: tuple[SlurmPartition, ...]

    @property
    def default_partition(self) -> str:
        """Its name, or "" without one."""
        return next((partition.name for partition in self.partitions if partition.default), "")


def call(*command: str, environment: Mapping[str, str] | None = None, given: str | None = None) -> tuple[str, str]:
    """Run one of Slurm's commands; its standard output and error. Raises SlurmError: absent, down, refused, silent."""
    try:
        done = subprocess.run(
            command,
            input=given if given is not None else "",
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE,
            check=False,
            env=None if environment is None else {**os.environ, **environment},
        )
    except FileNotFoundError as error:
        raise SlurmError(f"{command[0]}: not found; Slurm is not installed here, or not in PATH") from error
    except OSError as error:
        raise SlurmError(f"{command[0]}: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise SlurmError(f"{command[0]}: no answer in {_PATIENCE:g} s; is slurmctld up? (scontrol ping)") from error
    if done.returncode:
        raise SlurmError(f"{command[0]} refused: {_said(done.stderr) or _said(done.stdout)}")
    return done.stdout, done.stderr


def _said(text: str) -> str:
    return " | ".join(line.strip() for line in text.splitlines() if line.strip())[:400]


def conf_folder() -> Path:
    """Where slurm.conf is: by SLURM_CONF, else /etc/slurm."""
    named = os.environ.get("SLURM_CONF")
    return Path(named).absolute().parent if named else Path("/etc/slurm")


def slurm_facts() -> SlurmFacts:
    """Ask Slurm for its nodes and partitions. Raises SlurmError."""
    nodes, _ = call("scontrol", "-o", "show", "node")
    partitions, _ = call("scontrol", "-o", "show", "partition")
    return SlurmFacts(
        tuple(_node(line) for line in nodes.splitlines() if line.startswith("NodeName=")),
        tuple(_partition(line) for line in partitions.splitlines() if line.startswith("PartitionName=")),
    )


def _fields(line: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in line.split() if "=" in word)


def _node(line: str) -> SlurmNode:
    fields = _fields(line)
    system = re.search(r"\bOS=Linux (\S+)", line)
    features = _listed(fields.get("ActiveFeatures", ""))
    shape = tuple(fields.get(key, "") for key in _SHAPE)
    return SlurmNode(
        name=fields["NodeName"],
        features=features,
        cpus=int(fields.get("CPUTot", "0")),
        memory=int(fields.get("RealMemory", "0")),
        kernel=system[1] if system else "",
        partitions=_listed(fields.get("Partitions", "")),
        kind=(tuple(sorted(features)), *shape),
        available=not any(word in fields.get("State", "UNKNOWN") for word in _UNUSABLE),
    )


def _listed(text: str) -> tuple[str, ...]:
    return () if text in ("", "(null)") else tuple(text.split(","))


def _partition(line: str) -> SlurmPartition:
    fields = _fields(line)
    return SlurmPartition(fields["PartitionName"], fields.get("Default") == "YES", minutes(fields.get("MaxTime", "")))


def minutes(text: str) -> int | None:
    """Minutes of a time as Slurm writes it (D-HH:MM:SS, HH:MM:SS, MM:SS), None for UNLIMITED."""
    found = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text)
    if not found:
        return None
    days, hours, some_minutes, _ = (int(part or 0) for part in found.groups())
    return (24 * days + hours) * 60 + some_minutes


def refresh(store: Store, nodes: Sequence[SlurmNode]) -> list[str]:
    """Enter Slurm's features and kernels into the store; names of nodes whose predictions became stale by that.

    Raises StoreBusy, StoreUnusable.
    """
    known = {node.name: node for node in all_nodes(store)}
    stale = []
    for node in nodes:
        there = known.get(node.name)
        if there is None:
            continue
        kernel = node.kernel or there.kernel
        changed = there.kernel != kernel or there.features != tuple(sorted(node.features))
        if changed and describe_node(store, node.name, kernel=kernel, features=node.features):
            stale.append(node.name)
    return stale
