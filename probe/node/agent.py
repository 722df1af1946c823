# SPDX-License-Identifier: Apache-2.0
"""The agent on a candidate node: takes a probe as it comes, restores and times its phases, says what it found.

Started by probe/candidates/agent_client.py over SSH; the lines that go to and fro are in docs/node-protocol.md. Nothing
of it is left when it ends, however it ends, but the cache: children die with it, its folder goes, and what a killed one
leaves the next one takes away.
"""

from __future__ import annotations

import contextlib
import io
import os
import platform
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

from checkpoint.errors import ProbeError, ProbeFileDamaged, StorageError, ToolMissing
from checkpoint.paths import HOME_VARIABLE
from checkpoint.restore.criu_restore import RegionTime
from probe.formats.manifest import Manifest
from probe.formats.phase_record import CRIU
from probe.node.criu_member import CRIU_NAME, unpack_criu
from probe.node.facts import check_node, where_measured
from probe.node.files import check_external, differing_files
from probe.node.machine_lock import measuring_alone
from probe.node.measuring import MeasuredPhase, check_processors, measure_phases, measuring_cpu
from probe.node.member_cache import ArrivingMembers, MemberCache, own_folder
from probe.node.phases import AUTO, OWN_RESTORER, RESTORER_NAME, phases_here, restorers_here
from probe.node.protocol import ALIVE_SECONDS, VERSION, Input, Lost, encode
from probe.node.quietness import QuietJudge
from probe.node.run_folder import own_run
from probe.signals import LEAVING, leave_on
from reducer.member_table import MAX_MANIFEST_BYTES, Phase, Table, read_table
from reducer.unpack import ProbeArchive

_LEAVE_SECONDS, _INSIST_SECONDS = 10.0, 0.02
_MEMBERS_IN_A_LINE = 1000


class Answers:
    """Lines to the prober, each whole."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._one_at_a_time = threading.Lock()

    def tell(self, event: str, **said: Any) -> None:
        data = memoryview(encode({"event": event, **said}))
        with self._one_at_a_time:
            while data:
                data = data[os.write(self._descriptor, data) :]

    def stay_alive(self, seconds: float) -> None:
        """Say at least so often that we are there; ends with the process."""
        while True:
            threading.Event().wait(min(seconds, ALIVE_SECONDS))
            try:
                self.tell("alive")
            except OSError:
                leave()


def leave() -> NoReturn:
    """End this process: its main thread cleans up, or is not waited for. For other threads; does not return."""
    end = time.monotonic() + _LEAVE_SECONDS
    while time.monotonic() < end:
        # Once is not enough: a main thread that is about to wait for a lock waits on, and its handler with it.
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_INSIST_SECONDS)
    os._exit(3)


class Receiver(threading.Thread):
    """Takes members off the line and puts them into the cache, while the main thread measures."""

    def __init__(
        self, line: Input, answers: Answers, table: Table, cache: MemberCache, members: ArrivingMembers
    ) -> None:
        super().__init__(daemon=True)
        self._line, self._answers, self._table, self._cache, self._members = line, answers, table, cache, members
        self._again: set[str] = set()
        self._asked: set[str] = set()

    def want(self, names: list[str]) -> None:
        """Ask for those of these members that are not here. StorageError where they do not fit."""
        names = [name for name in dict.fromkeys(names) if name not in self._asked]
        self._asked.update(names)
        self._members.want(names)
        missing = []
        for name in names:
            member = self._table.members[name]
            if self._cache.has(member):
                self._members.arrived(name)
            else:
                missing.append((member, self._cache.begun(member)))
        self._cache.check_space(sum(member.stored_size - begun for member, begun in missing))
        # However many there are, a line has its length.
        for start in range(0, len(missing), _MEMBERS_IN_A_LINE):
            some = missing[start : start + _MEMBERS_IN_A_LINE]
            self._answers.tell("need", members=[[member.name, begun] for member, begun in some])

    def run(self) -> None:
        try:
            while True:
                self._take(self._line.message())
        except (Lost, OSError, KeyError, TypeError, ValueError):
            pass
        except ProbeError as error:
            with contextlib.suppress(OSError):
                self._answers.tell("failed", kind=type(error).__name__, message=str(error))
        finally:
            leave()

    def _take(self, message: dict[str, Any]) -> None:
        if message["op"] != "member":
            return
        member, offset, size = self._table.members[message["name"]], int(message["offset"]), int(message["size"])
        if offset < 0 or size != member.stored_size - offset:
            raise Lost("a member of another size")
        if self._cache.receive(member, offset, lambda sink: self._line.raw(size, sink)):
            if self._members.arrived(member.name):
                self._answers.tell("arrived")
        elif member.name in self._again:
            raise ProbeFileDamaged(f"member {member.name} arrives damaged again and again: is the probe file changing?")
        else:
            self._again.add(member.name)
            self._answers.tell("need", members=[[member.name, 0]])


def main(folder: str) -> None:
    """Serve one prober on standard input and output. `folder` holds the cache, and what is unpacked."""
    leave_on(LEAVING, lambda _: SystemExit(3))
    answers = Answers(os.dup(1))
    # What our own code or a library might print must not get between the lines.
    os.dup2(2, 1)
    with contextlib.suppress(BrokenPipeError):
        try:
            _serve(Path(folder), answers)
        except Lost:
            sys.exit(3)
        except ProbeError as error:
            answers.tell("failed", kind=type(error).__name__, message=str(error))
        except OSError as error:
            answers.tell("failed", kind=StorageError.__name__, message=str(error))
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            said = f"the agent failed ({type(error).__name__}: {error}, {where.name} line {where.lineno})"
            answers.tell("failed", kind=ToolMissing.__name__, message=f"{said}; please report it")


def _serve(folder: Path, answers: Answers) -> None:
    cpus = os.sched_getaffinity(0)
    cpu = measuring_cpu()
    if cpu is not None:
        os.sched_setaffinity(0, cpus - {cpu})
    line = Input(0)
    answers.tell(
        "hello",
        version=VERSION,
        boot=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        node={**where_measured(), "cpus": len(cpus)},
        python=platform.python_version(),
        user=os.geteuid(),
    )
    order = line.message()
    table = _front(line, order)
    line.silence = float(order["silence_seconds"])
    threading.Thread(target=answers.stay_alive, args=(line.silence / 4,), daemon=True).start()
    manifest = Manifest.from_json(table.manifest)
    check_node(manifest)
    check_processors("this node", manifest.threads, cpu)
    check_external(manifest.files.external)
    only = frozenset(int(p) for p in order["phases"])
    with own_run(own_folder(folder)) as run:
        scratch = run.folder
        cache = MemberCache(folder / "members", int(order["cache_bytes"]))
        members = ArrivingMembers(cache)
        archive = ProbeArchive(Path("the probe"), members, table, scratch)
        receiver = Receiver(line, answers, table, cache, members)
        receiver.start()
        with measuring_alone(
            cpus, wait=float(order["lock_seconds"]), waiting=lambda holder: answers.tell("waiting", holder=holder)
        ):
            differing = differing_files(archive.files)
            carried = bool(order["carried_restorer"])
            runtime = _runtime(str(order["restorer"]), archive, manifest, only, carried=carried)
            wanted = [f"data/{name}" for name in runtime]
            sends_criu = f"data/{CRIU_NAME}" in wanted
            wanted += [file.member for file in differing]
            wanted += [phase.member("index") for phase in archive.phases]
            receiver.want([name for name in wanted if name in table.members])
            receiver.want(_phase_members(archive, manifest, only))
            # Where `find_criu` looks besides the system's own folders.
            os.environ[HOME_VARIABLE] = str(unpack_criu(archive, folder) if sends_criu else folder / "no-criu")
            judge = QuietJudge(
                manifest,
                cpu,
                arriving=lambda: not members.all_here(),
                told=lambda phase, restorer, time, why: answers.tell(
                    "time", phase=phase, restorer=restorer, time=_times(time), left_out=why
                ),
            )
            restorers = restorers_here(
                archive,
                scratch,
                str(order["restorer"]),
                own_restorer=_own_restorer,
                carried_restorer=carried,
                only_recorded_calls=bool(order["only_recorded_calls"]),
                touch_in_order=bool(order["touch_in_order"]),
            )
            measure_phases(
                phases_here(archive, manifest, scratch, restorers, differing, only),
                restorers,
                repeats=int(order["repeats"]),
                least=int(order["least"]),
                scratch=scratch,
                cpu=cpu,
                progress=lambda _: None,
                judge=judge,
                # While the rest arrives, repeats would tell nothing new.
                after_round=lambda _: members.wait(),
                finished=lambda phase: answers.tell("measured", **_result(phase)),
            )
        archive.close()
        run.when_alone(cache.trim)
    answers.tell("done", quiet=judge.describe())


def _front(line: Input, order: dict[str, Any]) -> Table:
    """The front of the probe, which follows the first order."""
    try:
        size = int(order["front"])
        if order["op"] != "run" or order["version"] != VERSION or not 0 < size <= MAX_MANIFEST_BYTES:
            raise Lost("another protocol")
    except (KeyError, TypeError, ValueError) as error:
        raise Lost("no order") from error
    front = io.BytesIO()
    line.raw(size, front.write)
    front.seek(0)
    return read_table(front.read, "the probe")


def _own_restorer() -> bytes:
    """The prober's direct restorer, which came with this agent; ToolMissing where the prober has none."""
    loader = globals()["__loader__"]
    try:
        return bytes(loader.get_data(os.path.join(loader.archive, OWN_RESTORER)))  # noqa: PTH118
    except (OSError, AttributeError) as error:
        raise ToolMissing(
            "no direct restorer came with the agent, for want of a C compiler where `probe run` was started: install "
            "gcc there, or, if you trust the probe's author, give --carried-restorer"
        ) from error


def _runtime(
    restorer: str, archive: ProbeArchive, manifest: Manifest, only: frozenset[int], *, carried: bool
) -> list[str]:
    """Data members that phases are restored with here, of those that the probe has."""
    wanted = [RESTORER_NAME] if restorer != CRIU and carried else []
    # Besides, as root, it is for phases that the direct restorer is known to refuse.
    refused = any(phase.only_criu for phase in manifest.phases if phase.id in only)
    if restorer == CRIU or (restorer == AUTO and refused and os.geteuid() == 0):
        wanted.append(CRIU_NAME)
    return [name for name in wanted if name in archive.data_names]


def _phase_members(archive: ProbeArchive, manifest: Manifest, only: frozenset[int]) -> list[str]:
    """Members of the phases to be measured, in the order in which they are needed."""
    found: list[str] = []
    by_id: dict[int, Phase] = {phase.id: phase for phase in archive.phases}
    for record in manifest.phases:
        if record.can_run and record.id in only and record.id in by_id:
            phase = by_id[record.id]
            found.append(phase.member("images"))
            found += [f"file/{file.sha256}" for file in manifest.files.private if file.phase == record.id]
            found += [by_id[other].member("pages") for other in archive.phases_shared(record.id)]
            found.append(phase.member("pages"))
    if unknown := [name for name in found if name not in archive.members]:
        raise ProbeFileDamaged(f"the probe lacks its member {unknown[0]}; build it again")
    return found


def _times(time: RegionTime) -> list[float]:
    known = [] if time.kernel is None or time.faults is None else [time.kernel, time.faults]
    return [time.wall, time.cpu, time.warm, time.restore, *known]


def _result(phase: MeasuredPhase) -> dict[str, Any]:
    return {
        "phase": phase.phase,
        "restorer": phase.restorer,
        "times": [_times(time) for time in phase.times],
        "failure": phase.failure,
        "kind": type(phase.error).__name__ if phase.error else "",
        "warnings": list(phase.warnings),
    }
