# SPDX-License-Identifier: Apache-2.0
"""Figures of `probe net`: for a line whose rate is known, and for nodes that are none."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from documentation import check_keys
from small_probe import ROOT, SECONDS
from sshd import GUEST, Machine, Server, machine

from checkpoint.errors import NodeMisbehaved, NodeUnreachable
from probe.ssh.throughput import measure_link
from probe.store.opening import open_store
from probe.store.reading import all_clusters

pytestmark = pytest.mark.alone("measures what a line carries")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Machine, Server]]:
    folder = tmp_path_factory.mktemp("net")
    for part in (folder, *folder.parents[:2]):
        part.chmod(0o755)
    with machine(folder / "machine") as made:
        yield made, made.serve()


def test_a_line_of_known_rate(node: tuple[Machine, Server]) -> None:
    """Both ways together go through one bucket: each direction has it alone while it is measured."""
    made, server = node
    made.limit("8mbit")
    try:
        with made.network():
            link = measure_link(server.address(GUEST), made.options(), 2.0)
    finally:
        made.unlimit()
    for rate in (link.inbound, link.outbound):
        # Headers and acknowledgements take a part of the million bytes; nothing makes them more, but for the bucket.
        assert 0.6e6 < rate < 1.2e6
    assert 0 < link.latency < 1


def test_the_median_goes_into_the_store(node: tuple[Machine, Server], tmp_path: Path) -> None:
    made, server = node
    ssh = ["--identity", made.identity, "--known-hosts", made.known_hosts, "--ssh-config", "/dev/null"]
    on = ["--on", f"{GUEST}@127.0.0.1:{server.port}", "--on", f"root@127.0.0.1:{server.port}"]
    more = ["--seconds", "0.2", "--cluster", "north", "--store", tmp_path / "store.db", "--format", "json"]
    command = ["env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "probe", "net", *on, *ssh, *more]
    done = subprocess.run(made.command(command), capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    check_keys(json.loads(done.stdout), "probe net --format json")
    links = json.loads(done.stdout)["links"]
    assert [link["node"] for link in links] == [on[1], on[3]]
    with open_store(str(tmp_path / "store.db")) as opened:
        (cluster,) = all_clusters(opened)
    assert cluster.name == "north"
    for key in ("inbound", "outbound", "latency"):
        assert getattr(cluster, key) == pytest.approx(sum(link[key] for link in links) / 2)


def test_a_node_that_says_something_else(node: tuple[Machine, Server]) -> None:
    made, _ = node
    liar = made.serve("ForceCommand echo no")
    try:
        with made.network(), pytest.raises(NodeMisbehaved, match="does not come back"):
            measure_link(liar.address(GUEST), made.options(), 0.1)
    finally:
        made.stop(liar)


def test_a_line_that_breaks(node: tuple[Machine, Server]) -> None:
    made, server = node
    made.limit("1mbit")
    breaking = threading.Timer(1.5, made.kill_sessions)
    breaking.start()
    try:
        with made.network(), pytest.raises(NodeUnreachable):
            measure_link(server.address(GUEST), made.options(), 10.0)
    finally:
        breaking.join()
        made.unlimit()
