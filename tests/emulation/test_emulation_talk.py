# SPDX-License-Identifier: Apache-2.0
"""Words of a node that emulates, believed only where an honest one could say them; and what is sent to nodes."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
from candidate_runs import ROOT
from made_usage import made_usage
from scripted_nodes import Message, Scripted
from sent_modules import OURS, SAFE, file_of, imported

from checkpoint.errors import NodeMisbehaved, NodeUnfit, NodeUnreachable, StorageError
from probe.candidates.agent_client import SilentNode
from probe.emulation.elsewhere import talk
from probe.emulation.elsewhere.node_part import VERSION
from probe.emulation.elsewhere.start import _CODE, EMULATION_MODULES, MAIN, emulation_file, start_command
from probe.emulation.elsewhere.talk import NodeOrders, emulate_there
from probe.emulation.plan import SECONDS, EmulateOptions

OPTIONS = EmulateOptions(equal=SECONDS, threads=1)


# -- what a node says


def honest(samples: int = 3) -> list[Message]:
    facts = {"name": "n", "cpu": "c", "cores": 2, "kernel": "6.1", "load": 0.1}
    lines = ["begin", *(f"sample {0.001 * (n + 1)} 0.001" for n in range(samples)), "done 0.01 0.01 0.001 5000"]
    return [
        {"event": "hello", "version": VERSION, "node": {**facts, "machine": "x86_64"}, "compiler": True},
        {"event": "ready"},
        {"event": "said", "lines": lines},
        {"event": "done", "status": 0, "errors": "", "start": 0.001, "node": {**facts, "more": 1}},
    ]


def asked(said: list[Message | bytes | None], seconds: float = 0.0) -> talk.Emulated:
    channel = Scripted(said, seconds)
    time.sleep(0.011)
    return emulate_there(
        lambda _: nullcontext(channel), made_usage(3), OPTIONS, {}, NodeOrders(silence_seconds=5.0), SilentNode()
    )


def test_an_honest_node_is_believed() -> None:
    done = asked([b"Welcome!\n", *honest()])
    assert done.outcome.wall == 0.01 and done.outcome.peak == 5000 * 1024 and done.node["name"] == "n"
    assert "more" not in done.node


@pytest.mark.parametrize(
    ("place", "changes", "said"),
    [
        (0, {"version": 7}, "another version"),
        (0, {"node": {"cores": 0}}, "another version"),
        (0, {"node": {"cores": True}}, "another version"),
        (0, {"node": 5}, "what node it is"),
        (0, {"event": "done"}, "it said 'done'"),
        (1, {"event": "hello"}, "it said 'hello'"),
        (2, {"lines": "begin"}, "more than an emulator does"),
        (2, {"lines": [5]}, "nonsense"),
        (2, {"lines": [""]}, "nonsense"),
        (2, {"lines": ["begin", "sample nan 1"]}, "nonsense"),
        (2, {"lines": ["sample 1 -1"]}, "nonsense"),
        (2, {"lines": ["sample 1 inf"]}, "nonsense"),
        (2, {"lines": ["sample 1"]}, "nonsense"),
        (2, {"lines": ["sample 2 1", "sample 1 1"]}, "goes back in time"),
        (2, {"lines": ["sample 1 1"] * 4}, "more samples than it was given"),
        (2, {"lines": ["sample 0 0"] * 3 + ["done 1000 1 1 1"]}, "it reports 1000 s"),
        (2, {"lines": ["sample 0 0"] * 3 + ["done 0 1 1 1"]}, "it reports 0 s"),
        (2, {"lines": ["sample 9 0"] * 3 + ["done 0.1 0 0 1"]}, "it reports 0.1 s"),
        (2, {"lines": ["sample 0 0"] * 3 + ["done 0.1 1e9 0 1"]}, "more CPU time than any node has"),
        (3, {"status": "0"}, "how its emulator ended"),
        (3, {"start": -1}, "how its emulator ended"),
        (3, {"start": 1e9}, "how its emulator ended"),
        (3, {"node": None}, "what node it is"),
        (3, {"errors": 5}, "its errors is no text"),
    ],
)
def test_what_no_node_of_ours_says(place: int, changes: Message, said: str) -> None:
    messages: list[Message | bytes | None] = list(honest())
    messages[place] = {**honest()[place], **changes}
    with pytest.raises(NodeMisbehaved, match=said):
        asked(messages)


def test_an_emulator_that_ends_early_elsewhere() -> None:
    messages = honest()
    messages[3].update(status=3, errors="error 28 writing")
    with pytest.raises(StorageError, match="ended early: writing: No space left on device"):
        asked([*messages])
    messages[2]["lines"] = ["begin"]
    messages[3].update(status=-9, errors="")
    with pytest.raises(StorageError, match="ended early: status -9"):
        asked([*messages])


def test_an_end_that_is_none() -> None:
    with pytest.raises(NodeUnfit, match="does not start"):
        asked([])
    with pytest.raises(NodeUnreachable, match="the connection or the emulation was lost"):
        asked([*honest()[:2]])
    with pytest.raises(NodeMisbehaved, match="no JSON"):
        asked([*honest()[:2], b"x\n"])
    with pytest.raises(NodeMisbehaved, match="no JSON"):
        asked([b"x\n"] * 1000)
    with pytest.raises(NodeUnreachable, match="nothing was heard of it"):
        asked([*honest()[:2], None])


def test_signs_of_life_have_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    class Time:
        now = 0.0

        @classmethod
        def monotonic(cls) -> float:
            cls.now += 10.0
            return cls.now

    monkeypatch.setattr(talk, "time", Time)
    with pytest.raises(NodeUnreachable, match="has not come to an end within"):
        asked([*honest()[:2], *[{"event": "alive"}] * 1000])


# -- what is sent


@pytest.mark.parametrize("name", EMULATION_MODULES)
def test_nothing_is_imported_that_is_not_sent(name: str) -> None:
    for module in imported((ROOT / name).read_text(), name):
        if module.split(".")[0] not in OURS:
            assert module.split(".")[0] in sys.stdlib_module_names
        elif (path := file_of(module)) is not None and module != "probe.formats.manifest":
            assert path in EMULATION_MODULES or path == "probe/__init__.py", f"{name} imports {module}"


def test_old_pythons_understand_it(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text(_CODE)
    (tmp_path / "main.py").write_bytes(MAIN)
    files = [tmp_path / "code.py", tmp_path / "main.py", *(ROOT / name for name in EMULATION_MODULES)]
    vermin = Path(sys.executable).with_name("vermin")
    done = subprocess.run([vermin, "--no-tips", "--violations", "-t=3.8-", *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_shell_understands_the_command() -> None:
    before, loader, after = start_command(emulation_file(), 60.0).split("'")
    assert before == "exec python3 -I -c " and SAFE.match(after)
    assert not set(loader) & set("'\"\\!\n$`") and loader.isascii()


def test_what_arrives_damaged_is_not_run(tmp_path: Path) -> None:
    file = emulation_file()
    command_ = start_command(file, 5.0)
    done = subprocess.run(["sh", "-c", command_], input=b"x" * len(file.data), capture_output=True, timeout=20)
    assert b"arrived damaged" in done.stdout
    done = subprocess.run(["sh", "-c", command_], input=file.data[:-1], capture_output=True, timeout=20)
    assert (done.returncode, done.stdout) == (3, b"")
