"""Enrollment of agents: a host shows a join token of an administrator, and registers a credential of its own."""

from __future__ import annotations

from datetime import timedelta

import structlog
from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from api.auth.agents import own
from api.auth.authentication import AgentPrincipal, UserPrincipal, new_token, token_hash
from api.errors import BadRequest, Conflict, FailedPrecondition, Forbidden, NotFound, Unauthenticated, Unavailable
from api.pem import CantUse, authority_in, certificates, fingerprint
from api.queries import agents
from api.schemas import agents as wire
from api.schemas.durations import expiry_of
from api.services.pools import defaults_of, find, post_service
from api.settings import ApiSettings
from api.temporal import outbox
from database.models import Agent, AgentJoinToken, User
from database.types import utc_now
from database.upsert import insert
from workflows import names
from workflows.messages import AgentRun, AgentSeen, Presence
from workflows.scheduling.model import AgentSlots
from workflows.scheduling.topology import Topology

log = structlog.get_logger()

_DEFAULT_LIFE = timedelta(days=1)
_LONGEST_DESCRIPTION = 1000
#: Allocations without slots that a cluster takes: its nodes have room for many, and queue what they have none for.
_MOST_WITHOUT_SLOTS = 1000


def create_token(session: Session, wanted: wire.PostJoinToken, admin: UserPrincipal) -> tuple[str, int]:
    """A new join token, which is shown this once, and its id. Raises: NotFound, BadRequest."""
    pool = wanted.pool or defaults_of(session).compute
    find(session, pool, None)
    if len(wanted.description) > _LONGEST_DESCRIPTION:
        raise BadRequest(f"description: {len(wanted.description)} characters: expected at most {_LONGEST_DESCRIPTION}")
    token = new_token()
    row = AgentJoinToken(
        token_hash=token_hash(token),
        pool=pool,
        description=wanted.description,
        uses_left=wanted.uses,
        created_by=admin.user_id,
        expires_at=expiry_of(wanted.lifespan, _DEFAULT_LIFE),
    )
    session.add(row)
    session.flush()
    return token, row.id


def tokens() -> Select[AgentJoinToken, str]:
    """A statement on the join tokens, with the names of those who made them."""
    return select(AgentJoinToken, User.username).join(User, User.id == AgentJoinToken.created_by)


def token_info(row: AgentJoinToken, maker: str) -> wire.JoinToken:
    """A join token as its administrators see it."""
    return wire.JoinToken(
        id=row.id,
        pool=row.pool,
        description=row.description,
        uses_left=row.uses_left,
        created_by=maker,
        created_at=row.created_at,
        expires_at=row.expires_at,
        is_revoked=row.revoked_at is not None,
    )


def revoke_token(session: Session, token_id: int) -> None:
    """Revoke a join token: no host enrolls by it any more. Hosts that did remain enrolled. Raises: NotFound."""
    row = session.get(AgentJoinToken, token_id)
    if row is None:
        raise NotFound(f"join token {token_id} not found")
    row.revoked_at = row.revoked_at or utc_now()


def join(session: Session, wanted: wire.JoinAgent) -> str:
    """Make a host an agent; returns its pool. Asking twice with the same credential is asking once.

    Raises: Unauthenticated, Conflict if another host has this name.
    """
    token = session.scalar(
        select(AgentJoinToken).where(AgentJoinToken.token_hash == token_hash(wanted.token)).with_for_update()
    )
    if token is None or token.revoked_at is not None:
        raise Unauthenticated("this join token is not valid: it was revoked, or is of another cluster")
    known = session.get(Agent, wanted.agent_id)
    if known is not None and known.credential_hash == token_hash(wanted.credential):
        return known.pool
    if known is not None:
        raise Conflict(
            f"agent {wanted.agent_id!r} is there already: choose another name (`--name`), or remove it before"
            f" (`det agent remove {wanted.agent_id}`)"
        )
    if token.expires_at <= utc_now():
        raise Unauthenticated(f"this join token expired at {token.expires_at:%Y-%m-%d %H:%M} UTC: ask for a new one")
    if token.uses_left == 0:
        raise Unauthenticated("as many hosts as it allows have joined by this token: ask for a new one")
    if token.uses_left is not None:
        token.uses_left -= 1
    session.add(
        Agent(
            id=wanted.agent_id,
            pool=token.pool,
            slot_ids=[],
            credential_hash=token_hash(wanted.credential),
        )
    )
    return token.pool


def welcome(agent_id: str, pool: str, settings: ApiSettings) -> wire.Welcome:
    """What an agent must know of its cluster."""
    return wire.Welcome(
        agent_id=agent_id,
        pool=pool,
        temporal_address=settings.gateway,
        temporal_namespace=settings.temporal_namespace,
        temporal_tls=bool(settings.tls_cert_file) if settings.gateway_tls is None else settings.gateway_tls,
    )


def authority(settings: ApiSettings) -> wire.Authority:
    """What signed the certificate that this process serves with. Raises: Unavailable, if its file can't be read now."""
    found = b""
    if settings.tls_cert_file is not None:
        try:
            found = authority_in(certificates("tls_cert_file", settings.tls_cert_file))
        except CantUse as error:
            log.error("the authority of this API's certificate can't be shown", reason=str(error))
            raise Unavailable("the certificate of this API can't be read: see its log") from None
    return wire.Authority(certificate=found.decode(), fingerprint=fingerprint(found) if found else "")


def note_report(session: Session, caller: AgentPrincipal, agent_id: str, report: wire.AgentReport) -> AgentRun:
    """Write down what an agent says of itself; returns what its workflow starts from. Raises: NotFound, Forbidden."""
    pool = _pool_of(session, caller, agent_id, report)
    facts = {
        "version": report.version,
        "launcher": report.launcher,
        "labels": report.labels,
        "devices": [device.model_dump() for device in report.devices],
        "broken_slots": {str(each.slot): each.problem for each in report.broken_slots},
        "topology": report.topology.model_dump(),
        "slots_per_pod": report.slots_per_pod,
        "nodes": [node.model_dump() for node in report.nodes],
    }
    known = session.get(Agent, agent_id)
    was_broken = {} if known is None else dict(known.broken_slots)
    session.execute(
        insert(session, Agent)
        .values(id=agent_id, pool=pool, slot_ids=[], **facts)
        .on_conflict_do_update(index_elements=["id"], set_=facts)
    )
    if facts["broken_slots"] != was_broken:
        session.expire_all()
        post_service(session, session.get_one(Agent, agent_id))
    return AgentRun(
        agent_id=agent_id,
        pool=pool,
        slots=_slots(agent_id, report),
        address=report.address,
        heartbeat_s=report.heartbeat_s,
        reconnect_wait_s=report.reconnect_wait_s,
    )


def seen(session: Session, caller: AgentPrincipal, agent_id: str, report: wire.AgentReport) -> AgentSeen:
    """The message to the agent's workflow that the agent is present. Raises: NotFound, Forbidden."""
    return AgentSeen(
        agent_id=agent_id,
        pool=_pool_of(session, caller, agent_id, report),
        slots=_slots(agent_id, report),
        address=report.address,
    )


def remove(session: Session, agent_id: str, *, force: bool) -> None:
    """Forget an agent: its credential is void, and what it held goes elsewhere.

    Raises: NotFound, FailedPrecondition if it is connected, unless by force.
    """
    row = agents.find(session, agent_id)
    if row.is_connected and not force:
        raise FailedPrecondition(
            f"agent {agent_id!r} is connected: stop it before, or force its removal (`--force`), upon which its trials"
            " go on elsewhere from their latest checkpoints"
        )
    session.delete(row)
    outbox.post(session, names.agent_workflow(agent_id), "retire", Presence(agent_id=agent_id).model_dump())


def _pool_of(session: Session, caller: AgentPrincipal, agent_id: str, report: wire.AgentReport) -> str:
    own(caller, agent_id)
    if caller.agent_id is not None:
        if report.pool not in ("", caller.pool):
            raise Forbidden(f"pool: {report.pool!r}: agent {agent_id!r} joined pool {caller.pool!r}")
        return caller.pool
    find(session, report.pool, None)
    return report.pool


def _slots(agent_id: str, report: wire.AgentReport) -> AgentSlots:
    if report.slots_per_pod is None:
        topology = Topology.model_validate(report.topology.model_dump())
        return AgentSlots(agent_id=agent_id, slot_ids=tuple(range(len(report.devices))), topology=topology)
    return AgentSlots(
        agent_id=agent_id,
        slot_ids=tuple(range(report.slots or 0)),
        slots_per_pod=report.slots_per_pod,
        max_zero_slot=_MOST_WITHOUT_SLOTS,
    )
