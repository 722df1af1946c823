# SPDX-License-Identifier: Apache-2.0
"""The documentation says what the program does: compared with the code and with real output, both ways."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import click
import numpy as np
import pytest
from documentation import ROOT, check_keys, code, commands, default_of, named, options, pages, rows, section, text_of
from programs import build
from small_probe import small_probe

import probe
from checkpoint import errors
from probe.cli.main import cli
from probe.doctor.diagnosis import Repair, examine, report_json
from probe.pipeline import warmup
from probe.pipeline.build import ANEW, KEPT

SECONDS = 120.0

SHELL_CODES = {"0", "2", "129", "130", "143"}
"""Exit codes that are not an error class of ours: success, wrong usage, and the signals that end a command."""


# -- a real probe, and what the commands say of it


def command(*arguments: str | Path, cwd: Path | None = None, status: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "probe", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == status, done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def documented(builds: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small probe and a profile, by the names that the pages use."""
    folder = tmp_path_factory.mktemp("documented")
    shutil.copy(small_probe(builds).path, folder / "hmmsearch.probe")
    program = [str(build("nbody", builds)), "250"]
    command("trace", "-q", "-o", folder / "sorter.profile", "--interval", "20ms", "--", *program)
    (folder / "input.dat").touch()
    return folder


@pytest.mark.slow
def test_json_of_show(documented: Path) -> None:
    check_keys(json.loads(command("show", "--json", documented / "hmmsearch.probe")), "probe show --json")


@pytest.mark.slow
def test_json_of_explain(documented: Path) -> None:
    check_keys(json.loads(command("explain", "--json", documented / "hmmsearch.probe")), "probe explain --json")


@pytest.mark.slow
def test_json_of_run(documented: Path) -> None:
    printed = command("run", "-q", "--repeat", "3", "--json", documented / "hmmsearch.probe")
    check_keys(json.loads(printed), "probe run --json")


@pytest.mark.slow
def test_json_of_doctor() -> None:
    check_keys(json.loads(command("doctor", "--json")), "probe doctor --json")
    check_keys(report_json(examine(), [Repair("criu", True, "done")]), "probe doctor --json")


@pytest.mark.slow
def test_arrays_of_a_profile(documented: Path) -> None:
    listed = {code(cells[0])[0]: cells[1] for cells in rows(section("docs/profile-format.md", "Arrays"))}
    with np.load(documented / "sorter.profile", allow_pickle=False) as stored:
        assert {name: str(stored[name].dtype) for name in stored} == listed
        header = json.loads(bytes(stored["header"]))
    described = {code(cells[0])[0]: cells[1] for cells in rows(section("docs/profile-format.md", "Header"))}
    assert header.keys() == described.keys()
    assert header["program"].keys() | {"worker"} == set(code(described["program"]))


@pytest.mark.slow
def test_the_python_examples_read_a_profile(documented: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(documented)
    example = re.search(r"```python\n(.*?)```", text_of("docs/profile-format.md"), re.S)
    assert example
    names: dict[str, Any] = {}
    exec(example[1], names)
    assert names["vectors"].shape == (names["header"]["intervals"], names["header"]["blocks"])
    assert names["vectors"].sum() > 0


# -- the command line


@pytest.mark.parametrize("name", [name for name, _ in commands()])
def test_options(name: str) -> None:
    of = dict(commands())[name]
    listed = {tuple(code(cells[0])): cells for cells in rows(section("docs/cli.md", f"probe {name}".strip()))}
    present = {(*option.opts, *option.secondary_opts): option for option in options(of)}
    assert {frozenset(o) for o in listed} == {frozenset(o) for o in present}
    for names, option in present.items():
        cells = next(c for o, c in listed.items() if set(o) == set(names))
        assert cells[2] == default_of(option), names
        assert cells[3], f"{names} is not explained"
        if isinstance(option.type, click.Choice):
            assert code(cells[1]) == list(option.type.choices), names
        if isinstance(option.type, (click.IntRange, click.FloatRange)) and option.type.max is not None:
            assert cells[1] == f"{option.type.min} to {option.type.max}", names


def test_every_option_explains_itself() -> None:
    silent = [(n, o.name) for n, c in commands() for o in options(c) if not o.help]
    assert silent == []


def test_exit_codes() -> None:
    kinds = [k for k in vars(errors).values() if inspect.isclass(k) and issubclass(k, errors.ProbeError)]
    assert len({k.exit_code for k in kinds}) == len(kinds), "one code, two meanings"
    listed = {cells[0]: "".join(code(cells[1])) for cells in rows(section("docs/cli.md", "Exit codes"))}
    assert listed == {str(k.exit_code): k.__name__ for k in kinds} | dict.fromkeys(SHELL_CODES, "")


def command_lines() -> list[tuple[str, list[str]]]:
    """(page, words behind `probe`) of every command line in a block of shell code."""
    found = []
    for page in pages():
        for block in re.findall(r"```sh\n(.*?)```", page.read_text(), re.S):
            for line in block.splitlines():
                words = shlex.split(line, comments=True)
                if "probe" in words[:4]:
                    words = words[words.index("probe") + 1 :]
                    found.append((page.name, words[: words.index(">")] if ">" in words else words))
    assert len(found) > 10
    return found


@pytest.mark.parametrize(("page", "words"), command_lines(), ids=lambda value: " ".join(value) if value else "")
def test_command_lines_parse(page: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "input.dat").touch()
    if words[0].startswith("-"):
        assert any(words[0] in option.opts for option in options(cli))
        return
    of: click.Command = cli
    while isinstance(of, click.Group):
        name, words = words[0], words[1:]
        of = dict(named(of))[name]
    context = of.make_context(of.name, words)
    assert "[" not in " ".join(words), page
    assert context.params.get("program") != ()


def harmless(words: list[str]) -> bool:
    """Changes nothing, and needs nothing but this machine."""
    elsewhere = {"--fix", "--on", "--hosts", "--split", "--slurm"}
    return words[0] in ("doctor", "show", "explain", "run", "--version") and not elsewhere & set(words)


@pytest.mark.slow
def test_harmless_command_lines_run(documented: Path) -> None:
    ran = {tuple(words) for _, words in command_lines() if harmless(words)}
    assert {words[0] for words in ran} == {"doctor", "show", "explain", "run", "--version"}
    for words in sorted(ran):
        named = ["hmmsearch.probe" if word.endswith(".probe") else word for word in words]
        assert command(*named, cwd=documented)


# -- the Python API


def test_api_names() -> None:
    titles = re.findall(r"^### (\S+)$", text_of("docs/python-api.md"), re.M)
    assert sorted(title.removeprefix("probe.") for title in titles) == sorted(probe.__all__)


@pytest.mark.parametrize("name", [n for n in probe.__all__ if inspect.isfunction(getattr(probe, n))])
def test_api_parameters(name: str) -> None:
    listed = [code(cells[0])[0] for cells in rows(api_section(f"probe.{name}"))]
    assert listed == list(inspect.signature(getattr(probe, name)).parameters)


@pytest.mark.parametrize("name", [n for n in probe.__all__ if dataclasses.is_dataclass(getattr(probe, n))])
def test_api_fields(name: str) -> None:
    said = api_section(name)
    for field in dataclasses.fields(getattr(probe, name)):
        assert f"`{field.name}`" in said, field.name


def test_api_defaults() -> None:
    listed = {code(cells[0])[0]: cells[1] for cells in rows(api_section("BuildOptions"))}
    defaults = {f.name: getattr(probe.BuildOptions(), f.name) for f in dataclasses.fields(probe.BuildOptions)}
    assert defaults.pop("selection") == probe.SelectionOptions()
    assert listed.pop("selection") == "SelectionOptions()"
    assert {name: ast.literal_eval(value) for name, value in listed.items()} == defaults


def api_section(title: str) -> str:
    found = re.search(rf"^### {re.escape(title)}\n(.*?)(?=^##|\Z)", text_of("docs/python-api.md"), re.S | re.M)
    assert found, title
    return found[1]


# -- pages as such


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, made as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        goal = (page.parent / path).resolve() if path else page
        assert goal.is_relative_to(ROOT) and goal.exists(), target
        assert not anchor or anchor in anchors(goal), target


def test_every_page_can_be_found() -> None:
    reached, todo = set(), [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        reached.add(page)
        for target in re.findall(r"\]\(([^)\s#]+\.md)[^)]*\)", page.read_text()):
            goal = (page.parent / target).resolve()
            if goal not in reached and goal.exists():
                todo.append(goal)
    assert set(pages()) <= reached


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_files_named_exist(page: Path) -> None:
    known = r"(?:probe|checkpoint|reducer|tests|scripts|data|docs|pintools|examples)/"
    for name in re.findall(rf"`({known}[\w./-]*)`", page.read_text()):
        assert (ROOT / name).exists() or name in ("data/NAME", "data/code", "data/flow"), name


@cache
def literals() -> list[str]:
    """Every string in the code, implicit joins done, with … for what is filled in."""
    found = []
    for folder in ("probe", "checkpoint", "reducer"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.JoinedStr):
                    found.append("".join(str(v.value) if isinstance(v, ast.Constant) else "…" for v in node.values))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
    for path in (ROOT / "pintools" / "mpi").rglob("*.c"):
        found += re.findall(r'"([^"\n]+)"', path.read_text())
    return found


def test_quoted_messages_are_the_programs() -> None:
    quoted = re.findall(r"^### `(.+)`(?: \(\d+\))?$", text_of("docs/troubleshooting.md"), re.M)
    assert len(quoted) > 30
    for message in quoted:
        pieces = [p for p in message.removeprefix("warning: ").split("…") if len(p.strip(" :;.,()")) > 3]
        assert pieces, message
        for piece in pieces:
            assert any(piece in literal for literal in literals()), f"nobody says {piece!r} ({message})"


def test_codes_beside_messages_exist() -> None:
    codes = {int(n) for n in re.findall(r"^### .* \((\d+)\)$", text_of("docs/troubleshooting.md"), re.M)}
    kinds = [k for k in vars(errors).values() if inspect.isclass(k) and issubclass(k, errors.ProbeError)]
    assert codes <= {k.exit_code for k in kinds} and len(codes) > 10


def test_picture_shows_every_stage() -> None:
    drawing = ElementTree.fromstring(text_of("docs/pipeline.svg"))
    words = {element.text for element in drawing.iter("{http://www.w3.org/2000/svg}text")}
    head = text_of("docs/how-it-works.md").split("## ")[0]
    listed = [re.sub(r"\[(.+?)\].*", r"\1", cells[0]) for cells in rows(head)]
    assert listed == [stage.NAME for stage in (*KEPT, *ANEW) if stage is not warmup]
    assert {*listed, "restore", "predict", "FILE.probe"} <= words
