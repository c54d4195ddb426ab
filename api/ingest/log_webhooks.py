"""Webhooks for lines of output: each received line is searched for the patterns of their triggers.

Triggers may change at any time, so they are read again after a moment. Without triggers, a line costs nothing.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import structlog
from sqlalchemy import select
from sqlalchemy.orm import Session

from api.ingest.log_policies import KEPT_CHARS, Said, TooSlow
from database import webhooks
from database.models import Allocation, Experiment, Project, Trial, Webhook, WebhookTrigger
from database.session import Database
from workflows.config.patterns import PatternRefused, PatternSet

log = structlog.get_logger()

_FRESH_S = 2.0
_ALLOCATIONS, _SETS = 2000, 32
#: Seconds of processor time for one delivery of lines; beyond, the rest of it is not searched.
_BUDGET_S = 1.0

_Trigger = tuple[Webhook, WebhookTrigger]


@dataclass(frozen=True)
class Hit:
    """A line that a trigger's pattern matched."""

    webhook_id: int
    trigger_id: int
    task_id: str
    node: str
    line: str


@dataclass
class _Known:
    """The task of an allocation, and the triggers that have already fired for it."""

    task_id: str
    subject: webhooks.Subject
    told: set[int] = field(default_factory=set[int])


class LogHooks:
    """Matches lines; one object a process, used by many threads."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._read_at = float("-inf")
        self._triggers: list[_Trigger] = []
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._sets: OrderedDict[tuple[str, ...], PatternSet | None] = OrderedDict()

    def are_there(self) -> bool:
        """Whether any line is to be searched."""
        return bool(self._fresh_triggers())

    def search(self, said: Iterable[Said]) -> list[Hit]:
        """The first line for each trigger and task that was not told yet. Writes nothing."""
        triggers = self._fresh_triggers()
        hits: list[Hit] = []
        deadline = time.thread_time() + _BUDGET_S
        for each in said if triggers else ():
            known = self._known_of(each.allocation_id)
            if known is not None:
                wanted = [one for one in triggers if one[1].id not in known.told and known.subject.wants(one[0])]
                hits.extend(self._search(known, wanted, each, deadline))
        return hits

    def keep(self, session: Session, hits: Sequence[Hit]) -> None:
        """Notify webhooks, in the transaction that stores the lines. Idempotent for each trigger and task."""
        for hit in hits:
            webhook, trigger = session.get(Webhook, hit.webhook_id), session.get(WebhookTrigger, hit.trigger_id)
            if webhook is not None and trigger is not None:  # deleted meanwhile otherwise
                webhooks.note_log(session, webhook, trigger, hit.task_id, hit.node, hit.line)

    def committed(self, hits: Sequence[Hit]) -> None:
        """Note hits whose transaction was committed: their triggers need not be searched for again."""
        told = {(hit.task_id, hit.trigger_id) for hit in hits}
        if told:
            with self._lock:
                for known in self._known.values():
                    known.told.update(trigger_id for task_id, trigger_id in told if task_id == known.task_id)

    def _search(self, known: _Known, wanted: list[_Trigger], said: Said, deadline: float) -> list[Hit]:
        patterns = self._patterns(tuple(str(trigger.condition["regex"]) for _, trigger in wanted)) if wanted else None
        if patterns is None:
            return []
        hits: dict[int, Hit] = {}
        try:
            for line, index in said.found(patterns, deadline):
                webhook, trigger = wanted[index]
                text = line.text.strip().replace("\x00", "")[:KEPT_CHARS]
                hits.setdefault(trigger.id, Hit(webhook.id, trigger.id, known.task_id, line.agent_id, text))
        except TooSlow:
            log.warning("patterns of webhooks are too slow for this output", task_id=known.task_id)
        return list(hits.values())

    def _fresh_triggers(self) -> list[_Trigger]:
        if time.monotonic() - self._read_at > _FRESH_S:
            statement = (
                select(Webhook, WebhookTrigger)
                .join(WebhookTrigger, WebhookTrigger.webhook_id == Webhook.id)
                .where(WebhookTrigger.kind == webhooks.TASK_LOG)
                .order_by(WebhookTrigger.id)
            )
            with self._database.read() as session:
                self._triggers = [row.tuple() for row in session.execute(statement)]
            self._read_at = time.monotonic()
        return self._triggers

    def _known_of(self, allocation_id: str) -> _Known | None:
        with self._lock:
            if allocation_id in self._known:
                self._known.move_to_end(allocation_id)
                return self._known[allocation_id]
        statement = (
            select(Allocation.task_id, Experiment.id, Experiment.config, Project.workspace_id)
            .select_from(Allocation)
            .join(Trial, Trial.id == Allocation.trial_id)
            .join(Experiment, Experiment.id == Trial.experiment_id)
            .join(Project, Project.id == Experiment.project_id)
            .where(Allocation.id == allocation_id)
        )
        with self._database.read() as session:
            row = session.execute(statement).one_or_none()
        if row is None:
            return None  # not recorded yet, perhaps: not remembered
        task_id, experiment_id, config, workspace_id = row.tuple()
        subject = webhooks.Subject(experiment_id, workspace_id, "", "", {}, webhooks.selection_of(config))
        with self._lock:
            known = self._known.setdefault(allocation_id, _Known(task_id, subject))
            if len(self._known) > _ALLOCATIONS:
                self._known.popitem(last=False)
        return known

    def _patterns(self, key: tuple[str, ...]) -> PatternSet | None:
        with self._lock:
            if key not in self._sets:
                try:
                    self._sets[key] = PatternSet(key)
                except PatternRefused as error:  # each was accepted by itself
                    log.error("patterns of webhooks are refused together", error=str(error))
                    self._sets[key] = None
                if len(self._sets) > _SETS:
                    self._sets.popitem(last=False)
            self._sets.move_to_end(key)
            return self._sets[key]
