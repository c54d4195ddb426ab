"""The id of a request: answered in a header, and in each log line that is written while it is served."""

from __future__ import annotations

import random
import re
import secrets
from collections.abc import Iterator, MutableMapping
from contextvars import ContextVar, Token
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # agents write logs too, and serve nothing
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "x-request-id"
_NAME = HEADER.encode()
#: What a client may choose: a longer or other one is replaced, as it would be in every line of the log.
_ACCEPTED = re.compile(rb"[A-Za-z0-9._-]{1,64}")
#: Of what a request's path names, by the word before it.
_IDS = {
    "experiments": ("experiment_id", re.compile(r"[0-9]{1,18}")),
    "trials": ("trial_id", re.compile(r"[0-9]{1,18}")),
    "allocations": ("allocation_id", re.compile(r"[A-Za-z0-9._-]{1,120}")),
    "tasks": ("task_id", re.compile(r"[A-Za-z0-9._-]{1,120}")),
}


#: An id is no secret: the system's own random numbers would cost each request a call to it.
_random = random.Random(secrets.randbits(128))
#: The id and the path of the request that is served in this context.
_served: ContextVar[tuple[bytes, str] | None] = ContextVar("served", default=None)


class Named:
    """A request under an id, for as long as the block lasts: the client's own, if it is one, or a new one.

    `header` is for the head of the answer. What lines of the log say of the request, `with_ids` works out.
    """

    __slots__ = ("_before", "_served", "header")

    def __init__(self, scope: Scope) -> None:
        sent = next((value for name, value in scope["headers"] if name == _NAME), b"")
        request_id = sent if _ACCEPTED.fullmatch(sent) else b"%016x" % _random.getrandbits(64)
        self.header = (_NAME, request_id)
        self._served = (request_id, scope["path"])
        self._before: Token[tuple[bytes, str] | None]

    def __enter__(self) -> Named:
        self._before = _served.set(self._served)
        return self

    def __exit__(self, *_: object) -> None:
        _served.reset(self._before)


async def serve_named(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Have `app` serve a request under an id."""

    async def answer(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], named.header]
        await send(message)

    with Named(scope) as named:
        await app(scope, receive, answer)


def with_ids(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A processor of log lines: those that are written while a request is served say its id, and those of its path."""
    served = _served.get()
    if served is not None:
        request_id, path = served
        event.setdefault("request_id", request_id.decode())
        for name, value in _named_by(path):
            event.setdefault(name, value)
    return event


def _named_by(path: str) -> Iterator[tuple[str, str]]:
    words = path.split("/", 8)
    for word, value in pairwise(words):
        name, pattern = _IDS.get(word, ("", None))
        if pattern is not None and pattern.fullmatch(value):
            yield name, value
