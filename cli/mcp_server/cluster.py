"""The cluster as tools use it: who asks, requests beside the event loop, errors as sentences, answers that fit."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from anyio import to_thread
from mcp.server.mcpserver.context import Context
from mcp.server.mcpserver.exceptions import ToolError

from cli import render, session
from determined import errors
from determined.common.api import Cert, Session
from determined.common.programs import AGENT_HEADER, agent_name

#: Characters of an answer: some 6,000 tokens of a model's context.
MOST_CHARS = 24_000
#: Sessions that are kept open, one a token.
_MOST_SESSIONS = 64


class Cluster:
    """Asks the API for the caller of a tool.

    Args:
        own: The session of this process' user; None if each caller brings a token.
    """

    def __init__(self, own: Callable[[], Session] | None) -> None:
        self._own = own
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._lock = threading.Lock()

    async def get(self, ctx: Context, path: str, **params: Any) -> Any:
        """GET below `/api/v1`. Raises: ToolError, with what the API says."""
        return await self._ask(ctx, "GET", path, params=params)

    async def text(self, ctx: Context, path: str) -> str:
        """The body of such an answer. Raises: ToolError."""
        return await self._ask(ctx, "GET", path, is_json=False)

    async def send(self, ctx: Context, method: str, path: str, body: Mapping[str, Any], *, key: str = "") -> Any:
        """POST, PATCH or DELETE below `/api/v1`; done once for its `key`. Raises: ToolError."""
        return await self._ask(ctx, method, path, json=body, idempotency_key=key or None)

    async def _ask(self, ctx: Context, method: str, path: str, *, is_json: bool = True, **how: Any) -> Any:
        caller, headers = self._session(ctx), {AGENT_HEADER: agent_of(ctx)}

        def ask() -> Any:
            answer = caller.request(method, f"/api/v1/{path}", headers=headers, **how)
            return answer.json() if is_json else answer.body.decode()

        try:
            return await to_thread.run_sync(ask)
        except errors.DeterminedException as error:
            raise ToolError(str(error)) from None

    def _session(self, ctx: Context) -> Session:
        if self._own is not None:
            return self._own()
        kind, _, token = ((ctx.headers or {}).get("authorization") or "").partition(" ")
        if kind.lower() != "bearer" or not token.strip():
            raise ToolError("expected the header `Authorization: Bearer TOKEN`: make one with `det token create`")
        with self._lock:
            url = session.master_url()
            found = self._sessions.pop(token, None) or Session(url, token=token, cert=Cert.of(url))
            self._sessions[token] = found
            if len(self._sessions) > _MOST_SESSIONS:
                self._sessions.popitem(last=False)  # what it still answers is read to its end
        return found


def agent_of(ctx: Context) -> str:
    """The name and version of the program that asks, as it gives them."""
    params = getattr(ctx.session, "client_params", None)
    info = getattr(params, "client_info", None)
    return agent_name(f"{getattr(info, 'name', '')} {getattr(info, 'version', '')}") or "an agent"


def told(value: Any) -> str:
    """A value as JSON that fits into a context; what is too long ends with a note of that."""
    return cut(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def cut(text: str) -> str:
    """The text, at most `MOST_CHARS` of it."""
    if len(text) <= MOST_CHARS:
        return text
    return f"{text[:MOST_CHARS]}\n… cut: {len(text):,} characters in all; ask for less of it"


def tail(text: str) -> str:
    """The end of a log, which says most of it: at most `MOST_CHARS`, in whole lines."""
    if len(text) <= MOST_CHARS:
        return text
    return f"… cut: {len(text):,} characters in all; ask for fewer lines\n{text[-MOST_CHARS:].partition(chr(10))[2]}"


def only(row: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """What a row has of these, without what is empty."""
    return {name: row[name] for name in names if row.get(name) not in (None, "", [], {})}


def state(row: Mapping[str, Any]) -> str:
    """The word of its state."""
    return render.state(str(row.get("state", "")).removeprefix("GENERIC_TASK_"))
