"""Webhooks: create, change and test them, with the permissions for each.

A webhook sends the events that it receives out of the cluster. Webhooks of a workspace belong to its editors. Webhooks
without a workspace receive the events of all workspaces, and belong to the administrators of the cluster.
"""

from __future__ import annotations

import math
import secrets
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy import ColumnElement, or_, select, true
from sqlalchemy.orm import Session

from api.auth.authentication import AllocationPrincipal, UserPrincipal
from api.auth.authorization import Role, changeable, readable_workspaces, require_role, role_in
from api.errors import BadRequest, FailedPrecondition, Forbidden, NotFound
from api.queries.paging import chosen
from api.schemas import webhooks as wire
from api.schemas.base import number
from api.schemas.validation import checked_name, checked_text
from database import webhooks
from database.models import Trial, Webhook, WebhookDelivery, WebhookTrigger
from workflows.config.patterns import PatternRefused, PatternSet

_KIND, _MODE, _TRIGGER = "WEBHOOK_TYPE_", "WEBHOOK_MODE_", "TRIGGER_TYPE_"
_KINDS = {"": "DEFAULT", f"{_KIND}UNSPECIFIED": "DEFAULT", f"{_KIND}DEFAULT": "DEFAULT", f"{_KIND}SLACK": "SLACK"}
_MODES = {f"{_MODE}WORKSPACE": "WORKSPACE", f"{_MODE}SPECIFIC": "SPECIFIC", f"{_MODE}UNSPECIFIED": "WORKSPACE"}
_MODES_OR_NONE = {"": "WORKSPACE"} | _MODES
_TRIGGERS = {
    f"{_TRIGGER}{kind}": kind for kind in (webhooks.STATE_CHANGE, webhooks.TASK_LOG, webhooks.METRIC, webhooks.CUSTOM)
}
_OPERATORS = {operator: operator for operator in (">", ">=", "<", "<=")}
_LEVELS = {f"LOG_LEVEL_{level}" for level in ("UNSPECIFIED", "TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")}
_LONGEST_URL, _MOST_TRIGGERS, _LONGEST_METRIC = 2000, 20, 500
_LONGEST_TITLE, _LONGEST_DESCRIPTION = 500, 10_000


def _readable(user: UserPrincipal) -> ColumnElement[bool]:
    if user.is_admin:
        return true()
    return or_(Webhook.workspace_id.is_(None), Webhook.workspace_id.in_(readable_workspaces(user)))


def listed(session: Session, user: UserPrincipal) -> list[wire.Webhook]:
    """The webhooks that may send what the user can see; with addresses only for those that the user can change."""
    rows = session.scalars(select(Webhook).where(_readable(user)).order_by(Webhook.id)).all()
    triggers: dict[int, list[WebhookTrigger]] = {row.id: [] for row in rows}
    statement = select(WebhookTrigger).where(WebhookTrigger.webhook_id.in_(triggers)).order_by(WebhookTrigger.id)
    for trigger in session.scalars(statement):
        triggers[trigger.webhook_id].append(trigger)
    return [_wire(row, triggers[row.id], is_open=_may_change(session, row, user)) for row in rows]


def shown(session: Session, row: Webhook) -> wire.Webhook:
    """A webhook as users who can change it see it."""
    statement = select(WebhookTrigger).where(WebhookTrigger.webhook_id == row.id).order_by(WebhookTrigger.id)
    return _wire(row, list(session.scalars(statement)), is_open=True)


def _wire(row: Webhook, triggers: list[WebhookTrigger], *, is_open: bool) -> wire.Webhook:
    return wire.Webhook(
        id=row.id,
        url=row.url if is_open else "",
        triggers=[
            wire.Trigger(
                id=trigger.id,
                trigger_type=_TRIGGER + trigger.kind,
                condition=trigger.condition,
                webhook_id=row.id,
            )
            for trigger in triggers
        ],
        webhook_type=_KIND + row.kind,
        name=row.name,
        workspace_id=row.workspace_id,
        mode=_MODE + row.mode,
        secret=row.secret if is_open else "",
    )


def _may_change(session: Session, row: Webhook, user: UserPrincipal) -> bool:
    if user.is_admin:
        return True
    return row.workspace_id is not None and (role_in(session, user, row.workspace_id) or 0) >= Role.PROJECT_RESTRICTED


def changeable_webhook(session: Session, webhook_id: int, user: UserPrincipal) -> Webhook:
    """A webhook that the user may change. Raises: NotFound, Forbidden."""
    row = session.scalar(select(Webhook).where(Webhook.id == webhook_id, _readable(user)))
    if row is None:
        raise NotFound(f"webhook {webhook_id} not found")
    _check_owner(session, row.workspace_id, user)
    return row


def _check_owner(session: Session, workspace_id: int | None, user: UserPrincipal) -> None:
    if workspace_id is not None:
        require_role(session, user, workspace_id, Role.PROJECT_RESTRICTED)
    elif not user.is_admin:
        raise Forbidden("webhooks of all workspaces are for administrators of the cluster; name a workspace")


def new_webhook(session: Session, wanted: wire.Webhook, user: UserPrincipal) -> wire.Webhook:
    """Make a webhook. Raises: BadRequest, NotFound, Forbidden."""
    _check_owner(session, wanted.workspace_id or None, user)
    row = Webhook(
        name=checked_name("name", wanted.name) if wanted.name else "",
        url=_checked_url(wanted.url),
        secret=secrets.token_urlsafe(32),
        kind=chosen("webhookType", wanted.webhook_type, _KINDS),
        mode=chosen("mode", wanted.mode, _MODES_OR_NONE),
        workspace_id=wanted.workspace_id or None,
        owner_id=user.user_id,
    )
    if not 1 <= len(wanted.triggers) <= _MOST_TRIGGERS:
        raise BadRequest(f"triggers: {len(wanted.triggers)} of them: expected 1 to {_MOST_TRIGGERS}")
    triggers = [_checked_trigger(trigger) for trigger in wanted.triggers]
    if row.mode != "SPECIFIC" and any(kind == webhooks.CUSTOM for kind, _ in triggers):
        raise BadRequest(
            f"mode: {_MODE}{row.mode}: custom triggers only work with {_MODE}SPECIFIC, as experiments name in"
            " integrations.webhooks whom their code may tell"
        )
    session.add(row)
    session.flush()
    session.add_all(WebhookTrigger(webhook_id=row.id, kind=kind, condition=condition) for kind, condition in triggers)
    session.flush()
    return shown(session, row)


def change_webhook(session: Session, webhook_id: int, wanted: wire.PatchWebhook, user: UserPrincipal) -> wire.Webhook:
    """Change what is given. Raises: NotFound, Forbidden, BadRequest."""
    row = changeable_webhook(session, webhook_id, user)
    if wanted.url is not None:
        row.url = _checked_url(wanted.url)
    if wanted.name is not None:
        row.name = checked_name("name", wanted.name)
    session.flush()
    return shown(session, row)


def _checked_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good or len(url) > _LONGEST_URL or not url.isprintable() or " " in url:
        raise BadRequest(f"url: {url[:100]!r}: expected an http or https address of at most {_LONGEST_URL} characters")
    return url


def _checked_trigger(trigger: wire.Trigger) -> tuple[str, dict[str, Any]]:
    kind = chosen("triggers.triggerType", trigger.trigger_type, _TRIGGERS)
    if kind == webhooks.STATE_CHANGE:
        state = str(trigger.condition.get("state", "")).removeprefix("STATE_")
        if state not in webhooks.STATES:
            raise BadRequest(f"triggers.condition.state: {state[:40]!r}: expected one of {', '.join(webhooks.STATES)}")
        return kind, {"state": state}
    if kind == webhooks.TASK_LOG:
        regex = trigger.condition.get("regex")
        if not isinstance(regex, str) or not regex:
            raise BadRequest(f"triggers.condition.regex: {str(regex)[:40]!r}: expected a regular expression (RE2)")
        try:
            PatternSet([regex])
        except PatternRefused as error:
            raise BadRequest(f"triggers.condition.regex: {error}") from None
        return kind, {"regex": regex}
    return kind, _checked_threshold(trigger.condition) if kind == webhooks.METRIC else {}


def _checked_threshold(condition: dict[str, Any]) -> dict[str, Any]:
    """`metric` of the validation, `operator` (as the trigger's name says, > if it is left out) and `value`."""
    name, value = condition.get("metric"), condition.get("value")
    if not isinstance(name, str) or not 1 <= len(name) <= _LONGEST_METRIC or "\x00" in name:
        raise BadRequest(f"triggers.condition.metric: {str(name)[:40]!r}: expected the name of a validation metric")
    if not isinstance(value, int | float) or isinstance(value, bool) or not _is_finite(value):
        raise BadRequest(f"triggers.condition.value: {str(value)[:40]!r}: expected a number")
    operator = chosen("triggers.condition.operator", str(condition.get("operator", ">")), _OPERATORS)
    return {"metric": name, "operator": operator, "value": float(value)}


def _is_finite(value: int | float) -> bool:
    found = number(value)
    return found is not None and math.isfinite(found)


def send_test(session: Session, webhook_id: int, user: UserPrincipal) -> str:
    """Have a harmless event delivered; returns the delivery's id. Raises: NotFound, Forbidden."""
    row = changeable_webhook(session, webhook_id, user)
    data = {"test": True, "webhook": {"id": row.id, "name": row.name}}
    delivery_id = webhooks.post(session, row, "TEST", {}, data, f"A test of webhook {row.id} {row.name}")
    assert delivery_id is not None  # without a cause nothing was told before
    return delivery_id


def send_custom(session: Session, wanted: wire.PostCustomEvent, caller: UserPrincipal | AllocationPrincipal) -> None:
    """Send a custom event of training code to webhooks. Raises: NotFound, Forbidden, BadRequest."""
    if isinstance(caller, AllocationPrincipal) and not caller.is_of_experiment(wanted.experiment_id):
        raise NotFound(f"experiment {wanted.experiment_id} not found")
    changeable(session, wanted.experiment_id, caller.user)
    trial_id = wanted.trial_id or None
    if trial_id is not None:
        owner = session.scalar(select(Trial.experiment_id).where(Trial.id == trial_id))
        if owner != wanted.experiment_id:
            raise NotFound(f"trial {trial_id} not found in experiment {wanted.experiment_id}")
    data = wanted.data
    for field, text, longest in (
        ("title", data.title, _LONGEST_TITLE), ("description", data.description, _LONGEST_DESCRIPTION)
    ):  # fmt: skip
        if len(checked_text(f"data.{field}", text)) > longest:
            raise BadRequest(f"data.{field}: {len(text)} characters: expected at most {longest}")
    if data.level not in _LEVELS:
        raise BadRequest(f"data.level: {data.level[:40]!r}: expected one of {', '.join(sorted(_LEVELS))}")
    subject = webhooks.subject_of(session, wanted.experiment_id)
    assert subject is not None  # it was read above, in this transaction
    _check_queue(session, subject)
    webhooks.note_custom(
        session,
        subject,
        {
            "title": data.title,
            "description": data.description,
            "level": data.level.removeprefix("LOG_LEVEL_"),
            "trial_id": trial_id,
        },
    )


def _check_queue(session: Session, subject: webhooks.Subject) -> None:
    """Code that tells of each batch must not fill the disk while a receiver is away."""
    waiting = (
        select(WebhookDelivery.id)
        .join(Webhook, Webhook.id == WebhookDelivery.webhook_id)
        .where(
            WebhookDelivery.state == "WAITING",
            or_(Webhook.workspace_id.is_(None), Webhook.workspace_id == subject.workspace_id),
        )
        .limit(webhooks.MOST_WAITING)
    )
    if len(session.scalars(waiting).all()) >= webhooks.MOST_WAITING:
        raise FailedPrecondition(
            f"{webhooks.MOST_WAITING} events wait for their webhooks already: tell fewer, or later"
        )
