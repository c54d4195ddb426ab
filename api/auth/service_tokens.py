"""Tokens for one task's services: what stands in an address that a browser opens, and in its cookie.

A token names a task, a user and the session or access token that it was issued to. It is signed, not stored: what
checks it asks the records whether all three still stand. It opens the services of that task and nothing else: a task
that reads it from an address can't call the API with it. Source: spec tasks.md §1 and §4.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from dataclasses import dataclass

from api.errors import Unauthenticated

_VERSION = "s1"
_FIELDS = 5


@dataclass(frozen=True)
class ServiceToken:
    """What a token says.

    Attributes:
        task_id: Whose services it opens.
        user_id: Whom it was issued to.
        token_id: The session or access token of that user; 0: a container of theirs.
        expires_at: Unix time, s; 0: when the task ends.
    """

    task_id: str
    user_id: int
    token_id: int
    expires_at: int = 0


class ServiceTokens:
    """Issues and checks them. All API processes of a cluster have the same secret."""

    def __init__(self, secret: str) -> None:
        self._key = hashlib.sha256(b"undeterred service tokens\0" + secret.encode()).digest()

    def issue(self, token: ServiceToken) -> str:
        """As text, safe in addresses."""
        text = f"{_VERSION}.{token.task_id}.{token.user_id}.{token.token_id}.{token.expires_at}"
        return f"{text}.{self._signature(text)}"

    def read(self, text: str) -> ServiceToken:
        """Check a signature and an expiry. Raises: Unauthenticated."""
        said, _, signature = text.rpartition(".")
        fields = said.split(".")
        genuine = hmac.compare_digest(self._signature(said).encode(), signature.encode("utf-8", "surrogatepass"))
        if not genuine or len(fields) != _FIELDS or fields[0] != _VERSION:
            raise Unauthenticated("the token of this address is not valid: open the task again")
        token = ServiceToken(fields[1], int(fields[2]), int(fields[3]), int(fields[4]))
        if token.expires_at and token.expires_at < time.time():
            raise Unauthenticated("the token of this address has expired: open the task again")
        return token

    def _signature(self, text: str) -> str:
        digest = hmac.new(self._key, text.encode("utf-8", "surrogatepass"), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")
