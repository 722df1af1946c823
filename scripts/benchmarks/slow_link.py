# SPDX-License-Identifier: Apache-2.0
"""A probe over a link of 1 Mbit/s (tc tbf on the loopback of a namespace), to a node that has nothing of it yet."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from sshd import GUEST, machine

from checkpoint.linux import PAGE_SIZE
from probe.candidates.agent_client import Orders
from probe.candidates.remote import run_on
from probe.formats.manifest import Manifest
from reducer.unpack import open_probe

RATE = "1mbit"


def run(probe: Path, repeats: int) -> dict[str, Any]:
    """Send and run `probe` once, then once more with everything cached: the record. Raises the node's error."""
    with open_probe(probe) as archive:
        touched = max(p.checkpoint.kept_pages for p in Manifest.from_json(archive.manifest).phases) * PAGE_SIZE
    record: dict[str, Any] = {"name": f"slow-link-{probe.stem}", "size_bytes": archive.size_bytes, "touched": touched}
    with tempfile.TemporaryDirectory(prefix="slow-link-") as name, machine(Path(name) / "machine") as made:
        # The folder above is the user's alone, and the node's users have to get through.
        Path(name).chmod(0o755)
        server = made.serve()
        made.limit(RATE)
        for which in ("first", "again"):
            with made.network():
                found = run_on(
                    probe, [[server.address(GUEST)]], ssh=made.options(), orders=Orders(repeats=repeats), min_coverage=0
                )[0]
            if found.error is not None:
                raise found.error
            record[which] = {
                "seconds": found.probing,
                "transfer": found.transfer,
                "sent_bytes": found.sent,
                "early_repeats": found.early,
            }
    return record
