"""Messages among the workers of a group: a hub at index 0, and a spoke at each other index.

Every worker makes its end with the same `key`, and they meet: a spoke says who it is, the hub compares what all of them
say, and then tells everybody that the group is complete. After that each collective has a number, counted by every
worker for itself: messages that carry another number, or another kind of collective, mean that the workers' programs
have taken different ways, and are named as that.

Each message carries an HMAC of its content with the key of this meeting. One that does not fit is dropped before
anything in it is read, so that a stranger can't have anything unpickled.

That a worker is gone shows by its connection: at once when its process ends, and after `_HEARTBEAT_TIMEOUT_S` when its
machine does. ZeroMQ's own thread sends the heartbeats, so a training loop may hold the interpreter for any time.

On the wire (ZeroMQ's ROUTER and DEALER), each a frame: the head (`_HEAD`), the HMAC-SHA256, and the content.
"""

from __future__ import annotations

import collections
import hashlib
import hmac
import json
import os
import socket as sockets
import struct
import time

from determined import errors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Callable

# What a message is (see the constants below), which collective, the sender's index, the number of the collective.
_HEAD = struct.Struct("!cBIQ")
_HELLO, _WAIT, _WELCOME, _FAIL, _DATA, _NOTE, _BYE = b"H", b"M", b"W", b"X", b"D", b"N", b"B"
GATHER, ALLGATHER, BROADCAST = 0, 1, 2
_KINDS = ("gather", "allgather", "broadcast")

_HEARTBEAT_S = 5.0
_HEARTBEAT_TIMEOUT_S = 60.0
# Messages under way to one receiver; then the sender waits. Bounds memory when a worker runs ahead of one that is busy.
_HIGH_WATER_MARK = 32
_HELLO_AGAIN_S = 1.0
# A spoke that waits so long tells the hub for what, so that a hub that waits for something else can name it.
_NOTE_AFTER_S = 3.0
_WARN_AFTER_S = 60.0
# So much longer a spoke waits: the hub knows better who is missing.
_GRACE_S = 10.0
# How long a hub that ends first waits for its spokes to end, too.
_PARTING_S = 5.0
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
        self._failure: str | None = None
        self.is_closed = False
        self._socket = context.socket(kind)
        self._socket.set_hwm(_HIGH_WATER_MARK)
        self._socket.setsockopt(zmq.LINGER, _LINGER_MS)
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

    def _sealed(self, kind: bytes, collective: int = 0, number: int = 0, parts: Iterable[Any] = ()) -> list[Any]:
        head = _HEAD.pack(kind, collective, self._index, number)
        # One copy into ZeroMQ's own memory, however many receivers: what it borrowed from Python's could be asked for
        # when the interpreter is gone.
        content = [part if isinstance(part, self._zmq.Frame) else self._zmq.Frame(part, copy=True) for part in parts]
        return [head, _mac(self._key, head, content), *content]

    def _wait(
        self, started: float, limit_s: float, waiting_for: Callable[[], str], warned_at: float, step_s: float = 0.5
    ) -> float:
        """Wait for a moment. Returns when there was a warning last, in seconds after `started`."""
        waited_s = time.monotonic() - started
        if waited_s > limit_s:
            raise self._fail(f"waited {waited_s:.0f} s for {waiting_for()}")
        if waited_s - warned_at > (10 * _WARN_AFTER_S if warned_at else _WARN_AFTER_S):
            warned_at = waited_s
            _logger().warning(f"{self._word} {self._index}: still waiting for {waiting_for()} after {waited_s:.0f} s")
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


class _Peer:
    """What the hub knows about a spoke."""

    def __init__(self, index: int, identity: bytes, nonce: str, about: dict[str, Any]) -> None:
        self.index = index
        self.identity = identity
        self.nonce = nonce
        self.about = about
        self.inbox: collections.deque[tuple[int, int, Any]] = collections.deque()
        self.note: tuple[int, int] | None = None
        self.gone: str | None = None


class Hub(End):
    """Index 0 of a group.

    Args:
        size: Number of workers in the group.
        addresses: Where to listen.
        about: What this worker says about itself.

    Raises:
        DistributedError: An address is taken.
    """

    def __init__(
        self, context: Any, key: bytes, size: int, addresses: list[str], about: dict[str, Any], **limits: Any
    ) -> None:
        import zmq

        super().__init__(context, zmq.ROUTER, key, 0, **limits)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._size = size
        self._about = {0: {**about, **_whereabouts()}}
        self._peers: dict[int, _Peer] = {}
        self._by_identity: dict[bytes, _Peer] = {}
        self._by_fd: dict[int, _Peer] = {}
        self._check: Callable[[dict[int, dict[str, Any]]], str | None] = lambda about: None
        self._has_met = False
        self._first_key = key
        self._strangers: set[str] = set()
        self._came_and_left: set[int] = set()
        for address in addresses:
            self._socket.setsockopt(zmq.IPV6, int("[" in address))
            try:
                self._socket.bind(address)
            except zmq.ZMQError as e:
                self.close()
                raise errors.DistributedError(
                    f"can't listen at {address}: {e.strerror}; if another job of this machine has it, "
                    "pass another port_offset to the DistributedContext of all workers"
                ) from e

    @property
    def port(self) -> int:
        """The TCP port of the last address."""
        return int(self._socket.getsockopt(self._zmq.LAST_ENDPOINT).rstrip(b"\0").rpartition(b":")[2])

    def meet(
        self,
        check: Callable[[dict[int, dict[str, Any]]], str | None],
        welcome: Callable[[dict[int, dict[str, Any]]], Any],
    ) -> Any:
        """Wait for all the others.

        Args:
            check: From what the workers say about themselves, by index: what contradicts, or None.
            welcome: From the same: what to tell all of them, as JSON can say it.

        Returns:
            What `welcome` returned.

        Raises:
            DistributedError: Somebody did not come, or two contradict each other.
        """
        self._check = check
        started, told_at, warned_at = time.monotonic(), 0.0, 0.0
        while len(self._peers) < self._size - 1:
            warned_at = self._wait(started, self._meeting_s, self._absent, warned_at)
            if time.monotonic() - told_at > _HELLO_AGAIN_S:
                told_at = time.monotonic()
                for peer in list(self._peers.values()):
                    self._tell(peer, _WAIT, self._absent())
        nonce = os.urandom(16)
        content = welcome(dict(self._about))
        for peer in self._peers.values():
            self._tell(peer, _WELCOME, {"session": nonce.hex(), "content": content})
        self._key = session_key(self._first_key, nonce)
        self._has_met = True
        return content

    def collect(self, number: int, kind: int) -> list[Any]:
        """What the spokes sent for this collective, by index from 1 on.

        Raises:
            DistributedError: Somebody is gone, or called something else, or was waited for in vain.
        """
        found: dict[int, Any] = {}
        started, warned_at = time.monotonic(), 0.0
        self._step(0)
        while True:
            for index, peer in self._peers.items():
                if index not in found:
                    part = self._next_of(peer, number, kind)
                    if part is not None:
                        found[index] = part
            if len(found) == len(self._peers):
                return [found[index] for index in sorted(found)]

            def waiting_for() -> str:
                absent = [index for index in self._peers if index not in found]
                return f"{named(self._word, absent)} in {_KINDS[kind]} (call {number} of this group)"

            warned_at = self._wait(started, self._collective_s, waiting_for, warned_at)

    def spread(self, number: int, kind: int, parts: list[Any]) -> None:
        """Send the same to all spokes.

        Raises:
            DistributedError: Somebody is gone, or does not take its messages.
        """
        self._step(0)
        frames = self._sealed(_DATA, kind, number, parts)
        for peer in self._peers.values():
            started, warned_at = time.monotonic(), 0.0
            while not self._send(peer, frames):
                if peer.gone is not None:
                    raise self._fail(f"{self._word} {peer.index} {peer.gone}; it was to get a {_KINDS[kind]}")
                what = f"{self._word} {peer.index} to take its messages"
                # That there is room again wakes nobody: short steps at first.
                step_s = min(0.1, 0.001 + (time.monotonic() - started) / 4)
                warned_at = self._wait(started, self._collective_s, lambda what=what: what, warned_at, step_s)

    def close(self) -> None:
        """Say good-bye, and close the connections.

        The spokes say good-bye as well, and that would wait for a hub that is no longer there: hence a moment for them.
        """
        if self._failure is None and self._has_met:
            for peer in self._peers.values():
                self._send(peer, self._sealed(_BYE))
            until = time.monotonic() + _PARTING_S
            self._step(0)
            while any(peer.gone is None for peer in self._peers.values()) and time.monotonic() < until:
                self._step(0.1)
        super().close()

    def _next_of(self, peer: _Peer, number: int, kind: int) -> Any:
        if peer.inbox:
            its_number, its_kind, part = peer.inbox.popleft()
        elif peer.note is not None and peer.note[0] == number and peer.note[1] != kind:
            (its_number, its_kind), part = peer.note, None
        elif peer.gone is not None:
            raise self._fail(f"{self._word} {peer.index} {peer.gone}; it was waited for in {_KINDS[kind]}")
        else:
            return None
        if (its_number, its_kind) != (number, kind):
            raise self._fail(different(self._word, 0, number, kind, peer.index, its_number, its_kind))
        return part

    def _take(self, frames: list[Any]) -> None:
        identity = frames[0].bytes
        peer = self._by_identity.get(identity)
        if len(frames) >= 3 and len(frames[1].buffer) == _HEAD.size:
            head, parts = frames[1].bytes, frames[3:]
            message, kind, index, number = _HEAD.unpack(head)
            key = self._first_key if message == _HELLO else self._key
            if _fits(key, head, frames[2], parts):
                if message == _HELLO:
                    self._take_hello(identity, frames[-1], json.loads(parts[0].bytes))
                    return
                if peer is not None and peer.index == index:
                    self._take_message(peer, message, kind, number, parts)
                    return
        address = self._origin(frames[-1])
        if address not in self._strangers:
            self._strangers.add(address)
            _logger().warning(
                f"refused a message from {address or 'this machine'}: its sender does not know the token of this job"
            )

    def _take_message(self, peer: _Peer, message: bytes, kind: int, number: int, parts: list[Any]) -> None:
        if message == _DATA and kind < len(_KINDS) and len(parts) == 1:
            peer.inbox.append((number, kind, parts[0]))
        elif message == _NOTE and kind < len(_KINDS):
            peer.note = (number, kind)
        elif message == _FAIL:
            peer.gone = f"has failed: {parts[0].bytes.decode()}"
        elif message == _BYE:
            peer.gone = "has closed its DistributedContext"

    def _take_hello(self, identity: bytes, frame: Any, hello: dict[str, Any]) -> None:
        # The number of a connection is used again: those that are closed must be known before it is noted anew.
        self._take_events()
        index, nonce = int(hello["index"]), str(hello["nonce"])
        known = self._peers.get(index)
        if known is not None and known.nonce == nonce and known.identity == identity:
            return
        if self._has_met:
            return  # too late: everybody is here already
        peer = _Peer(index, identity, nonce, hello["about"])
        problem = None
        if not 0 < index < self._size:
            problem = f"there is a {self._word} {index}, but the {self._word} 0 knows of {self._size} workers"
        elif known is not None and known.nonce != nonce:
            problem = (
                f"two workers say that they are {self._word} {index}: process {known.about['pid']} on "
                f"{known.about['host']}, and process {peer.about['pid']} on {peer.about['host']}"
            )
        else:
            problem = self._check({**self._about, index: peer.about})
        if problem is not None:
            self._failure = problem
            for one in (*self._peers.values(), peer):
                self._tell(one, _FAIL, problem)
            raise errors.DistributedError(problem)
        self._peers[index] = peer
        self._about[index] = peer.about
        self._by_identity[identity] = peer
        self._by_fd[int(frame.get("__fd"))] = peer
        self._tell(peer, _WAIT, self._absent())

    def _origin(self, frame: Any) -> str:
        try:
            return str(frame.get("Peer-Address"))
        except self._zmq.ZMQError:
            return ""

    def _tell(self, peer: _Peer, message: bytes, content: Any) -> None:
        """Before the meeting is over: the spoke knows by its own nonce that this is an answer to it, and is new."""
        data = json.dumps({"nonce": peer.nonce, "content": content}).encode()
        self._send(peer, self._sealed(message, parts=[data]))

    def _absent(self) -> str:
        absent = [index for index in range(1, self._size) if index not in self._peers]
        if not absent:
            return f"{self._word} 0 to begin"
        text = f"{named(self._word, absent)} of {self._size} to arrive"
        left = sorted(self._came_and_left.intersection(absent))
        if left:
            text += f" ({named(self._word, left)} came and left again)"
        if self._strangers:
            text += "; somebody who does not know this job's token was refused"
        return text

    def _send(self, peer: _Peer, frames: list[Any]) -> bool:
        try:
            self._socket.send_multipart([peer.identity, *frames], self._zmq.NOBLOCK, copy=False)
        except self._zmq.Again:
            return False
        except self._zmq.ZMQError as e:
            if e.errno != self._zmq.EHOSTUNREACH:
                raise
            peer.gone = peer.gone or _LOST
            return False
        return True

    def _on_event(self, event: int, fd: int) -> None:
        peer = self._by_fd.pop(fd, None) if event == self._zmq.EVENT_DISCONNECTED else None
        if peer is None:
            return
        peer.gone = peer.gone or _LOST
        if not self._has_met and self._peers.get(peer.index) is peer:
            self._came_and_left.add(peer.index)
            del self._peers[peer.index]
            del self._about[peer.index]
            del self._by_identity[peer.identity]

    def _fail(self, text: str) -> errors.DistributedError:
        if self._failure is None:
            self._failure = text
            for peer in self._peers.values():
                if self._has_met:
                    self._send(peer, self._sealed(_FAIL, parts=[text.encode()]))
                else:
                    self._tell(peer, _FAIL, text)
        return errors.DistributedError(self._failure)


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
        self._about = {**about, **_whereabouts()}
        self._nonce = os.urandom(16).hex()
        self._inbox: collections.deque[tuple[int, int, list[Any]]] = collections.deque()
        self._is_connected = False
        self._has_reached_hub = False
        self._has_met = False
        self._gone: str | None = None
        self._waiting_for = ""
        self._welcome: Any = None

    def meet(self) -> Any:
        """Wait for the hub to say that all are there. Returns what it tells everybody.

        Raises:
            DistributedError: The hub did not come, or somebody else, or two contradict each other.
        """
        self._socket.connect(self._address)
        hello = {"index": self._index, "nonce": self._nonce, "about": self._about}
        frames = self._sealed(_HELLO, parts=[json.dumps(hello).encode()])
        started, said_at, warned_at = time.monotonic(), 0.0, 0.0
        while not self._has_met:
            if self._is_connected and time.monotonic() - said_at > _HELLO_AGAIN_S:
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
        frames = self._sealed(_DATA, kind, number, [part])
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
                self._try_to_send(self._sealed(_NOTE, kind, number))
            warned_at = self._wait(
                started,
                self._collective_s + _GRACE_S,
                lambda: f"{self._word} 0 in {_KINDS[kind]} (call {number} of this group)",
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
            self._try_to_send(self._sealed(_BYE))
        super().close()

    def _check_hub(self, kind: int) -> None:
        if self._failure is not None:
            raise errors.DistributedError(self._failure)
        if self._gone is not None and not self._inbox:
            raise self._fail(f"{self._word} 0 {self._gone}; it was needed in {_KINDS[kind]}")

    def _absent(self) -> str:
        if not self._has_reached_hub:
            return f"{self._word} 0, which is not to be reached at {self._address}"
        return self._waiting_for or (
            f"an answer of {self._word} 0 at {self._address}; if it logs refused messages, the workers' tokens differ: "
            "set DET_DISTRIBUTED_TOKEN to the same value for all of them"
        )

    def _take(self, frames: list[Any]) -> None:
        if len(frames) < 2 or len(frames[0].buffer) != _HEAD.size:
            return
        head, parts = frames[0].bytes, frames[2:]
        message, kind, index, number = _HEAD.unpack(head)
        if index != 0 or not _fits(self._key, head, frames[1], parts):
            return
        if not self._has_met:
            told = json.loads(parts[0].bytes)
            if told["nonce"] == self._nonce:
                self._take_answer(message, told["content"])
        elif message == _DATA and kind < len(_KINDS):
            self._inbox.append((number, kind, parts))
        elif message == _FAIL:
            self._failure = self._failure or parts[0].bytes.decode()
        elif message == _BYE:
            self._gone = "has closed its DistributedContext"

    def _take_answer(self, message: bytes, content: Any) -> None:
        if message == _WAIT:
            self._waiting_for = str(content)
        elif message == _FAIL:
            self._failure = str(content)
        elif message == _WELCOME:
            self._key = session_key(self._key, bytes.fromhex(content["session"]))
            self._welcome = content["content"]
            self._has_met = True

    def _on_event(self, event: int, fd: int) -> None:
        self._is_connected = event == self._zmq.EVENT_HANDSHAKE_SUCCEEDED
        self._has_reached_hub = self._has_reached_hub or self._is_connected
        if not self._is_connected and self._has_met:
            self._gone = self._gone or _LOST

    def _fail(self, text: str) -> errors.DistributedError:
        if self._failure is None and self._has_met:
            self._try_to_send(self._sealed(_FAIL, parts=[text.encode()]))
        return super()._fail(text)

    def _try_to_send(self, frames: list[Any]) -> None:
        try:
            self._socket.send_multipart(frames, self._zmq.NOBLOCK, copy=False)
        except self._zmq.Again:
            return


_LOST = "is gone: its process has ended, or its connection is lost"


def session_key(key: bytes, nonce: bytes) -> bytes:
    """The key of one meeting."""
    return hmac.new(key, b"session" + nonce, hashlib.sha256).digest()


def different(word: str, index: int, number: int, kind: int, other: int, its_number: int, its_kind: int) -> str:
    """What to say when two workers have called different collectives."""
    return (
        f"the workers' calls differ: {word} {other} called {_KINDS[its_kind]} as call {its_number} of this group, "
        f"but {word} {index} called {_KINDS[kind]} as call {number}; all workers must make the same calls in the "
        "same order"
    )


def named(word: str, indices: list[int]) -> str:
    """For example "ranks 1, 2 and 5"."""
    if len(indices) == 1:
        return f"{word} {indices[0]}"
    return f"{word}s {', '.join(str(i) for i in indices[:-1])} and {indices[-1]}"


def _whereabouts() -> dict[str, Any]:
    return {"host": sockets.gethostname(), "pid": os.getpid()}


def _mac(key: bytes, head: bytes, parts: list[Any]) -> bytes:
    mac = hmac.new(key, head, hashlib.sha256)
    for part in parts:
        data = getattr(part, "buffer", part)
        mac.update(struct.pack("!Q", len(data)))
        mac.update(data)
    return mac.digest()


def _fits(key: bytes, head: bytes, mac: Any, parts: list[Any]) -> bool:
    return hmac.compare_digest(_mac(key, head, parts), mac.bytes)


def _logger() -> Any:
    import logging

    return logging.getLogger("determined.core")
