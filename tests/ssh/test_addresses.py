# SPDX-License-Identifier: Apache-2.0
"""Addresses of nodes, and files of them: read as users write them, or refused by name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint.errors import ProbeError, StorageError
from probe.ssh.addresses import MAX_HOSTS_BYTES, Address, parse_address, read_hosts


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("node1", ("node1", None, None)),
        (" node1 ", ("node1", None, None)),
        ("user@node2:2222", ("node2", "user", 2222)),
        ("first.last@site@login.example.org", ("login.example.org", "first.last@site", None)),
        ("10.0.0.1:1", ("10.0.0.1", None, 1)),
        ("[::1]:65535", ("::1", None, 65535)),
        ("user@[fe80::1]:22", ("fe80::1", "user", 22)),
        ("[fe80::1%eth0]", ("fe80::1%eth0", None, None)),
    ],
)
def test_addresses(text: str, parts: tuple[str, str | None, int | None]) -> None:
    assert parse_address(text) == Address(text.strip(), *parts)


@pytest.mark.parametrize(
    "text",
    ["", "@", "@node", "user@", "node:", "node:0", "node:65536", "node:-1", "node:2a", "node:٢", "::1", "fe80::1:22",
     "[::1", "[node]:22", "[]", "[::1]22", "-oProxyCommand=x", "-l@node", "a b", "node/x", "no;de", "$(x)@node",
     "user@node@", "node\x1b[2J", "x" * 300],
)  # fmt: skip
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ProbeError) as caught:
        parse_address(text)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 300


@given(st.text(max_size=40))
def test_any_text_is_an_address_or_refused(text: str) -> None:
    try:
        address = parse_address(text)
    except ProbeError:
        return
    assert address.text == text.strip() and address.host in text
    # Nothing that a shell or a terminal would act on, nor an option.
    for name in (address.host, address.user or "x"):
        assert not name.startswith("-") and not set(name) & set(" \t\n\"'`$;&|<>(){}\\\x1b")


def test_files_of_nodes(tmp_path: Path) -> None:
    path = tmp_path / "nodes"
    path.write_text(
        "# all\n\nnode1\n  user@node2:2222   # slow\nnode3, node4,[::1]:22\r\nnode#5x\n".replace("node#5x", "n5")
    )
    groups = read_hosts(path)
    assert [[a.text for a in group] for group in groups] == [
        ["node1"], ["user@node2:2222"], ["node3", "node4", "[::1]:22"], ["n5"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("node1\nnode 2\n", "line 2"),
        ("node1,\n", "line 1"),
        ("node1\n\nnode2,node1\n", "line 3: node1 is listed already (line 1)"),
        ("node1,node1\n", "listed already"),
        ("# nothing\n", "names no node"),
        ("\0\xff\n", "line 1"),
        ("n\n" * MAX_HOSTS_BYTES, "larger than"),
    ],
)
def test_files_of_nodes_refused(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "nodes"
    path.write_text(content)
    with pytest.raises(ProbeError, match=re.escape(str(path))) as caught:
        read_hosts(path)
    assert said in str(caught.value)


def test_a_missing_file_of_nodes(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be read"):
        read_hosts(tmp_path / "none")
