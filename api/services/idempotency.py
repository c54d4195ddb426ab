"""Idempotency keys: a request with the header `Idempotency-Key` takes effect once; repeats get the same response."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import orjson
from fastapi import Request
from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from api.auth.authentication import UserPrincipal
from api.errors import BadRequest, Conflict
from api.schemas.base import encode
from database.models import AnsweredRequest
from database.types import utc_now
from database.upsert import insert

#: How long a key is stored. Clients retry for seconds.
_KEPT = timedelta(days=1)


def idempotency_key(request: Request) -> str | None:
    """What the caller named the request. Raises: BadRequest."""
    key = request.headers.get("idempotency-key")
    if key is not None and not 1 <= len(key) <= 100:
        raise BadRequest(f"Idempotency-Key: {len(key)} characters: expected 1 to 100")
    return key


class Once:
    """What a request does, once for its key. Raises: BadRequest.

    Args:
        request: With or without a key.
        user: The caller; keys of different users are different.
    """

    def __init__(self, request: Request, user: UserPrincipal) -> None:
        key = idempotency_key(request)
        self._key = None if key is None else f"{user.user_id}:{key}"
        self._route = f"{request.method} {request.url.path}"

    def __call__(self, session: Session, make: Callable[[], Any]) -> Any:
        """The answer: of `make`, or the one of the request that came with this key before.

        The key is noted in the transaction of what is done: both are there, or neither. Raises: Conflict if the key
        came with another request.
        """
        if self._key is None:
            return make()
        mine = AnsweredRequest.key == self._key
        earlier = session.scalar(select(AnsweredRequest).where(mine))
        if earlier is None:
            claim = insert(session, AnsweredRequest).values(key=self._key, route=self._route, at=utc_now())
            # waits for another request with this key that is under way, and does nothing if that one does it
            claimed = session.scalar(claim.on_conflict_do_nothing().returning(AnsweredRequest.key))
            if claimed is not None:
                session.execute(delete(AnsweredRequest).where(AnsweredRequest.at < utc_now() - _KEPT))
                answer = make()
                session.execute(update(AnsweredRequest).where(mine).values(answer=encode(answer).decode()))
                return answer
            earlier = session.scalars(select(AnsweredRequest).where(mine)).one()
        if earlier.route != self._route:
            raise Conflict(f"Idempotency-Key: it came with {earlier.route} before: expected one key for each request")
        return orjson.Fragment(earlier.answer)
