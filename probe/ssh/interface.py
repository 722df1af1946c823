# SPDX-License-Identifier: Apache-2.0
"""The connection to a node that the rest of the program works with, whichever SSH library is behind it.

Times are in seconds. Every wait ends.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from checkpoint.errors import NodeUnreachable


@dataclass(frozen=True)
class SshOptions:
    """What the user said about SSH; the ssh configuration says the rest."""

    config: Path | None = None
    """ssh configuration; None is ~/.ssh/config, /dev/null is none."""
    known_hosts: Path | None = None
    """The only file of known host keys; None: what the configuration says, or the usual ones of user and system."""
    accept_new_host_key: bool = False
    """Add the key of a host that is not known yet, and say so. A key that differs from a known one never is taken."""
    identity: Path | None = None
    """Private key, for the node and its jump hosts; None: what the configuration says, or the usual ones."""
    connect_seconds: float = 20.0
    """For reaching each host on the way, and again for logging in; ConnectTimeout of the configuration goes first."""


class RemoteCommandEnded(NodeUnreachable):
    """The command on the node ended, or the node closed it, while there was something to send to it."""


class Channel(Protocol):
    """A command that runs on the node. One thread may send while another one receives."""

    def send(self, data: bytes, seconds: float) -> None:
        """Send all of `data` to the command's standard input.

        Raises NodeUnreachable after `seconds` without progress or when the connection is lost, RemoteCommandEnded
        when nobody reads any more.
        """

    def end_of_input(self) -> None:
        """Close the command's standard input."""

    def receive(self, most: int, seconds: float) -> bytes | None:
        """At most `most` bytes of the command's output: b"" at its end, None when nothing came within `seconds`.

        Raises NodeUnreachable when the connection is lost, also when the end of the output is missing.
        """

    def errors(self) -> str:
        """The end of what the command wrote to standard error, printable; complete once it has ended."""

    def exit_status(self, seconds: float) -> int | None:
        """The command's exit status; None when it has not ended within `seconds`, or was ended by a signal.

        Raises NodeUnreachable when the connection is lost before.
        """


class Connection(Protocol):
    """A node that the user is logged in to."""

    @property
    def peer(self) -> str:
        """USER@HOST:PORT that the configuration made of the address."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know, such as a host key that was added."""

    def start(self, command: str) -> AbstractContextManager[Channel]:
        """Run a shell command on the node; no terminal, standard streams are the channel's. Raises NodeUnreachable.

        Leaving the context gives the command up: its streams end; whether it does is its own affair.
        """

    def close(self) -> None:
        """End the connection; what was sent and not yet taken by the command may be lost. May be repeated.

        Threads that use the connection get NodeUnreachable.
        """
