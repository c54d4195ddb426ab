"""Limits on request bodies: bytes, values, time, and how much one sender may have in flight.

Every request passes here before any of its body is read. `TABLE` is the only place with limits of routes. A route that
is not in it gets the limit `USUAL`, which is enough for messages that are small by nature.
"""

from __future__ import annotations

import asyncio
import re
import types
from collections import Counter
from collections.abc import Coroutine, Generator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, cast

from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope

from api.errors import TooLarge, TooMany, TooSlow, Unavailable

MIB = 2**20


@dataclass(frozen=True)
class Bound:
    """What a body may be.

    Args:
        size: Most bytes.
        values: Most commas and opening brackets, those within texts included. JSON becomes up to a hundred times as
            large in memory if it is nothing but these. None: they are not counted, as the texts are free.
        at_once: Most such requests of one sender at a time, of those that are larger than `LARGE`.
    """

    size: int
    values: int | None = 1_000_000
    at_once: int = 4


#: Below this many bytes a request is no work worth counting.
LARGE = 256 * 1024
USUAL = Bound(2 * MIB)
#: Configurations: the longest one, and room for its escapes.
DOCUMENT = Bound(24 * MIB)
#: A context of 95 MiB as base64 within JSON, and room for its names.
CONTEXT = Bound(136 * MIB, at_once=2)
#: Metrics of thousands of reports, and the files of a checkpoint.
REPORT = Bound(32 * MIB)
#: A chunk of a context, as it is.
CHUNK = Bound(4 * MIB, values=None)
LOGS = Bound(4 * MIB, values=None, at_once=1)
#: By method and declared path of a route.
TABLE: dict[str, Bound] = {
    "POST /api/v1/experiments": CONTEXT,
    "POST /api/v1/undeterred/experiments": CONTEXT,
    "POST /api/v1/commands": CONTEXT,
    "POST /api/v1/undeterred/contexts": DOCUMENT,
    "POST /api/v1/undeterred/contexts/missing": DOCUMENT,
    "PUT /api/v1/undeterred/contexts/chunks/{digest}": CHUNK,
    "POST /api/v1/undeterred/experiments/plan": DOCUMENT,
    "POST /api/v1/generic-tasks": CONTEXT,
    "PUT /api/v1/experiments/by-external-id/{external_id:path}": CONTEXT,
    "PATCH /api/v1/experiments/{experiment_id}": DOCUMENT,
    "PATCH /experiments/{experiment_id}": DOCUMENT,
    "POST /api/v1/experiments/continue": DOCUMENT,
    "POST /api/v1/experiments/{experiment_id}/fork": DOCUMENT,
    "POST /api/v1/experiments/{experiment_id}/search/amend": DOCUMENT,
    "POST /api/v1/undeterred/experiments/{experiment_id}/search/preview-amend": DOCUMENT,
    "POST /api/v1/experiments/{experiment_id}/searcher_operations": DOCUMENT,
    "POST /api/v1/preview-hp-search": DOCUMENT,
    "POST /searcher/preview": DOCUMENT,
    "POST /api/v1/templates/{name}": DOCUMENT,
    "PUT /api/v1/templates/{name}": DOCUMENT,
    "PATCH /api/v1/templates/{name}": DOCUMENT,
    "PUT /templates/{name}": DOCUMENT,
    "POST /api/v1/trials": DOCUMENT,
    "PUT /api/v1/trials": DOCUMENT,
    "PUT /api/v1/projects/{project_id}/notes": DOCUMENT,
    "POST /api/v1/projects/{project_id}/notes": DOCUMENT,
    "POST /api/v1/models": DOCUMENT,
    "PATCH /api/v1/models/{name}": DOCUMENT,
    "POST /api/v1/models/{name}/versions": DOCUMENT,
    "PATCH /api/v1/models/{name}/versions/{number}": DOCUMENT,
    "POST /api/v1/trials/profiler/metrics": REPORT,
    "POST /api/v1/task/logs": LOGS,
    "POST /task-logs": LOGS,
    "POST /api/v1/trials/{trial_id}/metrics": REPORT,
    "POST /api/v1/trials/{trial_id}/metrics/batch": REPORT,
    "POST /api/v1/trials/{trial_id}/metrics/curves": REPORT,
    "POST /api/v1/trials/{trial_id}/{kind}_metrics": REPORT,
    "POST /api/v1/checkpoints": REPORT,
    "PATCH /api/v1/checkpoints": REPORT,
}


def _pattern(route: str) -> re.Pattern[str]:
    parts = re.split(r"(\{[a-z_]+(?::path)?\})", route)
    return re.compile("".join(re.escape(part) if at % 2 == 0 else _any(part) for at, part in enumerate(parts)) + "$")


def _any(parameter: str) -> str:
    return ".+" if parameter.endswith(":path}") else "[^/]+"


_EXACT = {route: bound for route, bound in TABLE.items() if "{" not in route}
_PATTERNS = [(_pattern(route), bound) for route, bound in TABLE.items() if "{" in route]


def bound_of(method: str, path: str) -> Bound:
    """What the body of a request to this address may be."""
    asked = f"{method} {path.rstrip('/')}"
    exact = _EXACT.get(asked)
    if exact is not None:
        return exact
    return next((bound for pattern, bound in _PATTERNS if pattern.match(asked)), USUAL)


class Bodies:
    """The bodies in flight into this process.

    Args:
        total: Most bytes of all bodies together.
        share: Most bytes of one sender, beyond the limit of a single request.
        patience_s: A body may take this many seconds, and a second more for each `pace` bytes.
        pace: Bytes a second.
    """

    def __init__(
        self, *, total: int = 768 * MIB, share: int = 64 * MIB, patience_s: float = 30.0, pace: int = 64 * 1024
    ) -> None:
        self._total = total
        self._share = share
        self.patience_s = patience_s
        self.pace = pace
        self._held = 0
        self._held_by: Counter[str] = Counter()
        self._at_once: Counter[tuple[str, Bound]] = Counter()

    def take(self, scope: Scope, receive: Receive, bound: Bound | None = None) -> Body:
        """The body of a request: used in place of `receive`, for as long as the block lasts.

        Args:
            scope: Of the request.
            receive: Of the request.
            bound: What the body may be, where the caller knows it already.
        """
        return Body(self, scope, receive, bound or bound_of(scope["method"], scope["path"]))

    def enter(self, sender: str, bound: Bound) -> None:
        """A request of this sender turns out to be large. Raises: TooMany."""
        if self._at_once[sender, bound] >= bound.at_once:
            raise TooMany(f"{bound.at_once} large requests of yours are still being worked on: send one at a time", 1)
        self._at_once[sender, bound] += 1

    def grow(self, sender: str, size: int, bound: Bound) -> None:
        """More of a body has come. Raises: TooMany, Unavailable."""
        self._held += size
        self._held_by[sender] += size
        if self._held_by[sender] > bound.size + self._share:
            raise TooMany(f"bodies of {self._held_by[sender] // MIB} MiB are on their way: send one at a time", 1)
        if self._held > self._total:
            raise Unavailable("the API is busy with other large requests: try again")

    def leave(self, sender: str, size: int, bound: Bound, *, entered: bool) -> None:
        """The request has its answer."""
        self._held -= size
        _less(self._held_by, sender, size)
        if entered:
            _less(self._at_once, (sender, bound), 1)


class Body:
    """One request's body. Raises, when it is received: TooLarge, TooSlow, TooMany, Unavailable."""

    def __init__(self, bodies: Bodies, scope: Scope, receive: Receive, bound: Bound) -> None:
        self._bodies = bodies
        self._receive = receive
        self._bound = bound
        self._scope = scope
        self._sender = ""
        self._deadline = 0.0
        self._size = 0
        self._values = 0
        self._is_entered = False
        self._is_over = False

    def __enter__(self) -> Body:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bodies.leave(self._sender, self._size, self._bound, entered=self._is_entered)

    async def __call__(self) -> Message:
        """The next message of the client."""
        if self._is_over:
            return await self._receive()
        if not self._deadline:
            self._begin()
        coming = cast("Coroutine[Any, Any, Message]", self._receive())
        try:
            waits_for = coming.send(None)
        except StopIteration as come:  # it was there already, as most bodies are: no timer for those
            message: Message = come.value
        else:
            try:
                async with asyncio.timeout_at(self._deadline + self._size / self._bodies.pace):
                    message = await _rest(coming, waits_for)
            except TimeoutError:
                raise TooSlow(f"the body did not come within {self._bodies.patience_s:g} s") from None
        if message["type"] == "http.request":
            self._is_over = not message.get("more_body", False)
            self._grow(message.get("body", b""))
        return message

    async def whole(self) -> bytes:
        """All of it at once. Raises: ClientDisconnect, beside what `Body` does."""
        pieces: list[bytes] = []
        while not self._is_over:
            message = await self()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            pieces.append(message.get("body", b""))
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _begin(self) -> None:
        headers = dict(reversed(self._scope["headers"]))  # the first of each name counts, as everywhere
        declared = headers.get(b"content-length", b"0")
        if not declared.isdigit() or int(declared[:19]) > self._bound.size:
            raise self._too_large()
        self._sender = sender_of(headers, self._scope)
        self._deadline = asyncio.get_running_loop().time() + self._bodies.patience_s

    def _grow(self, piece: bytes) -> None:
        bound = self._bound
        self._size += len(piece)
        self._bodies.grow(self._sender, len(piece), bound)
        if self._size > bound.size:
            raise self._too_large()
        if not self._is_entered and self._size > LARGE:
            self._bodies.enter(self._sender, bound)
            self._is_entered = True
        if bound.values is not None:
            self._values += piece.count(b",") + piece.count(b"[") + piece.count(b"{")
            if self._values > bound.values:
                raise TooLarge(f"the body has more than {bound.values} values")

    def _too_large(self) -> TooLarge:
        return TooLarge(f"the body is over its limit of {self._bound.size} bytes")


@types.coroutine
def _rest(coming: Coroutine[Any, Any, Message], waits_for: Any) -> Generator[Any, Any, Message]:
    """What comes of a coroutine that has begun, and waits for this."""
    while True:
        try:
            sent = yield waits_for
        except BaseException as error:  # noqa: BLE001 - it is its own, to clean up by
            step, with_ = coming.throw, error
        else:
            step, with_ = coming.send, sent
        try:
            waits_for = step(with_)
        except StopIteration as come:
            return come.value


def sender_of(headers: Mapping[bytes, bytes], scope: Scope) -> str:
    """The sender, before authentication: the token that will be authenticated, or an address.

    Only that token counts. So a client can't pass for many senders by sending other tokens beside it.
    """
    for name in _TOKENS:  # in the order of `auth.presented_token`
        shown = headers.get(name)
        if shown:
            return shown.decode("latin-1").removeprefix("Bearer ").strip()
    client = scope.get("client")
    return f"at {client[0] if client else ''}"


_TOKENS = (b"grpc-metadata-x-user-token", b"authorization", b"grpc-metadata-x-allocation-token", b"cookie")


def _less(counted: Counter[Any], key: Any, by: int) -> None:
    counted[key] -= by
    if counted[key] <= 0:
        del counted[key]
