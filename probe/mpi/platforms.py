# SPDX-License-Identifier: Apache-2.0
"""Hosts of SimGrid platforms that users bring, and the ranks on them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from checkpoint.errors import ModelInvalid
from checkpoint.foreign_file import read_foreign

_MOST_HOSTS = 4_000_000
_MEASURED = (
    "smpi/lat-factor", "smpi/bw-factor", "smpi/os", "smpi/ois", "smpi/or", "smpi/async-small-thresh",
    "smpi/send-is-detached-thresh",
)  # fmt: skip
_EAGER = "smpi/async-small-thresh"
BEGUN, REDUCED = "probe-begun", "probe-reduced"
"""Properties of a zone, as `smpi/or`: from so many bytes on, so many seconds and so many for each byte, to begin a
receive, and to compute in a reduction."""
_RATES = ("bandwidth", "bw", "speed")
_LATENCY = re.compile(r"\b((?:latency|(?:bb_)?lat)\s*=\s*[\"'])([0-9.]+(?:[eE][+-]?[0-9]+)?)")
_BANDWIDTH = re.compile(r"\b((?:bandwidth|(?:bb_)?bw)\s*=\s*[\"'])([0-9.]+(?:[eE][+-]?[0-9]+)?)")
"""Attributes of links and clusters in the text of a platform; a unit may follow. Not of loopbacks, which are memory."""


def hosts_of(platform: Path) -> list[str]:
    """Names of the hosts that a platform file describes, in its order.

    Raises ModelInvalid: no XML, entities, no platform, a link or host of no speed, no hosts. Raises StorageError.
    """
    data = read_foreign(platform)
    if b"<!ENTITY" in data:
        raise ModelInvalid(f"{platform}: defines XML entities, which no platform needs")
    try:
        root = ElementTree.fromstring(data)
    except ElementTree.ParseError as error:
        raise ModelInvalid(f"{platform}: is not XML ({error})") from error
    if root.tag != "platform":
        raise ModelInvalid(f"{platform}: is <{root.tag}>, not a <platform> of SimGrid")
    found: list[str] = []
    for one in root.iter():
        for name in _RATES:
            if re.fullmatch(r"0*\.?0*[A-Za-z]*", one.get(name, "1")):
                raise ModelInvalid(f'{platform}: <{one.tag} {name}="{one.get(name)}">: nothing would ever arrive')
        if one.tag == "host":
            found.append(one.get("id", ""))
        elif one.tag == "cluster":
            found += _cluster(platform, one)
        if len(found) > _MOST_HOSTS:
            raise ModelInvalid(f"{platform}: has more than {_MOST_HOSTS} hosts")
    if not found:
        raise ModelInvalid(f"{platform}: has no hosts")
    return found


def settings_of(platform: Path) -> list[str]:
    """Options of `smpirun` for what the file says of messages by their size (`<config>`): factors, overheads, limits.

    Raises ModelInvalid: a value that is no numbers. Other settings are SimGrid's own matter.
    """
    found = []
    for one in ElementTree.fromstring(read_foreign(platform)).iterfind("config/prop"):
        name, value = one.get("id", ""), one.get("value", "")
        if name in _MEASURED:
            if not re.fullmatch(r"[0-9.eE+:;-]+", value):
                raise ModelInvalid(f"{platform}: {name} is {value[:40]!r}, which are no numbers")
            found.append(f"--cfg={name}:{value}")
    return found


def costs_of(platform: Path) -> bytes:
    """What the player reads as `costs`: the eager limit, two counts and their lines (`Line` in player.c), all doubles.

    Raises ModelInvalid: a value that is no lines.
    """
    tables: dict[str, list[tuple[float, float, float]]] = {BEGUN: [], REDUCED: []}
    eager = 0.0
    for one in ElementTree.fromstring(read_foreign(platform)).iter("prop"):
        name, value = one.get("id", ""), one.get("value", "")
        if name in tables:
            tables[name] = _lines(platform, name, value)
        elif name == _EAGER and re.fullmatch(r"[0-9]{1,18}", value):
            eager = float(value)
    numbers = [eager, *(float(len(lines)) for lines in tables.values())]
    numbers += [number for lines in tables.values() for line in lines for number in line]
    return np.array(numbers, dtype="<f8").tobytes()


def _lines(platform: Path, name: str, value: str) -> list[tuple[float, float, float]]:
    found = []
    for piece in value.split(";"):
        words = piece.split(":")
        if len(words) != 3 or not all(
            re.fullmatch(r"[0-9]{1,18}(\.[0-9]{1,18})?(e[+-]?[0-9]{1,2})?", w) for w in words
        ):
            raise ModelInvalid(f"{platform}: {name} has {piece[:40]!r}, where BYTES:SECONDS:SECONDS is wanted")
        found.append((float(words[0]), float(words[1]), float(words[2])))
    if found != sorted(found, key=lambda line: line[0]):
        raise ModelInvalid(f"{platform}: {name} must have its sizes in ascending order")
    return found


def with_other_links(text: str, times_latency: float, times_bandwidth: float) -> str:
    """The text of a platform, with latencies and bandwidths of all its links so many times theirs."""
    for pattern, times in ((_LATENCY, times_latency), (_BANDWIDTH, times_bandwidth)):
        if times != 1:
            pieces = pattern.split(text)
            pieces[2::3] = [f"{float(number) * times:.12g}" for number in pieces[2::3]]
            text = "".join(pieces)
    return text


def _cluster(platform: Path, cluster: ElementTree.Element) -> list[str]:
    found = []
    for part in cluster.get("radical", "").split(","):
        numbers = re.fullmatch(r"\s*(\d{1,9})(?:-(\d{1,9}))?\s*", part)
        if numbers is None:
            raise ModelInvalid(f'{platform}: a cluster with radical="{cluster.get("radical", "")[:40]}"')
        first, last = int(numbers[1]), int(numbers[2] or numbers[1])
        if last - first > _MOST_HOSTS:
            raise ModelInvalid(f"{platform}: has more than {_MOST_HOSTS} hosts")
        found += [f"{cluster.get('prefix', '')}{n}{cluster.get('suffix', '')}" for n in range(first, last + 1)]
    return found


def placed(hosts: Sequence[str], ranks: int, per_node: int, mapping: str) -> list[str]:
    """The host of each rank. mapping: `block`, neighbours on one node, or `cyclic`, from node to node.

    Raises ModelInvalid where the hosts are too few.
    """
    nodes = -(-ranks // per_node)
    if nodes > len(hosts):
        raise ModelInvalid(f"the platform has {len(hosts)} hosts, too few for {ranks} ranks at {per_node} a node")
    return [hosts[rank // per_node if mapping == "block" else rank % nodes] for rank in range(ranks)]
