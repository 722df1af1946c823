# SPDX-License-Identifier: Apache-2.0
"""Descriptions of applications: kernels, where their parameters stand, their work, how they are composed (TOML)."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import tomli

from checkpoint.errors import ProbeError
from checkpoint.foreign_file import finite, read_foreign
from probe.applications.composition import SEQUENCE, Composed, parse_composition
from probe.applications.expression import Expression, parse_expression

_MOST_BYTES = 1 << 20
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_APPLICATION_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")
DEFAULT_LAUNCH: Final = "mpirun -n {ranks}"
DISTINCT, SHARED = "distinct", "shared"
PLACES: Final = ("regex", "json", "xml", "argv")
"""Ways to read a parameter: three from a file, the last from the kernel's command."""

_OWN_PLACEHOLDERS = ("input", "cores", "ranks", "threads")


@dataclass(frozen=True)
class Rule:
    """Where a parameter stands. `place`: one of PLACES, or "" for the number `value`; `file`: "" for the command."""

    place: str
    where: str | int = ""
    file: str = ""
    value: float = 0.0


@dataclass(frozen=True)
class Kernel:
    """A program of the application. `files`: hashed into its configuration. `probe`: its probe in the store, or ""."""

    name: str
    command: str
    input: str
    files: tuple[str, ...]
    parameters: Mapping[str, Rule]
    work: Expression
    launch: str
    threads: int
    probe: str

    @property
    def known_mpi(self) -> float | None:
        """Seconds in MPI that are known without measuring: none, where nothing is launched in parallel."""
        return None if self.launch else 0.0

    def words(self, given: Mapping[str, float], ranks: int) -> list[str]:
        """The command line for these parameters on `ranks` ranks. Raises ProbeError for an unknown placeholder."""
        known: dict[str, str] = {name: f"{value:.17g}" for name, value in given.items()}
        known |= {"input": self.input, "ranks": str(ranks), "threads": str(self.threads)}
        known["cores"] = str(ranks * self.threads)
        launch = shlex.split(self.launch) if self.launch else []
        return [_filled(word, known, self.name) for word in [*launch, *shlex.split(self.command)]]


@dataclass(frozen=True)
class Application:
    """A described application. `folder`: where its relative paths begin. `nodes`: DISTINCT or SHARED by parallel
    kernels, whose energy is summed, or is the largest."""

    name: str
    path: Path
    kernels: Mapping[str, Kernel]
    graph: Composed
    nodes: str

    @property
    def folder(self) -> Path:
        return self.path.absolute().parent

    def kernel(self, name: str) -> Kernel:
        """Raises ProbeError."""
        if name not in self.kernels:
            raise ProbeError(f"{self.path}: no kernel {name!r}; there are {', '.join(self.kernels)}")
        return self.kernels[name]


def read_application(path: Path) -> Application:
    """Read a description. Raises ProbeError for what is none, with the key; StorageError."""
    try:
        said = tomli.loads(read_foreign(path, _MOST_BYTES).decode("utf-8"))
    except (tomli.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProbeError(f"{path}: not TOML ({error}); see docs/scaling.md for a description") from error
    try:
        return _application(path, said)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProbeError(f"{path}: {error}; see docs/scaling.md for a description") from error
    except ProbeError as error:
        raise type(error)(f"{path}: {error}") from error


def _application(path: Path, said: Mapping[str, Any]) -> Application:
    _known(said, ("name", "launch", "kernel", "compose"), "the description")
    name = str(said.get("name", path.stem))
    if not _APPLICATION_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of an application")
    launch = _text(said.get("launch", DEFAULT_LAUNCH), "launch")
    tables = said.get("kernel", {})
    if not isinstance(tables, dict) or not tables:
        raise ValueError("there is no [kernel.NAME]")
    kernels = {str(kernel): _kernel(str(kernel), table, launch) for kernel, table in tables.items()}
    compose = said.get("compose", {})
    _known(compose, ("graph", "nodes"), "[compose]")
    nodes = compose.get("nodes", DISTINCT)
    if nodes not in (DISTINCT, SHARED):
        raise ValueError(f"nodes = {nodes!r} is neither {DISTINCT!r} nor {SHARED!r}")
    text = _text(compose.get("graph", f"{SEQUENCE}({', '.join(kernels)})"), "graph")
    graph = parse_composition(text, kernels)
    declared = {parameter for kernel in kernels.values() for parameter in kernel.parameters}
    if unknown := sorted(set(graph.parameters()) - declared):
        raise ValueError(f"graph {text!r}: {unknown[0]!r} is neither a kernel nor a parameter of one")
    return Application(name, path, kernels, graph, nodes)


def _kernel(name: str, table: Mapping[str, Any], launch: str) -> Kernel:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a kernel: letters, digits and _")
    where = f"[kernel.{name}]"
    _known(table, ("command", "input", "hash", "parameters", "work", "launch", "threads", "probe"), where)
    threads = table.get("threads", 1)
    if type(threads) is not int or not 1 <= threads <= 4096:
        raise ValueError(f"{where}: threads = {threads!r} is no number of threads")
    rules = {str(key): _rule(f"{where} parameter {key!r}", rule) for key, rule in table.get("parameters", {}).items()}
    for key in rules:
        if not _NAME.fullmatch(key) or key in _OWN_PLACEHOLDERS:
            raise ValueError(f"{where}: {key!r} is no name of a parameter")
    if "work" not in table:
        raise ValueError(f"{where}: work is missing; it is an expression such as 'nx*ny*steps'")
    work = parse_expression(_text(table["work"], f"{where} work"))
    if lacking := sorted(set(work.names) - rules.keys()):
        raise ValueError(f"{where}: work names {lacking[0]!r}, which is no parameter")
    kernel = Kernel(
        name=name,
        command=_text(table["command"], f"{where} command") if "command" in table else "",
        input=_text(table.get("input", ""), f"{where} input"),
        files=tuple(_text(file, f"{where} hash") for file in _listed(table.get("hash", []), where)),
        parameters=rules,
        work=work,
        launch=_text(table.get("launch", launch), f"{where} launch"),
        threads=threads,
        probe=_text(table.get("probe", ""), f"{where} probe"),
    )
    kernel.words(dict.fromkeys(rules, 1.0), 1)
    return kernel


def _rule(where: str, rule: Any) -> Rule:
    if isinstance(rule, (int, float)) and not isinstance(rule, bool):
        return Rule("", value=finite(rule))
    if not isinstance(rule, dict):
        raise ValueError(f"{where}: neither a number nor a rule such as {{ file = \"a.in\", regex = 'n=(\\d+)' }}")
    _known(rule, ("file", *PLACES), where)
    places = [place for place in PLACES if place in rule]
    if len(places) != 1:
        raise ValueError(f"{where}: give one of {', '.join(PLACES)}")
    place = places[0]
    if (place == "argv") == ("file" in rule):
        raise ValueError(f"{where}: {'argv reads no file' if place == 'argv' else 'file is missing'}")
    if place == "argv" and type(rule[place]) is int:
        if rule[place] < 1:
            raise ValueError(f"{where}: argv counts from 1, the first word behind the program")
        return Rule(place, rule[place])
    return Rule(place, _text(rule[place], where), _text(rule.get("file", ""), where))


def _filled(word: str, known: Mapping[str, str], kernel: str) -> str:
    def value(found: re.Match[str]) -> str:
        if found[1] not in known:
            raise ProbeError(f"[kernel.{kernel}] command: {{{found[1]}}} is no parameter, nor {_OWN_PLACEHOLDERS}")
        return known[found[1]]

    return re.sub(r"\{(\w+)\}", value, word)


def _known(table: Any, keys: Collection[str], where: str) -> None:
    if not isinstance(table, dict):
        raise ValueError(f"{where} is no table")
    if unknown := sorted(set(table) - set(keys)):
        raise ValueError(f"{where}: unknown key {unknown[0]!r}; there are {', '.join(keys)}")


def _listed(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{where}: hash is a list of files")
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise ValueError(f"{where}: {str(value)[:40]!r} is no text")
    return value
