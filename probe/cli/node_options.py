# SPDX-License-Identifier: Apache-2.0
"""Options of `probe run` for other nodes, and the run they ask for.

What needs the SSH library is imported where nodes are really asked for: every command reads these options.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from checkpoint.errors import NodesFailed, ProbeError
from probe.cli.parameters import Size
from probe.node.machine_lock import WAIT_SECONDS
from probe.ssh.addresses import Address, parse_address, read_hosts
from probe.ssh.interface import SshOptions
from probe.terminal import console, say_json

if TYPE_CHECKING:
    from probe.candidates.agent_client import Orders
    from probe.candidates.wanted_width import WantedWidth
    from probe.emulation.elsewhere.talk import NodeOrders

_Command = TypeVar("_Command", bound=Callable[..., Any])

_WHICH_OPTIONS = (
    click.option("--on", multiple=True, metavar="[USER@]NODE[:PORT]", help="A node to reach over SSH. Repeatable."),
    click.option(
        "--hosts",
        type=click.Path(path_type=Path, readable=False),
        help="File with a node on each line; several, with commas between them, are declared identical.",
    ),
)
_REACHING_OPTIONS = (
    click.option("--accept-new-host-key", is_flag=True, help="Trust host keys never seen before, and remember them."),
    click.option("--identity", type=click.Path(path_type=Path, readable=False), help="Private key to log in with."),
    click.option(
        "--ssh-config",
        type=click.Path(path_type=Path, readable=False),
        help="Instead of ~/.ssh/config. /dev/null: none.",
    ),
    click.option(
        "--known-hosts", type=click.Path(path_type=Path, readable=False), help="Instead of ~/.ssh/known_hosts."
    ),
)
_JOBS = click.option("--jobs", type=click.IntRange(1, 256), default=8, show_default=True, help="Candidates at a time.")
_WAIT = click.option(
    "--wait",
    type=click.IntRange(0, 86400),
    default=int(WAIT_SECONDS),
    show_default=True,
    help="Seconds to wait for another measurement on a node.",
)
_RUN_OPTIONS = (
    click.option(
        "--split",
        multiple=True,
        metavar="NODE,NODE...",
        help="Nodes declared identical: each runs some of the phases. Repeatable.",
    ),
    _JOBS,
    click.option(
        "--cache-dir", default="", metavar="PATH", help="Folder on the nodes.  [default: ~/.cache/probe-node]"
    ),
    click.option(
        "--cache-size", type=Size(), default="4G", show_default=True, help="What it may keep there after a run."
    ),
    _WAIT,
    click.option(
        "--node-limit",
        type=click.IntRange(1, 604800),
        help="Seconds that a node may take in all.  [default: from the probe's own times]",
    ),
)
_EMULATION_OPTIONS = (
    _JOBS,
    _WAIT,
    click.option(
        "--node-limit",
        type=click.IntRange(1, 604800),
        help="Seconds that the emulation may take on a node.  [default: from the profile's own times]",
    ),
)


def ssh_options(command: _Command) -> _Command:
    """Add the options that name nodes and say how to reach them; the command gets them as keywords, for SshChoice."""
    for option in reversed((*_WHICH_OPTIONS, *_REACHING_OPTIONS)):
        command = option(command)
    return command


def reaching_options(command: _Command) -> _Command:
    """Add the options that say how nodes are reached, which the command names otherwise."""
    for option in reversed(_REACHING_OPTIONS):
        command = option(command)
    return command


def candidate_options(command: _Command) -> _Command:
    """Add all options to a command; it gets them as keywords, for CandidateOptions."""
    for option in reversed(_RUN_OPTIONS):
        command = option(command)
    return ssh_options(command)


def emulation_options(command: _Command) -> _Command:
    """Add the options of emulations on other nodes; the command gets them as keywords, for EmulationChoice."""
    for option in reversed(_EMULATION_OPTIONS):
        command = option(command)
    return ssh_options(command)


@dataclass(frozen=True)
class SshChoice:
    """Which nodes, and how to reach them, as given on the command line."""

    on: Sequence[str]
    hosts: Path | None
    accept_new_host_key: bool
    identity: Path | None
    ssh_config: Path | None
    known_hosts: Path | None

    def groups(self) -> list[tuple[Address, ...]]:
        """One node, or several declared identical, each. ProbeError where that is nonsense, or there is none."""
        found: list[tuple[Address, ...]] = [(parse_address(text),) for text in self.on]
        if self.hosts is not None:
            found += read_hosts(self.hosts)
        if not found:
            raise ProbeError(f"{self.hosts}: names no node" if self.hosts else "no node is named; give --on or --hosts")
        return found

    def ssh(self) -> SshOptions:
        return SshOptions(
            config=self.ssh_config,
            known_hosts=self.known_hosts,
            accept_new_host_key=self.accept_new_host_key,
            identity=self.identity,
        )


@dataclass(frozen=True)
class EmulationChoice(SshChoice):
    """The options of `probe emulate` for other nodes, as given."""

    jobs: int
    wait: float
    node_limit: float | None

    @property
    def named(self) -> bool:
        """Whether other nodes are asked for."""
        return bool(self.on or self.hosts)

    def addresses(self) -> list[Address]:
        """Every node. ProbeError where that is nonsense."""
        return [address for group in self.groups() for address in group]

    def orders(self) -> NodeOrders:
        from probe.emulation.elsewhere.talk import NodeOrders

        return NodeOrders(limit_seconds=self.node_limit, lock_seconds=self.wait)


@dataclass(frozen=True)
class CandidateOptions(SshChoice):
    """The options of `probe run` for other nodes, as given."""

    split: Sequence[str]
    jobs: int
    cache_dir: str
    cache_size: int
    wait: float
    node_limit: float | None

    @property
    def named(self) -> bool:
        """Whether other nodes are asked for."""
        return bool(self.on or self.hosts or self.split)

    def candidates(self) -> list[tuple[Address, ...]]:
        """What to run on, one for each row. ProbeError where that is nonsense."""
        from probe.candidates.remote import parse_candidate

        split = [parse_candidate(text) for text in self.split]
        return split + (self.groups() if self.on or self.hosts else [])

    def orders(
        self, repeats: int, restorer: str, *, carried_restorer: bool, only_recorded_calls: bool, touch_in_order: bool
    ) -> Orders:
        from probe.candidates.agent_client import Orders

        return Orders(
            repeats=repeats,
            restorer=restorer,
            carried_restorer=carried_restorer,
            only_recorded_calls=only_recorded_calls,
            touch_in_order=touch_in_order,
            cache_dir=self.cache_dir,
            cache_bytes=self.cache_size,
            lock_seconds=self.wait,
            limit_seconds=self.node_limit,
        )


def run_on_candidates(
    probe: Path, options: CandidateOptions, orders: Orders, wanted: WantedWidth, min_coverage: float | None,
    as_json: bool, quiet: bool,
) -> None:  # fmt: skip
    """Run the probe on all candidates and print the table. Raises, then, where some have no prediction: the node's own
    error where there was only one, NodesFailed where there were several."""

    from probe.candidates.remote import run_on
    from probe.cli.node_progress import watching
    from probe.cli.node_table import candidates_json, print_candidates

    with watching(quiet) as watcher:
        found = run_on(
            probe, options.candidates(), ssh=options.ssh(), orders=orders, jobs=options.jobs,
            min_coverage=min_coverage, watcher=watcher, **asdict(wanted),
        )  # fmt: skip
    if as_json:
        say_json(candidates_json(str(probe), found))
    else:
        print_candidates(found, console())
    failed = [one for one in found if one.error is not None]
    if failed and len(found) == 1:
        assert failed[0].error is not None
        raise failed[0].error
    if failed:
        raise NodesFailed(
            f"{len(failed)} of {len(found)} candidates have no prediction: " + ", ".join(f.name for f in failed)
        )
