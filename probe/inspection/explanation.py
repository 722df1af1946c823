# SPDX-License-Identifier: Apache-2.0
"""Explain what a probe's phases do: functions and lines, memory, system calls (`probe explain`).

The names come from the program as the probe carries it, so they fit wherever the probe is read; a file left out of the
probe is read here, if its checksum is that of the build.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkpoint.binary.symbols import Names, names_of
from checkpoint.binary.syscall_names import call_name
from checkpoint.errors import ProbeError
from probe.formats.choices import SECONDS
from probe.formats.manifest import Manifest
from probe.formats.phase_code import CODE_NAME, MOST_BYTES, NO_FILE, PhaseCode, ProbeCode, decode
from probe.formats.phase_record import PhaseRecord
from probe.inspection.description import sharing_json
from probe.node.files import file_sha256
from reducer.member_table import damaged
from reducer.unpack import ProbeArchive, open_probe

EXPLAIN_VERSION = 1
DEFAULT_TOP = 10

_OLD = (
    "the probe was built by an older version: it does not say which code its phases execute; build it again to see "
    "functions, lines, mappings and system calls"
)


@dataclass
class _Sum:
    instructions: float = 0.0
    seen: int = 0


def explain(path: Path | str, phase: int | None = None, *, top: int = DEFAULT_TOP) -> dict[str, Any]:
    """What all phases of the probe do, or only `phase`, as JSON (docs/json.md); at most `top` functions, lines,
    mappings and calls each.

    Raises ProbeError for a phase that the probe does not have, ProbeFileDamaged, StorageError.
    """
    with open_probe(Path(path)) as archive:
        manifest = Manifest.from_json(archive.manifest)
        records = [p for p in manifest.phases if phase is None or p.id == phase]
        if not records:
            known = ", ".join(str(p.id) for p in manifest.phases)
            raise ProbeError(f"{path}: no phase {phase}; its phases are {known}")
        code = _read_code(archive, str(path))
        wanted = [c for c in code.phases if c.id in {r.id for r in records}] if code else []
        names = _names(archive, manifest, code, wanted) if code else {}
    by_id = {c.id: c for c in wanted}
    warnings = [] if code else [_OLD]
    if code and manifest.tracing.unit == SECONDS and manifest.tracing.removed_sites:
        warnings.append(
            f"{manifest.tracing.removed_sites} of {manifest.tracing.sites} blocks ran so often that the tracer stopped "
            "counting them: their instructions are missing; look at `time`"
        )
    return {
        "format_version": EXPLAIN_VERSION,
        "program": list(manifest.program.argv),
        "phases": [_explained(r, by_id.get(r.id), code, names, top) for r in records],
        "warnings": warnings,
    }


def _read_code(archive: ProbeArchive, path: str) -> ProbeCode | None:
    if CODE_NAME not in archive.data_names:
        return None
    size = archive.members[f"data/{CODE_NAME}"].raw_size
    if size > MOST_BYTES:
        raise damaged(path, f"its member data/{CODE_NAME} has {size} bytes, more than {MOST_BYTES}")
    return decode(archive.read_data(CODE_NAME))


def _names(archive: ProbeArchive, manifest: Manifest, code: ProbeCode, phases: Sequence[PhaseCode]) -> dict[int, Names]:
    """Names in each image, by its number; images that nobody has are absent."""
    addresses: dict[int, set[int]] = defaultdict(set)
    for phase in phases:
        places = [(image, address) for image, address, _, _ in phase.blocks]
        for image, address in (*places, *((image, address) for image, address, _ in phase.seen)):
            if image != NO_FILE:
                addresses[image].add(address)
    carried = {f.path: f.sha256 for f in archive.files}
    left_out = {f.path: f.sha256 for f in manifest.files.external}
    found = {}
    with tempfile.TemporaryDirectory(prefix="probe-explain-") as folder:
        for image, wanted in addresses.items():
            name, sha256 = code.images[image]
            file = Path(name)
            if name in carried and sha256 in ("", carried[name]):
                file = Path(folder) / str(image)
                archive.extract_file(carried[name], file, 0o600)
            elif not _is_here(file, sha256 or left_out.get(name, "")):
                continue
            found[image] = names_of(file, Path(name), wanted)
    return found


def _is_here(path: Path, sha256: str) -> bool:
    try:
        return bool(sha256) and file_sha256(path) == sha256
    except OSError:
        return False


def _explained(
    record: PhaseRecord, code: PhaseCode | None, whole: ProbeCode | None, names: dict[int, Names], top: int
) -> dict[str, Any]:
    functions: dict[tuple[str, str], _Sum] = defaultdict(_Sum)
    lines: dict[tuple[str, int, str], _Sum] = defaultdict(_Sum)
    instructions = seen = 0.0
    if code and whole:
        instructions, seen = code.instructions, float(sum(times for *_, times in code.seen))
        for image, address, _, amount in code.blocks:
            _add(whole, names, image, address, functions, lines, _Sum(instructions=amount))
        for image, address, times in code.seen:
            _add(whole, names, image, address, functions, lines, _Sum(seen=times))

    def shares(one: _Sum) -> dict[str, float | None]:
        return {
            "instructions": one.instructions / instructions if instructions else None,
            "time": one.seen / seen if seen else None,
        }

    def largest(sums: dict[Any, _Sum]) -> list[tuple[Any, _Sum]]:
        # By time where that is known: the hottest blocks may not have been counted.
        return sorted(sums.items(), key=lambda item: (-item[1].seen, -item[1].instructions, item[0]))[:top]

    return {
        "id": record.id,
        "intervals": record.intervals,
        "representative": record.representative,
        "started_seconds": record.in_run.started,
        "weight": record.weight,
        "time_share": record.time_share,
        "looks": int(seen),
        "functions": [{"image": i, "name": n, **shares(s)} for (i, n), s in largest(functions)],
        "lines": [{"file": f, "line": n, "function": w, **shares(s)} for (f, n, w), s in largest(lines)],
        "pages": record.checkpoint.pages(),
        "mappings": [
            {"kind": kind, "name": name, "mapped": mapped, "touched": touched}
            for kind, name, mapped, touched in (code.memory[:top] if code else ())
        ],
        "calls": [
            {"name": call_name(number), "number": number, "times": times}
            for number, times in sorted(code.calls if code else (), key=lambda call: (-call[1], call[0]))[:top]
        ],
        "sharing": sharing_json(record.sharing),
        "calls_made": sum(times for _, times in code.calls) if code else None,
        "all_calls": code.all_calls if code else None,
    }


def _add(
    whole: ProbeCode,
    names: dict[int, Names],
    image: int,
    address: int,
    functions: dict[tuple[str, str], _Sum],
    lines: dict[tuple[str, int, str], _Sum],
    more: _Sum,
) -> None:
    path = whole.images[image][0] if image != NO_FILE else ""
    known = names.get(image)
    function = known.functions.get(address) if known else None
    name = function.name if function else f"+{address:#x}" if path else "code in no file"
    places = [functions[path, name]]
    if known and address in known.lines:
        file, line = known.lines[address]
        places.append(lines[file, line, name])
    for place in places:
        place.instructions += more.instructions
        place.seen += more.seen
