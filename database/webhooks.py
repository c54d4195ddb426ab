"""Which webhooks receive an event, and what it contains. Each event is posted in the transaction that it reports.

A webhook of a workspace receives the events of that workspace's experiments; one without a workspace, those of all. An
experiment may name further ones of the mode SPECIFIC in `integrations.webhooks`, or exclude all.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from database import slack
from database.models import (
    Experiment,
    Outbox,
    Project,
    Task,
    Trial,
    Webhook,
    WebhookDelivery,
    WebhookTrigger,
    Workspace,
)
from database.types import utc_now
from database.upsert import insert
from workflows import names

#: Kind of the messages that have deliveries started.
DELIVER = "deliver_webhook"

STATE_CHANGE, TASK_LOG, CUSTOM = "EXPERIMENT_STATE_CHANGE", "TASK_LOG", "CUSTOM"
METRIC = "METRIC_THRESHOLD_EXCEEDED"
#: Events that wait for their webhooks at a time, as far as code can cause them with each batch.
MOST_WAITING = 1000
#: States of an experiment for which webhooks may have a trigger.
STATES = ("ACTIVE", "PAUSED", "COMPLETED", "CANCELED", "ERROR")


@dataclass(frozen=True)
class Subject:
    """An experiment that something happened to, and where it is."""

    experiment_id: int
    workspace_id: int
    workspace: str
    project: str
    facts: dict[str, Any]
    selection: dict[str, Any]  # `integrations.webhooks` of its configuration

    def wants(self, webhook: Webhook) -> bool:
        """Whether a webhook is for this experiment."""
        if self.selection.get("exclude") or webhook.workspace_id not in (None, self.workspace_id):
            return False
        if webhook.mode != "SPECIFIC":
            return True
        by_id, by_name = self.selection.get("webhook_id") or (), self.selection.get("webhook_name") or ()
        return webhook.id in by_id or webhook.name in by_name


def subject_of(session: Session, experiment_id: int) -> Subject | None:
    """What events tell of an experiment; None if it is gone."""
    row = session.execute(
        select(Experiment, Project.name, Workspace.id, Workspace.name)
        .join(Project, Project.id == Experiment.project_id)
        .join(Workspace, Workspace.id == Project.workspace_id)
        .where(Experiment.id == experiment_id)
    ).one_or_none()
    if row is None:
        return None
    experiment, project, workspace_id, workspace = row.tuple()
    end = experiment.ended_at or utc_now()
    facts = {
        "id": experiment.id,
        "name": experiment.name,
        "state": experiment.state,
        "duration": int((end - experiment.started_at).total_seconds()),
        "resource_pool": experiment.resource_pool,
        "slots_per_trial": experiment.slots_per_trial,
        "workspace": workspace,
        "project": project,
    }
    return Subject(experiment_id, workspace_id, workspace, project, facts, selection_of(experiment.config))


def selection_of(config: dict[str, Any]) -> dict[str, Any]:
    """Which webhooks an experiment's configuration names."""
    integrations = cast("dict[str, Any]", config.get("integrations") or {})
    return cast("dict[str, Any]", integrations.get("webhooks") or {})


def note_state(session: Session, experiment_id: int, state: str) -> None:
    """Post an experiment's new state, which is written already."""
    if state not in STATES or not _has_triggers(session, STATE_CHANGE):
        return
    subject = subject_of(session, experiment_id)
    if subject is None:
        return
    for webhook, trigger in _triggers(session, STATE_CHANGE, subject):
        if trigger.condition.get("state") == state:
            data = {"experiment": subject.facts | {"state": state}}
            text = f"Experiment {experiment_id} “{subject.facts['name']}” is {state}"
            post(session, webhook, STATE_CHANGE, trigger.condition, data, f"{text} ({subject.workspace})")


def note_custom(session: Session, subject: Subject, data: dict[str, Any]) -> list[str]:
    """Post an event that the code of an experiment sends; returns the ids of the deliveries."""
    found: list[str] = []
    for webhook, trigger in _triggers(session, CUSTOM, subject):
        title = f"{data.get('title') or 'A message'}, from experiment {subject.experiment_id}"
        text = f"{title}: {data.get('description') or ''}"
        body = {"experiment": subject.facts, "custom": data}
        delivery_id = post(session, webhook, CUSTOM, trigger.condition, body, text)
        found.extend([delivery_id] if delivery_id else [])
    return found


def note_metric(
    session: Session, subject: Subject, webhook: Webhook, trigger: WebhookTrigger, report: dict[str, Any]
) -> str | None:
    """Post that a trial's metric crossed a threshold: once for each trigger, trial and step."""
    said = f"{report['metric']} = {report['value']} at step {report['steps']}"
    text = f"Trial {report['trial_id']} of experiment {subject.experiment_id} “{subject.facts['name']}”: {said}"
    data = {"experiment": subject.facts, "metric": report}
    cause = f"metric {trigger.id} {report['trial_id']} {report['steps']}"
    return post(session, webhook, METRIC, trigger.condition, data, text, cause=cause)


def is_full(session: Session, webhook_id: int) -> bool:
    """Whether as many events wait for a webhook as may."""
    waiting = select(WebhookDelivery.id).where(
        WebhookDelivery.webhook_id == webhook_id, WebhookDelivery.state == "WAITING"
    )
    return len(session.scalars(waiting.limit(MOST_WAITING)).all()) >= MOST_WAITING


def note_log(
    session: Session, webhook: Webhook, trigger: WebhookTrigger, task_id: str, node: str, line: str
) -> str | None:
    """Post a line that a trigger's pattern matched: once for each trigger and task."""
    found = {"task_id": task_id, "node_name": node, "triggering_log": line}
    data: dict[str, Any] = {"task_log": found}
    if webhook.kind == "SLACK":  # people look for numbers
        whose = select(Trial.id, Trial.experiment_id).join(Task, Task.trial_id == Trial.id)
        row = session.execute(whose.where(Task.id == task_id)).one_or_none()
        data["task_log"] = found | ({"trial_id": row[0], "experiment_id": row[1]} if row else {})
    text = f"Task {task_id} printed a line that matches {trigger.condition.get('regex')!r}: {line}"
    return post(session, webhook, TASK_LOG, trigger.condition, data, text, cause=f"log {trigger.id} {task_id}")


def _has_triggers(session: Session, kind: str) -> bool:
    return session.scalar(select(WebhookTrigger.id).where(WebhookTrigger.kind == kind).limit(1)) is not None


def _triggers(session: Session, kind: str, subject: Subject) -> Iterable[tuple[Webhook, WebhookTrigger]]:
    rows = session.execute(
        select(Webhook, WebhookTrigger)
        .join(WebhookTrigger, WebhookTrigger.webhook_id == Webhook.id)
        .where(
            WebhookTrigger.kind == kind,
            or_(Webhook.workspace_id.is_(None), Webhook.workspace_id == subject.workspace_id),
        )
        .order_by(WebhookTrigger.id)
    ).tuples()
    return [(webhook, trigger) for webhook, trigger in rows if subject.wants(webhook)]


def post(
    session: Session,
    webhook: Webhook,
    kind: str,
    condition: dict[str, Any],
    data: dict[str, Any],
    text: str,
    *,
    cause: str | None = None,
) -> str | None:
    """Have an event delivered; returns the delivery's id, None if `cause` was posted before."""
    delivery_id = str(uuid.uuid4())
    if webhook.kind == "SLACK":
        payload = slack.message(data, condition, text)
    else:
        payload = {
            "event_id": delivery_id,
            "event_type": kind,
            "timestamp": int(utc_now().timestamp()),
            "condition": condition,
            "event_data": data,
        }
    row = insert(session, WebhookDelivery).values(
        id=delivery_id, webhook_id=webhook.id, cause=cause, payload=payload, state="WAITING", attempts=0, error="",
        created_at=utc_now(),
    )  # fmt: skip
    if session.scalar(row.on_conflict_do_nothing().returning(WebhookDelivery.id)) is None:
        return None
    workflow_id = names.delivery_workflow(delivery_id)
    session.add(Outbox(workflow_id=workflow_id, kind=DELIVER, payload={"delivery_id": delivery_id}))
    return delivery_id
