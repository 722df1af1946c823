# SPDX-License-Identifier: Apache-2.0
"""Probes on the emulated node (scripts/testnode), restored directly by an ordinary user, against full runs there."""

from __future__ import annotations

import io
import json
import shlex
import statistics
import subprocess
import tarfile
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from checkpoint.direct import direct_spec
from checkpoint.errors import ProbeError
from checkpoint.flat_image import NAME, Option, decode
from checkpoint.images import read_checkpoint
from checkpoint.restore import RegionTime, RestoreJob, region_time
from probe.manifest import DIRECT, Manifest
from probe.node.measuring import MeasuredPhase
from probe.packing import RESTORER_NAME
from probe.running import predict_from
from reducer.unpack import ProbeArchive, open_probe

ROOT = Path(__file__).parents[2]
NODE = ROOT / "scripts" / "testnode"
REPEATS = 3
SECONDS = 1200
SLOWER = 30.0
"""The node is slower than the reference by at most this; regions are given up later."""
_AGENT_THERE = "code/checkpoint/direct_agent.py"
_AGENT = ("restore_agent.py", "direct_agent.py")


def on_node(command: str, data: bytes = b"") -> bytes:
    """Run a shell command on the node; its output. Raises ValueError, TimeoutExpired."""
    done = subprocess.run([str(NODE), "ssh", command], input=data, capture_output=True, timeout=SECONDS)
    if done.returncode:
        raise ValueError(f"{command[:60]}: status {done.returncode}: {done.stderr.decode(errors='replace')[-500:]}")
    return done.stdout


def line_from_node(command: str, data: bytes) -> dict[str, Any]:
    """The line of JSON that a command on the node answers `data` with. It ends when its input does, so that comes last.

    Raises ValueError.
    """
    with subprocess.Popen([str(NODE), "ssh", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin and process.stdout
        timer = threading.Timer(SECONDS, process.kill)
        timer.start()
        try:
            process.stdin.write(data)
            process.stdin.flush()
            line = process.stdout.readline()
            process.stdin.close()
        finally:
            timer.cancel()
    return dict(json.loads(line)) if line else {"status": "crashed", "detail": "no answer"}


def measure_there(probe: Path) -> dict[str, Any]:
    """Send a probe, restore its phases there REPEATS times in rounds, predict."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="emulated-") as name, open_probe(probe) as archive:
        manifest = Manifest.from_json(archive.manifest)
        specs = _pack(archive, manifest, Path(name))
        sent = _send(Path(name))
        phases = [p for p in manifest.phases if p.can_run]
        times: dict[int, list[RegionTime]] = {p.id: [] for p in phases}
        failures: dict[int, str] = {}
        for _ in range(REPEATS):
            for phase in phases:
                if phase.id in specs and phase.id not in failures:
                    said = line_from_node(f"cd probe && python3 -I {_AGENT_THERE}", specs[phase.id])
                    try:
                        times[phase.id].append(region_time(_job(phase.id), said))
                    except ProbeError as error:
                        failures[phase.id] = f"{error} ({said})"
        measured = [
            MeasuredPhase(
                p.id, tuple(times[p.id]), failures.get(p.id, "" if p.id in specs else "not flat"), None, DIRECT
            )
            for p in phases
        ]
    if not any(m.times for m in measured):
        raise ValueError(f"all of {len(measured)} phases failed there: {measured[0].failure}")
    prediction = predict_from(manifest, measured, min_coverage=0.0)
    return {
        "argv": list(manifest.argv),
        "phases": len(phases),
        "restored": sum(1 for m in measured if m.times),
        "failures": failures,
        "sent_bytes": sent,
        "probe_seconds": time.monotonic() - begun,
        "restore_median": statistics.median(t.restore for m in measured for t in m.times),
        **prediction.to_json(),
    }


def _job(phase: int) -> RestoreJob:
    return RestoreJob(phase, Path(), (), (), (), (), 0, 0, 0, 1.0)


def _pack(archive: ProbeArchive, manifest: Manifest, folder: Path) -> dict[int, bytes]:
    """Everything the node needs, below `folder` as it will lie there, and what its agent is told of each phase."""
    specs = {}
    (folder / "code" / "checkpoint").mkdir(parents=True)
    for name in _AGENT:
        (folder / "code" / "checkpoint" / name).write_bytes((ROOT / "checkpoint" / name).read_bytes())
    (folder / "restorer").write_bytes(archive.read_data(RESTORER_NAME))
    (folder / "restorer").chmod(0o700)
    (folder / "files").mkdir()
    held = {file.path: file.sha256 for file in archive.files}
    for phase in manifest.phases:
        if not phase.can_run or phase.only_criu:
            continue
        place = folder / f"phase-{phase.id}"
        archive.extract_phase(phase.id, place)
        images, flat = read_checkpoint(place), decode(place / NAME)
        job = RestoreJob(
            phase.id, place, manifest.outputs, (manifest.cwd,), (), (), phase.warm_event, phase.start_event,
            phase.end_event, phase.expected_seconds * SLOWER / 100,
        )  # fmt: skip
        with tempfile.TemporaryDirectory() as scratch:
            spec = direct_spec(job, flat, images.pages_image, folder / "restorer", Path(scratch), None)
        copies = place / "copies"
        copies.mkdir()
        private = {f.path: f.sha256 for f in manifest.private_files if f.phase == phase.id}
        for number, path in enumerate([*flat.files, *flat.written]):
            sha = private.get(path) or held[path]
            target = folder / "files" / sha
            if not target.exists():
                archive.extract_file(sha, target, 0o600)
            if number < len(flat.files):
                (copies / str(number)).symlink_to(f"../../files/{sha}")
        there = f"phase-{phase.id}"
        spec |= {
            "restorer": "./restorer", "image": f"{there}/{NAME}", "pages": f"{there}/{images.pages_image.name}",
            "copies": f"{there}/copies", "scratch": there, "private_view": False,
            "sources": [f"files/{private[path]}" for path in flat.written],
            "option_bits": Option.ANY_FOLDER | Option.NO_NETWORK | Option.CONFINE_WRITES,
        }  # fmt: skip
        specs[phase.id] = json.dumps(spec).encode() + b"\ngo\n"
    return specs


def _send(folder: Path) -> int:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz", compresslevel=1) as tar:
        tar.add(folder, ".")
    on_node("rm -rf probe && mkdir probe && tar -xzf - -C probe", stream.getvalue())
    return len(stream.getvalue())


def full_runs(manifest: Manifest, count: int, data: Path) -> list[float]:
    """Seconds of CPU time of full runs there, in the environment of the probe."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz", compresslevel=1) as tar:
        for argument in {*manifest.argv[1:], Path(manifest.stdin).name}:
            if (data / argument).is_file():
                tar.add(data / argument, argument)
        program = Path(manifest.executable)
        if not str(program).startswith("/usr/bin/"):
            tar.add(program, "program")
    on_node("rm -rf full && mkdir full && tar -xzf - -C full", stream.getvalue())
    own = not manifest.executable.startswith("/usr/bin/")
    argv = ["./program" if own else manifest.executable, *manifest.argv[1:]]
    stdin = Path(manifest.stdin).name if (data / Path(manifest.stdin).name).is_file() else "/dev/null"
    code = (
        "import os,resource,subprocess,sys;"
        f"subprocess.run({argv!r},stdin=open({stdin!r}),stdout=subprocess.DEVNULL,stderr=subprocess.DEVNULL,check=True);"
        "u=resource.getrusage(resource.RUSAGE_CHILDREN);print(u.ru_utime+u.ru_stime)"
    )
    return [float(on_node(f"cd full && python3 -c {shlex.quote(code)}")) for _ in range(count)]


def compare(probe: Path, data: Path, runs: int) -> dict[str, Any]:
    """Predicted first, then run in full."""
    with open_probe(probe) as archive:
        manifest = Manifest.from_json(archive.manifest)
    record = {"name": f"emulated-{probe.stem}", **measure_there(probe)}
    record["full"] = full_runs(manifest, runs, data)
    native = statistics.median(record["full"])
    record["errors"] = {k: v / native - 1 for k, v in record["estimators"].items() if v is not None}
    low, high = (record["prediction"][k] for k in ("low", "high"))
    record["held"] = low <= native <= high
    return record


def run(names: Sequence[str], folder: Path, runs: int) -> list[dict[str, Any]]:
    """Predict and run in full every program of `names` whose probe is in `folder`; a record each."""
    subprocess.run([str(NODE), "start"], check=True)
    records = []
    for name in names:
        probe = folder / f"{name}.probe"
        if probe.exists():
            try:
                records.append({**compare(probe, folder / "data", runs), "name": f"emulated-{name}"})
            except (ValueError, KeyError, ProbeError, subprocess.SubprocessError) as error:
                records.append({"name": f"emulated-{name}", "failure": f"{type(error).__name__}: {error}"})
    subprocess.run([str(NODE), "stop"], check=True)
    return records
