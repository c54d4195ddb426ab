"""Messages about budgets. Ours; not part of the old wire."""

from __future__ import annotations

from pydantic import Field

from api.schemas.base import Timestamp, Wire, example


class PatchBudget(Wire, json_schema_extra=example({"slotHours": 20, "wallTime": "24h"})):
    """Limits, as in a configuration; absent ones stay, and 0 (of the wall time 0s) is none.

    `reset`: what a workspace or an access token has used is counted from 0 again, as at the start of a month.
    """

    slot_hours: float | None = None
    price: float | None = None
    wall_time: str | None = Field(default=None, max_length=100)
    trials: int | None = None
    soft: float | None = None
    reset: bool = False


class BudgetLimits(Wire):
    """The limits that hold now. Null: there is none of this kind."""

    slot_hours: float | None = None
    price: float | None = None
    wall_time: str | None = None
    trials: int | None = None
    soft: float = 0.8


class BudgetUsed(Wire):
    """What was used until now."""

    slot_hours: float
    price: float
    wall_time_seconds: float
    trials: int


class BudgetNotice(Wire):
    """What was said of a budget, and when."""

    at: Timestamp
    text: str


class BudgetResponse(Wire):
    """A budget. Without one, `limits` has none, and nothing is counted.

    Attributes:
        limits: Of the budget.
        used: None: nothing is counted.
        spent: The limit that is reached, as the configuration names it; empty: none.
        lasts_until: When time uses it up, if nothing changes.
        notices: The latest, the newest last.
    """

    limits: BudgetLimits
    used: BudgetUsed | None = None
    spent: str = ""
    lasts_until: Timestamp | None = None
    notices: list[BudgetNotice] = Field(default_factory=list[BudgetNotice])
