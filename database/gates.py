"""Records gates, and posts that they wait."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from database import announcements
from database.models import Experiment, Gate
from database.types import utc_now
from database.upsert import insert
from workflows.config.gates import Gate as Rule
from workflows.lifecycle.gates import GateState

#: What waits, in words.
_TEXTS = {
    "promotion": "its trials wait for approval before they train for rung {number}",
    "budget_overrun": "its budget is spent: approval doubles the limit that was reached, and it goes on",
    "register": "{asked_by} wants to register a checkpoint of it as a version of a model",
    "delete": "{asked_by} wants to delete it",
}


def text_of(row: Gate) -> str:
    """What waits at a gate, in words."""
    return _TEXTS[row.what].format(number=row.number, asked_by=row.asked_by)


def waiting(session: Session, experiment_id: int) -> Sequence[Gate]:
    """What of an experiment waits for approval."""
    statement = select(Gate).where(Gate.experiment_id == experiment_id, Gate.state == GateState.WAITING.value)
    return session.scalars(statement.order_by(Gate.id)).all()


def rule_for(config: dict[str, Any], what: str, rung: int | None = None) -> Rule | None:
    """The entry of a configuration's `approve_before` for something; None: it needs no approval."""
    rules = (Rule.model_validate(each) for each in config.get("approve_before") or ())
    return next((rule for rule in rules if rule.what == what and rule.rung == rung), None)


def promotions(session: Session, experiment: Experiment) -> dict[int, GateState | None]:
    """The rungs that an experiment's trials need approval for, with what was decided."""
    rules = (Rule.model_validate(each) for each in experiment.config.get("approve_before") or ())
    rungs: dict[int, GateState | None] = {rule.rung: None for rule in rules if rule.rung is not None}
    if rungs:
        known = select(Gate).where(Gate.experiment_id == experiment.id, Gate.what == "promotion")
        rungs |= {row.number: GateState(row.state) for row in session.scalars(known) if row.number in rungs}
    return rungs


def open_promotion(session: Session, experiment_id: int, rung: int) -> None:
    """A search wants to train trials for a rung that needs approval. A repeat asks nobody again."""
    experiment = session.get_one(Experiment, experiment_id)
    rule = rule_for(experiment.config, "promotion", rung)
    if rule is not None:
        ask(session, experiment_id, rule, rung)


def open_overrun(session: Session, experiment_id: int) -> None:
    """The budget of an experiment is spent. While a gate waits, or without a rule, nobody is asked."""
    experiment = session.get_one(Experiment, experiment_id)
    rule = rule_for(experiment.config, "budget_overrun")
    if rule is not None and all(each.what != rule.what for each in waiting(session, experiment_id)):
        number = next_number(session, experiment_id, rule.what)
        ask(session, experiment_id, rule, number)


def last(session: Session, experiment_id: int, what: str, username: str) -> Gate | None:
    """The newest gate that a user came to with such a request."""
    mine = (Gate.experiment_id == experiment_id, Gate.what == what, Gate.asked_by == username)
    return session.scalar(select(Gate).where(*mine).order_by(Gate.id.desc()).limit(1))


def take_approval(session: Session, experiment: Experiment, what: str, username: str) -> str:
    """Use a user's approval, which is for one request. Says why there is none; empty: the request may be done."""
    if rule_for(experiment.config, what) is None:
        return ""
    found = last(session, experiment.id, what, username)
    if found is not None and found.state == GateState.APPROVED.value and not found.is_used:
        found.is_used = True
        return ""
    if found is None or found.is_used:
        return f"experiment {experiment.id}: to {what} needs approval: its configuration says so in approve_before"
    if found.state == GateState.DENIED.value:
        return f"experiment {experiment.id}: gate {found.id} was denied by {found.decided_by}"
    return (
        f"experiment {experiment.id}: gate {found.id} waits for approval: `det gate approve {found.id}`, then try again"
    )


def next_number(session: Session, experiment_id: int, what: str) -> int:
    """Of the next gate about the same."""
    numbers = select(func.max(Gate.number)).where(Gate.experiment_id == experiment_id, Gate.what == what)
    return (session.scalar(numbers) or 0) + 1


def ask(session: Session, experiment_id: int, rule: Rule, number: int, asked_by: str = "") -> None:
    """Record that something waits for approval, and post that. A repeat changes nothing."""
    now = utc_now()
    due_at = None if rule.deadline_s is None else now + timedelta(seconds=rule.deadline_s)
    row = insert(session, Gate).values(
        experiment_id=experiment_id, what=rule.what, number=number, rule=rule.model_dump(mode="json"),
        state=GateState.WAITING.value, asked_by=asked_by, asked_at=now, due_at=due_at, decided_by="", is_used=False,
    )  # fmt: skip
    gate_id = session.scalar(row.on_conflict_do_nothing().returning(Gate.id))
    if gate_id is not None:
        text = text_of(session.get_one(Gate, gate_id))
        told = f"{text}: `det gate approve {gate_id}` or `det gate deny {gate_id}`"
        announcements.tell(session, experiment_id, "Approval", [told], now, {"gate_id": gate_id, "what": rule.what})
