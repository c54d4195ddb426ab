"""Secrets of a task: a notebook's token, a shell's keys and its terminals' token. Made with it, gone when it ends.

They are in a table of their own: neither a configuration nor a list nor a history of a workflow has them.
"""

from __future__ import annotations

import base64
import secrets
from typing import Any, cast

import orjson
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from sqlalchemy import select
from sqlalchemy.orm import Session

from api.auth.authentication import UserPrincipal
from api.errors import BadRequest
from database.models import Task, TaskSecret
from workflows.lifecycle.task import TaskKind

_LONGEST_PASSPHRASE = 1000
NOTEBOOK_TOKEN, TERMINAL_TOKEN = "notebook_token", "terminal_token"
PRIVATE_KEY, PUBLIC_KEY = "private_key", "public_key"


def make(session: Session, task: Task, passphrase: str = "") -> None:
    """Record what a new task of its kind needs; nothing for most kinds. `passphrase`: what locks a shell's key."""
    kind = TaskKind(task.kind)
    if kind is TaskKind.NOTEBOOK:
        _add(session, task, NOTEBOOK_TOKEN, secrets.token_urlsafe(32))
    if kind is TaskKind.SHELL:
        private, public = _key_pair(passphrase)
        _add(session, task, PRIVATE_KEY, private)
        _add(session, task, PUBLIC_KEY, public)
        if not passphrase:  # else only who knows it gets in
            _add(session, task, TERMINAL_TOKEN, secrets.token_urlsafe(32))


def of(session: Session, task_id: str) -> dict[str, str]:
    """The secrets of a task by name; none once it has ended. For its containers, and for whom `may_know` says."""
    rows = session.execute(select(TaskSecret.name, TaskSecret.value).where(TaskSecret.task_id == task_id))
    return dict(rows.tuples().all())


def may_know(task: Task, user: UserPrincipal) -> bool:
    """Whether a user may have a task's secrets: its owner and administrators, not all who may change it.

    Not by a read-only token: what they open, runs programs.
    """
    return not user.is_read_only and (user.is_admin or task.owner_id == user.user_id)


def _add(session: Session, task: Task, name: str, value: str) -> None:
    session.add(TaskSecret(task_id=task.id, name=name, value=value))


def passphrase_of(data: str) -> str:
    """What `data` of a request for a shell says: base64 of JSON with a `passphrase`; empty if it is empty.

    Raises: BadRequest.
    """
    if not data:
        return ""
    try:
        value: Any = orjson.loads(base64.b64decode(data, validate=True))
    except ValueError:
        raise BadRequest("data: expected base64 of JSON, such as {} or one with a passphrase") from None
    passphrase: Any = cast("dict[str, Any]", value).get("passphrase") if isinstance(value, dict) else 0
    if passphrase is None:
        return ""
    if not isinstance(passphrase, str) or len(passphrase) > _LONGEST_PASSPHRASE or "\0" in passphrase:
        raise BadRequest(f"data: passphrase: expected text of at most {_LONGEST_PASSPHRASE} characters")
    return passphrase


def _key_pair(passphrase: str) -> tuple[str, str]:
    """A key by which one logs in, as ssh reads it, and what the other side knows of it."""
    key = Ed25519PrivateKey.generate()
    lock = BestAvailableEncryption(passphrase.encode("utf-8", "surrogatepass")) if passphrase else NoEncryption()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, lock).decode()
    return private, key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
