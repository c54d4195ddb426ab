"""Messages among the workers of a group, as ZeroMQ's frames: the head (`HEAD`), an HMAC-SHA256, and the content.

The HMAC is of head and content, with the key of one meeting. A message whose HMAC does not fit is dropped before
anything in it is read, so that a stranger can't have anything unpickled.
"""

from __future__ import annotations

import hashlib
import hmac
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

# What a message is (see the constants below), which collective, the sender's index, the number of the collective.
HEAD = struct.Struct("!cBIQ")
HELLO, WAIT, WELCOME, FAIL, DATA, NOTE, BYE = b"H", b"M", b"W", b"X", b"D", b"N", b"B"
GATHER, ALLGATHER, BROADCAST = 0, 1, 2
KINDS = ("gather", "allgather", "broadcast")


def sealed(key: bytes, message: bytes, kind: int, index: int, number: int, parts: Iterable[Any]) -> list[Any]:
    """A message to send.

    Args:
        key: Of the meeting.
        message: What it is, for example `DATA`.
        kind: The collective, for example `GATHER`.
        index: Of the sender.
        number: Of the collective.
        parts: The content: bytes, or `zmq.Frame`.
    """
    import zmq

    head = HEAD.pack(message, kind, index, number)
    # One copy into ZeroMQ's own memory, however many receivers: what it borrowed from Python's could be asked for
    # when the interpreter is gone.
    content = [part if isinstance(part, zmq.Frame) else zmq.Frame(part, copy=True) for part in parts]
    return [head, _mac(key, head, content), *content]


def fits(key: bytes, head: bytes, mac: Any, parts: list[Any]) -> bool:
    """Whether the sender of a message knows the key."""
    return hmac.compare_digest(_mac(key, head, parts), mac.bytes)


def session_key(key: bytes, nonce: bytes) -> bytes:
    """The key of one meeting."""
    return hmac.new(key, b"session" + nonce, hashlib.sha256).digest()


def _mac(key: bytes, head: bytes, parts: list[Any]) -> bytes:
    mac = hmac.new(key, head, hashlib.sha256)
    for part in parts:
        data = getattr(part, "buffer", part)
        mac.update(struct.pack("!Q", len(data)))
        mac.update(data)
    return mac.digest()
