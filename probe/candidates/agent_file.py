# SPDX-License-Identifier: Apache-2.0
"""The node agent as one file: an archive that Python runs, made from this program's own modules."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from checkpoint.compiled import restorer_bytes
from checkpoint.errors import ToolMissing
from probe.node.phases import OWN_RESTORER

ROOT = Path(__file__).parents[2]

NODE_MODULES = (
    "checkpoint/__init__.py", "checkpoint/binary/__init__.py", "checkpoint/binary/syscall_names.py",
    "checkpoint/criu/__init__.py", "checkpoint/criu/entries.py", "checkpoint/criu/fields.py",
    "checkpoint/criu/images.py", "checkpoint/criu/kernel_state.py", "checkpoint/criu/pagemap.py",
    "checkpoint/criu/protobuf.py",
    "checkpoint/criu/tool.py", "checkpoint/errors.py", "checkpoint/event.py",
    "checkpoint/flat/__init__.py",
    "checkpoint/flat/control.py", "checkpoint/flat/file_names.py", "checkpoint/flat/image.py",
    "checkpoint/linux.py", "checkpoint/parent.py", "checkpoint/paths.py", "checkpoint/private_file.py",
    "checkpoint/process/__init__.py",
    "checkpoint/process/waiting.py", "checkpoint/processors.py", "checkpoint/restore/__init__.py",
    "checkpoint/restore/agent_process.py", "checkpoint/restore/criu_agent.py", "checkpoint/restore/criu_restore.py",
    "checkpoint/restore/direct_agent.py", "checkpoint/restore/direct_restore.py",
    "checkpoint/restore/isolation.py", "checkpoint/restore/memory_group.py", "checkpoint/restore/private_root.py",
    "checkpoint/run_command.py",
    "checkpoint/state/__init__.py", "checkpoint/state/own_descriptors.py",
    "checkpoint/state/process_state.py", "checkpoint/state/shared_memory.py", "checkpoint/strict_json.py",
    "probe/formats/__init__.py", "probe/formats/checked.py", "probe/formats/kernel_time.py",
    "probe/formats/manifest.py", "probe/formats/manifest_version_1.py", "probe/formats/phase_record.py",
    "probe/formats/reference.py", "probe/node/__init__.py", "probe/node/agent.py", "probe/node/criu_member.py",
    "probe/node/facts.py", "probe/node/files.py", "probe/node/machine_lock.py", "probe/node/measuring.py",
    "probe/node/member_cache.py", "probe/node/phases.py", "probe/node/protocol.py", "probe/node/quietness.py",
    "probe/node/run_folder.py", "probe/node/yardsticks.py", "probe/signals.py", "reducer/__init__.py",
    "reducer/choices.py",
    "reducer/compression.py", "reducer/member_source.py", "reducer/member_table.py", "reducer/output_file.py",
    "reducer/page_spool.py", "reducer/unpack.py",
)  # fmt: skip
"""Everything that runs on a node: the standard library of Python 3.8 is all that these need (a test sees to that)."""

_DATE = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class AgentFile:
    """The agent's bytes, and their SHA-256 (hex), by which a node knows whether it has them."""

    data: bytes
    sha256: str


@functools.cache
def agent_file() -> AgentFile:
    """The agent of this version; the same bytes every time."""
    members = {}
    # Nodes need no compiler, and phases are restored there by no program of the probe's author.
    with contextlib.suppress(ToolMissing):
        members[OWN_RESTORER] = restorer_bytes()
    return archive_of(NODE_MODULES, (ROOT / "probe/node/__main__.py").read_bytes(), members)


def archive_of(modules: Sequence[str], main: bytes, members: Mapping[str, bytes]) -> AgentFile:
    """One file that Python runs: these modules of ours, `main` as what is started, and further members."""
    sources = {name: (ROOT / name).read_bytes() for name in modules}
    # The package's own one brings the whole Python interface along.
    sources.update({"probe/__init__.py": b"", "__main__.py": main})
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in {**sources, **members}.items():
            entry = zipfile.ZipInfo(name, _DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data, compresslevel=9)
    data = out.getvalue()
    return AgentFile(data, hashlib.sha256(data).hexdigest())
