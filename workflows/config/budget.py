"""The section `budget` of a configuration: what an experiment may use before it is paused."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, WithJsonSchema

from workflows.config.base import Section
from workflows.config.durations import seconds_of
from workflows.lifecycle.budget import Limits

#: The bounds of each limit: what lies beyond is a typing error.
MOST_SLOT_HOURS = 1e9
MOST_PRICE = 1e12
MOST_TRIALS = 10_000_000
LONGEST_WALL_TIME_S = 3650 * 86400.0

WALL_TIME_MESSAGE = "must be a duration of 1s to 3650d, such as 12h or 1h30m"
_PATTERN = r"^([0-9]{1,12}(\.[0-9]{1,9})?(s|m|h|d))+$"
DURATION = {"type": "string", "pattern": _PATTERN, "x-pattern-message": WALL_TIME_MESSAGE}


class Budget(Section):
    """What an experiment may use: at the first limit that it reaches, it stores checkpoints and is paused."""

    slot_hours: float | None = Field(
        default=None, gt=0, le=MOST_SLOT_HOURS, description="Hours of slots that all of its trials may hold together."
    )
    price: float | None = Field(
        default=None,
        gt=0,
        le=MOST_PRICE,
        description="What they may cost, at the slot_hour_price of their pools.",
    )
    wall_time: Annotated[str, WithJsonSchema(DURATION)] | None = Field(
        default=None, description="How long it may be active, such as 12h; while it is paused this does not count."
    )
    trials: int | None = Field(default=None, ge=1, le=MOST_TRIALS, description="Trials that it may start.")
    soft: float = Field(
        default=0.8, gt=0, le=1, description="The share of a limit at which webhooks and logs are notified."
    )

    @property
    def limits(self) -> Limits:
        """As they are decided by."""
        return Limits(
            slot_hours=self.slot_hours,
            price=self.price,
            wall_time_s=None if self.wall_time is None else seconds_of(self.wall_time),
            trials=self.trials,
            soft=self.soft,
        )


def is_wall_time(text: str) -> bool:
    """Whether a text is a duration that a budget may have."""
    return 1 <= (seconds_of(text) or 0) <= LONGEST_WALL_TIME_S
