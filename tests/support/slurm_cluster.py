# SPDX-License-Identifier: Apache-2.0
"""A Slurm of its own from the distribution's packages: munged, slurmctld and four slurmd on this host, in one folder.

Nodes n1 to n4 of two processors share this machine's: never time two at once.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SECONDS = 60.0
NODES = ("n1", "n2", "n3", "n4")
FEATURES = {"n1": "amd,fast", "n2": "amd,fast", "n3": "intel,slow", "n4": "intel,slow"}

_CONF = """
ClusterName=probetest
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.sock
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_min_interval=100000,batch_sched_delay=0
ReturnToService=2
KillWait=2
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/jobcomp.log
{accounting}
JobAcctGatherType=jobacct_gather/none
{plugins}
{nodes}
PartitionName=main Nodes=n[1-4] Default=YES MaxTime=10:00:00 DefaultTime=00:30:00 State=UP OverSubscribe=NO
PartitionName=short Nodes=n[1-2] MaxTime=00:05:00 State=UP
"""


@dataclass(frozen=True)
class SlurmCluster:
    """conf: folder of slurm.conf, where job_submit.lua goes. environment: for commands that use this Slurm."""

    folder: Path
    conf: Path
    environment: Mapping[str, str]

    def run(self, *command: str, status: int | None = 0, given: str | None = None) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            command,
            input=given,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
            cwd=self.folder,
            env=dict(self.environment),
        )
        assert status is None or done.returncode == status, (command, done.stdout, done.stderr)
        return done

    def job(self, number: int) -> dict[str, str]:
        """What `scontrol show job` says, by its names."""
        said = self.run("scontrol", "-o", "show", "job", str(number)).stdout
        return dict(word.split("=", 1) for word in said.split() if "=" in word)

    def submit(self, *options: str, script: str = "true\n") -> tuple[int, str]:
        """Number of a job of this script, and what sbatch said on standard error."""
        done = self.run("sbatch", "--parsable", "-o", "/dev/null", *options, given="#!/bin/sh\n" + script)
        return int(done.stdout.split(";")[0]), done.stderr

    def cancel_all(self) -> None:
        """End all jobs and wait until they are gone."""
        self.run("scancel", "--full", "--user", "root")
        self.run("scancel", "--signal=KILL", "--full", "--user", "root")
        self.wait_for(lambda: not self.run("squeue", "-h").stdout.strip(), "jobs to end")

    def wait_until_idle(self) -> None:
        """Until all nodes are there and have ended what they ran."""
        idle = ("sinfo", "-h", "-p", "main", "-t", "idle", "-o", "%D")
        self.wait_for(lambda: self.run(*idle, status=None).stdout.strip() == str(len(NODES)), "four idle nodes")

    def wait_for(self, true: object, what: str) -> None:
        deadline = time.monotonic() + SECONDS
        while not true():  # type: ignore[operator]
            assert time.monotonic() < deadline, f"waited too long for {what}: {self.logs()}"
            time.sleep(0.05)

    def logs(self) -> str:
        return "".join(path.read_text()[-500:] for path in self.folder.glob("*.log"))


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def write_conf(folder: Path, conf: Path, plugins: str, ports: Sequence[int], accounting: str) -> None:
    host = socket.gethostname()
    nodes = "\n".join(
        f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 RealMemory=2000 "
        f"Feature={FEATURES[name]}"
        for name, port in zip(NODES, ports[1:], strict=True)
    )
    text = _CONF.format(
        host=host, ports=ports, folder=folder, nodes=nodes, plugins=plugins, accounting=accounting
    )  # fmt: skip
    (conf / "slurm.conf").write_text(text)


_DATABASE_CONF = """
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={ports[1]}
SlurmUser=root
LogFile={folder}/slurmdbd.log
PidFile={folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={ports[0]}
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct_db
"""


def _accounting(folder: Path, conf: Path, ports: Sequence[int], start: Callable[..., None]) -> Callable[[], bool]:
    """Start MariaDB, and write slurmdbd.conf; returns what tells that the database answers."""
    data, sock = folder / "mariadb", folder / "mariadb.sock"
    install = ["mariadb-install-db", "--no-defaults", "--user=root", f"--datadir={data}", "--skip-test-db"]
    subprocess.run(
        [*install, "--auth-root-authentication-method=normal"], check=True, capture_output=True, timeout=SECONDS
    )
    start(
        "mariadbd", "--no-defaults", "--user=root", f"--datadir={data}", f"--socket={sock}", f"--port={ports[0]}",
        "--bind-address=127.0.0.1", f"--pid-file={folder / 'mariadb.pid'}", "--innodb-flush-log-at-trx-commit=0",
        "--skip-name-resolve",
    )  # fmt: skip
    (conf / "slurmdbd.conf").write_text(_DATABASE_CONF.format(folder=folder, ports=ports))
    (conf / "slurmdbd.conf").chmod(0o600)
    grant = "CREATE USER slurm@'127.0.0.1' IDENTIFIED BY 'slurm'; GRANT ALL ON slurm_acct_db.* TO slurm@'127.0.0.1';"

    def granted() -> bool:
        command = ["mariadb", "--no-defaults", f"--socket={sock}", "-u", "root", "-e", grant]
        return subprocess.run(command, capture_output=True, timeout=SECONDS, check=False).returncode == 0

    return granted


@contextlib.contextmanager
def cluster(
    folder: Path,
    plugins: str = "",
    files: Mapping[str, str] | None = None,
    accounting: bool = False,
    apart: Mapping[str, Sequence[str]] | None = None,
) -> Iterator[SlurmCluster]:
    """A running Slurm. plugins: more lines of slurm.conf. files: what lies beside slurm.conf, by name.

    accounting: with slurmdbd and its database. apart: words before the command of a node's slurmd, by the node.
    """
    conf = folder / "conf"
    for path in (conf, folder / "state", *(folder / "spool" / name for name in NODES)):
        path.mkdir(parents=True)
    for name, text in (files or {}).items():
        (conf / name).write_text(text)
    ports = _free_ports(3 + len(NODES))
    storage = "AccountingStorageType=accounting_storage/none"
    if accounting:
        storage = "AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageHost=127.0.0.1\n"
        storage += f"AccountingStoragePort={ports[-1]}\nAccountingStoreFlags=job_comment\n"
        # Towards slurmdbd this is where munge is reached.
        storage += f"AccountingStoragePass={folder}/munge.sock"
    write_conf(folder, conf, plugins, ports[:-2], storage)
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    environment = {**os.environ, "SLURM_CONF": str(conf / "slurm.conf")}
    environment["PATH"] = f"{environment['PATH']}:/usr/sbin:/sbin"
    here = SlurmCluster(folder, conf, environment)
    running: list[subprocess.Popen[bytes]] = []

    def start(*command: str) -> None:
        output = (folder / f"{Path(command[0]).name}-{len(running)}.log").open("wb")
        with output:
            running.append(
                subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, cwd=folder
                )
            )

    try:
        munge = {"key-file": key, "socket": folder / "munge.sock", "pid-file": folder / "munged.pid"}
        munge |= {"log-file": folder / "munged.log", "seed-file": folder / "munged.seed"}
        start("munged", "--foreground", "--force", *(f"--{name}={path}" for name, path in munge.items()))
        here.wait_for((folder / "munge.sock").exists, "munged")
        if accounting:
            here.wait_for(_accounting(folder, conf, ports[-2:], start), "the database")
            start("slurmdbd", "-D")
            here.wait_for(
                lambda: here.run("sacctmgr", "-n", "show", "cluster", status=None).returncode == 0, "slurmdbd"
            )
        start("slurmctld", "-D")
        for name in NODES:
            start(*(apart or {}).get(name, ()), "slurmd", "-D", "-N", name)
        here.wait_until_idle()
        yield here
    finally:
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            here.cancel_all()
        for process in reversed(running):
            process.terminate()
        for process in reversed(running):
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
