# SPDX-License-Identifier: Apache-2.0
"""Probes on the emulated node (scripts/testnode), sent there and run as any candidate, against full runs there.

Beside each probe one of as many intervals chosen at random: what any choice of phases has to beat.
"""

from __future__ import annotations

import io
import os
import shlex
import statistics
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.arguments import CLOCK
from benchmarks.measure import REFUSED, probe_command
from benchmarks.programs import Benchmark, resolved
from checkpoint.errors import ProbeError
from probe.candidates.agent_client import Orders
from probe.candidates.remote import CandidateResult, run_on
from probe.contents.carried_files import PROGRAM
from probe.formats.choices import RANDOM
from probe.formats.manifest import Manifest
from probe.node.measuring import MeasuredPhase
from probe.ssh.interface import SshOptions
from reducer.unpack import open_probe

ROOT = Path(__file__).parents[3]
NODE = ROOT / "scripts" / "testnode"
FILES = ROOT / "build" / "testnode"
ADDRESS = f"guest@127.0.0.1:{os.environ.get('TESTNODE_PORT', '22622')}"
SHELL = "/bin/sh"
"""Starts what the node has itself, from the same packages."""
REPEATS = 3
SECONDS = 2400


def on_node(command: str, data: bytes = b"") -> bytes:
    """Run a shell command on the node; its output. Raises ValueError, TimeoutExpired."""
    done = subprocess.run([str(NODE), "ssh", command], input=data, capture_output=True, timeout=SECONDS)
    if done.returncode:
        raise ValueError(f"{command[:60]}: status {done.returncode}: {done.stderr.decode(errors='replace')[-500:]}")
    return done.stdout


def options() -> SshOptions:
    """How the node is logged in to."""
    return SshOptions(config=Path("/dev/null"), known_hosts=FILES / "known_hosts", identity=FILES / "key")


def measure_there(probe: Path, repeats: int) -> CandidateResult:
    """Send a probe and have it run there. Raises ProbeError, the node's or the prediction's."""
    found = run_on(probe, [ADDRESS], ssh=options(), orders=Orders(repeats=repeats), min_coverage=0.0)[0]
    if found.error is not None:
        raise found.error
    return found


def full_runs(probe: Path, count: int, data: Path) -> list[float]:
    """Seconds of CPU time of full runs there, in the environment of the probe."""
    stream = io.BytesIO()
    with open_probe(probe) as archive, tempfile.TemporaryDirectory() as folder:
        manifest = Manifest.from_json(archive.manifest)
        argv = list(manifest.program.argv)
        with tarfile.open(fileobj=stream, mode="w:gz", compresslevel=1) as tar:
            for path in _inputs(manifest, data):
                tar.add(path, path.name)
            if argv[0] != SHELL:
                # The very program that the probe was made of, whatever has become of it since.
                program = Path(folder) / "program"
                archive.extract_file(next(f.sha256 for f in archive.files if f.purpose == PROGRAM), program, 0o755)
                tar.add(program, "program")
                argv[0] = "./program"
    on_node("rm -rf full && mkdir full && tar -xzf - -C full", stream.getvalue())
    stdin = Path(manifest.program.stdin).name if (data / Path(manifest.program.stdin).name).is_file() else "/dev/null"
    code = (
        "import os,resource,subprocess,sys;"
        f"subprocess.run({argv!r},stdin=open({stdin!r}),stdout=subprocess.DEVNULL,stderr=subprocess.DEVNULL,check=True);"
        "u=resource.getrusage(resource.RUSAGE_CHILDREN);print(u.ru_utime+u.ru_stime)"
    )
    variables = "PERL_HASH_SEED=0 PYTHONHASHSEED=0"
    return [float(on_node(f"cd full && {variables} python3 -c {shlex.quote(code)}")) for _ in range(count)]


def _inputs(manifest: Manifest, data: Path) -> list[Path]:
    """The files in `data` that the command line names, also inside a command for the shell, and indexes of them."""
    words = {word.rpartition("=")[2] for argument in manifest.program.argv[1:] for word in argument.split()}
    words.add(Path(manifest.program.stdin).name)
    named = [data / word for word in words if "/" not in word and (data / word).is_file()]
    return sorted({path for name in named for path in (name, *data.glob(f"{name.name}.*")) if path.is_file()})


def _probes(benchmark: Benchmark, folder: Path, data: Path, say: Callable[[str], None]) -> tuple[Path, Path] | None:
    """A probe and random intervals beside it: those that `scripts/bench accuracy --keep` left, or those of
    `scripts/bench`, where there are any."""
    kept = [folder / "accuracy" / f"{benchmark.name}-1-{kind}.probe" for kind in ("selected", "random")]
    if all(path.exists() for path in kept):
        return kept[0], kept[1]
    probe = folder / f"{benchmark.name}.probe"
    return (probe, random_probe(benchmark, probe, data, say)) if probe.exists() else None


def random_probe(benchmark: Benchmark, probe: Path, data: Path, say: Callable[[str], None]) -> Path:
    """A probe of as many random intervals as `probe` has phases, of the same lengths, beside it; made where there is
    none that is newer than `probe`. Raises ValueError where it cannot be built."""
    target = probe.with_name(f"{probe.stem}-random.probe")
    if target.exists() and target.stat().st_mtime >= probe.stat().st_mtime:
        return target
    with open_probe(probe) as archive:
        manifest = Manifest.from_json(archive.manifest)
    say(f"bench: {benchmark.name}: a probe of {len(manifest.phases)} random intervals")
    status, _, said = probe_command(
        benchmark, data, "build", "-q", "-o", str(target), "--selection", RANDOM, "--max-phases",
        str(len(manifest.phases)), "--interval", f"{manifest.tracing.interval}s", "--stdin", benchmark.stdin, "--",
        *resolved(benchmark),
    )  # fmt: skip
    if status:
        raise ValueError(f"random intervals: exit status {status}: {said[-REFUSED:]}")
    return target


def compare(probe: Path, random: Path, data: Path, runs: int, repeats: int) -> dict[str, Any]:
    """Predicted first, by `probe` and by the intervals of `random`, then run in full. `errors` has the estimators of
    `probe` by their names, and those of `random` as random_calibrated and random_direct."""
    with open_probe(probe) as archive:
        manifest = Manifest.from_json(archive.manifest)
    # Its disk is small, and what it keeps of other programs would fill it.
    on_node("rm -rf full .cache/probe-node")
    found, baseline = measure_there(probe, repeats), measure_there(random, repeats)
    assert found.result is not None and baseline.result is not None
    said, by_random = found.result.prediction.to_json(), baseline.result.prediction.to_json()
    full = full_runs(probe, runs, data)
    native = statistics.median(full)
    restores = [time.restore for phase in found.result.phases for time in phase.times]
    estimates = {**said["estimators"], **{f"random_{n}": by_random["estimators"][n] for n in ("calibrated", "direct")}}
    return {
        "argv": list(manifest.program.argv),
        "phases": len(found.result.phases),
        "restored": sum(1 for phase in found.result.phases if phase.times),
        "failures": [phase.failure for phase in found.result.phases if phase.failure],
        "sent_bytes": found.sent,
        "transfer_seconds": found.transfer,
        "probe_seconds": found.probing,
        "restore_median": statistics.median(restores),
        "quiet": list(found.quiet),
        "ratios": _ratios(manifest, found.result.phases),
        **said,
        "random": {
            "phases": len(baseline.result.phases),
            "restored": sum(1 for phase in baseline.result.phases if phase.times),
            **by_random,
        },
        "full": full,
        "errors": {k: v / native - 1 for k, v in estimates.items() if v is not None},
        "held": said["prediction"]["low"] <= native <= said["prediction"]["high"],
    }


def _ratios(manifest: Manifest, phases: Sequence[MeasuredPhase]) -> dict[str, float]:
    """CPU time of each phase there over that on the reference node."""
    records = {record.id: record for record in manifest.phases}
    return {
        str(one.phase): statistics.median(time.cpu for time in one.times)
        / statistics.median(records[one.phase].restored(one.restorer).cpu)
        for one in phases
        if one.times
    }


def prefix(clock: str) -> str:
    """What the names of records begin with."""
    return "instructions" if clock == CLOCK else "emulated"


def run(
    benchmarks: Sequence[Benchmark], folder: Path, runs: int, clock: str, say: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    """Predict and run in full every program whose probe is in `folder`; a record each.

    `clock`: CLOCK, or "" for a node in real time. Where time goes by instructions nothing needs repeating. The probes
    of random intervals are made before the node is started: it would take their processor.
    """
    exact = clock == CLOCK
    data = folder / "data"
    probes: dict[str, tuple[Path, Path]] = {}
    for one in benchmarks:
        try:
            if found := _probes(one, folder, data, say):
                probes[one.name] = found
        except (ValueError, ProbeError, subprocess.SubprocessError) as error:
            yield {"failure": f"{type(error).__name__}: {error}", "name": f"{prefix(clock)}-{one.name}"}
    try:
        subprocess.run([str(NODE), "start"], check=True, env={**os.environ, "CLOCK": clock, "OWNER": str(os.getpid())})
        for name, (probe, random) in probes.items():
            try:
                record = compare(probe, random, data, 1 if exact else runs, 1 if exact else REPEATS)
            except (ValueError, KeyError, ProbeError, subprocess.SubprocessError) as error:
                record = {"failure": f"{type(error).__name__}: {error}"}
            yield {**record, "name": f"{prefix(clock)}-{name}"}
    finally:
        subprocess.run([str(NODE), "stop"], check=True)
