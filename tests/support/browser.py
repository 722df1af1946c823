# SPDX-License-Identifier: Apache-2.0
"""A real browser without a window: what it makes of a page, what it complains about, and what it asks for."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SECONDS = 90.0
_NO_ORIGIN = "not an origin"

_OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
    "--enable-logging=stderr", "--log-level=0",
)  # fmt: skip


@dataclass(frozen=True)
class Rendered:
    """dom: the document after loading; picture: a screenshot (PNG); console: lines of scripts and of policy errors;
    requests: URLs that it asked for beside the page itself."""

    dom: str
    picture: Path
    console: list[str]
    requests: list[str]


def render(page: Path, folder: Path, *, size: tuple[int, int] = (1100, 6000)) -> Rendered:
    """Open a file in Chromium, with a profile in `folder`, and without a network: it has errands of its own. Needs
    root, and Debian's package chromium. All its processes have ended when this returns."""
    browser = shutil.which("chromium")
    assert browser, "install the package chromium"
    picture, log = folder / "page.png", folder / "net.json"
    address = page.absolute().as_uri()

    own = (f"--user-data-dir={folder / 'profile'}", f"--window-size={size[0]},{size[1]}")
    orders = (f"--screenshot={picture}", f"--log-net-log={log}", "--dump-dom")
    command = ["unshare", "--net", browser, *_OPTIONS, *own, *orders, address]
    # Some of what it keeps goes to the home folder, whatever its profile is.
    places = dict.fromkeys(("HOME", "XDG_CONFIG_HOME"), str(folder))
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS, env={**os.environ, **places}
    )
    assert done.returncode == 0, done.stderr
    # Pages of the browser itself talk, too.
    said = [line for line in done.stderr.splitlines() if "CONSOLE" in line and "source: chrome://" not in line]
    return Rendered(done.stdout, picture, said, [url for url in _requests(log) if url != address])


def _requests(log: Path) -> list[str]:
    """What documents asked for; the browser's own requests have no origin."""
    events: list[dict[str, Any]] = json.loads(log.read_text())["events"]
    asked = [event.get("params", {}) for event in events]
    return sorted({one["url"] for one in asked if one.get("initiator", _NO_ORIGIN) != _NO_ORIGIN and "url" in one})
