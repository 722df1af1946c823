# SPDX-License-Identifier: Apache-2.0
"""The doctor on the machine at hand, and on the same machine with something taken away."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from checkpoint.errors import CriuError, StorageError, ToolMissing
from checkpoint.linux import PERSONALITY_QUERY
from checkpoint.paths import HOME_VARIABLE
from probe.doctor import diagnosis as doctor
from probe.doctor import kernel as abilities
from probe.doctor.checks import Finding
from probe.doctor.diagnosis import Repair, examine, exit_code, fix, report_json, run_doctor

NAMES = [
    "kernel", "privileges", "ptrace", "aslr", "namespaces", "userfaultfd", "criu", "compiler", "native", "restorer",
    "valgrind", "pin", "work folder", "data folder", "load", "governor",
]  # fmt: skip


def _finding(name: str) -> Finding:
    return next(f for f in examine() if f.name == name)


def test_this_machine_can_build_and_run_probes() -> None:
    findings = examine()
    assert [f.name for f in findings] == NAMES
    assert [f for f in findings if f.status == "fail"] == []
    assert all(f.remedy for f in findings if f.status != "ok")
    assert exit_code(findings) == 0


def test_the_first_failure_gives_the_exit_code() -> None:
    findings = [
        Finding("a", "warn", "w", "r"),
        Finding("b", "fail", "f", "r", exit_code=ToolMissing.exit_code),
        Finding("c", "fail", "f", "r", exit_code=CriuError.exit_code),
    ]
    assert exit_code(findings) == ToolMissing.exit_code


def test_json_report(capsys: pytest.CaptureFixture[str]) -> None:
    status = run_doctor(as_json=True)
    report = json.loads(capsys.readouterr().out)
    assert report["format_version"] == 1
    assert report["exit_code"] == status
    assert [f["name"] for f in report["findings"]] == NAMES
    assert set(report["findings"][0]) == {"name", "status", "detail", "remedy", "fixable", "exit_code", "need"}
    assert report_json([], [Repair("criu", True, "d")])["repairs"] == [{"name": "criu", "done": True, "detail": "d"}]


def test_plain_lines_without_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIN_ROOT", "/nowhere")
    run_doctor()
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "warn  pin            no pin in PIN_ROOT=/nowhere\n" + " " * 21 + "-> optional" in printed


def test_a_check_that_breaks_is_reported_under_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Finding:
        raise OSError("torn")

    monkeypatch.setattr(doctor, "checks", lambda folder: [("kernel", broken)])
    assert examine() == [Finding("kernel", "fail", "the check itself broke: torn", exit_code=1)]


def _only(folder: Path, *programs: str) -> str:
    folder.mkdir(exist_ok=True)
    for program in programs:
        path = next(Path(d) / program for d in os.environ["PATH"].split(":") if (Path(d) / program).exists())
        (folder / program).symlink_to(path)
    return str(folder)


def test_a_missing_assembler_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", _only(tmp_path / "bin", "gcc", "sleep", "cat", "apt-get"))
    found = _finding("compiler")
    assert (found.status, found.detail, found.fixable) == ("fail", "no as", True)
    assert found.exit_code == ToolMissing.exit_code


def test_a_compiler_that_does_not_work_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "bin"
    _only(folder, "as")
    (folder / "gcc").write_text("#!/bin/sh\necho no headers >&2\nexit 1\n")
    (folder / "gcc").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    found = _finding("compiler")
    assert found.status == "fail"
    assert "no headers" in found.detail


def test_missing_unshare_is_a_missing_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", _only(tmp_path / "bin", "sleep", "cat"))
    found = _finding("namespaces")
    assert (found.status, found.exit_code, found.fixable) == ("fail", ToolMissing.exit_code, False)


def test_an_old_criu_fails_and_can_be_mended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "criu").write_text("#!/bin/sh\necho Version: 3.17.1\n")
    (tmp_path / "criu").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    found = _finding("criu")
    assert (found.status, found.fixable, found.exit_code) == ("fail", True, CriuError.exit_code)
    assert "3.17.1" in found.detail


def test_fix_reports_what_it_could_not_mend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "file"))
    (repair,) = fix([Finding("criu", "fail", "old", "r", fixable=True), Finding("pin", "warn", "none", "r")])
    assert (repair.name, repair.done) == ("criu", False)
    assert "cannot install the private CRIU" in repair.detail


def test_load_is_judged_against_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    monkeypatch.setattr(os, "getloadavg", lambda: (2.4, 0.0, 0.0))
    assert _finding("load").status == "ok"
    monkeypatch.setattr(os, "getloadavg", lambda: (2.6, 0.0, 0.0))
    assert _finding("load") == Finding(
        "load",
        "warn",
        "load 2.60 on 4 cores",
        "wait until the machine is quiet: other load makes every time too long",
        need="better",
    )


def test_a_full_work_folder_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1 << 20})())
    found = _finding("work folder")
    assert (found.status, found.exit_code) == ("fail", StorageError.exit_code)


def test_fixed_addresses_leave_this_process_as_it_was() -> None:
    personality = ctypes.CDLL(None).personality
    before = personality(PERSONALITY_QUERY)
    assert abilities.fixed_addresses() is None
    assert personality(PERSONALITY_QUERY) == before


def test_abilities_leave_no_process_behind() -> None:
    for ability in (abilities.tracing, abilities.fixed_addresses, abilities.namespaces):
        assert ability() is None
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def _as_nobody(action: Callable[[], object]) -> object:
    """Result of `action` in a child without any privilege, through JSON."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            os.write(writer, json.dumps(action()).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader) as file:
        text = file.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return json.loads(text)


def test_without_privileges_and_criu_a_probe_can_be_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Without sudo on the PATH, an ordinary user is not able to become root.
    monkeypatch.setenv("PATH", _only(tmp_path / "bin", "unshare", "sleep", "cat", "true"))
    tmp_path.chmod(0o755)
    report = _as_nobody(lambda: report_json(examine(Path("/tmp"))))
    assert isinstance(report, dict)
    assert [f for f in report["findings"] if f["status"] == "fail" and f["need"] == "criu"] == []
    found = {f["name"]: f for f in report["findings"]}
    assert found["privileges"]["detail"] == "not root: probes are captured and restored directly"
    assert found["criu"]["status"] == "warn"
    assert {f["need"] for f in report["findings"]} == {"needed", "better", "criu"}
    assert [f for f in report["findings"] if f["fixable"]] == []


def test_capabilities_are_read_from_the_kernel() -> None:
    assert abilities.missing_capabilities() == []
    assert "CAP_SYS_PTRACE" in _as_nobody(abilities.missing_capabilities)  # type: ignore[operator]


def test_native_needs_its_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "iced_x86", None)
    found = _finding("native")
    assert (found.status, found.exit_code) == ("fail", ToolMissing.exit_code)
