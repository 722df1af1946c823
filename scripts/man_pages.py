#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes man pages from docs/*.md: one for each command, from docs/cli.md, and one for each other page.

    scripts/man_pages.py FOLDER     writes FOLDER/man1/probe.1, man1/probe-build.1, ..., man7/probe-limits.7, ...

A page's text is that of the Markdown; tables become lists, since terminals are narrow. groff_man(7) has the macros.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parents[1]
_MARKDOWN = MarkdownIt("commonmark").enable("table")
_FORMATS = ("json", "node-protocol", "phase-image", "probe-format", "profile-format", "usage-format")
"""Pages of section 5, file formats; the others are of section 7."""
_AROUND = ("Environment variables", "Exit codes")
"""Sections of docs/cli.md that belong to all commands: they are in probe(1)."""


def pages(docs: Path = ROOT / "docs") -> dict[str, str]:
    """roff source of every page, by its name with section, such as `probe-build.1`."""
    made = {}
    head, sections = _split((docs / "cli.md").read_text())
    commands = {title: body for title, body in sections.items() if title not in _AROUND}
    of_all = "".join(f"## {title}\n{sections[title]}" for title in _AROUND)
    for title, body in commands.items():
        name = title.replace(" ", "-")
        text = (
            f"## DESCRIPTION\n{head}\n## OPTIONS\n{body}\n{of_all}" if title == "probe" else f"## DESCRIPTION\n{body}"
        )
        see = _beside(title, commands)
        made[f"{name}.1"] = _page(name, 1, _first_sentence(title, head), text, see)
    for path in sorted(docs.glob("*.md")):
        if path.name == "cli.md":
            continue
        name, section = _name_of(path.name)
        title, _, text = path.read_text().partition("\n")
        made[f"{name}.{section}"] = _page(name, section, title.lstrip("# "), text, ["probe(1)"])
    return made


def _split(text: str) -> tuple[str, dict[str, str]]:
    """(what stands before the first section, text of each `##` section by title), without the page's title."""
    head, *parts = re.split(r"^## (.+)\n", text.partition("\n")[2], flags=re.M)
    return head, dict(zip(parts[::2], parts[1::2], strict=True))


def _name_of(file: str) -> tuple[str, int]:
    stem = file.removesuffix(".md")
    return (stem if stem.startswith("probe-") else f"probe-{stem}"), 5 if stem in _FORMATS else 7


def _first_sentence(title: str, head: str) -> str:
    """What the table of commands says of a command."""
    if title == "probe":
        return "predict how long a program takes on another machine, from seconds of it"
    for names, what in re.findall(r"^\| ([^|]*) \| ([^|]*) \|", head, re.M):
        if f"`{title}`" in names:
            return re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", what)
    group = title.rsplit(" ", 1)[0]
    return f"part of {group.replace(' ', '-')}(1)"


def _beside(title: str, commands: dict[str, str]) -> list[str]:
    """The pages named at the end of a command's: those of its group, or of all groups."""
    group = title if any(other.startswith(f"{title} ") for other in commands) else title.rsplit(" ", 1)[0]
    near = [c for c in commands if c.rsplit(" ", 1)[0] == group or c == group]
    return [f"{c.replace(' ', '-')}(1)" for c in near if c != title]


def _page(name: str, section: int, what: str, text: str, see: Sequence[str]) -> str:
    body = "".join(_blocks(_MARKDOWN.parse(text)))
    also = ", ".join(f"\\fB{_escaped(page.split('(')[0])}\\fR({page.split('(')[1]}" for page in see)
    return (
        f'.TH "{_escaped(name.upper())}" {section} "" "probe" "probe"\n'
        f".SH NAME\n{_escaped(name)} \\- {_escaped(what)}\n{body}"
        + (f".SH SEE ALSO\n.nh\n{also}\n" if also else "")
    )  # fmt: skip


def _blocks(tokens: Sequence[Token]) -> Iterator[str]:
    """roff of block tokens, one after the other."""
    lists: list[list[int]] = []
    first = False
    heads: list[str] = []
    row: list[str] = []
    for at, token in enumerate(tokens):
        kind = token.type
        if kind == "heading_open":
            yield f".{'SH' if token.tag in ('h1', 'h2') else 'SS'} "
        elif kind == "paragraph_open":
            if not (lists and first):
                yield ".IP\n" if lists else ".PP\n"
            first = False
        elif kind == "inline" and tokens[at - 1].type in ("heading_open", "paragraph_open"):
            text = _inline(token.children or [])
            heading = tokens[at - 1].type == "heading_open"
            yield f'"{text.replace(chr(34), chr(92) + "(dq")}"\n' if heading else f"{_guarded(text)}\n"
        elif kind == "inline":
            row.append(_inline(token.children or []))
        elif kind in ("fence", "code_block"):
            yield f".PP\n.RS 4\n.nf\n{_guarded(_escaped(token.content.rstrip()))}\n.fi\n.RE\n"
        elif kind in ("bullet_list_open", "ordered_list_open"):
            if lists:
                yield ".RS 4\n"
            lists.append([0 if kind.startswith("bullet") else 1])
        elif kind in ("bullet_list_close", "ordered_list_close"):
            lists.pop()
            if lists:
                yield ".RE\n"
        elif kind == "list_item_open":
            number = lists[-1][0]
            lists[-1][0] += bool(number)
            yield f'.IP "{number}." 4\n' if number else ".IP \\(bu 2\n"
            first = True
        elif kind == "tr_close":
            if not heads:
                heads = row
            else:
                yield _row(heads, row)
            row = []
        elif kind == "table_close":
            heads = []


def _row(heads: Sequence[str], cells: Sequence[str]) -> str:
    """A row as an entry of a list: its first cell, between them what the heads name, the last one as its text."""
    head, *middle = [c for c in cells[:-1]] or [cells[0]]
    if not head and middle:
        head = " "
    names = heads[1:-1]
    more = [f"{name} {value}".strip() for name, value in zip(names, middle, strict=True) if value]
    said = f" ({', '.join(more)})" if more else ""
    text = cells[-1] if len(cells) > 1 else ""
    return f".TP\n{_guarded(head + said)}\n{_guarded(text) or chr(92) + '&'}\n"


def _inline(tokens: Sequence[Token]) -> str:
    out, goal = [], ""
    for token in tokens:
        if token.type == "text":
            out.append(_escaped(token.content))
        elif token.type == "code_inline":
            out.append(f"\\fB{_escaped(token.content)}\\fR")
        elif token.type in ("strong_open", "em_open"):
            out.append("\\fB" if token.type[0] == "s" else "\\fI")
        elif token.type in ("strong_close", "em_close"):
            out.append("\\fR")
        elif token.type in ("softbreak", "hardbreak"):
            out.append(" ")
        elif token.type == "link_open":
            goal = str(token.attrs["href"])
        elif token.type == "link_close":
            out.append(_reference(goal))
        elif token.type == "image":
            out.append(f"[{_escaped(token.content)}]")
    return "".join(out)


def _reference(goal: str) -> str:
    """What stands behind the text of a link."""
    if "://" in goal:
        return f" <{_escaped(goal)}>"
    file, _, anchor = goal.partition("#")
    if file == "cli.md":
        page = f"{anchor}(1)" if anchor.startswith("probe") else "probe(1)"
    elif file.endswith(".md") and "/" not in file:
        page = "{}({})".format(*_name_of(file))
    else:
        return ""
    return f" [{_escaped(page)}]"


def _escaped(text: str) -> str:
    named = text.replace("\\", "\\e").replace("-", "\\-").replace("^", "\\(ha").replace("~", "\\(ti")
    plain = named.replace("'", "\\(aq").replace("`", "\\(ga")
    return "".join(c if ord(c) < 128 else f"\\[u{ord(c):04X}]" for c in plain)


def _guarded(text: str) -> str:
    """Lines of text, none of which roff takes for a request."""
    return "\n".join(f"\\&{line}" if line.startswith((".", "'")) else line for line in text.splitlines())


def main() -> None:
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit("usage: scripts/man_pages.py FOLDER")
    for name, text in pages().items():
        path = Path(sys.argv[1]) / f"man{name[-1]}" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
