# SPDX-License-Identifier: Apache-2.0
"""Nodes whose python3 or sudo is somebody else's: real programs behind a real server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from candidate_runs import assert_nothing_left, command, guest, probed
from small_probe import SmallProbe, small_probe
from sshd import GUEST_UID, Machine, Server, machine

from checkpoint.errors import NodeMisbehaved, NodeUnfit, NodeUnreachable, ProbeError

_HELLO = r"""
printf '{"event":"agent","have":true}\n'
printf '{"event":"hello","version":1,"boot":"b","node":{},"python":"3","user":0}\n'
"""

_HOSTILE: dict[str, tuple[str, type[ProbeError], str]] = {
    "line": ("exec tr '\\0' x </dev/zero", NodeMisbehaved, "an endless line"),
    "nonsense": ("exec yes", NodeMisbehaved, "no JSON"),
    "messages": (_HELLO + """exec yes '{"event":"need","members":[]}'""", NodeMisbehaved, "without end"),
    "alive": (_HELLO + """exec yes '{"event":"alive"}'""", NodeMisbehaved, "signs of life without end"),
    "number": (
        _HELLO + """printf '{"event":"need","members":[["data/restorer",'; exec yes 9 | tr -d '\\n'""",
        NodeMisbehaved, "endless line",
    ),
    "binary": (_HELLO + "exec cat /dev/urandom", NodeMisbehaved, "it sent"),
    "silent": ("exec sleep 20", NodeUnreachable, "nothing was heard of it"),
    "errors": ("exec yes nonsense >&2", NodeUnreachable, "nothing was heard of it"),
    "deaf": ("""printf '{"event":"agent","have":false}\\n'; exec sleep 20""", NodeUnreachable, ""),
    "escapes": (
        """printf '\\033]0;owned\\a{"event":"failed","kind":"NodeUnfit","message":"\\\\u001b[2Jbad"}\\n'""",
        NodeUnfit, "the agent does not start",
    ),
    "reason": (
        """printf '{"event":"failed","kind":"NodeUnfit","message":"\\\\u001b[2J\\\\r\\\\u202ebad"}\\n'""",
        NodeUnfit, "[2J bad",
    ),
    "nologin": ("echo This account is currently not available.; exit 1", NodeUnfit, "currently not available"),
    "complaint": ("printf '\\033[2J\\a\\0bad \\342\\200\\256news\\n' >&2; exit 1", NodeUnfit, "news"),
}  # fmt: skip

_GREETING = """#!/bin/sh
echo "Welcome to the cluster, $USER!"
echo '{"maintenance": "on Monday"}'
printf 'no end of line'
exec /usr/bin/python3 "$@"
"""


_DECEIVER = """#!/bin/sh
/usr/bin/python3 "$@" | sed -u 's/"event":"done"/"event":"thanks"/'
"""


@dataclass(frozen=True)
class Nodes:
    machine: Machine
    servers: dict[str, Server]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with machine(tmp_path_factory.mktemp("nodes") / "machine") as made:
        programs = {name: f"#!/bin/sh\n{text}\n" for name, (text, _, _) in _HOSTILE.items()}
        servers = {}
        for name, text in {**programs, "greeting": _GREETING, "deceiver": _DECEIVER}.items():
            (made.folder / name).mkdir()
            script = made.folder / name / "python3"
            script.write_text(text)
            script.chmod(0o755)
            servers[name] = made.serve(f"SetEnv PATH=/run/node/{name}:/usr/bin:/bin")
        yield Nodes(made, servers)


@pytest.fixture(scope="module")
def small(builds: Path) -> SmallProbe:
    return small_probe(builds)


@pytest.mark.parametrize("name", _HOSTILE)
def test_a_hostile_program_is_refused_in_bounded_time(
    nodes: Nodes, small: SmallProbe, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("probe.candidates.remote._PAUSE_SECONDS", 0.0)
    _, kind, reason = _HOSTILE[name]
    begun = time.monotonic()
    (found,) = probed(nodes.machine, small.path, guest(nodes.servers[name]), silence_seconds=1.0)
    assert time.monotonic() - begun < 30
    assert isinstance(found.error, kind) and reason in str(found.error), repr(found.error)
    assert str(found.error).isprintable() and len(str(found.error)) < 1500
    nodes.machine.run(["pkill", "-KILL", "-u", str(GUEST_UID), "sleep"], check=False)
    assert_nothing_left(nodes.machine)


def test_what_it_says_is_shown_clean(nodes: Nodes, small: SmallProbe) -> None:
    server = nodes.servers["complaint"]
    done = command(nodes.machine, small.path, "--on", f"guest@127.0.0.1:{server.port}", status=NodeUnfit.exit_code)
    assert all(c.isprintable() or c == "\n" for c in done.stdout + done.stderr), (done.stdout, done.stderr)


def test_times_of_a_node_that_misbehaves_later_do_not_count(nodes: Nodes, small: SmallProbe) -> None:
    (found,) = probed(nodes.machine, small.path, guest(nodes.servers["deceiver"]))
    assert isinstance(found.error, NodeMisbehaved) and "it said 'thanks'" in str(found.error)
    assert found.result is None
    assert_nothing_left(nodes.machine)


def test_a_greeting_is_no_hostility(nodes: Nodes, small: SmallProbe) -> None:
    (found,) = probed(nodes.machine, small.path, guest(nodes.servers["greeting"]))
    assert found.result is not None, found.error
    assert_nothing_left(nodes.machine)
