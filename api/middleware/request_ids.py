"""The id of a request: answered in a header, and in each log line that is written while it is served."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from itertools import pairwise

import structlog
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


async def serve_named(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Have `app` serve a request under an id: the client's own, if it is one, or a new one."""
    sent = next((value for name, value in scope["headers"] if name == _NAME), b"")
    request_id = sent if _ACCEPTED.fullmatch(sent) else secrets.token_hex(8).encode()

    async def answer(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], (_NAME, request_id)]
        await send(message)

    with structlog.contextvars.bound_contextvars(request_id=request_id.decode(), **dict(_named_by(scope["path"]))):
        await app(scope, receive, answer)


def _named_by(path: str) -> Iterator[tuple[str, str]]:
    words = path.split("/", 8)
    for word, value in pairwise(words):
        name, pattern = _IDS.get(word, ("", None))
        if pattern is not None and pattern.fullmatch(value):
            yield name, value
