"""Who may use a resource pool: all, or those only to whom an administrator granted it.

The rule itself is `api.auth.authorization.usable_pools`. It is asked when something is submitted to a pool, continued
there or moved into it; what is there already stays until it ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from api.auth.authentication import UserPrincipal
from api.auth.authorization import usable_pools
from api.errors import BadRequest, FailedPrecondition, NotFound
from api.schemas import pool_access as wire
from api.services import pools
from database.models import Experiment, Group, PoolGrant, Project, ResourcePool, Task, User, Workspace
from database.types import utc_now

_MOST_TOLD = 5


def listed(session: Session) -> list[wire.PoolAccess]:
    """Who may use each pool, by the pools' names."""
    rows = session.scalars(select(ResourcePool).order_by(ResourcePool.name)).all()
    return [_shown(session, row) for row in rows]


def set_mode(session: Session, name: str, wanted: wire.PoolMode, user: UserPrincipal) -> wire.ChangedPoolAccess:
    """Restrict a pool to those to whom it is granted, or have it for all again. Raises: NotFound, FailedPrecondition.

    The cluster's defaults are never restricted: what names no pool would be refused.
    """
    row = pools.find(session, name, user, is_locked=True)
    if wanted.mode == "public":
        row.restricted_at, row.restricted_by = None, ""
    elif name in pools.defaults_of(session):
        raise FailedPrecondition(f"pool {name!r} is one of the cluster's defaults: it is there for all users")
    elif row.restricted_at is None:
        row.restricted_at, row.restricted_by = utc_now(), user.username
    return _changed(session, row)


def grant(session: Session, name: str, wanted: wire.PoolHolders, user: UserPrincipal) -> wire.ChangedPoolAccess:
    """Grant a pool to further users, groups and workspaces; twice is once. Raises: NotFound, BadRequest."""
    row = pools.find(session, name, user, is_locked=True)
    for column, ids in _named(session, wanted).items():
        known = set(session.scalars(select(column).where(PoolGrant.pool == name, column.in_(ids))))
        session.add_all(PoolGrant(pool=name, **{column.key: id_}) for id_ in ids if id_ not in known)
    more = [] if row.restricted_at is not None else [f"pool {name!r} is public: grants count once it is restricted"]
    return _changed(session, row, more)


def revoke(session: Session, name: str, wanted: wire.PoolHolders, user: UserPrincipal) -> wire.ChangedPoolAccess:
    """Take a pool back from users, groups and workspaces. Raises: NotFound, BadRequest, if one has no grant."""
    row = pools.find(session, name, user, is_locked=True)
    named = _named(session, wanted)
    for column, ids in named.items():
        known = set(session.scalars(select(column).where(PoolGrant.pool == name, column.in_(ids))))
        without = [told for id_, told in ids.items() if id_ not in known]
        if without:
            raise BadRequest(f"pool {name!r} is not granted to {_some(without)}: nothing to revoke")
    for column, ids in named.items():
        session.execute(delete(PoolGrant).where(PoolGrant.pool == name, column.in_(ids)))
    return _changed(session, row)


def _named(session: Session, wanted: wire.PoolHolders) -> dict[InstrumentedAttribute[int | None], dict[int, str]]:
    """The column of a grant, and by id what is named for it. Raises: NotFound, BadRequest if nothing is named."""
    found = {
        PoolGrant.user_id: _ids(session, "user", User.id, User.username, wanted.usernames),
        PoolGrant.group_id: _ids(session, "group", Group.id, Group.name, wanted.groups),
        PoolGrant.workspace_id: _ids(session, "workspace", Workspace.id, Workspace.name, wanted.workspaces),
    }
    if not any(found.values()):
        raise BadRequest("usernames, groups, workspaces: expected one name or more in one of them")
    return found


def _ids(session: Session, kind: str, id_: Any, name: Any, wanted: Sequence[str]) -> dict[int, str]:
    by_name = {row[1]: row[0] for row in session.execute(select(id_, name).where(name.in_(wanted)))}
    unknown = sorted({*wanted} - by_name.keys())
    if unknown:
        raise NotFound(f"{kind}s not found: {_some(map(repr, unknown))}")
    return {by_name[each]: f"{kind} {each!r}" for each in wanted}


def _shown(session: Session, row: ResourcePool) -> wire.PoolAccess:
    def holders(statement: Any, column: Any) -> Sequence[Any]:
        found = statement.join(PoolGrant, column).where(PoolGrant.pool == row.name)
        return session.execute(found.order_by(statement.selected_columns[1])).all()

    users = select(User.id, User.username, User.is_active, User.is_admin)
    as_default = (Workspace.default_compute_pool == row.name) | (Workspace.default_aux_pool == row.name)
    defaults = pools.defaults_of(session)
    return wire.PoolAccess(
        pool_name=row.name,
        mode="public" if row.restricted_at is None else "restricted",
        default_compute=row.name == defaults.compute,
        default_aux=row.name == defaults.aux,
        workspace_defaults=list(session.scalars(select(Workspace.name).where(as_default).order_by(Workspace.name))),
        users=[
            wire.HolderUser(id=id_, username=name, active=is_active, admin=is_admin)
            for id_, name, is_active, is_admin in holders(users, PoolGrant.user_id == User.id)
        ],
        groups=[
            wire.Holder(id=id_, name=name)
            for id_, name in holders(select(Group.id, Group.name), PoolGrant.group_id == Group.id)
        ],
        workspaces=[
            wire.Holder(id=id_, name=name)
            for id_, name in holders(select(Workspace.id, Workspace.name), PoolGrant.workspace_id == Workspace.id)
        ],
        restricted_at=row.restricted_at,
        restricted_by=row.restricted_by,
    )


def _changed(session: Session, row: ResourcePool, warnings: Sequence[str] = ()) -> wire.ChangedPoolAccess:
    session.flush()
    shown = _shown(session, row)
    told = [*warnings, *_stays(session, row)]
    if row.restricted_at is not None and shown.workspace_defaults:
        told.append(
            f"it is the default of workspaces {_some(shown.workspace_defaults)}: what names no pool there is refused"
            " for users without access"
        )
    return wire.ChangedPoolAccess(**shown.model_dump(), warnings=told)


def _stays(session: Session, row: ResourcePool) -> list[str]:
    """What of users without access is in the pool, and stays there."""
    if row.restricted_at is None:
        return []
    experiments = (
        select(Experiment.id, User, Project.workspace_id)
        .join(User, User.id == Experiment.owner_id)
        .join(Project, Project.id == Experiment.project_id)
        .where(pools.is_live_in(row.name))
        .order_by(Experiment.id)
    )
    tasks = (
        select(Task.id, User, Task.workspace_id)
        .join(User, User.id == Task.owner_id)
        .where(Task.pool == row.name, Task.trial_id.is_(None), Task.ended_at.is_(None))
        .order_by(Task.started_at)
    )
    allowed: dict[tuple[int, int], bool] = {}
    stays: list[str] = []
    for kind, statement in (("experiment", experiments), ("task", tasks)):
        for id_, owner, workspace_id in session.execute(statement).tuples():
            key = (owner.id, workspace_id or 1)
            if key not in allowed:
                principal = UserPrincipal(owner.id, owner.username, owner.is_admin)
                usable = select(ResourcePool.name).where(ResourcePool.name == row.name, usable_pools(principal, key[1]))
                allowed[key] = session.scalar(usable) is not None
            if not allowed[key]:
                stays.append(f"{kind} {id_} of {owner.username}")
    return [f"stays in the pool until it ends, is moved or killed: {_some(stays)}"] if stays else []


def _some(names: Iterable[str]) -> str:
    known = list(names)
    more = f" and {len(known) - _MOST_TOLD} more" if len(known) > _MOST_TOLD else ""
    return ", ".join(known[:_MOST_TOLD]) + more
