# SPDX-License-Identifier: Apache-2.0
"""Manifests of later versions can be read, and those of which something is missing are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from made_probe import made_manifest

from checkpoint.errors import ProbeFileDamaged
from probe.formats.manifest import Manifest


def said(**more: Any) -> dict[str, Any]:
    """What a file says of a manifest with everything in it that can be."""
    manifest, _ = made_manifest(2, 9, **more)
    value: dict[str, Any] = json.loads(json.dumps(manifest.to_json()))
    value["private_files"] = [{"phase": 0, "path": "/a", "sha256": "0" * 64, "mode": 0o600}]
    value["external_files"] = [{"path": "/b", "sha256": "1" * 64, "size": 2, "mode": 0o644}]
    value["warmup_trials"] = [{"warmup": 1, "relative": 1.0, "error": 0.01, "against_run": 1.0}]
    return value


def test_what_later_versions_add_is_ignored() -> None:
    value = said()
    known = Manifest.from_json(value)
    for place in (value, *value["phases"], *value["private_files"], *value["external_files"], *value["warmup_trials"]):
        place["said_by_a_later_version"] = {"anything": [1]}
    assert Manifest.from_json(value) == known


@pytest.mark.parametrize("missing", ["argv", "phases", "reference", "total_work"])
def test_what_is_missing_is_named(missing: str) -> None:
    value = said()
    del value[missing]
    with pytest.raises(ProbeFileDamaged, match=missing):
        Manifest.from_json(value)


def test_another_version_is_named() -> None:
    with pytest.raises(ProbeFileDamaged, match="version 999"):
        Manifest.from_json({**said(), "manifest_version": 999})
