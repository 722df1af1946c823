# SPDX-License-Identifier: Apache-2.0
"""Send a node's agent what it asks for, beside the talk with it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from probe.node.protocol import ALIVE_SECONDS, CHUNK, encode
from probe.ssh.interface import RemoteCommandEnded
from reducer.unpack import ProbeArchive


class Sender(threading.Thread):
    """Sends what is asked for, and a sign of life whenever there is nothing to send.

    `send(data, seconds)` is the channel's. `sent(size, done, whole)` is told of every `size` bytes of members: `done`
    were sent so far, of `whole` asked for. `silence`: seconds after which the node takes us for lost.
    """

    def __init__(
        self,
        send: Callable[[bytes, float], None],
        archive: ProbeArchive,
        sent: Callable[[int, int, int], None],
        silence: float,
    ) -> None:
        super().__init__(daemon=True)
        self._send, self._archive, self._sent, self._silence = send, archive, sent, silence
        self._todo: queue.SimpleQueue[tuple[str, int] | bytes | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._stopped = False
        self.done = 0
        """Bytes of members sent."""
        self._whole = 0

    def order(self, order: dict[str, Any], data: bytes) -> None:
        self._todo.put(encode(order) + data)

    def member(self, name: str, offset: int) -> None:
        self._whole += self._archive.members[name].stored_size - offset
        self._todo.put((name, offset))

    def stop(self) -> None:
        """Have it end after what it is just sending."""
        self._stopped = True
        self._todo.put(None)

    def check(self) -> None:
        """Raise what sending has met. That nobody reads any more is no news: what the node says tells why."""
        if self._error is not None and not isinstance(self._error, RemoteCommandEnded):
            raise self._error

    def run(self) -> None:
        try:
            while not self._stopped:
                try:
                    todo = self._todo.get(timeout=min(ALIVE_SECONDS, self._silence / 4))
                except queue.Empty:
                    todo = encode({"op": "alive"})
                if isinstance(todo, bytes):
                    self._send(todo, self._silence)
                elif todo is not None:
                    self._send_member(*todo)
        except BaseException as error:
            self._error = error

    def _send_member(self, name: str, offset: int) -> None:
        size = self._archive.members[name].stored_size - offset
        self._send(encode({"op": "member", "name": name, "offset": offset, "size": size}), self._silence)
        for piece in self._archive.stored_bytes(name, offset):
            for start in range(0, len(piece), CHUNK):
                if self._stopped:
                    return
                part = piece[start : start + CHUNK]
                self._send(part, self._silence)
                self.done += len(part)
                self._sent(len(part), self.done, self._whole)
