# SPDX-License-Identifier: Apache-2.0
"""Use of resources is found: short children, orphans, bytes, sockets; what cannot be profiled is refused."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from documentation import check_keys
from made_usage import made_usage

import probe
from checkpoint.errors import ProbeError, ProgramFailed, ProgramNotRunnable, ToolMissing
from probe.emulation import sampling
from probe.emulation.metrics import cpu_seconds, metrics, spreads
from probe.emulation.tree import Tree
from probe.emulation.usage import LEVEL, Column
from probe.emulation.watchers import Ended, Watcher, named_watcher

BURN = "import time\nwhile time.process_time() < {}: pass\n"


def python(text: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", text]


def test_cpu_time_is_that_of_the_program() -> None:
    usage = probe.profile_usage(python(BURN.format(0.5)))
    used = cpu_seconds(usage)
    assert used is not None and 0.5 <= used < 0.6
    assert usage.total("cpu_user") == pytest.approx(usage.column("cpu_user").sum())
    assert usage.samples >= 3
    assert (np.diff(usage.end) > 0).all()
    assert usage.end[-1] >= 0.5


def test_short_children_are_not_lost() -> None:
    child = BURN.format(0.02)
    text = f"import subprocess, sys\nfor _ in range(10): subprocess.run([sys.executable, '-I', '-S', '-c', {child!r}])"
    usage = probe.profile_usage(python(text))
    used = cpu_seconds(usage)
    assert used is not None and used >= 10 * 0.02


def test_processes_have_rows() -> None:
    text = "import subprocess, sys, time\nsubprocess.run(['sleep', '0.4'])\ntime.sleep(0.2)\n" + BURN.format(0.3)
    rows = {row.name: row for row in probe.profile_usage(python(text)).header.processes}
    assert len(rows) == 2
    (child,), (parent,) = ([row for name, row in rows.items() if (name == "sleep") == kind] for kind in (True, False))
    assert child.end - child.begin == pytest.approx(0.4, abs=0.3)
    assert parent.begin <= child.begin and child.end < parent.end
    assert parent.cpu >= 0.05 and child.cpu < 0.05


def test_orphans_are_not_lost() -> None:
    """A process whose parent ended before it is nobody's but the supervisor's."""
    text = (
        "import os\nif os.fork() == 0:\n    if os.fork() == 0:\n"
        "        import time\n        while time.process_time() < 0.15: pass\n"
        "        os.write(os.open('/dev/null', os.O_WRONLY), bytes(1000000))\n    os._exit(0)\n"
        "os.wait()\nimport time\ntime.sleep(0.6)"
    )
    usage = probe.profile_usage(python(text))
    used, written = cpu_seconds(usage), usage.total("written")
    assert used is not None and used >= 0.15
    assert written is not None and written >= 1000000
    assert usage.header.notes == ()


def test_bytes_are_those_of_the_calls(tmp_path: Path) -> None:
    text = (
        f"import os\nd = os.open({str(tmp_path / 'x')!r}, os.O_RDWR | os.O_CREAT)\n"
        "for _ in range(100): os.write(d, bytes(65536))\nos.lseek(d, 0, 0)\nwhile os.read(d, 16384): pass"
    )
    empty = probe.profile_usage(python("import os"))
    usage = probe.profile_usage(python(text))
    more = {name: (usage.total(name) or 0) - (empty.total(name) or 0) for name in ("read", "written", "read_calls")}
    assert more["written"] == pytest.approx(100 * 65536, abs=100)
    assert more["read"] == pytest.approx(100 * 65536, rel=0.001)
    assert more["read_calls"] == pytest.approx(401, abs=5)


def test_memory_is_what_is_touched() -> None:
    usage = probe.profile_usage(python("import time\nx = bytearray(100_000_000)\ntime.sleep(0.3)"))
    assert (usage.total("resident") or 0) == pytest.approx(1e8, rel=0.2)
    assert (usage.total("peak") or 0) == pytest.approx(1e8, rel=0.2)


def test_connections_are_seen() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken: list[int] = []
        thread = threading.Thread(target=_take, args=(server, taken))
        thread.start()
        port = server.getsockname()[1]
        text = (
            f"import socket, time\nc = socket.create_connection(('127.0.0.1', {port}))\n"
            "c.sendall(bytes(3000000))\nc.recv(1)\ntime.sleep(0.5)"
        )
        usage = probe.profile_usage(python(text))
        thread.join()
    assert taken == [3000000]
    # The kernel counts a connection's opening and its end as a byte each.
    assert usage.total("net_sent") == pytest.approx(3000000, abs=1)
    assert usage.total("net_received") == pytest.approx(1, abs=1)
    assert [(end.address, end.port) for end in usage.header.endpoints] == [("127.0.0.1", port)]


def _take(server: socket.socket, taken: list[int]) -> None:
    connection, _ = server.accept()
    with connection:
        whole = 0
        while whole < 3000000:
            whole += len(connection.recv(1 << 20))
        taken.append(whole)
        connection.sendall(b"x")


def test_a_function_is_profiled_in_a_process_of_its_own() -> None:
    before = os.getpid(), len(list(Path("/proc/self/fd").iterdir()))
    usage = probe.profile_usage(_burn, {"size": "small"})
    assert (os.getpid(), len(list(Path("/proc/self/fd").iterdir()))) == before
    used = cpu_seconds(usage)
    assert used is not None and 0.2 <= used < 0.3
    assert usage.header.command == (f"<{__name__}._burn>",)
    assert usage.header.tags == {"size": "small"}


def _burn() -> None:
    limit = time.process_time() + 0.2
    while time.process_time() < limit:
        pass


def test_a_function_that_raises_ends_with_status_1(capfd: pytest.CaptureFixture[str]) -> None:
    usage = probe.profile_usage(lambda: 1 // 0)
    assert usage.header.exit_status == 1
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_no_figure_without_a_source_is_a_number() -> None:
    usage = probe.profile_usage(["true"])
    for name, column in usage.header.columns.items():
        assert bool(column.missing) == np.isnan(usage.column(name)).all(), name
    assert usage.header.columns["instructions"].missing


def test_a_user_adds_a_watcher() -> None:
    usage = probe.profile_usage(python("import time; time.sleep(0.2)"), watchers=[Doubling()])
    assert usage.total("twice") == 2
    assert usage.header.columns["twice"].source == "twice the processes"


class Doubling(Watcher):
    """A watcher as a user writes it."""

    def __init__(self) -> None:
        self.columns = {"twice": Column(LEVEL, "count", "twice the processes")}

    def look(self, tree: Tree) -> Mapping[str, float]:
        return {"twice": 2.0 * len(tree.processes)}

    def finish(self, ended: Ended) -> Mapping[str, float]:
        assert ended.seconds > 0.2
        return {}


def test_a_watcher_is_named_by_module_and_class() -> None:
    assert isinstance(named_watcher("probe.emulation.watchers:CpuWatcher"), Watcher)
    for name in ("no_module_of_that_name:A", "os:getpid", "os", "probe.emulation.watchers:None", ""):
        with pytest.raises(ToolMissing, match="atcher"):
            named_watcher(name)


# -- the command


def command(*words: str | Path, status: int = 0) -> str:
    done = subprocess.run([sys.executable, "-m", "probe", *map(str, words)], capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    return done.stdout if status == 0 else done.stderr


def test_the_command_writes_a_profile_and_shows_it(tmp_path: Path) -> None:
    first, second = tmp_path / "a.usage", tmp_path / "b.usage"
    said = command("profile", "-q", "-o", first, "--tag", "size=big", "--json", "--", "sh", "-c", "echo loud")
    check_keys(json.loads(said), "probe usage --json")
    shown = command("profile", "-q", "-o", second, "--tag", "size=big", "--", "sh", "-c", "echo loud")
    assert shown.startswith("loud\ncommand         sh -c echo loud\n")
    assert "unknown: instructions, cycles" in shown
    both = json.loads(command("usage", "--json", first, second))
    check_keys(both, "probe usage --json")
    (key,) = both["keys"]
    assert key["runs"] == 2
    assert {"seconds", "cpu_seconds", "read"} <= {row["name"] for row in key["metrics"]}
    assert "sh -c echo loud; tags size=big: 2 profiles" in command("usage", first, second)


def test_nothing_runs_where_no_profile_can_be_written(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    said = command("profile", "-q", "-o", tmp_path / "none" / "a.usage", "--", "touch", ran, status=10)
    assert "no such folder" in said
    assert not ran.exists()


def test_a_foreign_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.usage").write_text("{}")
    assert "not a readable resource profile" in command("usage", tmp_path / "a.usage", status=11)
    assert "no such resource profile" in command("usage", tmp_path / "b.usage", status=10)


def test_spreads_are_those_of_the_runs() -> None:
    rows = {row.name: row for row in spreads([made_usage(2), made_usage(4), made_usage(6)])}
    assert (rows["read"].mean, rows["read"].deviation) == (4e6, 2e6)
    assert (rows["read"].least, rows["read"].most, rows["read"].runs) == (2e6, 6e6, 3)
    assert spreads([made_usage(1)])[0].deviation is None
    assert "flops" not in rows


def test_derived_figures() -> None:
    usage = made_usage(4)
    found = {metric.name: metric for metric in metrics(usage)}
    assert found["cpu_seconds"].total == pytest.approx(0.2)
    assert found["utilisation"].total == pytest.approx(0.5)
    assert found["waiting"].total == pytest.approx(0.0)
    assert found["read_block"].total == pytest.approx(1e5)
    assert (found["allocated"].total, found["freed"].total) == (4e6, 0)
    assert found["efficiency"].total is None and found["efficiency"].missing


# -- how often is looked


def test_a_lower_rate_is_kept() -> None:
    usage = probe.profile_usage(["sleep", "0.5"], rate=4)
    assert usage.samples <= 3
    with pytest.raises(ProbeError, match="at most 20"):
        probe.profile_usage(["true"], rate=21)


def test_a_long_run_is_thinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "MOST_KEPT", 6)
    usage = probe.profile_usage(python(BURN.format(0.8)))
    assert usage.samples <= 6
    used = cpu_seconds(usage)
    assert used is not None and 0.8 <= used < 1.0


class Slow(Doubling):
    """A watcher that takes long."""

    def look(self, tree: Tree) -> Mapping[str, float]:
        limit = time.thread_time() + 0.003
        while time.thread_time() < limit:
            pass
        return super().look(tree)


def test_looking_takes_little_of_the_time() -> None:
    usage = probe.profile_usage(["sleep", "1"], watchers=[Slow()])
    # 3 ms and more for each: one in 0.3 s is 1 %.
    assert usage.samples <= 5


# -- what cannot be profiled


@pytest.mark.parametrize(
    ("command", "kind", "said"),
    [
        (["no-command-of-that-name"], ProgramNotRunnable, "no such command"),
        (["/dev/null"], ProgramNotRunnable, "no such command, or not executable"),
        (["sh", "-c", "kill -SEGV $$"], ProgramFailed, r"killed by signal 11 \(SIGSEGV\)"),
        ([], ProbeError, "one word or more"),
        (["echo", "a\0b"], ProbeError, "NUL"),
    ],
)
def test_what_cannot_be_profiled(command: list[str], kind: type[ProbeError], said: str) -> None:
    with pytest.raises(kind, match=said):
        probe.profile_usage(command)


def test_a_program_without_an_interpreter(tmp_path: Path) -> None:
    script = tmp_path / "x"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    with pytest.raises(ProgramNotRunnable, match="No such file"):
        probe.profile_usage([str(script)])


@pytest.mark.parametrize("tags", [{"": "x"}, {"a=b": "c"}, {"a": "x" * 1001}, {"a": "b\0"}])
def test_a_tag_that_no_command_line_could_give(tags: dict[str, str]) -> None:
    with pytest.raises(ProbeError, match="a tag is NAME=VALUE"):
        probe.profile_usage(["true"], tags)


def test_what_is_left_running_is_ended_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = probe.profile_usage(["sh", "-c", "sleep 300 & exit 3"])
    assert usage.header.exit_status == 3
    assert [note for note in usage.header.notes if "1 processes were still there" in note]
    assert usage.seconds < 1


@pytest.mark.parametrize("more", [[], ["--trace-calls"]])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_after_a_signal(tmp_path: Path, number: signal.Signals, more: list[str]) -> None:
    """The fixture of all tests finds processes that go on."""
    command = ["sh", "-c", "sleep 300 & (setsid sleep 300 & sleep 300); echo"]
    running = subprocess.Popen(
        [sys.executable, "-m", "probe", "profile", "-q", *more, "-o", str(tmp_path / "a.usage"), "--", *command],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    _wait_for_children(running.pid)
    running.send_signal(number)
    _, said = running.communicate(timeout=20)
    assert running.returncode == 128 + number
    assert "interrupted" in said or number != signal.SIGINT
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_left_when_the_profiler_is_killed(tmp_path: Path) -> None:
    running = subprocess.Popen(
        [sys.executable, "-m", "probe", "profile", "-q", "-o", str(tmp_path / "a.usage"), "--", "sleep", "300"]
    )
    _wait_for_children(running.pid)
    running.kill()
    running.wait()


def _wait_for_children(pid: int) -> None:
    limit = time.monotonic() + 20
    while time.monotonic() < limit:
        found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True).stdout.split()
        if found and subprocess.run(["ps", "-o", "pid=", "--ppid", found[0]], capture_output=True).stdout:
            time.sleep(0.1)
            return
        time.sleep(0.02)
    raise AssertionError("the command was not started")
