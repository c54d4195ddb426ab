"""Idempotency keys: a request with the header `Idempotency-Key` takes effect once; repeats get the same response.

Another request with the same key is refused: it has another address or another body.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
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

#: Where a request has its body as it came, for who digests it.
RAW_BODY = "undeterred.raw_body"
#: How long a key is stored. Clients retry for seconds.
_KEPT = timedelta(days=1)


@dataclass(frozen=True)
class Key:
    """What a request may be repeated by.

    Attributes:
        name: By its user and what they call the request.
        digest: Of its method, its address and its body, 64 hexadecimal digits.
    """

    name: str
    digest: str

    def check(self, digest: str | None) -> None:
        """Refuse to answer for another request that came with this key before. Raises: Conflict."""
        if digest is not None and digest != self.digest:
            raise Conflict(
                "Idempotency-Key: another request came with it before: expected the same address and the same body"
            )


def idempotency_key(request: Request, user: UserPrincipal) -> Key | None:
    """The key of a request, if its sender gave it one. Raises: BadRequest."""
    key = request.headers.get("idempotency-key")
    if key is None:
        return None
    if not 1 <= len(key) <= 100:
        raise BadRequest(f"Idempotency-Key: {len(key)} characters: expected 1 to 100")
    digest = hashlib.sha256(f"{request.method} {request.url.path}\n".encode())
    digest.update(request.scope.get(RAW_BODY, b""))
    return Key(f"{user.user_id}:{key}", digest.hexdigest())


class Once:
    """What a request does, once for its key. Raises: BadRequest.

    Args:
        request: With or without a key.
        user: The caller; keys of different users are different.
    """

    def __init__(self, request: Request, user: UserPrincipal) -> None:
        self._key = idempotency_key(request, user)

    def __call__(self, session: Session, make: Callable[[], Any]) -> Any:
        """The answer: of `make`, or the one of the request that came with this key before.

        The key is noted in the transaction of what is done: both are there, or neither. Raises: Conflict if the key
        came with another request.
        """
        key = self._key
        if key is None:
            return make()
        mine = AnsweredRequest.key == key.name
        earlier = session.scalar(select(AnsweredRequest).where(mine))
        if earlier is None:
            claim = insert(session, AnsweredRequest).values(key=key.name, request_digest=key.digest, at=utc_now())
            # waits for another request with this key that is under way, and does nothing if that one does it
            claimed = session.scalar(claim.on_conflict_do_nothing().returning(AnsweredRequest.key))
            if claimed is not None:
                session.execute(delete(AnsweredRequest).where(AnsweredRequest.at < utc_now() - _KEPT))
                answer = make()
                session.execute(update(AnsweredRequest).where(mine).values(answer=encode(answer).decode()))
                return answer
            earlier = session.scalars(select(AnsweredRequest).where(mine)).one()
        key.check(earlier.request_digest)
        return orjson.Fragment(earlier.answer)
