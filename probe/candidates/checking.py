# SPDX-License-Identifier: Apache-2.0
"""Check on this machine whether a probe's phases execute what they executed where they were made."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkpoint.binary.symbols import Names, names_of
from checkpoint.errors import NodeUnfit, PhaseFailed, ProbeError
from checkpoint.flat.image import NAME, decode
from checkpoint.flow.comparing import Difference, compare
from checkpoint.flow.flow import Flow, Passed, Place, Plan
from checkpoint.flow.watching import FlowWatcher
from checkpoint.restore.direct_restore import pages_image
from probe.candidates.local import own_restorer
from probe.flow.stored import FLOW_NAME, MOST_BYTES, PhaseFlow
from probe.flow.stored import decode as decode_flows
from probe.formats.manifest import Manifest
from probe.formats.phase_record import DIRECT
from probe.node.facts import check_node
from probe.node.files import check_external, differing_files, file_sha256
from probe.node.measuring import PhaseToMeasure, measuring_cpu
from probe.node.phases import phases_here, restorers_here
from probe.progress import Display, Silent
from reducer.member_table import damaged
from reducer.output_file import full_disk_named
from reducer.unpack import ProbeArchive, open_probe

CHECK_VERSION = 1
SAME, DIFFERS, UNSTEADY, FAILED, UNKNOWN = "same", "differs", "unsteady", "failed", "unknown"
"""What a phase turns out to be: as where it was made; not; not even the same twice here; not at its region's end; of
a flow that was not recorded."""

_MOST_FUNCTIONS = 10


@dataclass(frozen=True)
class CheckedPhase:
    """What became of one phase. `said`: why it is not the same. `functions`: (library, function, differing blocks),
    most first. `between`: shares of the executions, 0 to 1, between which the first block differs, and the function in
    which the later of these points lies; None where no block differs."""

    id: int
    time_share: float
    status: str
    said: str = ""
    blocks: int = 0
    executions: int = 0
    calls: int = 0
    points: int = 0
    steps: int = 0
    differing_blocks: int = 0
    functions: tuple[tuple[str, str, int], ...] = ()
    between: tuple[float, float, str] | None = None

    def to_json(self) -> dict[str, Any]:
        """As docs/json.md has it."""
        said = {**vars(self), "functions": [dict(zip(_FUNCTION, one, strict=True)) for one in self.functions]}
        return {**said, "between": dict(zip(_BETWEEN, self.between, strict=True)) if self.between else None}


_FUNCTION, _BETWEEN = ("image", "name", "blocks"), ("from", "to", "function")


@dataclass(frozen=True)
class CheckResult:
    """All phases that were checked, in the probe's order."""

    probe: str
    phases: tuple[CheckedPhase, ...]

    @property
    def first_other(self) -> CheckedPhase | None:
        """The first phase that is not as it was; None where there is none."""
        return next((p for p in self.phases if p.status not in (SAME, UNKNOWN)), None)

    def to_json(self) -> dict[str, Any]:
        """As docs/json.md has it."""
        return {
            "format_version": CHECK_VERSION,
            "probe": self.probe,
            "same": self.first_other is None,
            "phases": [phase.to_json() for phase in self.phases],
        }


def check(path: Path | str, phase: int | None = None, *, display: Display | None = None) -> CheckResult:
    """Restore every phase of the probe at `path` here, or only `phase`, and compare what it executes with what it
    executed when the probe was built: every block, system calls, addresses.

    Raises ProbeError where the probe does not say, or has no such phase; ProbeFileDamaged, NodeUnfit, StorageError.
    """
    probe_path, shown = Path(path), display or Silent()
    with full_disk_named(Path(tempfile.gettempdir())), open_probe(probe_path) as archive:
        manifest = Manifest.from_json(archive.manifest)
        flows = _flows(archive, probe_path)
        wanted = [p.id for p in manifest.phases if p.can_run and phase in (None, p.id)]
        if not wanted:
            known = ", ".join(str(p.id) for p in manifest.phases if p.can_run)
            raise ProbeError(f"{path}: no phase {phase} that can be restored; there are {known}")
        check_node(manifest)
        archive.verify()
        check_external(manifest.files.external)
        with tempfile.TemporaryDirectory(prefix="probe-check-") as folder, shown.stage("check") as report:
            checker = _Checker(archive, manifest, Path(folder), flows)
            done = []
            for ready in checker.phases(wanted):
                done.append(checker.checked(ready))
                report(len(done) / len(wanted))
    return CheckResult(str(probe_path), tuple(done))


def _flows(archive: ProbeArchive, path: Path) -> dict[int, PhaseFlow]:
    if FLOW_NAME not in archive.data_names:
        raise ProbeError(f"{path}: does not say what its phases execute; build it again with --flow")
    size = archive.members[f"data/{FLOW_NAME}"].raw_size
    if size > MOST_BYTES:
        raise damaged(str(path), f"its member data/{FLOW_NAME} has {size} bytes, more than {MOST_BYTES}")
    return decode_flows(archive.read_data(FLOW_NAME))


class _Checker:
    def __init__(self, archive: ProbeArchive, manifest: Manifest, folder: Path, flows: Mapping[int, PhaseFlow]) -> None:
        self._archive, self._manifest, self._folder, self._flows = archive, manifest, folder, flows
        self._shares = {phase.id: phase.time_share for phase in manifest.phases}
        self._restorers = restorers_here(
            archive, folder, DIRECT, own_restorer=own_restorer, carried_restorer=False, only_recorded_calls=False,
            touch_in_order=False,
        )  # fmt: skip

    def phases(self, wanted: Iterable[int]) -> list[PhaseToMeasure]:
        differing = differing_files(self._archive.files)
        return phases_here(self._archive, self._manifest, self._folder, self._restorers, differing, only=list(wanted))

    def checked(self, ready: PhaseToMeasure) -> CheckedPhase:
        phase = ready.job.phase
        record = self._flows.get(phase, PhaseFlow(None, 0, "its flow was not recorded"))
        if record.flow is None:
            return CheckedPhase(phase, self._shares[phase], UNKNOWN, record.missing)
        assert ready.unpack is not None and self._restorers.direct is not None
        ready.unpack(ready.job.images)
        flat = decode(ready.job.images / NAME)
        watcher = FlowWatcher(
            ready.job, flat, pages_image(ready.job, flat), self._restorers.direct, scratch=self._folder,
            cpu=measuring_cpu(),
        )  # fmt: skip
        plan = Plan(tuple(p.point for p in record.flow.passed), record.steps)
        try:
            here = watcher.watch(plan)
            difference = compare(here, record.flow)
            repeats = difference.none or compare(watcher.watch(plan), here).none
        except (PhaseFailed, NodeUnfit) as error:
            return CheckedPhase(phase, self._shares[phase], FAILED, str(error))
        return self._judged(phase, here, record.flow, difference, repeats)

    def _judged(self, phase: int, here: Flow, there: Flow, found: Difference, repeats: bool) -> CheckedPhase:
        status = SAME if found.none else DIFFERS if repeats else UNSTEADY
        said = found.sentence()
        if status == UNSTEADY:
            said = f"two runs here are not the same: {said}"
        places = [*found.blocks, *([found.before.point.place] if found.before else [])]
        names = self._names(there.images, places)
        return CheckedPhase(
            phase, self._shares[phase], status, said, len(here.counts), here.executions, here.calls.made, found.points,
            found.steps, len(found.blocks), _functions(found.blocks, names),
            _between(found, there, names) if found.blocks else None,
        )  # fmt: skip

    def _names(self, images: Mapping[str, str], places: Iterable[Place]) -> dict[str, Names]:
        addresses: dict[str, set[int]] = defaultdict(set)
        for path, address in places:
            addresses[path].add(address)
        found = {}
        for path, wanted in addresses.items():
            if file := self._file(path, images.get(path, "")):
                found[path] = names_of(file, Path(path), wanted)
        return found

    def _file(self, path: str, sha256: str) -> Path | None:
        """The image as it was at capture: this node's, or the probe's own."""
        try:
            if file_sha256(Path(path)) == sha256:
                return Path(path)
        except OSError:
            pass
        if any(file.path == path and file.sha256 == sha256 for file in self._archive.files):
            copy = self._folder / f"named-{sha256}"
            if not copy.exists():
                self._archive.extract_file(sha256, copy, 0o600)
            return copy
        return None


def _name(place: Place, names: Mapping[str, Names]) -> str:
    path, address = place
    function = names[path].functions.get(address) if path in names else None
    return function.name if function else f"+{address:#x}"


def _functions(blocks: Iterable[Place], names: Mapping[str, Names]) -> tuple[tuple[str, str, int], ...]:
    sums: dict[tuple[str, str], int] = defaultdict(int)
    for place in blocks:
        sums[place[0], _name(place, names)] += 1
    ranked = sorted(sums.items(), key=lambda item: (-item[1], item[0]))
    return tuple((path, name, number) for (path, name), number in ranked[:_MOST_FUNCTIONS])


def _between(found: Difference, there: Flow, names: Mapping[str, Names]) -> tuple[float, float, str]:
    def share(passed: Passed | None, otherwise: float) -> float:
        return passed.executions / max(1, there.executions) if passed else otherwise

    last = found.before.point.place if found.before else max(found.blocks, key=lambda place: found.blocks[place])
    return share(found.after, 0.0), share(found.before, 1.0), _name(last, names)
