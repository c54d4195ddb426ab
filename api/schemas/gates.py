"""Messages about gates: what waits for approval. Ours; not part of the old wire."""

from __future__ import annotations

from pydantic import Field

from api.schemas.base import Raw, Timestamp, Wire, example


class Gate(Wire):
    """Something that waits for approval, or did.

    Attributes:
        id: Its number.
        experiment_id: What it is about.
        experiment_name: Its name.
        what: promotion, budget_overrun, register or delete.
        rung: Of a promotion.
        text: What waits, in words.
        rule: The entry of the configuration's `approve_before`.
        state: WAITING, APPROVED or DENIED.
        asked_by: The user who wanted to do it; empty: the search.
        asked_at: Since when it waits.
        due_at: When its default is decided.
        decided_at: When it was decided.
        decided_by: By which user, webhook or deadline.
        may_decide: Whether the caller may.
    """

    id: int
    experiment_id: int
    experiment_name: str
    what: str
    rung: int | None = None
    text: str
    rule: Raw
    state: str
    asked_by: str = ""
    asked_at: Timestamp
    due_at: Timestamp | None = None
    decided_at: Timestamp | None = None
    decided_by: str = ""
    may_decide: bool = False


class GatesResponse(Wire):
    """Gates, the newest first."""

    gates: list[Gate]


class GateResponse(Wire):
    """One gate."""

    gate: Gate


class WebhookAnswer(Wire, json_schema_extra=example({"webhook": "approvals", "approve": True})):
    """What another system decided. The body is signed with the webhook's secret, as the events that it receives are."""

    webhook: str = Field(max_length=80)
    approve: bool
