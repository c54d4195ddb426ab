"""Submission protocol 1: a request with a key makes its work once, however often it is sent. Source: spec tasks.md §7.

What the request says is digested. The digest, the key and the job are recorded in the transaction that records the
work, so that a repeat finds either all of them or none; the same key with another request is refused. `Once` of
`api.services.idempotency` stores answers for a day instead, for clients that retry for seconds.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson
from sqlalchemy import select
from sqlalchemy.orm import Session

from api.auth import config_secrets
from api.auth.authentication import UserPrincipal
from api.errors import BadRequest, Conflict, FailedPrecondition, Unsupported
from api.queries import submissions as queries
from api.schemas.base import plain
from api.schemas.contexts import File
from api.schemas.submissions import Submit, Submitted
from database.models import Submission
from database.session import Database
from database.types import utc_now
from database.upsert import insert

Result = TypeVar("Result")

#: The version of the protocol, which clients ask the master for.
PROTOCOL = 1
_QUEUE, _IMMEDIATE = "ADMISSION_QUEUE", "ADMISSION_IMMEDIATE"
_ADMISSIONS = {"": _QUEUE, "ADMISSION_UNSPECIFIED": _QUEUE, _QUEUE: _QUEUE, _IMMEDIATE: _IMMEDIATE}
_KEY = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_DIRECTORY = ord("5")


class Taken(Exception):
    """Another request with the same key was recorded first: this transaction leaves nothing behind."""


@dataclass(frozen=True)
class Plan:
    """A request that is submitted: what it is, and how.

    Attributes:
        kind: COMMAND, SHELL, GENERIC or EXPERIMENT.
        submit: As the client says it.
        digest: Of the request, 64 hexadecimal digits.
        code: Likewise of the files alone.
        user: Who submits.
    """

    kind: str
    submit: Submit
    digest: str
    code: str
    user: UserPrincipal

    def earlier(self, session: Session) -> Submission | None:
        """What this request made before. Raises: Conflict if another request came with its key; FailedPrecondition."""
        row = None
        if self.submit.idempotency_key:
            statement = select(Submission).where(
                Submission.owner_id == self.user.user_id, Submission.idempotency_key == self.submit.idempotency_key
            )
            row = session.scalar(statement)
        if row is not None:
            if row.request_digest != (self.submit.expected_digest or self.digest):
                raise Conflict(
                    f'idempotency key "{self.submit.idempotency_key}" is already used by job {row.job_id}'
                    " for a different request"
                )
            return row
        expected = self.submit.expected_digest
        if expected and expected != self.digest:
            raise FailedPrecondition(
                f"plan_changed: the request digest {self.digest} differs from the expected digest {expected}"
            )
        return None

    def record(
        self,
        session: Session,
        job_id: str,
        entity_id: str,
        *,
        name: str,
        workspace_id: int,
        project_id: int | None = None,
    ) -> None:
        """Record the job, in the transaction that makes it. Raises: Taken."""
        row = insert(session, Submission).values(
            job_id=job_id,
            kind=self.kind,
            entity_id=entity_id,
            owner_id=self.user.user_id,
            workspace_id=workspace_id,
            project_id=project_id,
            name=name,
            idempotency_key=self.submit.idempotency_key or None,
            request_digest=self.digest,
            submitted_at=utc_now(),
        )
        if session.scalar(row.on_conflict_do_nothing().returning(Submission.job_id)) is None:
            raise Taken

    def submitted(self, job_id: str) -> Submitted:
        """What the answer says."""
        outcome = "ADMISSION_OUTCOME_QUEUED"
        return Submitted(job_id=job_id, replayed=False, request_digest=self.digest, outcome=outcome)

    def replayed(self, row: Submission) -> Submitted:
        """The same of a request that made its job before: with the digest by which it was recorded, as it was expected.

        A template may have changed since, and with it what the request comes to now.
        """
        return self.submitted(row.job_id).model_copy(update={"replayed": True, "request_digest": row.request_digest})

    def tried(self, session: Session, config: dict[str, Any], pool: str = "") -> Submitted:
        """The same of a dry run, with the configuration that the work would have, and what it would come to."""
        resources = config["resources"]
        slots = resources["slots_per_trial" if self.kind == "EXPERIMENT" else "slots"]
        pool = pool or resources["resource_pool"]
        return Submitted(
            job_id="",
            replayed=False,
            request_digest=self.digest,
            outcome="ADMISSION_OUTCOME_UNSPECIFIED",
            effective_config=config_secrets.shown(config),
            evaluation=queries.evaluation(session, pool, slots, self.code),
        )


#: Makes the plan of a request, in a transaction.
Planner = Callable[[Session], Plan]


def plan(
    kind: str,
    submit: Submit,
    user: UserPrincipal,
    facts: dict[str, Any],
    files: Sequence[File],
    context: str | None = None,
) -> Plan:
    """What a request submits. Raises: BadRequest, Unsupported.

    Args:
        kind: COMMAND, SHELL, GENERIC or EXPERIMENT.
        submit: As the client says it.
        user: Who submits.
        facts: All that decides about the work but its files, as the client sent it: no defaults of the server.
        files: Beside its configuration.
        context: The id of a context that has them instead: a hash of what they are.
    """
    if submit.idempotency_key and _KEY.fullmatch(submit.idempotency_key) is None:
        raise BadRequest(
            f"submit.idempotency_key: {submit.idempotency_key[:40]!r}: expected 1 to 128 of letters, digits and . _ : -"
        )
    admission = _ADMISSIONS.get(submit.admission)
    if admission is None:
        known = ", ".join(filter(None, _ADMISSIONS))
        raise BadRequest(f"submit.admission: {submit.admission[:40]!r}: expected one of {known}")
    if admission == _IMMEDIATE and kind == "EXPERIMENT":
        raise BadRequest("experiments do not support immediate admission")
    if admission == _IMMEDIATE:
        raise Unsupported("immediate admission is not supported yet")
    manifest = _manifest(files)
    whole = {"kind": kind, "admission": admission, "files": manifest, **facts}
    if context:
        whole["context"] = context
    return Plan(kind, submit, _digest(whole), context or _digest(manifest), user)


def _digest(value: Any) -> str:
    canonical = orjson.dumps(plain(value), option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS, default=str)
    return hashlib.sha256(canonical).hexdigest()


def _manifest(files: Sequence[File]) -> list[dict[str, Any]]:
    """What files are, without owners and times. Raises: BadRequest."""
    found: list[dict[str, Any]] = []
    for file in files:
        try:
            content = base64.b64decode(file.content, validate=True)
        except ValueError as error:
            raise BadRequest(f"content of {file.path[:200]!r} is no base64: {error}") from None
        digest = hashlib.sha256(content).hexdigest()
        kind = "directory" if file.type == _DIRECTORY else "file" if file.type in (0, ord("0")) else str(file.type)
        found.append({"path": file.path, "type": kind, "mode": file.mode, "sha256": digest})
    return sorted(found, key=lambda entry: entry["path"])


def recorded(database: Database, make: Callable[[Session], Result]) -> Result:
    """What `make` returns, in a transaction; once more if another request with its key was recorded first."""
    try:
        with database.write() as session:
            return make(session)
    except Taken:
        with database.write() as session:
            return make(session)
