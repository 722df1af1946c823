# SPDX-License-Identifier: Apache-2.0
"""The man pages made from docs/*.md: groff takes them without a word, and nothing of the pages is lost."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import man_pages
import pytest
from documentation import commands, options

ROOT = Path(__file__).parents[2]
PAGES = man_pages.pages()


def rendered(source: str, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", "-rLL=78n", "-P-c", "-P-bou", *more],
        input=source, capture_output=True, text=True, check=True, timeout=30,
    )  # fmt: skip


def words(text: str) -> str:
    """Letters and digits alone, so that hyphenation, spaces and quotes do not matter."""
    return re.sub(r"[^A-Za-z0-9]", "", text)


def test_every_page_and_command_has_one() -> None:
    names = {f"probe {name}".strip().replace(" ", "-") + ".1" for name, _ in commands()}
    assert names <= PAGES.keys()
    assert len(PAGES.keys() - names) == len(list((ROOT / "docs").glob("*.md"))) - 1


@pytest.mark.parametrize("name", sorted(PAGES))
def test_groff_takes_it(name: str) -> None:
    done = rendered(PAGES[name])
    assert done.stderr == ""
    assert "NAME" in done.stdout and "|---" not in done.stdout and "](" not in done.stdout
    assert "`" not in done.stdout or "eval" in done.stdout or name in ("probe-troubleshooting.7",)


@pytest.mark.parametrize("name", [name for name, _ in commands()])
def test_options_are_there(name: str) -> None:
    of = dict(commands())[name]
    text = rendered(PAGES[f"probe {name}".strip().replace(" ", "-") + ".1"]).stdout
    shown = re.sub(r"[‐−]", "-", text)
    for option in options(of):
        assert isinstance(option, click.Option)
        assert all(o in shown for o in option.opts), option.opts


@pytest.mark.parametrize("page", ["limits", "security", "estimators", "ssh"])
def test_no_word_is_lost(page: str) -> None:
    text = words(rendered(PAGES[f"probe-{page}.7"], "-rHY=0").stdout)
    source = (ROOT / "docs" / f"{page}.md").read_text()
    for block in re.findall(r"```\w*\n(.*?)```", source, re.S):
        for line in block.splitlines():
            assert words(line) in text, line
    prose = re.sub(r"```.*?```", "", source, flags=re.S)
    for heading in re.findall(r"^##+ (.+)$", prose, re.M):
        assert words(heading) in text, heading
    for code in re.findall(r"`([^`\n]+)`", prose):
        assert words(code) in text, code


def test_man_finds_them_beside_the_command(tmp_path: Path) -> None:
    """As scripts/install lays them out."""
    (tmp_path / "bin").mkdir()
    subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "man_pages.py"), str(tmp_path / "share" / "man")], check=True
    )
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    done = subprocess.run(
        ["man", "--where", "probe-build"],
        capture_output=True, text=True, env={**os.environ, "PATH": path, "MANPATH": ""}, timeout=30,
    )  # fmt: skip
    assert done.stdout.strip() == str(tmp_path / "share" / "man" / "man1" / "probe-build.1"), done.stderr


def test_an_option_is_no_folder(tmp_path: Path) -> None:
    script = [Path(sys.executable).absolute(), ROOT / "scripts" / "man_pages.py", "--help"]
    done = subprocess.run(script, cwd=tmp_path, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (1, "usage: scripts/man_pages.py FOLDER\n")
    assert not list(tmp_path.iterdir())
