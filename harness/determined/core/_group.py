"""A group of workers that exchange messages: a hub at index 0, and a spoke at each other index.

Every worker makes its end with the same `key`, and they meet: a spoke says who it is, the hub compares what all of them
say, and then notifies all workers that the group is complete. After that each collective has a number, counted by every
worker for itself: messages that carry another number, or another kind of collective, mean that the workers' programs
have taken different ways, and are named as that.

That a worker is gone shows by its connection: at once when its process ends, and after `_HEARTBEAT_TIMEOUT_S` when its
machine does. ZeroMQ's own thread sends the heartbeats, so a training loop may hold the interpreter for any time.

Here is what both kinds of ends have in common; `_hub` and `_spoke` are the two (ZeroMQ's ROUTER and DEALER), and
`_frames` is what they send.
"""

from __future__ import annotations

import os
import socket as sockets
import struct
import time

from determined import errors
from determined.core import _frames
from determined.launch._folder import STILL_WAITING, Progress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Callable

# How often who waits in a meeting says so.
HELLO_AGAIN_S = 1.0
LOST = "is gone: its process has ended, or its connection is lost"

_HEARTBEAT_S = 5.0
_HEARTBEAT_TIMEOUT_S = 60.0
# Messages under way to one receiver; then the sender waits. Bounds memory when a worker runs ahead of one that is busy.
_HIGH_WATER_MARK = 32
_WARN_AFTER_S = 60.0
_LINGER_MS = 30_000
_LINGER_AFTER_FAILURE_MS = 2_000


class End:
    """One worker's end of a group; see the module's docstring.

    Args:
        context: A `zmq.Context`.
        kind: The type of ZeroMQ socket.
        key: Known to the workers of this group only.
        index: Of this worker in the group.
        word: What an index is called in messages, for example "rank".
        meeting_s: How long to wait for the others to arrive.
        collective_s: How long to wait for another worker in a collective.
    """

    def __init__(
        self, context: Any, kind: int, key: bytes, index: int, word: str, meeting_s: float, collective_s: float
    ) -> None:
        import zmq

        self._zmq = zmq
        self._key = key
        self._index = index
        self._word = word
        self._meeting_s = meeting_s
        self._collective_s = collective_s
        self._number = 0
        self._progress = Progress.of_this_process()
        self._failure: str | None = None
        self.is_closed = False
        self._socket = context.socket(kind)
        self._socket.set_hwm(_HIGH_WATER_MARK)
        # A connection that breaks is given up after what is set while its socket is bound, whatever `close` says: with
        # a message for a worker that was killed it would hold up the end of this process for as long.
        self._socket.setsockopt(zmq.LINGER, _LINGER_AFTER_FAILURE_MS)
        self._socket.setsockopt(zmq.HEARTBEAT_IVL, int(_HEARTBEAT_S * 1000))
        self._socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, int(_HEARTBEAT_TIMEOUT_S * 1000))
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)

    def next(self) -> int:
        """Begin a collective; returns its number.

        Raises:
            DistributedError: The group has failed before.
        """
        if self._failure is not None:
            raise errors.DistributedError(self._failure)
        self._number += 1
        self._progress.note()
        return self._number

    def _step(self, wait_s: float) -> None:
        """Wait until something happens, and take in what has."""
        if wait_s > 0:
            self._poller.poll(max(1, int(wait_s * 1000)))
        # First who is gone, then the messages: what they sent before they went must not be overlooked.
        self._take_events()
        while True:
            try:
                frames = self._socket.recv_multipart(self._zmq.NOBLOCK, copy=False)
            except self._zmq.Again:
                return
            self._take(frames)

    def _take(self, frames: list[Any]) -> None:
        raise NotImplementedError

    def _on_event(self, event: int, fd: int) -> None:
        raise NotImplementedError

    def _take_events(self) -> None:
        while True:
            try:
                frames = self._monitor.recv_multipart(self._zmq.NOBLOCK)
            except self._zmq.Again:
                return
            event, value = struct.unpack("=hi", frames[0])
            self._on_event(event, value)

    def _sealed(self, message: bytes, kind: int = 0, number: int = 0, parts: Iterable[Any] = ()) -> list[Any]:
        return _frames.sealed(self._key, message, kind, self._index, number, parts)

    def _wait(
        self, started: float, limit_s: float, waiting_for: Callable[[], str], warned_at: float, step_s: float = 0.5
    ) -> float:
        """Wait for a moment. Returns when there was a warning last, in seconds after `started`."""
        waited_s = time.monotonic() - started
        if waited_s > limit_s:
            raise self._fail(f"waited {waited_s:.0f} s for {waiting_for()}")
        if waited_s - warned_at > (10 * _WARN_AFTER_S if warned_at else _WARN_AFTER_S):
            warned_at = waited_s
            logger().warning(f"{self._word} {self._index}: {STILL_WAITING} {waiting_for()} after {waited_s:.0f} s")
        self._step(min(step_s, limit_s - waited_s + 0.01))
        return warned_at

    def _fail(self, text: str) -> errors.DistributedError:
        if self._failure is None:
            self._failure = text
        return errors.DistributedError(self._failure)

    def close(self) -> None:
        """Close the connections, once what was sent has left this process."""
        self._disconnect(_LINGER_AFTER_FAILURE_MS if self._failure is not None else _LINGER_MS)

    def _disconnect(self, linger: int) -> None:
        self.is_closed = True
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(linger)


def different(word: str, index: int, number: int, kind: int, other: int, its_number: int, its_kind: int) -> str:
    """What to say when two workers have called different collectives."""
    its_name, name = _frames.KINDS[its_kind], _frames.KINDS[kind]
    return (
        f"the workers' calls differ: {word} {other} called {its_name} as call {its_number} of this group, "
        f"but {word} {index} called {name} as call {number}; all workers must make the same calls in the same order"
    )


def named(word: str, indices: list[int]) -> str:
    """For example "ranks 1, 2 and 5"."""
    if len(indices) == 1:
        return f"{word} {indices[0]}"
    return f"{word}s {', '.join(str(i) for i in indices[:-1])} and {indices[-1]}"


def whereabouts() -> dict[str, Any]:
    """This process, for messages about it."""
    return {"host": sockets.gethostname(), "pid": os.getpid()}


def logger() -> Any:
    """The Core API's logger; `logging` itself is imported when something is wrong."""
    import logging

    return logging.getLogger("determined.core")
