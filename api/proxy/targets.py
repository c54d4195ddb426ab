"""From the name of a service to the container that has it, for users who may use it. Source: spec tasks.md §4."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from api.auth import task_secrets
from api.auth.authentication import FULL, Authenticator, UserPrincipal
from api.auth.authorization import changeable, changeable_task, check_trials, readable, readable_task
from api.auth.service_tokens import ServiceToken
from api.errors import FailedPrecondition, Forbidden, NotFound, Unauthenticated
from database.models import Allocation, Experiment, Task, Trial, User, UserToken
from database.session import Database
from database.types import utc_now
from workflows.lifecycle.services import TERMINAL, Service, services_of
from workflows.lifecycle.task import TaskKind

_NAME = re.compile(rf"([A-Za-z0-9][A-Za-z0-9._-]{{0,99}})(?::[1-9][0-9]{{0,4}}|{TERMINAL})?")


@dataclass(frozen=True)
class Target:
    """A service, and the allocation whose first container has it."""

    task_id: str
    kind: TaskKind
    allocation_id: str
    service: Service
    login: str = field(default="", repr=False)  # what the service itself wants to see in the header Authorization


Visitor = UserPrincipal | ServiceToken | None


def task_of(name: str) -> str:
    """The id of the task in the name of a service. Raises: NotFound."""
    found = _NAME.fullmatch(name)
    if found is None:
        raise unknown(name)
    return found[1]


def unknown(name: str) -> NotFound:
    """There is no such service, or none that the caller may see."""
    return NotFound(f"service not found: {name[:120]}")


class Targets:
    """Finds services, and remembers for a second who may use which."""

    def __init__(self, database: Database, auth: Authenticator, *, is_basic: bool) -> None:
        self._database = database
        self._auth = auth
        self._is_basic = is_basic

    def remembered(self, name: str, visitor: Visitor) -> Target | None:
        """What was found within the last second."""
        found = self._auth.allowed(("service", name, visitor))
        return found if isinstance(found, Target) else None

    def find(self, name: str, visitor: Visitor) -> Target:
        """A service that the visitor may use.

        Raises: NotFound; Unauthenticated, if it takes a login; Forbidden; FailedPrecondition while it has no container.
        """
        found = self._look(name, visitor)
        self._auth.allow(("service", name, visitor), found)
        return found

    def _look(self, name: str, visitor: Visitor) -> Target:
        task_id = task_of(name)
        with self._database.read() as session:
            task = session.get(Task, task_id)
            service = None if task is None else _service(session, task, name)
            if task is None or service is None:
                raise unknown(name)
            if not service.is_open:
                if isinstance(visitor, ServiceToken):
                    visitor = self._user(session, task, visitor)
                _authorize(session, task, visitor, service)
            allocation_id = _container(session, task)
            token = task_secrets.of(session, task_id).get(service.secret) if service.secret else None
        login = f"token {token}" if token else ""
        return Target(task_id, TaskKind(task.kind), allocation_id, service, login)

    def _user(self, session: Session, task: Task, token: ServiceToken) -> UserPrincipal:
        """Whom a token was issued to, while the session stands that it was issued to. Raises: Unauthenticated."""
        if token.task_id != task.id:
            raise Unauthenticated("the token of this address is for another task")
        user = session.get(User, token.user_id)
        alive = UserToken.id == token.token_id, UserToken.user_id == token.user_id, UserToken.revoked_at.is_(None)
        scope = session.scalar(select(UserToken.scope).where(*alive, UserToken.expires_at > utc_now()))
        by_container = token.token_id == 0
        if user is None or not user.is_active or not (by_container or scope is not None):
            raise Unauthenticated("the session that this address was opened from has ended: log in, and open it again")
        is_admin, is_read_only = user.is_admin and not by_container, scope not in (None, FULL)
        return UserPrincipal(user.id, user.username, is_admin, is_read_only=is_read_only, is_basic=self._is_basic)

    def note_use(self, task_id: str) -> None:
        """Write down that a service of a task is used: an idle one ends."""
        with self._database.write() as session:
            session.execute(update(Task).where(Task.id == task_id).values(last_used_at=utc_now()))


def _service(session: Session, task: Task, name: str) -> Service | None:
    config = task.config
    if task.trial_id is not None:
        config = session.scalar(
            select(Experiment.config).join(Trial, Trial.experiment_id == Experiment.id).where(Trial.id == task.trial_id)
        )
    services = services_of(TaskKind(task.kind), task.id, config or {})
    return next((service for service in services if service.name == name), None)


def _authorize(session: Session, task: Task, visitor: UserPrincipal | None, service: Service) -> None:
    """A service acts with its owner's rights. Who may change the task uses it; a notebook and a shell's terminals, only
    who may know its secrets; a TensorBoard, who sees it and all that it shows.
    """
    if visitor is None:
        raise Unauthenticated("not logged in: please log in (`det user login`)")
    try:
        readable_task(session, task.id, visitor)
    except NotFound:
        raise unknown(service.name) from None
    if visitor.is_read_only:
        raise Forbidden("a read-only token opens no services: they act for the owner of their task")
    is_private = bool(service.secret) or TaskKind(task.kind) is TaskKind.NOTEBOOK
    if task.trial_id is not None:
        changeable(session, session.get_one(Trial, task.trial_id).experiment_id, visitor)
    elif is_private and not task_secrets.may_know(task, visitor):
        raise Forbidden(
            f"{task.kind.lower()} {task.id} belongs to another user: only its owner and administrators open it"
        )
    elif TaskKind(task.kind) is TaskKind.TENSORBOARD:
        _check_shown(session, task, visitor)
    else:
        changeable_task(session, task.id, visitor)


def _check_shown(session: Session, task: Task, visitor: UserPrincipal) -> None:
    """What a TensorBoard shows its owner may read, others who see the TensorBoard perhaps not. Raises: Forbidden."""
    if task.owner_id == visitor.user_id:
        return
    wanted: dict[str, list[int]] = task.sources or {}
    try:
        for experiment_id in wanted.get("experiment_ids", []):
            readable(session, experiment_id, visitor)
        check_trials(session, wanted.get("trial_ids", []), visitor)
    except NotFound:
        raise Forbidden(f"TensorBoard {task.id} shows experiments that you may not see") from None


def _container(session: Session, task: Task) -> str:
    """The allocation of a task that has not ended. Raises: FailedPrecondition."""
    found = session.scalar(
        select(Allocation.id)
        .where(Allocation.task_id == task.id, Allocation.ended_at.is_(None))
        .order_by(Allocation.run_id.desc())
        .limit(1)
    )
    if found is not None:
        return found
    if task.ended_at is not None:
        raise FailedPrecondition(f"task {task.id} has ended")
    raise FailedPrecondition(f"task {task.id} waits for its slots: `det task why {task.id}` says what for")
