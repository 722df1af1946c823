# SPDX-License-Identifier: Apache-2.0
"""Seconds that probes predict, for the `probe` resource of Aspen models: given, or from the store."""

from __future__ import annotations

from collections.abc import Sequence

from checkpoint.errors import ModelInvalid, NotInStore
from probe.store.opening import open_store
from probe.store.reading import candidates, find_node, find_probe


def seconds_of_probes(given: Sequence[str], node: str, url: str | None) -> dict[str, float]:
    """Seconds by name. given: `NAME=SECONDS`, or `NAME`, whose newest prediction for the node the store has.

    Raises ModelInvalid for a value that is no time, NotInStore.
    """
    found: dict[str, float] = {}
    asked = []
    for text in given:
        name, equals, value = text.partition("=")
        if equals:
            found[name] = _seconds(name, value)
        else:
            asked.append(name)
    if asked and not node:
        raise ModelInvalid(f"--probe {asked[0]}: which node's prediction? Name it with --node, or give NAME=SECONDS")
    if asked:
        with open_store(url, create=False) as store:
            wanted = find_node(store, node)
            for name in asked:
                times = [c.seconds for c in candidates(store, find_probe(store, name)) if c.node == wanted.name]
                if not times:
                    raise NotInStore(f"{store.name}: no prediction of {name} for {wanted.name}; run the probe there")
                found[name] = times[0]
    return found


def _seconds(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e12:
        raise ModelInvalid(f"--probe {name}={text}: a number of seconds is wanted")
    return value
