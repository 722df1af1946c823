# SPDX-License-Identifier: Apache-2.0
"""Parameters and configurations of kernels, read from their input files and commands."""

from __future__ import annotations

import hashlib
import math
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.parsers import expat

from checkpoint import strict_json
from checkpoint.errors import ProbeError
from checkpoint.foreign_file import read_foreign
from probe.applications.application import Application, Kernel, Rule

REGEX_SECONDS = 5.0
"""For all regular expressions of a kernel: some never end."""

_MOST_BYTES = 16 << 20
_SEARCH = """
import json, re, sys
found = []
for pattern, text in json.load(sys.stdin):
    try:
        compiled = re.compile(pattern, re.MULTILINE)
        match = compiled.search(text) if compiled.groups == 1 else None
        found.append(["groups", ""] if compiled.groups != 1 else ["value", match[1]] if match else ["none", ""])
    except (re.error, OverflowError, RecursionError) as error:
        found.append(["error", str(error)])
json.dump(found, sys.stdout)
"""


@dataclass(frozen=True)
class Configuration:
    """What one run of a kernel computes. `hash`: SHA-256 of its files. `parameters` by name. `work`: above 0."""

    hash: str
    parameters: dict[str, float]
    work: float


def configuration(application: Application, kernel: Kernel, given: Mapping[str, float] | None = None) -> Configuration:
    """Read the kernel's parameters; `given` goes before what files say, and needs no file.

    Raises ProbeError for a parameter that is not there or no number, StorageError for a file that cannot be read.
    """
    unknown = sorted(set(given or {}) - kernel.parameters.keys())
    if unknown:
        there = ", ".join(kernel.parameters) or "none"
        raise ProbeError(f"{kernel.name}: no parameter {unknown[0]!r}; there are {there}")
    wanted = {name: rule for name, rule in kernel.parameters.items() if name not in (given or {})}
    found = {**_read(application.folder, kernel, wanted), **(given or {})}
    parameters = {name: found[name] for name in kernel.parameters}
    return Configuration(_hash(application.folder, kernel), parameters, kernel.work.positive(parameters))


def _hash(folder: Path, kernel: Kernel) -> str:
    whole = hashlib.sha256()
    for file in kernel.files:
        data = read_foreign(folder / file, _MOST_BYTES)
        whole.update(f"{len(file.encode())}:{len(data)}:".encode() + file.encode() + data)
    return whole.hexdigest()


def _read(folder: Path, kernel: Kernel, rules: Mapping[str, Rule]) -> dict[str, float]:
    texts = {file: _contents(folder / file) for file in sorted({rule.file for rule in rules.values() if rule.file})}
    patterns = {name: rule for name, rule in rules.items() if rule.place == "regex"}
    said = dict(zip(patterns, _search([(str(r.where), texts[r.file]) for r in patterns.values()]), strict=True))
    found: dict[str, float] = {}
    for name, rule in rules.items():
        where = f"{kernel.name}: parameter {name!r}"
        if not rule.place:
            found[name] = rule.value
            continue
        try:
            if rule.place == "regex":
                raw: Any = _matched(said[name], str(rule.where))
            elif rule.place == "argv":
                raw = _argument(kernel, rule.where)
            else:
                read = _in_json if rule.place == "json" else _in_xml
                raw = read(texts[rule.file], str(rule.where))
            found[name] = _number(raw)
        except ValueError as error:
            source = f" in {folder / rule.file}" if rule.file else ""
            raise ProbeError(f"{where}{source}: {error}") from error
    return found


def _contents(path: Path) -> str:
    try:
        return read_foreign(path, _MOST_BYTES).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ProbeError(f"{path}: not text in UTF-8; parameters are read from text") from error


def _search(requests: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The first match of each pattern, searched in a process that can be ended."""
    if not requests:
        return []
    command = [sys.executable, "-I", "-S", "-c", _SEARCH]
    given = strict_json.dumps(list(requests))
    try:
        done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=REGEX_SECONDS, check=True)
    except subprocess.TimeoutExpired as error:
        patterns = ", ".join(sorted({pattern for pattern, _ in requests}))
        raise ProbeError(
            f"regular expressions took longer than {REGEX_SECONDS:g} s: {patterns}; one of them backtracks without "
            "end: avoid repetitions inside repetitions, such as (a+)+"
        ) from error
    except subprocess.CalledProcessError as error:
        raise ProbeError(f"regular expressions could not be searched: {error.stderr.strip()[-200:]}") from error
    return [(kind, value) for kind, value in strict_json.loads(done.stdout)]


def _matched(said: tuple[str, str], pattern: str) -> str:
    kind, value = said
    if kind == "value" and value is not None:
        return value
    reasons = {"none": "matches nothing", "groups": "needs one group, (...), around the number", "value": "is optional"}
    raise ValueError(f"regex {pattern!r} {reasons.get(kind, value)}")


def _argument(kernel: Kernel, where: str | int) -> str:
    words = shlex.split(kernel.command)
    if isinstance(where, int):
        if where >= len(words):
            raise ValueError(f"the command has no word {where}")
        return words[where]
    for position, word in enumerate(words):
        if word == where and position + 1 < len(words):
            return words[position + 1]
        if word.startswith(f"{where}="):
            return word.partition("=")[2]
    raise ValueError(f"the command has no {where}")


def _in_json(text: str, path: str) -> Any:
    value = strict_json.loads(text)
    for part in path.split("."):
        if isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        elif isinstance(value, dict) and part in value:
            value = value[part]
        else:
            raise ValueError(f"there is no {path!r}")
    return value


def _in_xml(text: str, path: str) -> Any:
    where, _, attribute = path.partition("@")
    try:
        root = _tree(text)
        element = root if where in ("", ".") else root.find(where)
    except (expat.ExpatError, SyntaxError, KeyError) as error:
        raise ValueError(f"no XML, or no path: {error}") from error
    found = None if element is None else element.get(attribute) if attribute else element.text
    if found is None:
        raise ValueError(f"there is no {path!r}")
    return found


def _tree(text: str) -> ElementTree.Element:
    """The document, without a document type: there entities are declared, which can fill the memory or name files."""
    builder = ElementTree.TreeBuilder()
    parser = expat.ParserCreate()

    def refuse(*_: Any) -> None:
        raise ValueError("it has a document type (<!DOCTYPE), where entities are declared; remove it")

    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    parser.StartElementHandler = lambda name, attributes: builder.start(name, attributes)
    parser.EndElementHandler = lambda name: builder.end(name)
    parser.CharacterDataHandler = builder.data
    parser.Parse(text.encode(), True)
    return builder.close()


def _number(raw: Any) -> float:
    try:
        value = float(raw) if isinstance(raw, (str, int, float)) and not isinstance(raw, bool) else math.nan
    except (ValueError, OverflowError):
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{str(raw)[:40]!r} is no number")
    return value
