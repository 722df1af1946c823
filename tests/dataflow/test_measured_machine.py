# SPDX-License-Identifier: Apache-2.0
"""`probe net --machine`: disks and network of nodes, as a machine that `probe simulate` takes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from data_applications import TITAN, described
from small_probe import ROOT, SECONDS
from sshd import GUEST, Machine, Server, machine

from checkpoint.errors import NodeMisbehaved, NodeUnfit
from probe.cli.main import cli
from probe.dataflow import disk_times
from probe.dataflow.application import read_data_application
from probe.dataflow.engines import LOOSE, engine_of, simulate
from probe.dataflow.machine import read_disk_machine
from probe.dataflow.measured import LEAST_BYTES, DiskTimes, machine_text, measure_disk, measured_machine
from probe.dataflow.work import place
from probe.ssh.throughput import Link


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Machine, Server]]:
    folder = tmp_path_factory.mktemp("disks")
    for part in (folder, *folder.parents[:2]):
        part.chmod(0o755)
    with machine(folder / "machine") as made:
        yield made, made.serve()


def test_a_cluster_becomes_a_machine(node: tuple[Machine, Server], tmp_path: Path) -> None:
    """Measured over SSH, written, read again, simulated on; nothing stays on the node."""
    made, server = node
    folder, file = Path("/var/tmp"), tmp_path / "cluster.toml"
    ssh = ["--identity", made.identity, "--known-hosts", made.known_hosts, "--ssh-config", "/dev/null"]
    on = ["--on", f"{GUEST}@127.0.0.1:{server.port}", "--on", f"root@127.0.0.1:{server.port}"]
    more = ["--seconds", "0.1", "--machine", file, "--folder", folder, "--disk-bytes", str(LEAST_BYTES)]
    command = ["env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "probe", "net", *on, *ssh, *more]
    done = subprocess.run(made.command(command), capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    assert f"wrote {file}" in "".join(done.stdout.splitlines()) and list(folder.glob(".probe-disk-*")) == []
    found = read_disk_machine(file)
    assert found.name == "cluster" and found.disks == 1
    assert 1e5 < found.disk_rate < 1e12 and 0 <= found.controller < 1 and 0 < found.net_latency < 1
    application = read_data_application(described(tmp_path, TITAN, blocks=4))
    assert simulate(place(application, found, 2), 0.1, engine_of(LOOSE), limit=60).blocks == 4


def test_times_of_reads_become_constants_of_a_disk(tmp_path: Path) -> None:
    """A disk of known constants: 1 ms, a seek of 9 ms within the file that was made, 100 MB/s."""
    page, large = 4096 / 1e8, (1 << 20) / 1e8
    known = DiskTimes(page=1e-3 + page, large=1e-3 + large, far=1e-2 + page, capacity=4e12)
    links = [Link("a", 2e8, 1e8, 1e-4), Link("b", 3e8, 3e8, 3e-4), Link("c", 9e9, 9e9, 2e-4)]
    (tmp_path / "m.toml").write_text(machine_text(measured_machine('say "🐧"', links, [known])))
    found = read_disk_machine(tmp_path / "m.toml")
    assert found.name == 'say "🐧"' and found.capacity == 4e12
    assert (found.controller, found.disk_rate) == (pytest.approx(1e-3), pytest.approx(1e8))
    assert found.seek == (pytest.approx(9e-3), pytest.approx(9e-3))
    assert (found.net_latency, found.net_rate) == (pytest.approx(2e-4), pytest.approx(3e8))


def test_nothing_stays_of_a_measurement_that_is_killed(tmp_path: Path) -> None:
    program = subprocess.Popen([sys.executable, "-I", disk_times.__file__, str(tmp_path), str(1 << 31)])
    try:
        limit = time.monotonic() + SECONDS
        while not any(Path(f"/proc/{program.pid}/fd").glob("[3-9]")) and time.monotonic() < limit:
            time.sleep(0.01)
        time.sleep(0.1)
        assert program.poll() is None and list(tmp_path.iterdir()) == []
    finally:
        program.kill()
        program.wait()
    assert list(tmp_path.iterdir()) == []


def test_a_node_that_goes_on_and_on_is_given_up(node: tuple[Machine, Server], monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = node
    monkeypatch.setattr("probe.dataflow.measured._PATIENCE_SECONDS", 2.0)
    for said, message in (
        ("while sleep 0.2; do echo; done", "not over after 2 s; give a smaller --disk-bytes, or another --folder"),
        ("head -c 100000 /dev/zero", "says more than 65536 bytes of its disk"),
    ):
        endless = made.serve(f"ForceCommand cat > /dev/null; {said}")
        try:
            with made.network(), pytest.raises(NodeMisbehaved, match=message):
                measure_disk(endless.address(GUEST), made.options(), Path("/var/tmp"), LEAST_BYTES)
        finally:
            made.stop(endless)


def test_nodes_that_cannot_be_measured(node: tuple[Machine, Server]) -> None:
    made, server = node
    address = server.address(GUEST)
    with made.network():
        with pytest.raises(NodeUnfit, match=r"/nowhere: No such file or directory; give another --folder"):
            measure_disk(address, made.options(), Path("/nowhere"), LEAST_BYTES)
        with pytest.raises(NodeUnfit, match=r"no room for a file of \d+ bytes; give another --folder or --disk-bytes"):
            measure_disk(address, made.options(), Path("/var/tmp"), 1 << 60)
    liar = made.serve("ForceCommand cat > /dev/null; echo '{\"page\": -1}'")
    try:
        with made.network(), pytest.raises(NodeMisbehaved, match="says no times of its disk, but"):
            measure_disk(liar.address(GUEST), made.options(), Path("/var/tmp"), LEAST_BYTES)
    finally:
        made.stop(liar)


def test_wrong_calls(tmp_path: Path) -> None:
    for words, message in (
        (["--folder", "/var/tmp"], "--folder goes with --machine"),
        (["--disk-bytes", "9M"], "--disk-bytes goes with --machine"),
        (["--machine", str(tmp_path / "m.toml"), "--disk-bytes", "1M"], "1000000: 8388608 at least"),
    ):
        done = CliRunner().invoke(cli, ["net", "--on", "nowhere.invalid", *words])
        assert done.exit_code == 2 and message in " ".join(done.output.split()), done.output
    assert list(tmp_path.iterdir()) == []
