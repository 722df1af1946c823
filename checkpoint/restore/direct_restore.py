# SPDX-License-Identifier: Apache-2.0
"""Restoring a phase with the direct restorer: as an ordinary user, without CRIU, without namespaces."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from checkpoint.binary.syscall_names import call_number
from checkpoint.errors import NodeUnfit, ProbeError, ProbeFileDamaged, StorageError
from checkpoint.flat.control import Confined, Option
from checkpoint.flat.file_names import SHARED_PAGES, is_deleted_name
from checkpoint.flat.image import NAME, OF_OBJECT, FlatImage, Kind, decode
from checkpoint.linux import PAGE_SIZE
from checkpoint.processors import processors
from checkpoint.restore.agent_process import AgentProcess
from checkpoint.restore.criu_restore import RESTORE_SECONDS, PhaseAgent, RegionTime, RestoreJob, region_limit
from checkpoint.restore.direct_agent import may_have_private_view
from checkpoint.restore.isolation import possible_namespaces
from checkpoint.restore.memory_group import memory_group

_AGENT = Path(__file__).with_name("direct_agent.py")
_MEMORY_SLACK = 1 << 30
"""Bytes of address space beyond twice what a phase had at capture."""
_FILE_SLACK = 1 << 30

# Loaded before anything is forked.
_libc = ctypes.CDLL(None, use_errno=True)
_AGENT_SECONDS = 120.0
"""For copies of the files that a phase writes, and its view."""


class DirectRefused(NodeUnfit):
    """The direct restorer cannot restore this phase here; CRIU may."""


class DirectAgent(PhaseAgent):
    """One phase restored directly. Needs no privilege; DirectRefused where that cannot be done here.

    `flat`: its flat image, where that is decoded already. `only_recorded_calls`: end it at the first system call that
    it did not make at build time. `touch_in_order`: touch its pages in recorded order first.
    """

    def __init__(
        self,
        job: RestoreJob,
        restorer: Path,
        *,
        scratch: Path,
        cpu: int | None = None,
        flat: FlatImage | None = None,
        only_recorded_calls: bool = False,
        touch_in_order: bool = False,
    ) -> None:
        path = job.images / NAME
        if not path.is_file():
            raise DirectRefused(
                f"phase {job.phase}: it is for CRIU alone (`probe show --json` says why: only_criu); run the command "
                "as root with --restorer criu"
            )
        self._flat = flat or decode(path)
        pages = pages_image(job, self._flat)

        @contextmanager
        def start(folder: Path) -> Iterator[AgentProcess]:
            spec = direct_spec(job, self._flat, pages, restorer, folder, cpu)
            self._wanted = _options(job, self._flat, spec["private_view"], only_recorded_calls, touch_in_order)
            spec["option_bits"] = self._wanted
            most = spec["memory_bytes"]
            with memory_group(most, 1 + spec["threads"]) as own:
                spec["memory_group"] = own
                with AgentProcess(_AGENT, spec, private=False) as agent:
                    yield agent

        super().__init__(job, scratch, start, _AGENT_SECONDS)

    def _time(self, line: dict[str, Any]) -> RegionTime:
        if line.get("status") in ("direct", "crashed", "node"):
            raise _refusal(self._job, self._flat, line)
        if line.get("status") == "ok":
            self._note_missing(int(line["confined"]))
        return super()._time(line)

    def _note_missing(self, confined: int) -> None:
        if self._wanted & Option.CONFINE_WRITES and not confined & Confined.WRITES:
            self.warnings.add("this kernel has no landlock: nothing but its permissions keeps a phase from files here")
        if not confined & Confined.CALLS:
            self.warnings.add(
                "this kernel takes no system call filter: phases are not kept from the network and from other processes"
            )


def pages_image(job: RestoreJob, flat: FlatImage) -> Path:
    """The pages that belong to the flat image in the job's folder. Raises ProbeFileDamaged where they are not there."""
    found = sorted(path for path in job.images.glob("pages-*.img") if path.name != SHARED_PAGES)
    if len(found) != 1 or found[0].stat().st_size != flat.header.pages * PAGE_SIZE:
        raise ProbeFileDamaged(
            f"phase {job.phase}: {job.images / NAME} is of another checkpoint; build the probe again"
        )
    return found[0]


def needs_private_view(flat: FlatImage) -> bool:
    """Whether the phase opens or changes files by their paths while it runs."""
    return bool(flat.opened or flat.header.changes_paths)


def direct_spec(
    job: RestoreJob, flat: FlatImage, pages: Path, restorer: Path, scratch: Path, cpu: int | None
) -> dict[str, Any]:
    """What the agent is told, but for the restorer's options. Puts the folder of copies into `scratch`."""
    shown = {path: source for source, path in [*job.binds, *job.written]}
    copies = scratch / "copies"
    copies.mkdir(mode=0o700)
    # A deleted file has a name of its own, among the images, and is shown nowhere.
    deleted = {name for name in (*flat.files, *flat.written) if is_deleted_name(name)}
    shown.update((name, str(job.images / name)) for name in deleted)
    for number, path in enumerate(flat.files):
        (copies / str(number)).symlink_to(Path(shown.get(path, path)).absolute())
    sources = [str(Path(shown.get(path, path)).absolute()) for path in flat.written]
    _refuse_devices(job, [*sources, *(shown.get(path, path) for path in flat.files)])
    largest = max((one.size for one in flat.objects), default=0)
    if largest > _node_memory():
        raise DirectRefused(
            f"phase {job.phase}: shared memory of {largest} bytes is more than this node has ({_node_memory()})"
        )
    # A run of one page repeated takes what it says, however small the probe is.
    filled = sum(run.pages for run in flat.runs) * PAGE_SIZE
    if filled > _node_memory():
        raise DirectRefused(f"phase {job.phase}: it fills {filled} bytes of memory; this node has {_node_memory()}")
    # Sizes are words of the image: what its memory may grow to is what it has pages of, or maps.
    mapped = sum(m.end - m.start for m in flat.mappings) + sum(piece.pages for piece in flat.pieces) * PAGE_SIZE
    return {
        "restorer": str(restorer.absolute()),
        "image": str((job.images / NAME).absolute()),
        "pages": str(pages.absolute()),
        "copies": str(copies.absolute()),
        "sources": sources,
        "scratch": str(scratch.absolute()),
        "stamps": flat.stamps,
        "warm": job.warm_event,
        "start": job.start_event,
        "end": job.end_event,
        "cpus": [] if cpu is None else processors(cpu, job.threads),
        "threads": len(flat.threads),
        "private_view": _private_view(job, flat, scratch),
        "namespaces": possible_namespaces(),
        "folders": [[path, None] for path in job.folders],
        # Files that it reads are shown by themselves: through the overlay each read would take a fifth longer.
        "binds": [*map(list, job.binds), *([path, path] for path in flat.files if path not in shown)],
        "written": [list(w) for w in job.written],
        "restore_seconds": RESTORE_SECONDS,
        "region_seconds": region_limit(job),
        "memory_bytes": 2 * mapped + _MEMORY_SLACK,
        "memory_group": "",
        "file_bytes": _FILE_SLACK + 2 * sum(_size(source) for source in sources) + largest,
    }


def _refuse_devices(job: RestoreJob, paths: Sequence[str]) -> None:
    """An image may name any path: copying /dev/zero has no end, and opening a device can do something by itself."""
    for path in paths:
        if Path(path).exists() and not Path(path).is_file():
            raise DirectRefused(f"phase {job.phase}: {path} is not a regular file here; no phase maps or writes it")


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0


def _node_memory() -> int:
    """Bytes of memory of this node."""
    return os.sysconf("SC_PHYS_PAGES") * PAGE_SIZE


def landlock_version() -> int:
    """Version of landlock in this kernel, 0 where there is none."""
    return max(0, int(_libc.syscall(call_number("landlock_create_ruleset"), None, ctypes.c_size_t(0), 1)))


def _private_view(job: RestoreJob, flat: FlatImage, scratch: Path) -> bool:
    """Whether the phase gets a view of the files of its own: where it uses paths, or where no landlock keeps it from
    the node's files. Raises DirectRefused where it needs one and cannot have it."""
    if landlock_version() and not needs_private_view(flat):
        return False
    if may_have_private_view(str(scratch)):
        return True
    differing = {path for _, path in job.binds}
    if flat.header.changes_paths:
        what = "it creates, changes or removes files"
    elif wrong := [path for path in flat.opened if path in differing or not os.access(path, os.R_OK)]:
        what = f"it opens {wrong[0]}, which is not here as it was at capture"
    else:
        return False
    raise DirectRefused(
        f"phase {job.phase}: {what}, and this user may not have a private view of the files (no user namespaces here)"
    )


def _options(job: RestoreJob, flat: FlatImage, private_view: bool, only_recorded: bool, in_order: bool) -> int:
    bits = Option.FILTER_CALLS | Option.STAY_APART | Option.TOUCH_IN_ORDER * in_order
    if only_recorded:
        if not flat.calls:
            raise DirectRefused(f"phase {job.phase}: its system calls were not recorded when the probe was built")
        bits |= Option.ONLY_RECORDED_CALLS
    if not private_view:
        # A private view keeps changes to itself anyway.
        bits |= Option.CONFINE_WRITES
    if not needs_private_view(flat):
        bits |= Option.ANY_FOLDER
    return bits


STEPS = {
    1: "starting",
    2: "the process that asked for it has ended",
    3: "reading its flat image",
    4: "its flat image is of another kind or version",
    5: "its flat image is damaged (checksum)",
    6: "its flat image has a table or address out of range",
    7: "the addresses that the restorer wants for itself are taken",
    8: "reading its pages: the pages image, or a copy of a mapped file, is too short or cannot be read",
    9: "removing the old address space",
    10: "opening the copy of {file}",
    11: "mapping {mapping}",
    12: "advising the kernel on {mapping}",
    13: "protecting {mapping}",
    14: "sharing the page of stamps at {address}",
    15: "setting where heap and stack are (prctl PR_SET_MM_MAP)",
    16: "setting the FS or GS base",
    17: "setting the action of signal {detail}",
    18: "setting limit {detail}",
    19: "entering the working folder {cwd}",
    20: "opening descriptor {detail} ({opened})",
    21: "this processor lacks part {detail} of the extended state that is in use",
    22: "confining it (no_new_privs, landlock or seccomp)",
    23: "starting interval timer {detail}",
    24: "setting its alternate signal stack or list of robust futexes at {address}",
    25: "making room for descriptors from {detail} on",
    26: "starting it: the node does not let the agent execute it, or open what it needs",
    27: "starting thread {detail}",
    28: "making its shared memory",
    29: "sending signal {detail}, which was pending",
}
"""What it was doing (enum step)."""

_HINTS = {
    errno.ENOMEM: "memory, address space (ulimit -v), overcommit or vm.max_map_count ({mappings} mappings) limits it",
    errno.EPERM: "the kernel forbids it: an address below vm.mmap_min_addr, a file system mounted noexec, or a "
    "container's filter",
    errno.EACCES: "permission denied: the file's mode, or a policy of SELinux or AppArmor",
    errno.ENOSYS: "this kernel, or a container's filter, does not have the call",
    errno.EMFILE: "too many open files allowed here (ulimit -n)",
    errno.ENOENT: "it does not exist",
    errno.EEXIST: "something is mapped there already",
}
_STEP_HINTS = {
    (9, errno.EPERM): "this kernel seals its own mappings",
    (15, errno.EPERM): "this kernel was built without CONFIG_CHECKPOINT_RESTORE, or a container's filter forbids it",
    (27, errno.EAGAIN): "this user may have no more threads (ulimit -u, or the limit of a control group)",
    (15, errno.EINVAL): "this kernel was built without CONFIG_CHECKPOINT_RESTORE, or ulimit -d is too low",
}
_DAMAGED_STEPS = (4, 5, 6)


def _refusal(job: RestoreJob, flat: FlatImage, line: dict[str, Any]) -> ProbeError:
    name = f"phase {job.phase}"
    if line["status"] == "node":
        if line.get("errno") in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return StorageError(f"{name}: the disk is full: {line.get('detail')}; free some, or set TMPDIR")
        return DirectRefused(f"{name}: {line.get('detail')}")
    if line["status"] == "crashed":
        return DirectRefused(f"{name}: the direct restorer ended by itself ({line.get('detail')})")
    step, number = int(line["step"]), int(line["errno"])
    address, detail = int(line["address"]), int(line["detail_number"])
    what = STEPS.get(step, f"step {step}").format(
        file=_at(flat.files, detail), mapping=_mapping_name(flat, address), address=hex(address), detail=detail,
        cwd=_string(flat, flat.header.cwd), opened=_opened_as(flat, detail),
    )  # fmt: skip
    text = f"{name}: the direct restorer failed {'while ' if what.split()[0].endswith('ing') else 'because '}{what}"
    if number:
        text += f": {os.strerror(number)}{hint(step, number, len(flat.mappings))}"
    if step in _DAMAGED_STEPS:
        return ProbeFileDamaged(f"{text}; build the probe again")
    return DirectRefused(text)


def hint(step: int, number: int, mappings: object) -> str:
    """What an error number means there, in brackets, or nothing."""
    said = _STEP_HINTS.get((step, number), _HINTS.get(number))
    return f" ({said.format(mappings=mappings)})" if said else ""


def _at(names: Sequence[str], number: int) -> str:
    return names[number] if number < len(names) else f"file {number}"


def _mapping_name(flat: FlatImage, address: int) -> str:
    for mapping in flat.mappings:
        if mapping.start == address:
            of = f" of {_at(flat.files, mapping.file - 1)}" if mapping.file else ""
            of = " of shared memory" if mapping.file & OF_OBJECT else of
            return f"{mapping.start:#x}-{mapping.end:#x}{of}"
    return hex(address)


def _opened_as(flat: FlatImage, number: int) -> str:
    for found in flat.descriptors:
        if found.number == number:
            if found.kind == Kind.PATH:
                return _string(flat, found.path)
            names = {Kind.COPY: flat.files, Kind.WRITTEN: flat.written}.get(found.kind)
            return _at(names, found.file) if names else _MADE.get(found.kind, "an output")
    return "unknown"


_MADE = {
    Kind.PIPE: "a pipe", Kind.SOCKET: "a pair of sockets", Kind.EVENT: "an eventfd", Kind.EPOLL: "an epoll set",
    Kind.TIMER: "a timer", Kind.SIGNALS: "a signalfd", Kind.MEMORY: "a memfd",
}  # fmt: skip


def _string(flat: FlatImage, offset: int) -> str:
    end = flat.strings.find(b"\0", offset)
    return flat.strings[offset:end].decode("utf-8", "replace")
