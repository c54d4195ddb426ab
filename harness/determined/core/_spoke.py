"""The end of a group at each index but 0: it talks to the hub. See `_group`."""

from __future__ import annotations

import collections
import json
import os
import time

from determined import errors
from determined.core import _frames
from determined.core._group import HELLO_AGAIN_S, LOST, End, different, whereabouts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# A spoke that waits so long tells the hub for what, so that a hub that waits for something else can name it.
_NOTE_AFTER_S = 3.0
# So much longer a spoke waits: the hub knows better who is missing.
_GRACE_S = 10.0


class Spoke(End):
    """One of the others.

    Args:
        index: Of this worker in the group.
        address: Where the hub listens.
        about: What this worker says about itself.
    """

    def __init__(
        self, context: Any, key: bytes, index: int, address: str, about: dict[str, Any], **limits: Any
    ) -> None:
        import zmq

        super().__init__(context, zmq.DEALER, key, index, **limits)
        # The hub may come minutes later: look often enough, but without flooding a machine that is starting.
        self._socket.setsockopt(zmq.RECONNECT_IVL, 50)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        self._socket.setsockopt(zmq.IPV6, int("[" in address))
        self._address = address
        self._about = {**about, **whereabouts()}
        self._nonce = os.urandom(16).hex()
        self._inbox: collections.deque[tuple[int, int, list[Any]]] = collections.deque()
        self._is_connected = False
        self._has_reached_hub = False
        self._has_met = False
        self._gone: str | None = None
        self._waiting_for = ""
        self._welcome: Any = None

    def meet(self) -> Any:
        """Wait for the hub to say that all are there. Returns what it sends to all workers.

        Raises:
            DistributedError: The hub or another worker did not come, or two contradict each other.
        """
        self._socket.connect(self._address)
        hello = {"index": self._index, "nonce": self._nonce, "about": self._about}
        frames = self._sealed(_frames.HELLO, parts=[json.dumps(hello).encode()])
        started, said_at, warned_at = time.monotonic(), 0.0, 0.0
        while not self._has_met:
            if self._is_connected and time.monotonic() - said_at > HELLO_AGAIN_S:
                said_at = time.monotonic()
                self._socket.send_multipart(frames, self._zmq.NOBLOCK, copy=False)
            # A hub that is there decides how long to wait, and tells whom for.
            limit_s = 2 * self._meeting_s + _GRACE_S if self._is_connected else self._meeting_s
            warned_at = self._wait(started, limit_s, self._absent, warned_at)
            if self._failure is not None:
                raise errors.DistributedError(self._failure)
        return self._welcome

    def send(self, number: int, kind: int, part: Any) -> None:
        """Send this worker's part of a collective to the hub.

        Raises:
            DistributedError: The hub is gone, or does not take its messages.
        """
        self._step(0)
        frames = self._sealed(_frames.DATA, kind, number, [part])
        started, warned_at = time.monotonic(), 0.0
        while True:
            self._check_hub(kind)
            try:
                self._socket.send_multipart(frames, self._zmq.NOBLOCK, copy=False)
            except self._zmq.Again:
                self._poller.modify(self._socket, self._zmq.POLLIN | self._zmq.POLLOUT)
                warned_at = self._wait(
                    started, self._collective_s, lambda: f"{self._word} 0 to take its messages", warned_at
                )
                self._poller.modify(self._socket, self._zmq.POLLIN)
            else:
                return

    def receive(self, number: int, kind: int) -> list[Any]:
        """What the hub sends for this collective, frame by frame.

        Raises:
            DistributedError: The hub is gone, or called something else, or was waited for in vain.
        """
        started, warned_at, has_told = time.monotonic(), 0.0, False
        self._step(0)
        while not self._inbox:
            self._check_hub(kind)
            if not has_told and time.monotonic() - started > _NOTE_AFTER_S:
                has_told = True
                self._try_to_send(self._sealed(_frames.NOTE, kind, number))
            warned_at = self._wait(
                started,
                self._collective_s + _GRACE_S,
                lambda: f"{self._word} 0 in {_frames.KINDS[kind]} (call {number} of this group)",
                warned_at,
            )
        its_number, its_kind, parts = self._inbox.popleft()
        if (its_number, its_kind) != (number, kind):
            raise self._fail(different(self._word, self._index, number, kind, 0, its_number, its_kind))
        return parts

    def close(self) -> None:
        """Say good-bye, and close the connection."""
        self._step(0)
        if not self._has_met or self._gone is not None:
            self._disconnect(0)  # nobody is there to take what is still on its way
            return
        if self._failure is None:
            self._try_to_send(self._sealed(_frames.BYE))
        super().close()

    def _check_hub(self, kind: int) -> None:
        if self._failure is not None:
            raise errors.DistributedError(self._failure)
        if self._gone is not None and not self._inbox:
            raise self._fail(f"{self._word} 0 {self._gone}; it was needed in {_frames.KINDS[kind]}")

    def _absent(self) -> str:
        if not self._has_reached_hub:
            return f"{self._word} 0, which is not to be reached at {self._address}"
        return self._waiting_for or (
            f"an answer of {self._word} 0 at {self._address}; if it logs refused messages, the workers' tokens differ: "
            "set DET_DISTRIBUTED_TOKEN to the same value for all of them"
        )

    def _take(self, frames: list[Any]) -> None:
        if len(frames) < 2 or len(frames[0].buffer) != _frames.HEAD.size:
            return
        head, parts = frames[0].bytes, frames[2:]
        message, kind, index, number = _frames.HEAD.unpack(head)
        if index != 0 or not _frames.fits(self._key, head, frames[1], parts):
            return
        if not self._has_met:
            told = json.loads(parts[0].bytes)
            if told["nonce"] == self._nonce:
                self._take_answer(message, told["content"])
        elif message == _frames.DATA and kind < len(_frames.KINDS):
            self._inbox.append((number, kind, parts))
        elif message == _frames.FAIL:
            self._failure = self._failure or parts[0].bytes.decode()
        elif message == _frames.BYE:
            self._gone = "has closed its DistributedContext"

    def _take_answer(self, message: bytes, content: Any) -> None:
        if message == _frames.WAIT:
            self._waiting_for = str(content)
        elif message == _frames.FAIL:
            self._failure = str(content)
        elif message == _frames.WELCOME:
            self._key = _frames.session_key(self._key, bytes.fromhex(content["session"]))
            self._welcome = content["content"]
            self._has_met = True

    def _on_event(self, event: int, fd: int) -> None:
        self._is_connected = event == self._zmq.EVENT_HANDSHAKE_SUCCEEDED
        self._has_reached_hub = self._has_reached_hub or self._is_connected
        if not self._is_connected and self._has_met:
            self._gone = self._gone or LOST

    def _fail(self, text: str) -> errors.DistributedError:
        if self._failure is None and self._has_met:
            self._try_to_send(self._sealed(_frames.FAIL, parts=[text.encode()]))
        return super()._fail(text)

    def _try_to_send(self, frames: list[Any]) -> None:
        try:
            self._socket.send_multipart(frames, self._zmq.NOBLOCK, copy=False)
        except self._zmq.Again:
            return
