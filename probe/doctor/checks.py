# SPDX-License-Identifier: Apache-2.0
"""The checks behind `probe doctor`: each tries one thing that building or running a probe needs.

`fail` means that `probe build` or `probe run` cannot work, `warn` that it works worse or that an optional
part is missing.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Final, Literal

from checkpoint.compiled import RESTORER, faults_of_brought, restorer
from checkpoint.criu.tool import find_criu, format_version
from checkpoint.errors import CriuError, NodeUnfit, PrivilegeMissing, ProbeError, StorageError, ToolMissing
from checkpoint.linux import PAGE_SIZE
from checkpoint.paths import data_dir
from checkpoint.run_command import run_group
from probe.doctor import kernel as abilities
from probe.tracers import pin, valgrind

_COMPILED_LATER: Final = "--tracer valgrind or pin, emulate, kernels, the kernel rates of profile, mpi, simulate"
"""What compiles programs that no wheel brings."""

Status = Literal["ok", "warn", "fail"]

GOVERNORS: Final = "sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor"
"""Pattern, relative to /, of the files that name and set each CPU's frequency governor."""

_COMMAND_TIMEOUT: Final = 30.0
_OLDEST_KERNEL: Final = (5, 9)
_LOW_SPACE: Final = 2 << 30
_NO_SPACE: Final = 200 << 20
_LOW_SHARED: Final = 64 << 20


NEEDED, BETTER, FOR_CRIU = "needed", "better", "criu"
"""What a check is about: building and running at all, doing it well, or `--capture criu` and `--restorer criu`."""

_NEED = {
    "privileges": FOR_CRIU, "criu": FOR_CRIU, "userfaultfd": FOR_CRIU, "namespaces": BETTER, "valgrind": BETTER,
    "pin": BETTER, "load": BETTER, "governor": BETTER,
}  # fmt: skip


def need_of(name: str) -> str:
    """What the check of this name is about. A compiler is not needed where all that it would make came along."""
    if name == "compiler" and faults_of_brought() == []:
        return BETTER
    return _NEED.get(name, NEEDED)


@dataclass(frozen=True)
class Finding:
    """Result of one check.

    `remedy` is empty when nothing is to be done. `fixable` tells whether `fix` can mend it here, with the
    privileges at hand. `exit_code` is that of the error a build would end with (`checkpoint.errors`). `need`: NEEDED,
    BETTER or FOR_CRIU.
    """

    name: str
    status: Status
    detail: str
    remedy: str = ""
    fixable: bool = False
    exit_code: int = 0
    need: str = NEEDED


def checks(folder: Path) -> list[tuple[str, Callable[[], Finding]]]:
    """Name and function of every check, in the order in which problems should be mended.

    `folder` is where work files will go. A check may raise OSError, ValueError or subprocess.SubprocessError.
    """
    return [
        ("kernel", _kernel),
        ("privileges", _privileges),
        ("ptrace", _ptrace),
        ("aslr", _aslr),
        ("namespaces", _namespaces),
        ("userfaultfd", _userfaultfd),
        ("criu", _criu),
        ("compiler", _compiler),
        ("native", _native_tracer),
        ("restorer", _direct_restorer),
        ("valgrind", _valgrind),
        ("pin", _pin),
        ("work folder", lambda: _space(folder)),
        ("data folder", lambda: _space(data_dir())),
        ("load", _load),
        ("governor", _governor),
    ]


def _ok(detail: str) -> Finding:
    return Finding("", "ok", detail)


def _warn(detail: str, remedy: str, *, fixable: bool = False) -> Finding:
    return Finding("", "warn", detail, remedy, fixable)


def _fail(error: type[ProbeError], detail: str, remedy: str, *, fixable: bool = False) -> Finding:
    return Finding("", "fail", detail, remedy, fixable, error.exit_code)


def _is_root() -> bool:
    return os.geteuid() == 0


def _can_install() -> bool:
    return _is_root() and shutil.which("apt-get") is not None


def _output(command: list[str]) -> str:
    status, said = run_group(command, _COMMAND_TIMEOUT)
    if status != 0:
        raise OSError(f"{command[0]} ended with status {status}: {said.strip()[:300]}")
    return said


def _kernel() -> Finding:
    release, machine, page = platform.release(), platform.machine(), os.sysconf("SC_PAGE_SIZE")
    if sys.platform != "linux" or machine != "x86_64":
        return _fail(NodeUnfit, f"{sys.platform} on {machine}", "use a Linux machine with an x86-64 CPU")
    if page != PAGE_SIZE:
        return _fail(NodeUnfit, f"pages of {page} bytes", f"start a kernel with pages of {PAGE_SIZE} bytes")
    numbers = tuple(int(n) for n in re.findall(r"\d+", release)[:2])
    if numbers < _OLDEST_KERNEL:
        oldest = format_version(_OLDEST_KERNEL)
        return _warn(f"Linux {release} is older than {oldest}", "restore may fail; use a newer kernel")
    return _ok(f"Linux {release}, {machine}, pages of {page} bytes")


def _privileges() -> Finding:
    if _is_root():
        missing = abilities.missing_capabilities()
        if missing:
            remedy = "give the container these capabilities, or run outside of it"
            return _fail(PrivilegeMissing, f"root without {', '.join(missing)}", remedy)
        return _ok("root")
    sudo = shutil.which("sudo")
    if (
        sudo is not None
        and subprocess.run([sudo, "-n", "true"], stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode
        == 0
    ):
        return _ok("not root: probes are captured and restored directly; `sudo -n` works")
    return _ok("not root: probes are captured and restored directly")


def _ptrace() -> Finding:
    setting = Path("/proc/sys/kernel/yama/ptrace_scope")
    scope = setting.read_text().strip() if setting.exists() else "none"
    reason = abilities.tracing()
    if reason is None:
        return _ok(f"a child can be traced and its text written (yama ptrace_scope: {scope})")
    remedy = (
        "set kernel.yama.ptrace_scope to 1 or 0 with sysctl; 3 lasts until the next boot"
        if scope in ("2", "3")
        else "in a container, allow ptrace: --cap-add SYS_PTRACE --security-opt seccomp=unconfined"
    )
    return _fail(PrivilegeMissing, f"{reason} (yama ptrace_scope: {scope})", remedy)


def _aslr() -> Finding:
    reason = abilities.fixed_addresses()
    if reason is None:
        return _ok("programs start at fixed addresses when asked to")
    remedy = "in a container, allow personality(2): --security-opt seccomp=unconfined"
    return _fail(PrivilegeMissing, reason, remedy)


def _userfaultfd() -> Finding:
    reason = abilities.userfaultfd()
    if reason is None:
        return _ok("usable")
    remedy = "run as root or set vm.unprivileged_userfaultfd=1; without it probes keep untouched pages"
    return _warn(reason, remedy)


def _namespaces() -> Finding:
    reason = abilities.namespaces()
    user = "with" if abilities.namespaces(as_user=True) is None else "without"
    if reason is None:
        return _ok(f"PID and mount namespaces can be made; {user} user namespaces")
    if shutil.which("unshare") is None:
        remedy = "install the package util-linux"
        return _fail(ToolMissing, reason, remedy, fixable=_can_install())
    if not _is_root():
        return _warn(f"not as this user: {reason} ({user} user namespaces)", "restore as root")
    remedy = "in a container, allow new namespaces (--privileged), or run outside of it"
    return _fail(PrivilegeMissing, reason, remedy)


def _criu() -> Finding:
    remedy = "install a private CRIU with `probe doctor --fix`"
    try:
        criu = find_criu()
    except (CriuError, OSError) as error:
        if not _is_root():
            return _warn(str(error), "nothing, unless root is to capture with it")
        return _fail(CriuError, str(error), remedy, fixable=shutil.which("apt-get") is not None)
    found = f"CRIU {format_version(criu.version)} ({criu.origin})"
    try:
        criu.check()
    except PrivilegeMissing as error:
        return _warn(f"{found}, not checked: {error}", "run `probe doctor` as root for the whole check")
    except CriuError as error:
        return _fail(CriuError, f"{found}: {error}", "the kernel lacks what CRIU needs; see the message")
    return _ok(f"{found}, `criu check` is content")


def _native_tracer() -> Finding:
    try:
        import iced_x86  # noqa: F401
    except ImportError as error:
        remedy = "install the package iced-x86 into this Python environment, or run scripts/install"
        return _fail(ToolMissing, f"its decoder does not load: {error}", remedy)
    return _ok(f"built in (decoder: iced-x86 {version('iced-x86')})")


def _direct_restorer() -> Finding:
    try:
        path = restorer()
    except ToolMissing as error:
        return _fail(ToolMissing, f"the direct restorer cannot be built: {error}", "install gcc")
    origin = "came compiled" if path == RESTORER.brought()[0] else "built"
    return _ok(f"{origin} for probes to carry, {path.stat().st_size} bytes; restores phases as any user")


def _valgrind() -> Finding:
    if shutil.which("valgrind") is None:
        remedy = "optional: install the package valgrind for instruction-exact intervals"
        return _warn("not installed", remedy, fixable=_can_install())
    try:
        installation = valgrind.find_valgrind()
        valgrind.build_tool(installation)
    except ToolMissing as error:
        return _warn(str(error), "optional: install the packages valgrind and gcc", fixable=_can_install())
    return _ok(f"Valgrind {installation.version}; the tool for it is built")


def _pin() -> Finding:
    remedy = "optional: download Intel Pin's kit for Linux, unpack it and set PIN_ROOT to its folder"
    root = os.environ.get(pin.ROOT_VARIABLE, "")
    if shutil.which("pin", path=root or None) is None:
        return _warn(f"no pin in PIN_ROOT={root}" if root else "not installed", remedy)
    try:
        kit = pin.find_pin()
        pin.build_tool(kit)
    except ToolMissing as error:
        return _warn(str(error), remedy)
    return _ok(f"Pin {kit.version} at {kit.root}; the tool for it is built")


def _compiler() -> Finding:
    faults = faults_of_brought()
    found = _working_compiler()
    if faults:
        # What is at fault is compiled here, if it can be.
        status = "warn" if found.status == "ok" else found.status
        detail = "; ".join([*faults, found.detail])
        return replace(found, status=status, detail=detail, remedy="install the wheel again")
    if faults is None or found.status == "ok":
        return found
    return _warn(found.detail, f"optional: {found.remedy} for {_COMPILED_LATER}", fixable=found.fixable)


def _working_compiler() -> Finding:
    assembler, compiler = shutil.which("as"), shutil.which("gcc") or shutil.which("cc")
    missing = [n for n, found in (("as", assembler), ("gcc or cc", compiler)) if found is None]
    remedy = "install the packages gcc, libc6-dev and binutils"
    if assembler is None or compiler is None:
        found = f"no {' and no '.join(missing)}"
        return _fail(ToolMissing, found, remedy, fixable=_can_install())
    with tempfile.TemporaryDirectory(prefix="probe-doctor-") as name:
        folder = Path(name)
        (folder / "stub.s").write_text(".globl stub\nstub: decq (%rip)\n ret\n")
        (folder / "main.c").write_text('#include <stdio.h>\nint main(void) { return puts("") < 0; }\n')
        try:
            _output([assembler, "--64", "-o", str(folder / "stub.o"), str(folder / "stub.s")])
            _output([compiler, "-o", str(folder / "main"), str(folder / "main.c"), str(folder / "stub.o")])
            _output([str(folder / "main")])
        except OSError as error:
            return _fail(ToolMissing, str(error), remedy, fixable=_can_install())
    return _ok(f"{_output([compiler, '--version']).splitlines()[0]}; as and ld work")


def _load() -> Finding:
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    found = f"load {load:.2f} on {cores} core{'s' if cores > 1 else ''}"
    if cores < 2:
        return _warn(found, "the tracer will share the core of the program; use two or more for exact times")
    if load > cores - 1.5:
        return _warn(found, "wait until the machine is quiet: other load makes every time too long")
    return _ok(found)


def _governor() -> Finding:
    settings = {path.read_text().strip() for path in sorted(Path("/").glob(GOVERNORS))}
    if not settings:
        return _ok("the clock is not under this system's control (no cpufreq, as in most virtual machines)")
    if settings == {"performance"}:
        return _ok("performance")
    remedy = "set the governor performance on all CPUs (lasts until the next boot)"
    return _warn(", ".join(sorted(settings)), remedy, fixable=_is_root())


def _space(folder: Path) -> Finding:
    existing = next(p for p in (folder.absolute(), *folder.absolute().parents) if p.exists())
    free = shutil.disk_usage(existing).free
    found = f"{free / 2**30:.1f} GB free at {existing}"
    if not os.access(existing, os.W_OK):
        return _fail(StorageError, f"{existing} is not writable", "choose another folder")
    if free < _NO_SPACE:
        return _fail(StorageError, found, "free some space: checkpoints hold the program's whole memory")
    if free < _LOW_SPACE:
        return _warn(found, "free some space: checkpoints hold the program's whole memory")
    return _ok(found)
