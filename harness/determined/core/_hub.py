"""The end of a group at index 0: waits for all spokes, and passes on what they send. See `_group`."""

from __future__ import annotations

import collections
import json
import os
import time

from determined import errors
from determined.core import _frames
from determined.core._group import HELLO_AGAIN_S, LOST, End, different, logger, named, whereabouts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

# How long a hub that ends first waits for its spokes to end, too.
_PARTING_S = 5.0


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
        self._about = {0: {**about, **whereabouts()}}
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
            DistributedError: A worker did not come, or two contradict each other.
        """
        self._check = check
        started, told_at, warned_at = time.monotonic(), 0.0, 0.0
        while len(self._peers) < self._size - 1:
            warned_at = self._wait(started, self._meeting_s, self._absent, warned_at)
            if time.monotonic() - told_at > HELLO_AGAIN_S:
                told_at = time.monotonic()
                for peer in list(self._peers.values()):
                    self._tell(peer, _frames.WAIT, self._absent())
        nonce = os.urandom(16)
        content = welcome(dict(self._about))
        for peer in self._peers.values():
            self._tell(peer, _frames.WELCOME, {"session": nonce.hex(), "content": content})
        self._key = _frames.session_key(self._first_key, nonce)
        self._has_met = True
        return content

    def collect(self, number: int, kind: int) -> list[Any]:
        """What the spokes sent for this collective, by index from 1 on.

        Raises:
            DistributedError: A worker is gone, or called something else, or did not come in time.
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
                return f"{named(self._word, absent)} in {_frames.KINDS[kind]} (call {number} of this group)"

            warned_at = self._wait(started, self._collective_s, waiting_for, warned_at)

    def spread(self, number: int, kind: int, parts: list[Any]) -> None:
        """Send the same to all spokes.

        Raises:
            DistributedError: A worker is gone, or does not take its messages.
        """
        self._step(0)
        frames = self._sealed(_frames.DATA, kind, number, parts)
        for peer in self._peers.values():
            started, warned_at = time.monotonic(), 0.0
            while not self._send(peer, frames):
                if peer.gone is not None:
                    raise self._fail(f"{self._word} {peer.index} {peer.gone}; it was to get a {_frames.KINDS[kind]}")
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
                self._send(peer, self._sealed(_frames.BYE))
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
            raise self._fail(f"{self._word} {peer.index} {peer.gone}; it was waited for in {_frames.KINDS[kind]}")
        else:
            return None
        if (its_number, its_kind) != (number, kind):
            raise self._fail(different(self._word, 0, number, kind, peer.index, its_number, its_kind))
        return part

    def _take(self, frames: list[Any]) -> None:
        identity = frames[0].bytes
        peer = self._by_identity.get(identity)
        if len(frames) >= 3 and len(frames[1].buffer) == _frames.HEAD.size:
            head, parts = frames[1].bytes, frames[3:]
            message, kind, index, number = _frames.HEAD.unpack(head)
            key = self._first_key if message == _frames.HELLO else self._key
            if _frames.fits(key, head, frames[2], parts):
                if message == _frames.HELLO:
                    self._take_hello(identity, frames[-1], json.loads(parts[0].bytes))
                    return
                if peer is not None and peer.index == index:
                    self._take_message(peer, message, kind, number, parts)
                    return
        address = self._origin(frames[-1])
        if address not in self._strangers:
            self._strangers.add(address)
            logger().warning(
                f"refused a message from {address or 'this machine'}: its sender does not know the token of this job"
            )

    def _take_message(self, peer: _Peer, message: bytes, kind: int, number: int, parts: list[Any]) -> None:
        if message == _frames.DATA and kind < len(_frames.KINDS) and len(parts) == 1:
            peer.inbox.append((number, kind, parts[0]))
        elif message == _frames.NOTE and kind < len(_frames.KINDS):
            peer.note = (number, kind)
        elif message == _frames.FAIL:
            peer.gone = f"has failed: {parts[0].bytes.decode()}"
        elif message == _frames.BYE:
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
                self._tell(one, _frames.FAIL, problem)
            raise errors.DistributedError(problem)
        self._peers[index] = peer
        self._about[index] = peer.about
        self._by_identity[identity] = peer
        self._by_fd[int(frame.get("__fd"))] = peer
        self._tell(peer, _frames.WAIT, self._absent())

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
            text += "; a client without this job's token was refused"
        return text

    def _send(self, peer: _Peer, frames: list[Any]) -> bool:
        try:
            self._socket.send_multipart([peer.identity, *frames], self._zmq.NOBLOCK, copy=False)
        except self._zmq.Again:
            return False
        except self._zmq.ZMQError as e:
            if e.errno != self._zmq.EHOSTUNREACH:
                raise
            peer.gone = peer.gone or LOST
            return False
        return True

    def _on_event(self, event: int, fd: int) -> None:
        peer = self._by_fd.pop(fd, None) if event == self._zmq.EVENT_DISCONNECTED else None
        if peer is None:
            return
        peer.gone = peer.gone or LOST
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
                    self._send(peer, self._sealed(_frames.FAIL, parts=[text.encode()]))
                else:
                    self._tell(peer, _frames.FAIL, text)
        return errors.DistributedError(self._failure)


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
