"""Posts what is to be said of an experiment: to webhooks, and to the logs of its trials that run."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from database import webhooks
from database.log_lines import FURTHER, note_line
from database.models import Allocation

#: Logs that a notice is written to.
_MOST_LOGS = 100


def tell(
    session: Session,
    experiment_id: int,
    title: str,
    texts: Collection[str],
    at: datetime,
    facts: Mapping[str, Any] | None = None,
) -> None:
    """Post texts to webhooks that an experiment names, with further facts, and to the logs of its trials that run."""
    subject = webhooks.subject_of(session, experiment_id) if texts else None
    for place, text in enumerate(texts, FURTHER + int(at.timestamp() * 1000)):
        if subject is not None:
            data = {"title": title, "description": text, "level": "WARNING", **(facts or {})}
            webhooks.note_custom(session, subject, data)
        _write_to_logs(session, experiment_id, f"Experiment {experiment_id}: {text}.", place)


def _write_to_logs(session: Session, experiment_id: int, line: str, place: int) -> None:
    """Write a line into the logs of trials that run."""
    open_ = select(Allocation.id, Allocation.task_id).where(
        Allocation.experiment_id == experiment_id, Allocation.ended_at.is_(None)
    )
    for allocation_id, task_id in session.execute(open_.limit(_MOST_LOGS)).tuples():
        note_line(session, task_id, line, allocation_id=allocation_id, place=place, level="WARNING")
