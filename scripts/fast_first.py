# SPDX-License-Identifier: Apache-2.0
"""pytest plugin of scripts/test: fast tests run first, so that a simple mistake shows within seconds."""

from __future__ import annotations

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)
