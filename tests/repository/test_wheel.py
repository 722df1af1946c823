# SPDX-License-Identifier: Apache-2.0
"""The wheel: installed alone, with the checkout out of sight, it can do all that the checkout can."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from command import in_mounts
from wheels import PACKAGES, ROOT, make_wheel, pip

from checkpoint.compiled import RECIPES
from checkpoint.paths import HOME_VARIABLE, private_criu_dir
from probe.candidates.agent_file import agent_file

RECORDED = ROOT / "tests" / "recorded" / "version_0_1"
TURNS = RECORDED / "turns"
HOOKS = {"cli_filter.lua", "job_submit.lua", "probe_hook.lua"}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_wheel(tmp_path_factory.mktemp("wheel"))


@dataclass(frozen=True)
class Installed:
    """A virtual environment with the wheel. `run` sees neither the checkout's packages nor this session's caches."""

    folder: Path

    def python(self) -> Path:
        return self.folder / "venv" / "bin" / "python"

    def run(self, *command: str | Path) -> str:
        """What `command`, a program of the environment, prints; it must succeed."""
        done = subprocess.run(
            [*_without_checkout(), self.folder / "venv" / "bin" / command[0], *command[1:]],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=self.folder, env=self.environment(),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def probe(self, *arguments: str | Path) -> str:
        return self.run("probe", *arguments)

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        return {**kept, HOME_VARIABLE: str(self.folder / "home")}


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    made = Installed(tmp_path_factory.mktemp("installed"))
    venv.create(made.folder / "venv", with_pip=False)
    # The libraries are those that are here: nothing is fetched.
    (packages,) = (made.folder / "venv").glob("lib/python*/site-packages")
    (packages / "here.pth").write_text("\n".join({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}))
    pip(made.python(), "install", "--no-deps", "--no-index", "--ignore-installed", wheel)
    if private_criu_dir().is_dir():
        (made.folder / "home" / "data").mkdir(parents=True)
        (made.folder / "home" / "data" / "criu").symlink_to(private_criu_dir())
    yield made


def _without_checkout() -> list[str]:
    return in_mounts(*(f"mount -t tmpfs hidden '{ROOT / name}'" for name in PACKAGES))


def test_every_file_of_the_packages_is_in_it(wheel: Path) -> None:
    there = {
        str(path.relative_to(ROOT))
        for name in PACKAGES
        for path in (ROOT / name).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".")
    }
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    brought = {name for name in packed if Path(name).parent == Path("checkpoint/programs")}
    assert packed - brought == there
    assert len(brought) == len(RECIPES)


def test_nothing_of_the_checkout_is_in_sight(installed: Installed) -> None:
    code = "import checkpoint, probe, reducer; print(checkpoint.__file__, probe.__file__, reducer.__file__)"
    assert all(path.startswith(f"{installed.folder}/venv/") for path in installed.run("python", "-c", code).split())


def test_its_command_starts(installed: Installed) -> None:
    assert installed.probe("--version").startswith("probe, version ")
    assert "Commands:" in installed.probe("--help")


def test_it_examines_the_machine(installed: Installed) -> None:
    findings = {f["name"]: f for f in json.loads(installed.probe("doctor", "--json"))["findings"]}
    assert findings["restorer"]["status"] == "ok" and findings["native"]["status"] == "ok", findings
    assert findings["compiler"]["need"] == "better", findings
    assert not list((installed.folder / "home" / "cache" / "native").glob("restorer-*"))


def test_it_shows_runs_and_reports_a_probe(installed: Installed) -> None:
    probe_file = shutil.copy(RECORDED / "turns.probe", installed.folder)
    assert json.loads(installed.probe("show", "--json", probe_file))["program"] == ["/mnt/turns"]
    for restorer in ("direct", "criu"):
        result = json.loads(installed.probe("run", "-q", "--json", "--repeat", "2", "--restorer", restorer, probe_file))
        assert [p["status"] for p in result["phases"]] == ["ok"] * 3
    installed.probe("report", "-q", probe_file, "-o", "turns.html")
    assert (installed.folder / "turns.html").read_text().lstrip().startswith("<!DOCTYPE html>")


def test_it_traces(installed: Installed) -> None:
    """With its own stubs.S."""
    profile = installed.folder / "turns.profile"
    traced = json.loads(installed.probe("trace", "-q", "--json", "-o", profile, "--", TURNS))
    assert traced["intervals"] > 1 and profile.is_file()


def test_it_sends_the_same_agent(installed: Installed) -> None:
    code = "from probe.candidates.agent_file import agent_file; print(agent_file().sha256)"
    assert installed.run("python", "-c", code).strip() == agent_file().sha256


def test_it_installs_hooks(installed: Installed) -> None:
    (installed.folder / "slurm").mkdir()
    (installed.folder / "slurm" / "slurm.conf").touch()
    for kind in ([], ["--client"]):
        installed.probe("slurm", "install", *kind, "--conf", installed.folder / "slurm")
    assert {path.name for path in (installed.folder / "slurm").glob("*.lua")} == HOOKS


def test_it_builds_the_exact_tracer(installed: Installed) -> None:
    code = "from probe.tracers.valgrind import build_tool, find_valgrind; print(build_tool(find_valgrind()))"
    assert installed.run("python", "-c", code).startswith(f"{installed.folder}/home/cache/")
