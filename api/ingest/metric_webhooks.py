"""Webhooks for validation metrics: a trial's metric crosses a threshold, in the transaction that stores the report.

A crossing is a report beyond the threshold after one that was not, or the first one. Without triggers for a metric of a
report, it costs nothing but a look into a dictionary.
"""

from __future__ import annotations

import math
import operator
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from sqlalchemy import Connection, select
from sqlalchemy.orm import Session

from api.ingest.metric_store import TrialRow
from api.schemas.base import number, plain
from database import webhooks
from database.models import Experiment, Metric, Project, Webhook, WebhookTrigger
from database.session import Database

log = structlog.get_logger()

_FRESH_S, _EXPERIMENTS, _LOOKED_BACK = 2.0, 2000, 100
_COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Trigger:
    id: int
    webhook_id: int
    is_met: Callable[[float], bool]


@dataclass(frozen=True, slots=True)
class Crossing:
    """A metric of a trial that crossed the threshold of a trigger."""

    trigger_id: int
    webhook_id: int
    name: str
    value: float


class MetricHooks:
    """Of the thread that writes reports. Triggers may change at any time: they are read again after a moment."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._read_at = float("-inf")
        self._triggers: dict[str, dict[int | None, list[_Trigger]]] = {}  # by metric, and by workspace
        self._workspaces: OrderedDict[int, int | None] = OrderedDict()

    def refresh(self) -> None:
        """Read the triggers again if that was a while ago. Call it outside of transactions."""
        if time.monotonic() - self._read_at <= _FRESH_S:
            return
        statement = (
            select(WebhookTrigger.id, Webhook.id, Webhook.workspace_id, WebhookTrigger.condition)
            .join(Webhook, Webhook.id == WebhookTrigger.webhook_id)
            .where(WebhookTrigger.kind == webhooks.METRIC)
        )
        found: dict[str, dict[int | None, list[_Trigger]]] = {}
        with self._database.read() as session:
            for trigger_id, webhook_id, workspace_id, condition in session.execute(statement).tuples():
                trigger = _Trigger(trigger_id, webhook_id, _met(condition))
                found.setdefault(condition["metric"], {}).setdefault(workspace_id, []).append(trigger)
        self._triggers = found
        self._workspaces.clear()
        self._read_at = time.monotonic()

    def crossed(self, connection: Connection, trial: TrialRow, step: int, metrics: dict[str, Any]) -> list[Crossing]:
        """What new validation metrics cross. Ask before they are folded into the trial's summary."""
        names = self._triggers.keys() & metrics.keys()
        if not names:
            return []
        workspace_id = self._workspace_of(connection, trial.experiment_id)
        found: list[Crossing] = []
        for name in sorted(names):
            value = number(metrics[name])
            by_workspace = self._triggers[name]
            if value is None or math.isnan(value):
                continue
            met = [
                trigger
                for trigger in (*by_workspace.get(None, ()), *by_workspace.get(workspace_id, ()))
                if trigger.is_met(value)
            ]
            before = _before(connection, trial, step, name) if met else None
            found += [
                Crossing(trigger.id, trigger.webhook_id, name, value)
                for trigger in met
                if before is None or not trigger.is_met(before)
            ]
        return found

    def post(self, connection: Connection, trial: TrialRow, step: int, crossings: Sequence[Crossing]) -> bool:
        """Have the crossings delivered; True if there are any to deliver."""
        is_posted = False
        with Session(connection) as session:
            subject = webhooks.subject_of(session, trial.experiment_id) if crossings else None
            for crossing in crossings if subject is not None else ():
                # locked, so that it is not deleted before this transaction refers to it
                lock = {"read": True, "key_share": True}
                webhook = session.get(Webhook, crossing.webhook_id, with_for_update=lock)
                trigger = session.get(WebhookTrigger, crossing.trigger_id)
                if webhook is None or trigger is None or subject is None or not subject.wants(webhook):
                    continue
                if webhooks.is_full(session, webhook.id):
                    log.warning("a metric's event was dropped: too many wait", webhook_id=webhook.id)
                    continue
                report = {"trial_id": trial.id, "metric": crossing.name, "value": plain(crossing.value), "steps": step}
                is_posted |= webhooks.note_metric(session, subject, webhook, trigger, report) is not None
            session.flush()
        return is_posted

    def _workspace_of(self, connection: Connection, experiment_id: int) -> int | None:
        if experiment_id not in self._workspaces:
            statement = select(Project.workspace_id).join(Experiment, Experiment.project_id == Project.id)
            self._workspaces[experiment_id] = connection.scalar(statement.where(Experiment.id == experiment_id))
            if len(self._workspaces) > _EXPERIMENTS:
                self._workspaces.popitem(last=False)
        return self._workspaces[experiment_id]


def _met(condition: dict[str, Any]) -> Callable[[float], bool]:
    compare, threshold = _COMPARISONS[condition["operator"]], float(condition["value"])
    return lambda value: compare(value, threshold)


def _before(connection: Connection, trial: TrialRow, step: int, name: str) -> float | None:
    """The value that the trial reported before; None if this is the first one. NaN is beyond no threshold."""
    entry = trial.summary.get("validation", {}).get(name)
    if entry is None:
        return None
    last = number(entry.get("last"))
    if last is not None:
        return last
    # the latest report lacks it, or has something else there
    earlier = (
        select(Metric.metrics)
        .where(Metric.trial_id == trial.id, Metric.group_name == "validation", ~Metric.archived)
        .where(Metric.total_batches < step)
        .order_by(Metric.total_batches.desc())
        .limit(_LOOKED_BACK)
    )
    values = (number(metrics.get(name)) for metrics in connection.scalars(earlier))
    return next((value for value in values if value is not None), None)
