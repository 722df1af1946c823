# SPDX-License-Identifier: Apache-2.0
"""Descriptions of applications and the inputs they name: read, and refused with file and key where they are wrong."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from published import schema_errors

from checkpoint.errors import ProbeError, StorageError
from probe.applications import inputs
from probe.applications.application import read_application
from probe.applications.composition import parse_composition
from probe.applications.inputs import configuration
from probe.cli.main import cli

FUSION = r"""
name = "fusion"
[kernel.gem]
command = "gem --nx {nx00} --depth=4 {input}"
input = "gem.in"
hash = ["gem.in", "grid.json"]
work = "ns00*nx00*ny00*depth*(its_stop-its_start+1)"
[kernel.gem.parameters]
ns00 = { file = "gem.in", regex = 'ns00\s*=\s*(\d+)' }
nx00 = { file = "grid.json", json = "grid.0.nx" }
ny00 = { file = "mesh.xml", xml = "size@ny" }
its_start = { file = "mesh.xml", xml = "start" }
its_stop = 3
depth = { argv = "--depth" }
[kernel.ets]
command = "ets 12"
parameters = { n = { argv = 1 } }
work = "n"
[compose]
graph = "loop(ets, gem)"
nodes = "shared"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "fusion.toml").write_text(FUSION)
    (tmp_path / "gem.in").write_text("! sizes\nns00 = 32\n")
    (tmp_path / "grid.json").write_text('{"grid": [{"nx": 128}]}')
    (tmp_path / "mesh.xml").write_text("<mesh><size ny='64'/><start>0</start></mesh>")
    return tmp_path


def test_parameters_are_read_from_every_kind_of_place(folder: Path) -> None:
    application = read_application(folder / "fusion.toml")
    found = configuration(application, application.kernels["gem"])
    assert found.parameters == {"ns00": 32, "nx00": 128, "ny00": 64, "its_start": 0, "its_stop": 3, "depth": 4}
    assert found.work == 32 * 128 * 64 * 4 * 4
    assert configuration(application, application.kernels["ets"]).work == 12
    assert application.nodes == "shared" and str(application.graph) == "loop(ets, gem)"
    words = application.kernels["gem"].words(found.parameters, 6)
    assert words == ["mpirun", "-n", "6", "gem", "--nx", "128", "--depth=4", "gem.in"]


def test_a_configuration_is_its_files(folder: Path) -> None:
    """Equal parameters in other files are another configuration; a setting changes the work alone."""
    application = read_application(folder / "fusion.toml")
    gem = application.kernels["gem"]
    before = configuration(application, gem)
    more = configuration(application, gem, {"its_stop": 7})
    assert (more.hash, more.work) == (before.hash, 2 * before.work)
    (folder / "gem.in").write_text("! other words\nns00 = 32\n")
    after = configuration(application, gem)
    assert after.hash != before.hash and after.parameters == before.parameters


def test_a_given_parameter_needs_no_file(folder: Path) -> None:
    (folder / "mesh.xml").unlink()
    application = read_application(folder / "fusion.toml")
    gem = application.kernels["gem"]
    with pytest.raises(StorageError, match=r"mesh\.xml"):
        configuration(application, gem)
    assert configuration(application, gem, {"ny00": 8, "its_start": 0}).parameters["ny00"] == 8
    with pytest.raises(ProbeError, match="no parameter 'nz'"):
        configuration(application, gem, {"nz": 8})


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("gem.in", "nothing", "regex .* matches nothing"),
        ("gem.in", "ns00 = 0", "work must be above 0"),
        ("grid.json", '{"grid": []}', "there is no 'grid.0.nx'"),
        ("grid.json", '{"grid": [{"nx": NaN}]}', "NaN is no number"),
        ("grid.json", '{"grid": [{"nx": "many"}]}', "'many' is no number"),
        ("grid.json", '{"grid": [{"nx": true}]}', "'True' is no number"),
        ("grid.json", "{", "Expecting"),
        ("mesh.xml", "<mesh><start>0</start></mesh>", "there is no 'size@ny'"),
        ("mesh.xml", "<mesh>", "no XML"),
    ],
)
def test_inputs_that_say_nothing(folder: Path, file: str, text: str, said: str) -> None:
    (folder / file).write_text(text)
    application = read_application(folder / "fusion.toml")
    with pytest.raises(ProbeError, match=said):
        configuration(application, application.kernels["gem"])


LAUGHS = "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 10))


@pytest.mark.parametrize(
    "kind",
    [f'<!DOCTYPE mesh [<!ENTITY a0 "ha">{LAUGHS}]>', '<!DOCTYPE mesh [<!ENTITY a9 SYSTEM "/etc/passwd">]>',
     '<!DOCTYPE mesh SYSTEM "mesh.dtd">'],
    ids=["laughs", "file", "dtd"],
)  # fmt: skip
def test_xml_with_entities_is_refused(folder: Path, kind: str) -> None:
    (folder / "mesh.xml").write_text(f"<?xml version='1.0'?>{kind}<mesh><size ny='64'/><start>&a9;</start></mesh>")
    application = read_application(folder / "fusion.toml")
    with pytest.raises(ProbeError, match="document type"):
        configuration(application, application.kernels["gem"])


def test_a_regular_expression_without_end_is_ended(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "REGEX_SECONDS", 0.5)
    (folder / "gem.in").write_text("a" * 64 + "!")
    text = FUSION.replace(r"ns00\s*=\s*(\d+)", "(?:a+)+$(b)")
    (folder / "fusion.toml").write_text(text)
    application = read_application(folder / "fusion.toml")
    begun = time.monotonic()
    with pytest.raises(ProbeError, match="backtracks without end"):
        configuration(application, application.kernels["gem"])
    assert time.monotonic() - begun < 10


@pytest.mark.parametrize(
    ("pattern", "said"), [("ns00", "needs one group"), ("(", "unterminated"), ("(ns)(00)", "needs one group"),
                          ("ns00(x)?", "is optional")],
)  # fmt: skip
def test_regular_expressions_that_are_none(folder: Path, pattern: str, said: str) -> None:
    (folder / "fusion.toml").write_text(FUSION.replace(r"ns00\s*=\s*(\d+)", pattern))
    application = read_application(folder / "fusion.toml")
    with pytest.raises(ProbeError, match=said):
        configuration(application, application.kernels["gem"])


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('name = "fusion"', "name = ", "not TOML"),
        ('name = "fusion"', 'name = "fusion"\nnmae = 1', "unknown key 'nmae'"),
        ("[kernel.ets]", '[kernel."e-s"]', "no name of a kernel"),
        ('work = "n"', 'work = "n.real"', "no arithmetic"),
        ('work = "n"', 'work = "m"', "work names 'm'"),
        ('work = "n"', "", "work is missing"),
        ('work = "n"', "work = 3", "no text"),
        ("{nx00}", "{nz}", r"\{nz\} is no parameter"),
        ('xml = "start"', 'xlm = "start"', "unknown key 'xlm'"),
        ('xml = "start"', 'xml = "start", regex = "x"', "give one of"),
        ("its_stop = 3", "its_stop = true", "neither a number nor a rule"),
        ("its_stop = 3", "its_stop = inf", "is no number"),
        ("argv = 1 ", "argv = 0 ", "argv counts from 1"),
        ('{ argv = "--depth" }', '{ file = "a", argv = "--depth" }', "argv reads no file"),
        ("loop(ets, gem)", "loop(ets, gme)", "there is no kernel 'gme'"),
        ("loop(ets, gem)", "loop(steps, ets, gem)", "neither a kernel nor a parameter"),
        ("loop(ets, gem)", "ets; gem", "cannot be read"),
        ("loop(ets, gem)", "loop(ets, ets)", "twice"),
        ("loop(ets, gem)", "farm(ets)", "farm needs a number first"),
        ("loop(ets, gem)", "loop(0, ets, gem)", "no number of repetitions"),
        ("loop(ets, gem)", "sum(ets, gem)", "neither a kernel nor"),
        ('nodes = "shared"', 'nodes = "some"', "neither 'distinct' nor 'shared'"),
    ],
)
def test_descriptions_that_are_none(folder: Path, old: str, new: str, said: str) -> None:
    assert old in FUSION
    (folder / "fusion.toml").write_text(FUSION.replace(old, new, 1))
    with pytest.raises(ProbeError, match=said) as refused:
        read_application(folder / "fusion.toml")
    assert "fusion.toml" in str(refused.value)


def test_compositions() -> None:
    found = parse_composition("loop(9, macro, par(a, b), farm(n, micro))", ["macro", "a", "b", "micro"])
    assert str(found) == "loop(9, macro, par(a, b), farm(n, micro))"
    assert list(found.kernels()) == ["macro", "a", "b", "micro"] and list(found.parameters()) == ["n"]
    assert found.times({}) == 9 and found.parts[2].times({"n": 4}) == 4
    for wrong in ({}, {"n": 0}, {"n": 1.5}):
        with pytest.raises(ProbeError, match="no number of times"):
            found.parts[2].times(wrong)


def test_app_check_prints_them(folder: Path) -> None:
    done = CliRunner().invoke(cli, ["app", "check", str(folder / "fusion.toml"), "--set", "its_stop=7", "--json"])
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert schema_errors("probe-app-check", said) == []
    gem = said["kernels"][0]
    assert gem["work"] == 32 * 128 * 64 * 4 * 8 and gem["factor"] == pytest.approx(1 / gem["work"])
    plain = CliRunner().invoke(cli, ["app", "check", str(folder / "fusion.toml")])
    assert "fusion: loop(ets, gem), nodes shared" in plain.stdout and "its_stop = 3" in plain.stdout
    wrong = CliRunner().invoke(cli, ["app", "check", str(folder / "fusion.toml"), "--set", "steps=7"])
    assert wrong.exit_code == 2 and "no kernel has such a parameter" in wrong.output
