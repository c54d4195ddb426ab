"""Gates: who may decide, what follows from a decision, and what is decided at the deadline."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from datetime import timedelta

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from api.auth.authentication import UserPrincipal
from api.auth.authorization import Role, changeable, may_see, readable_experiments, role_in
from api.errors import FailedPrecondition, Forbidden, NotFound
from api.schemas import gates as wire
from api.services import budgets
from api.services.rounds import posting_rounds
from api.temporal import outbox
from api.temporal.outbox import Dispatcher
from database import gates
from database.models import Experiment, Gate, Project, Webhook
from database.session import Database
from database.types import utc_now
from workflows import names
from workflows.config.gates import Gate as Rule
from workflows.lifecycle.gates import GateState
from workflows.messages import GateDecided

_EVERY = timedelta(seconds=2)
_MOST = 200
_ROLES = {"contributor": Role.CONTRIBUTOR, "editor": Role.PROJECT_RESTRICTED, "admin": Role.ADMIN}
#: A signed answer is refused when it is older than this, so that one which was overheard is of no use later.
_SIGNED_WITHIN_S = 300


def many(session: Session, user: UserPrincipal, experiment_id: int | None, state: str | None) -> list[wire.Gate]:
    """Gates of experiments that the user may see, the newest first: at most 200."""
    statement = _visible(user).order_by(Gate.id.desc()).limit(_MOST)
    if experiment_id is not None:
        statement = statement.where(Gate.experiment_id == experiment_id)
    if state is not None:
        statement = statement.where(Gate.state == state)
    return [_shown(session, row, user) for row in session.scalars(statement)]


def decide(session: Session, gate_id: int, user: UserPrincipal, *, approve: bool) -> wire.Gate:
    """Approve or deny what waits. Raises: NotFound, Forbidden, FailedPrecondition."""
    row = session.scalar(_visible(user).where(Gate.id == gate_id).with_for_update(of=Gate))
    if row is None:
        raise NotFound(f"gate {gate_id} not found")
    if not _may_decide(session, row, user):
        rule = Rule.model_validate(row.rule)
        others = f", or one of the users {', '.join(rule.users)}" if rule.users else ""
        raise Forbidden(
            f"gate {gate_id}: this needs the role {rule.by.replace('_', ' ')} in its workspace{others}, and a login:"
            " access tokens and containers decide about no gate, nor does the user who asked"
        )
    _check_waits(row)
    _apply(session, row, user.username, approve=approve)
    return _shown(session, row, user)


def answer_signed(session: Session, gate_id: int, wanted: wire.WebhookAnswer, body: bytes, at: str, sign: str) -> None:
    """Decide as a webhook's receiver says. Raises: Forbidden for whatever is not signed as it must be."""
    refused = Forbidden("expected a body that is signed with the secret of a webhook which the gate names")
    row = session.scalar(select(Gate).where(Gate.id == gate_id).with_for_update())
    if row is None or not at.isdigit() or len(at) > 12 or abs(int(at) - utc_now().timestamp()) > _SIGNED_WITHIN_S:
        raise refused
    rule, workspace_id = Rule.model_validate(row.rule), _workspace_of(session, row)
    named = select(Webhook).where(Webhook.name == wanted.webhook).order_by(Webhook.id)
    for webhook in session.scalars(named) if wanted.webhook in rule.webhooks else ():
        digest = hmac.new(webhook.secret.encode(), f"{at},".encode() + body, hashlib.sha256).hexdigest()
        if webhook.workspace_id in (None, workspace_id) and hmac.compare_digest(digest.encode(), sign.encode()):
            _check_waits(row)
            _apply(session, row, f"webhook {wanted.webhook}", approve=wanted.approve)
            return
    raise refused


def ask_before(database: Database, what: str, experiment_ids: Sequence[int], user: UserPrincipal) -> None:
    """Ask for the approvals that a request about experiments needs and lacks; the request itself is refused then.

    It is a transaction of its own, so that the question stays.
    """
    with database.read() as session:
        configs = select(Experiment.id, Experiment.config).where(Experiment.id.in_(experiment_ids))
        rules = {id_: gates.rule_for(config, what) for id_, config in session.execute(configs).tuples()}
        needed = [id_ for id_, rule in rules.items() if rule and may_see(changeable, session, id_, user)]
    for experiment_id in needed:
        with database.write() as session:
            session.get_one(Experiment, experiment_id, with_for_update=True)
            last, rule = gates.last(session, experiment_id, what, user.username), rules[experiment_id]
            if rule is not None and (last is None or last.is_used or last.state == GateState.DENIED.value):
                number = gates.next_number(session, experiment_id, what)
                gates.ask(session, experiment_id, rule, number, asked_by=user.username)


# -- deadlines ---------------------------------------------------------------------------------------------------------


async def watch(database: Database, dispatcher: Dispatcher) -> None:
    """Decide what is due by its default, until cancelled."""
    failed = "gates wait for their deadlines to be decided"
    await posting_rounds(_EVERY, lambda: decide_due(database), dispatcher, failed=failed)


def decide_due(database: Database) -> int:
    """Decide gates whose deadlines have passed; returns how many those were."""
    due = (Gate.state == GateState.WAITING.value, Gate.due_at <= utc_now())
    with database.read() as session:
        ids = session.scalars(select(Gate.id).where(*due).order_by(Gate.id)).all()
    for gate_id in ids:
        with database.write() as session:
            row = session.scalar(select(Gate).where(Gate.id == gate_id, *due).with_for_update(skip_locked=True))
            if row is not None:
                _apply(session, row, "its deadline", approve=Rule.model_validate(row.rule).default == "approve")
    return len(ids)


# -- decisions ---------------------------------------------------------------------------------------------------------


def _apply(session: Session, row: Gate, by: str, *, approve: bool) -> None:
    row.state = (GateState.APPROVED if approve else GateState.DENIED).value
    row.decided_at, row.decided_by = utc_now(), by
    session.flush()
    if row.what == "budget_overrun" and approve:
        budgets.double(session, session.get_one(Experiment, row.experiment_id))
    if row.what in ("promotion", "budget_overrun"):
        rung = row.number if row.what == "promotion" else None
        message = GateDecided(rung=rung, state=GateState(row.state)).model_dump(mode="json")
        outbox.post(session, names.experiment_workflow(row.experiment_id), "gate_decided", message)


def _check_waits(row: Gate) -> None:
    if row.state != GateState.WAITING.value:
        raise FailedPrecondition(f"gate {row.id} was {row.state.lower()} already, by {row.decided_by}")


def _may_decide(session: Session, row: Gate, user: UserPrincipal) -> bool:
    if user.is_read_only or user.allocation_id is not None or budgets.token_of(session, user) is not None:
        return False
    rule = Rule.model_validate(row.rule)
    if user.is_admin:
        return True
    if row.asked_by == user.username:  # four eyes
        return False
    if user.username in rule.users:
        return True
    role = role_in(session, user, _workspace_of(session, row))
    return rule.by in _ROLES and role is not None and role >= _ROLES[rule.by]


def _workspace_of(session: Session, row: Gate) -> int:
    project_of = select(Project.workspace_id).join(Experiment, Experiment.project_id == Project.id)
    return session.scalars(project_of.where(Experiment.id == row.experiment_id)).one()


def _visible(user: UserPrincipal) -> Select[Gate]:
    joined = select(Gate).join(Experiment, Experiment.id == Gate.experiment_id)
    return joined.join(Project, Project.id == Experiment.project_id).where(readable_experiments(user))


def _shown(session: Session, row: Gate, user: UserPrincipal) -> wire.Gate:
    return wire.Gate(
        id=row.id,
        experiment_id=row.experiment_id,
        experiment_name=session.get_one(Experiment, row.experiment_id).name,
        what=row.what,
        rung=row.number if row.what == "promotion" else None,
        text=gates.text_of(row),
        rule=row.rule,
        state=row.state,
        asked_by=row.asked_by,
        asked_at=row.asked_at,
        due_at=row.due_at,
        decided_at=row.decided_at,
        decided_by=row.decided_by,
        may_decide=row.state == GateState.WAITING.value and _may_decide(session, row, user),
    )
