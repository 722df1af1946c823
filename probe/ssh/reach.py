# SPDX-License-Identifier: Apache-2.0
"""Reach a node: the one place from which the SSH library is loaded."""

from __future__ import annotations

from contextlib import AbstractContextManager

from probe.ssh.addresses import Address
from probe.ssh.interface import Connection, SshOptions


def connect(address: Address, options: SshOptions) -> AbstractContextManager[Connection]:
    """Connect to a node, through its jump hosts if it has any, check every host key, and log in.

    Leaving the context closes the connection. Raises NodeUnreachable with the reason and what to do, ProbeError for a
    configuration that cannot be honoured, StorageError for files that cannot be read.
    """
    # The library takes a tenth of a second to load, which only who reaches other nodes shall pay.
    from probe.ssh import connection

    return connection.connect(address, options)
