# SPDX-License-Identifier: Apache-2.0
"""Simulated networks: rounds of direct mode on larger and larger tori, and replay beside SimGrid alone."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

SIDES = (2, 3, 4, 5)
"""Tori of 8 x 8 to 8^5 nodes, the paper's last one: 32,768."""

STEPS, GRID = 2, "8x8x8"

_ROUNDS = """ASPEN_PARAMS {
  debug_output="2"; network_conf_file="torus.conf"; network_traffic_pattern="nearest"; num_rounds="2";
  aspen_mach_path="rig.aspen"; socket_choice000="amd_830"; socket_choice001="amd_HD5770";
  aspen_app_path000="matmul.aspen"; aspen_app_path001="matmul.aspen";
}
SERVER_PINGS { num_reqs="128"; payload_sz="1024"; }
"""
_TORUS = """LPGROUPS { ASPEN_SERVERS { repetitions="%d"; server="1"; modelnet_torus="1"; } }
PARAMS { packet_size="512"; modelnet_order=( "torus" ); n_dims="%d"; dim_length="%s"; link_bandwidth="2.0";
  router_delay="1000"; }
"""
_RIG = """machine rig { node [1] box }
node box { socket [1] amd_830  socket [1] amd_HD5770 }
socket amd_830 { core [4] k10 }
socket amd_HD5770 { core [800] lane }
core k10 { resource flops(n) [n / (2.8 * giga)] with simd [base / 4] }
core lane { resource flops(n) [n / (0.85 * giga)] }
"""
_MATMUL = "model matmul { param n = 512 kernel main { map [n] { execute { flops [2 * n^2] as simd } } } }\n"

_LULESH = """model steps {
  param nelem = 23
  param wordsize = 8
  kernel main {
    iterate [%d] {
      execute { comm [nelem] of size [3*word] as nn3d, face }
      execute { comm [nelem + 1] of size [3*word] as nn3d, face, edge, corner }
      execute { comm [nelem + 1] of size [6*word] as nn3d, face, edge, corner, up }
      execute { comm [1] of size [word] as allreduce, min }
    }
  }
}
"""
_PLAIN = """<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
<cluster id="all" prefix="node" suffix="" radical="0-%d" speed="1Gf" bw="2GBps" lat="1us" bb_bw="20GBps" bb_lat="1us"/>
</platform>
"""
"""Of the kind that SimGrid's examples have: a cluster with a backbone."""


def measure(say: Callable[[str], None], *, quick: bool) -> dict[str, Any]:
    """The record: `rounds` by network, and `replay`, ours and SimGrid's own."""
    sides = SIDES[:-1] if quick else SIDES
    record: dict[str, Any] = {"name": "simulate", "rounds": []}
    for dimensions in sides:
        say(f"bench: two rounds on a torus of {8**dimensions:,} nodes")
        record["rounds"].append(_in_a_process("rounds", str(dimensions)))
        say(json.dumps(record["rounds"][-1]))
    say(f"bench: replay of {STEPS} steps on {GRID} ranks")
    record["replay"] = {"ours": _in_a_process("ours"), "alone": _in_a_process("alone")}
    return record


def report(record: dict[str, Any]) -> str:
    """The tables of docs/models.md."""
    lines = ["| nodes | messages | time | CPU time | memory | messages a second | network / closed form |"]
    lines.append("|---|---|---|---|---|---|---|")
    for row in record["rounds"]:
        lines.append(
            f"| {row['nodes']:,} | {row['messages']:,} | {row['wall']:.0f} s | {row['cpu']:.0f} s | "
            f"{row['megabytes'] / 1000:.2f} GB | {row['messages'] / row['wall']:,.0f} | {row['ratio']:.4f} |"
        )
    lines += ["", "| replay | lines | time | CPU time | lines a second of CPU time |", "|---|---|---|---|---|"]
    for name, row in record["replay"].items():
        lines.append(
            f"| {name} | {row['lines']:,} | {row['wall']:.1f} s | {row['cpu']:.1f} s "
            f"| {row['lines'] / row['cpu']:,.0f} |"
        )
    return "\n".join(lines)


def _rounds(dimensions: int, folder: Path) -> dict[str, Any]:
    nodes = 8**dimensions
    for name, text in (("rounds.conf", _ROUNDS), ("rig.aspen", _RIG), ("matmul.aspen", _MATMUL)):
        (folder / name).write_text(text)
    (folder / "torus.conf").write_text(_TORUS % (nodes, dimensions, ",".join("8" * dimensions)))
    said = json.loads(_probe(folder, "simulate", "rounds.conf", "--json", "--limit", "14400").stdout)
    rounds = said["rounds"]
    ratio = sum(r["network_seconds"] for r in rounds) / sum(r["uncontended_seconds"] for r in rounds)
    return {
        "nodes": nodes, "messages": said["messages"], "seconds": said["seconds"], "ratio": ratio,
        "simulated_in": said["simulation"]["seconds"],
    }  # fmt: skip


def _trace(folder: Path) -> tuple[Path, int]:
    (folder / "steps.aspen").write_text(_LULESH % STEPS)
    _probe(folder, "model", "generate", "steps.aspen", "--grid", GRID, "--trace", "trace")
    files = [path for path in (folder / "trace").iterdir() if path.name != "trace.txt"]
    return folder / "trace", sum(path.read_text().count("\n") for path in files)


def _ours(folder: Path) -> dict[str, Any]:
    trace, lines = _trace(folder)
    begun = _used()
    said = json.loads(_probe(folder, "simulate", str(trace), "--network", "torus:8x8x8", "--json").stdout)
    return {"lines": lines, "cpu": _used() - begun, "wall": said["simulation"]["seconds"], "seconds": said["seconds"]}


def _alone(folder: Path) -> dict[str, Any]:
    trace, lines = _trace(folder)
    ranks = len(list(trace.iterdir())) - 1
    (folder / "plain.xml").write_text(_PLAIN % (ranks - 1))
    (folder / "hosts").write_text("".join(f"node{rank}\n" for rank in range(ranks)))
    begun, cpu = time.monotonic(), _used()
    subprocess.run(
        ["smpirun", "-np", str(ranks), "-platform", "plain.xml", "-hostfile", "hosts", "-replay", trace / "trace.txt"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    return {"lines": lines, "cpu": _used() - cpu, "wall": time.monotonic() - begun}


def _probe(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "probe", *arguments], cwd=folder, check=True, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def _used() -> float:
    """CPU seconds of all children so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _in_a_process(what: str, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, __file__, what, *arguments], check=True, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _main() -> None:
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        if sys.argv[1] == "rounds":
            found = _rounds(int(sys.argv[2]), folder)
            found |= {"wall": time.monotonic() - begun, "cpu": _used()}
        else:
            found = _ours(folder) if sys.argv[1] == "ours" else _alone(folder)
    # The largest process of all: SimGrid's.
    found["megabytes"] = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1000
    print(json.dumps(found))


if __name__ == "__main__":
    _main()
