# SPDX-License-Identifier: Apache-2.0
"""Restores one phase lazily and reports which pages it touches, in what order. Build time only.

`criu restore --lazy-pages` leaves the private anonymous pages out and hands us a userfaultfd (userfaultfd(2)): the
kernel then asks us for every page at its first touch, whether the program or the kernel on its behalf touches it.
We answer each request and copy nothing in advance, so the requests are the touched set; but for `guard`, below.

Started like criu_agent.py, in the same namespaces, with the same line of JSON and three entries more: `runs`
(address, pages, flags of every page run, in the order of the pages image), `pages` (its path), and `margin_seconds`,
for which the process runs on behind the region's end. Answers with one line as criu_agent does, and writes the
touched pages to `touched` in the scratch folder: 64-bit addresses in order, lowest bit set where it was a write. With
`guard` (address, pages), pages of these runs were dropped or zeroed: the first one asked for ends the run with status
"dropped". Then the touched set is known already, and nothing is written.
"""

from __future__ import annotations

import array
import bisect
import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import queue
import select
import signal
import socket
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any

from checkpoint import strict_json

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from checkpoint.linux import PAGE_SIZE
from checkpoint.restore.criu_agent import (
    kill,
    pass_orders,
    prepare,
    refused,
    restore,
    time_region,
    wait_for_stop,
)

_UFFDIO_COPY, _UFFDIO_ZEROPAGE = 0xC028AA03, 0xC020AA04
_EVENT_PAGEFAULT, _EVENT_FORK, _EVENT_REMAP, _EVENT_REMOVE, _EVENT_UNMAP = 0x12, 0x13, 0x14, 0x15, 0x16
_WRITE_FAULT = 1
_MESSAGE_BYTES = 32
_LAZY = 2
TOUCHED = "touched"
_POLL_MILLISECONDS = 20
_LOOK_SECONDS = 0.01
_NOT_READY_SECONDS = 0.0005


class PageServer(threading.Thread):
    """Answers page faults until the process is gone; `touched` grows in the order of the first touches."""

    def __init__(self, spec: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # The name of a socket holds 107 bytes, which the path of a temporary folder may exceed.
        folder = os.open(spec["scratch"], os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._listener.bind(f"/proc/self/fd/{folder}/lazy-pages.socket")
        finally:
            os.close(folder)
        self._listener.listen(1)
        self._listener.settimeout(spec["restore_seconds"])
        with open(spec["pages"], "rb") as file:
            self._image = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ | mmap.PROT_WRITE, flags=mmap.MAP_PRIVATE)
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._image))
        self._starts: list[int] = []
        self._offsets: list[tuple[int, int]] = []
        offset = 0
        for address, pages, flags in spec["runs"]:
            if flags & _LAZY:
                self._starts.append(address)
                self._offsets.append((address + pages * PAGE_SIZE, offset))
            offset += pages * PAGE_SIZE
        self._guard = sorted((a, a + pages * PAGE_SIZE) for a, pages in spec["guard"] or ())
        self._only_guards = spec["guard"] is not None
        self._moved: list[tuple[int, int, int]] = []
        self.touched = array.array("Q")
        self.dropped: int | None = None
        self.failure = ""
        self._finished = threading.Event()

    def run(self) -> None:
        try:
            self._serve()
        except Exception as error:
            # Whatever it was: a server that is gone leaves zeros in place of pages, and nobody the wiser.
            self.failure = f"page server: {error}"

    def finish(self) -> None:
        """Stop serving; the process must be gone, or its next fault waits for ever."""
        self._finished.set()
        self.join(5.0)

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        with connection:
            connection.settimeout(10.0)
            _pid = connection.recv(4)
            _, ancillary, _, _ = connection.recvmsg(1, socket.CMSG_SPACE(4))
            descriptor = array.array("i", ancillary[0][2])[0]
            try:
                self._answer(connection, descriptor)
            finally:
                os.close(descriptor)

    def _answer(self, connection: socket.socket, descriptor: int) -> None:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.register(connection, select.POLLIN)
        while not self._finished.is_set():
            for ready, event in poll.poll(_POLL_MILLISECONDS):
                if ready == connection.fileno():
                    if not connection.recv(4):
                        poll.unregister(connection)
                    continue
                if not event & select.POLLIN:
                    # An error until CRIU has set the descriptor up (UFFDIO_API). To leave now would close it, and
                    # every missing page would silently be zeros.
                    self._finished.wait(_NOT_READY_SECONDS)
                    continue
                try:
                    message = os.read(descriptor, _MESSAGE_BYTES)
                except BlockingIOError:
                    continue
                if not message:
                    return
                self._take_event(descriptor, message)

    # Not `_handle`: threads have an attribute of that name since Python 3.13.
    def _take_event(self, descriptor: int, message: bytes) -> None:
        kind = message[0]
        if kind == _EVENT_PAGEFAULT:
            flags, address = struct.unpack_from("<QQ", message, 8)
            self._page(descriptor, address & ~(PAGE_SIZE - 1), flags & _WRITE_FAULT)
        elif kind == _EVENT_REMAP:
            source, target, length = struct.unpack_from("<QQQ", message, 8)
            self._moved.append((target, target + length, source))
            # Where the old place stays mapped (MREMAP_DONTUNMAP), it is empty from now on.
            self._emptied(source, source + length)
        elif kind in (_EVENT_REMOVE, _EVENT_UNMAP):
            start, end = struct.unpack_from("<QQ", message, 8)
            self._emptied(start, end)

    def _emptied(self, start: int, end: int) -> None:
        """What is mapped there from now on is fresh: its pages are zero, whatever the image holds."""
        # A program may discard the same range again and again: what this one covers is no longer needed, as far back
        # as the last move, which refers to what was there before it.
        kept = len(self._moved)
        while kept and self._moved[kept - 1][2] < 0:
            kept -= 1
        self._moved[kept:] = [m for m in self._moved[kept:] if not (start <= m[0] and m[1] <= end)]
        self._moved.append((start, end, -1))

    def _original(self, address: int) -> int:
        """The address that a page had in the checkpoint; -1 where it did not exist then."""
        for start, end, source in reversed(self._moved):
            if start <= address < end:
                if source < 0:
                    return -1
                address = source + (address - start)
        return address

    def _page(self, descriptor: int, address: int, write: int) -> None:
        original = self._original(address)
        offset = self._offset(original) if original >= 0 else None
        if original >= 0 and self.dropped is None and self._is_dropped(original):
            self.dropped = original
        if offset is not None:
            request = bytearray(struct.pack("<QQQQq", address, self._base + offset, PAGE_SIZE, 0, 0))
            if self._only_guards and not self._moved:
                self._copy_ahead(descriptor, address, offset)
            self._ioctl(descriptor, _UFFDIO_COPY, request)
            self.touched.append(original | write)
            return
        self._ioctl(descriptor, _UFFDIO_ZEROPAGE, bytearray(struct.pack("<QQQq", address, PAGE_SIZE, 0, 0)))

    def _copy_ahead(self, descriptor: int, address: int, offset: int) -> None:
        """Copy the pages behind this one that were not dropped: a guard asks nothing of pages that are kept.

        The page itself comes last: it lets the process go on, and as long as there is an event of it that nobody has
        taken, nothing can be copied.
        """
        end, _ = self._offsets[bisect.bisect_right(self._starts, address) - 1]
        dropped = bisect.bisect_left(self._guard, (address, 0))
        if dropped < len(self._guard):
            end = min(end, self._guard[dropped][0])
        behind, size = address + PAGE_SIZE, end - address - PAGE_SIZE
        if size > 0:
            # Refused where the mapping ends before, or a page is there: then pages are copied one by one.
            with contextlib.suppress(OSError):
                request = bytearray(struct.pack("<QQQQq", behind, self._base + offset + PAGE_SIZE, size, 0, 0))
                fcntl.ioctl(descriptor, _UFFDIO_COPY, request)

    def _ioctl(self, descriptor: int, request: int, argument: bytearray) -> None:
        while True:
            try:
                fcntl.ioctl(descriptor, request, argument)
                return
            except OSError as error:
                # EEXIST: two faults on one page; EAGAIN: the mappings are just changing; ENOENT, ESRCH: gone.
                if error.errno == errno.EAGAIN:
                    continue
                if error.errno in (errno.EEXIST, errno.ENOENT, errno.ESRCH):
                    return
                raise

    def _offset(self, address: int) -> int | None:
        position = bisect.bisect_right(self._starts, address) - 1
        if position < 0 or address >= self._offsets[position][0]:
            return None
        return self._offsets[position][1] + address - self._starts[position]

    def _is_dropped(self, address: int) -> bool:
        position = bisect.bisect_right(self._guard, (address, 1 << 63)) - 1
        return position >= 0 and address < self._guard[position][1]


def observe(spec: dict[str, Any], server: PageServer, pid: int) -> dict[str, Any]:
    """Run the restored process through its region and the margin behind it."""

    def wait(process: int, deadline: float) -> int | None:
        while server.dropped is None and not server.failure and time.monotonic() < deadline:
            status = wait_for_stop(process, min(deadline, time.monotonic() + _LOOK_SECONDS))
            if status is not None:
                return status
        return None

    result = time_region(spec, pid, wait)
    if result["status"] == "ok" and spec["margin_seconds"] > 0:
        os.kill(pid, signal.SIGCONT)
        wait(pid, time.monotonic() + spec["margin_seconds"])
    if server.dropped is not None:
        return {"status": "dropped", "address": server.dropped}
    if server.failure:
        return {"status": "node", "detail": server.failure}
    return result


def main() -> None:
    """One line in, one line out."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    spec = strict_json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=pass_orders, args=(queue.SimpleQueue(),), daemon=True).start()
    try:
        prepare(spec)
        server = PageServer(spec)
    except OSError as error:
        print(strict_json.dumps(refused(error)), flush=True)
        os._exit(0)
    server.start()
    pid, error_text = restore(spec, 0)
    if error_text is not None:
        result: dict[str, Any] = {"status": "restore", "detail": error_text}
    else:
        try:
            result = observe(spec, server, pid)
        except OSError as error:
            result = refused(error)
        kill(pid)
        server.finish()
        try:
            if spec["guard"] is None:
                (Path(spec["scratch"]) / TOUCHED).write_bytes(server.touched.tobytes())
        except OSError as error:
            result = refused(error)
        result["restore_seconds"] = 0.0
    print(strict_json.dumps(result), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
