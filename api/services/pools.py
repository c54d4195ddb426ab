"""Creates and removes resource pools, and sets the defaults for experiments that name none."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, and_, delete, func, select
from sqlalchemy.orm import Session

from api.auth.authentication import UserPrincipal
from api.auth.authorization import visible_pools
from api.errors import BadRequest, Conflict, FailedPrecondition, NotFound
from api.queries.workspaces import available_pools
from api.schemas.jobs import PatchPool, PostPool
from api.schemas.validation import checked_text
from api.services.jobs import claim_of
from api.temporal import outbox
from database.engines import on_postgresql
from database.models import Agent, Cluster, Experiment, PoolBinding, PoolGrant, Project, ResourcePool, Workspace
from database.types import utc_now
from workflows import names
from workflows.config.failures import next_pools
from workflows.lifecycle.experiment import ExperimentState
from workflows.messages import AgentService, AutoscalerRun, PoolMove, PoolRun, ProviderChange
from workflows.scheduling.model import AgentSlots, PoolSnapshot, Request
from workflows.scheduling.pool import Pool
from workflows.scheduling.provider import Provider
from workflows.scheduling.settings import PoolSettings

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
#: One that is being deleted still has its files removed by the pool's agents.
_ENDED = [state.value for state in ExperimentState if state.is_terminal and state is not ExperimentState.DELETING]
_MOST_TOLD = 5


class Defaults(NamedTuple):
    """The pools of experiments that name none, and whose workspace names none."""

    compute: str
    aux: str

    def of(self, slots: int) -> str:
        """The pool for trials with this many slots."""
        return self.compute if slots else self.aux


def defaults_of(session: Session) -> Defaults:
    """Which pools are the cluster's defaults."""
    row = session.get_one(Cluster, 1)
    return Defaults(row.compute_pool, row.aux_pool)


def is_hidden(session: Session, name: str, user: UserPrincipal) -> bool:
    """Whether there is a pool of this name that the user may not see."""
    hidden = select(ResourcePool.name).where(ResourcePool.name == name, ~visible_pools(user))
    return session.scalar(hidden) is not None


def find(session: Session, name: str, seen_by: UserPrincipal | None, *, is_locked: bool = False) -> ResourcePool:
    """A pool by its name. Raises: NotFound, which says what there is.

    Args:
        session: To read with.
        name: Of the pool.
        seen_by: The user who asks; None: the cluster itself, or an administrator.
        is_locked: Nothing of it changes before this transaction ends.
    """
    visible = select(ResourcePool)
    if seen_by is not None:
        visible = visible.where(visible_pools(seen_by))
    named = visible.where(ResourcePool.name == name)
    if is_locked:
        named = named.with_for_update().execution_options(populate_existing=True)
    row = session.scalar(named)
    if row is None:
        known = ", ".join(each.name for each in session.scalars(visible.order_by(ResourcePool.name)))
        raise NotFound(f"resource pool {name[:130]!r} not found (there is: {known})")
    return row


def check_pool(session: Session, experiment: Experiment, user: UserPrincipal) -> None:
    """Refuse to let an experiment go on in a pool that was removed, or that the user may not use any more.

    That may be one of its failure policies. The pools stay until this transaction ends. Raises: FailedPrecondition.
    """
    workspace_id = session.get_one(Project, experiment.project_id).workspace_id
    for pool in (experiment.resource_pool, *next_pools(experiment.config)):
        if not _is_available(session, pool, workspace_id, user):
            raise FailedPrecondition(
                f"experiment {experiment.id}: its resource pool {pool!r} was removed, or is not available to you in"
                f" workspace id {workspace_id} any more: fork it to another"
            )


def create(session: Session, wanted: PostPool, settings: PoolSettings, user: UserPrincipal) -> ResourcePool:
    """Record a pool, and have its workflow started. Raises: BadRequest, Conflict."""
    if not _NAME.fullmatch(wanted.name):
        raise BadRequest(
            f"name: {wanted.name[:110]!r}: expected 1 to 100 letters, digits, '.', '_' and '-', the first one a letter "
            "or a digit"
        )
    if session.get(ResourcePool, wanted.name) is not None:
        raise Conflict(f"resource pool {wanted.name!r} already exists")
    row = ResourcePool(
        name=wanted.name,
        description=checked_text("description", wanted.description or ""),
        settings=settings.model_dump(mode="json"),
    )
    if wanted.restricted:
        row.restricted_at, row.restricted_by = utc_now(), user.username
    session.add(row)
    session.flush()
    outbox.post(session, names.pool_workflow(row.name), outbox.START_POOL, run_of(row).model_dump(mode="json"))
    _provide(session, row.name, settings)
    return row


def configure(session: Session, row: ResourcePool, settings: PoolSettings) -> None:
    """Have a pool share its slots, and get its nodes, in another way."""
    former = PoolSettings.model_validate(row.settings).provider
    row.settings = settings.model_dump(mode="json")
    outbox.post(session, names.pool_workflow(row.name), "configure", row.settings)
    _provide(session, row.name, settings, former)


def _provide(session: Session, pool: str, settings: PoolSettings, former: Provider | None = None) -> None:
    if settings.provider == former:
        return
    workflow_id = names.autoscaler_workflow(pool)
    if settings.provider is not None:
        run = AutoscalerRun(pool=pool, provider=settings.provider)
        outbox.post(session, workflow_id, outbox.START_NODES, run.model_dump(mode="json"))
    else:
        outbox.post(session, workflow_id, "configure", ProviderChange().model_dump(mode="json"))


def change(session: Session, name: str, wanted: PatchPool) -> ResourcePool:
    """Change a pool's description, or make it a default; what is not given stays. Raises: NotFound, BadRequest."""
    row = find(session, name, None, is_locked=True)
    if wanted.description is not None:
        row.description = checked_text("description", wanted.description)
    cluster = session.get_one(Cluster, 1, with_for_update=True)
    for field, is_wanted in (("compute_pool", wanted.default_compute_pool), ("aux_pool", wanted.default_aux_pool)):
        if is_wanted is False and getattr(cluster, field) == name:
            raise BadRequest(f"pool {name!r} is a default of the cluster until another one is made that")
        if is_wanted:
            if session.scalar(select(PoolBinding.pool).where(PoolBinding.pool == name).limit(1)) is not None:
                raise FailedPrecondition(f"pool {name!r} is bound to workspaces: a default is there for all of them")
            if row.restricted_at is not None:
                raise FailedPrecondition(f"pool {name!r} is restricted: a default is there for all users")
            setattr(cluster, field, name)
    return row


def post_service(session: Session, row: Agent) -> None:
    """Tell an agent's pool what of it is to be in service."""
    service = AgentService(
        agent_id=row.id,
        is_enabled=row.is_enabled,
        disabled_slots=tuple(row.disabled_slots),
        is_draining=row.is_draining,
        leave_at=row.leave_at,
        broken_slots=tuple(sorted(map(int, row.broken_slots))),
    )
    outbox.post(session, names.pool_workflow(row.pool), "agent_service", service.model_dump(mode="json"))


def move(session: Session, row: Experiment, name: str, user: UserPrincipal) -> None:
    """Have an experiment go on in another pool. Its trials leave theirs at the next checkpoint, and ask there.

    Args:
        session: to write with.
        row: the experiment.
        name: of the pool.
        user: who wants it, and has to be allowed to use the pool; the trials' why names them.

    Raises: BadRequest, FailedPrecondition. Nothing was changed then.
    """
    session.refresh(row, with_for_update=True)
    if ExperimentState(row.state).is_terminal or row.is_unmanaged:
        raise FailedPrecondition(f"experiment {row.id} uses no pool: it has ended, or is trained elsewhere")
    workspace_id = session.get_one(Project, row.project_id).workspace_id
    check_available(session, name, workspace_id, user, "resourcePool")
    if name == row.resource_pool:
        raise BadRequest(f"resourcePool: {name!r}: resource pool is unchanged")
    _check_fits(session, name, row)
    row.resource_pool, row.queue_position = name, None
    row.pool_moves += 1
    # a new object: the column compares by identity
    row.config = row.config | {"resources": row.config["resources"] | {"resource_pool": name}}
    outbox.post(session, names.pool_workflow(name), "job_claim", claim_of(row).model_dump(mode="json"))
    order = PoolMove(number=row.pool_moves, pool=name, reason=f"{user.username} moved its experiment to pool {name}")
    outbox.release_start(session, row.id)
    outbox.post(session, names.experiment_workflow(row.id), "move", order.model_dump(mode="json"))


def check_available(session: Session, name: str, workspace_id: int, user: UserPrincipal, field: str) -> None:
    """Refuse a pool that a user may not submit to from a workspace; it stays until this transaction ends.

    Raises: BadRequest, the same for a pool that there is not and for one that the user may not see.
    """
    if not _is_available(session, name, workspace_id, user):
        known = ", ".join(session.scalars(available_pools(workspace_id, user).order_by(ResourcePool.name)))
        raise BadRequest(
            f"{field}: resource pool {name[:130]} does not exist or is not available to workspace id {workspace_id} "
            f"or to user {user.username} (there is: {known})"
        )


def available_default(session: Session, slots: int, workspace_id: int, user: UserPrincipal) -> str | None:
    """The default pool for a task of this many slots, which stays until this transaction ends.

    None if the user may not submit to it from the workspace: `check_available` says so.
    """
    default = select(Cluster.compute_pool if slots else Cluster.aux_pool).where(Cluster.id == 1).scalar_subquery()
    statement = available_pools(workspace_id, user).where(ResourcePool.name == default)
    return session.scalar(statement.with_for_update(read=True))


def _is_available(session: Session, name: str, workspace_id: int, user: UserPrincipal) -> bool:
    statement = available_pools(workspace_id, user).where(ResourcePool.name == name)
    return session.scalar(statement.with_for_update(read=True)) is not None


def offered(session: Session, pool: str, slots: int) -> tuple[frozenset[str], list[str]]:
    """The launchers of a pool's agents, and what to tell of a task that needs more slots than they offer at present."""
    length = func.jsonb_array_length if on_postgresql(session) else func.json_array_length
    statement = (
        select(Agent.launcher, func.sum(length(Agent.slot_ids)))
        .where(Agent.pool == pool, Agent.is_connected)
        .group_by(Agent.launcher)
    )
    count = dict(session.execute(statement).tuples().all())  # each creation asks, and there may be thousands of agents
    is_more = slots > sum(count.values())
    return frozenset(count), (["LAUNCH_WARNING_CURRENT_SLOTS_EXCEEDED"] if is_more else [])


def _check_fits(session: Session, name: str, row: Experiment) -> None:
    """Refuse a pool whose agents, all of them that are known, could never hold a trial. Raises: BadRequest."""
    settings = PoolSettings.model_validate(session.get_one(ResourcePool, name).settings)
    agents = {
        agent.id: AgentSlots(agent_id=agent.id, slot_ids=tuple(agent.slot_ids), slots_per_pod=agent.slots_per_pod)
        for agent in session.scalars(select(Agent).where(Agent.pool == name))
    }
    request = Request(
        allocation_id=f"{row.id}",
        holder="",
        slots=row.slots_per_trial,
        is_single_node=bool(row.config["resources"].get("is_single_node")),
    )
    pool = Pool(PoolSnapshot(agents=agents), settings)
    if not (pool.could_provide(request) or pool.fits_ever(request)):
        sizes = ", ".join(sorted(str(len(agent.slot_ids)) for agent in agents.values()))
        offered = f"its agents have {sizes}" if agents else "it has no agents"
        raise BadRequest(f"resourcePool: {name!r} could never hold a trial of {row.slots_per_trial} slots: {offered}")


def remove(session: Session, name: str, *, permanent: str) -> None:
    """Remove a pool that is not in use. Raises: NotFound, FailedPrecondition, which names its users.

    Args:
        session: to write with.
        name: of the pool.
        permanent: the pool that every cluster has.
    """
    row = find(session, name, None, is_locked=True)
    if name == permanent:
        raise FailedPrecondition(f"resource pool {name!r} is the one that this cluster always has")
    users: list[str] = []
    if name in defaults_of(session):
        users.append("the cluster, as a default: `det resource-pool set-default` names another one")
    if PoolSettings.model_validate(row.settings).provider is not None:
        users.append(f"its provider: `det resource-pool settings {name} provider=` ends that")
    agents = session.scalars(select(Agent.id).where(Agent.pool == name, Agent.is_connected).order_by(Agent.id)).all()
    users += _told("agent", agents)
    live = select(Experiment.id).where(is_live_in(name)).order_by(Experiment.id)
    users += _told("experiment", session.scalars(live).all())
    as_default = (Workspace.default_compute_pool == name) | (Workspace.default_aux_pool == name)
    users += _told(
        "workspace", session.scalars(select(Workspace.name).where(as_default).order_by(Workspace.name)).all()
    )
    if users:
        raise FailedPrecondition(f"resource pool {name!r} is in use: by {'; by '.join(users)}")
    for table in (PoolBinding, PoolGrant):
        session.execute(delete(table).where(table.pool == name))
    outbox.post(session, names.pool_workflow(name), outbox.STOP_POOL, run_of(row).model_dump(mode="json"))
    session.delete(row)


def is_live_in(name: str) -> ColumnElement[bool]:
    """Whether an experiment is in a pool and has not ended, as a condition."""
    return and_(Experiment.resource_pool == name, Experiment.state.not_in(_ENDED), ~Experiment.is_unmanaged)


def run_of(row: ResourcePool) -> PoolRun:
    """What the pool's workflow starts with."""
    return PoolRun(name=row.name, created_at=row.created_at, settings=PoolSettings.model_validate(row.settings))


def _told(kind: str, names: Any) -> list[str]:
    if not names:
        return []
    shown = ", ".join(str(name) for name in names[:_MOST_TOLD])
    more = f" and {len(names) - _MOST_TOLD} more" if len(names) > _MOST_TOLD else ""
    return [f"{kind}{'s' * (len(names) > 1)} {shown}{more}"]
