"""What a budget counts, when it is spent, and the words for both. Pure: the time is an argument.

Slots are counted in the transactions that open and close allocations (`database/budgets.py`): a `Meter` is
what they send. What only an experiment's workflow knows is its `Clock`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field


class What(StrEnum):
    """What a budget limits, as its configuration names it."""

    SLOT_HOURS = "slot_hours"
    PRICE = "price"
    WALL_TIME = "wall_time"
    TRIALS = "trials"


class Limits(BaseModel):
    """The limits of a budget: hours, the currency of pools, seconds, a number. None: no limit of this kind."""

    model_config = ConfigDict(frozen=True)

    slot_hours: float | None = None
    price: float | None = None
    wall_time_s: float | None = None
    trials: int | None = None
    soft: float = 0.8  # the share of a limit at which it is warned of

    def known(self) -> dict[What, float]:
        """The limits that are set."""
        found = {
            What.SLOT_HOURS: self.slot_hours,
            What.PRICE: self.price,
            What.WALL_TIME: self.wall_time_s,
            What.TRIALS: self.trials,
        }
        return {what: limit for what, limit in found.items() if limit is not None}


class Meter(BaseModel):
    """The limits, and what slots were held until `counted_at`. `number` grows: an earlier one is out of date."""

    number: int = 0
    limits: Limits
    spent_slot_s: float = 0.0
    held_slots: int = 0  # from then on
    spent_price: float = 0.0
    price_an_hour: float = 0.0  # of the slots that are held, from then on
    counted_at: datetime

    def slot_s(self, now: datetime) -> float:
        """Seconds times slots until now."""
        return self.spent_slot_s + self.held_slots * self._since_s(now)

    def price(self, now: datetime) -> float:
        """What the slots cost until now."""
        return self.spent_price + self.price_an_hour * self._since_s(now) / 3600

    def _since_s(self, now: datetime) -> float:
        return max(0.0, (now - self.counted_at).total_seconds())


class Clock(BaseModel):
    """How long an experiment was active, or others held slots, and what was said of the budget."""

    active_s: float = 0.0
    active_since: datetime | None = None  # None: it is not active
    trials: int = 0  # that it has started
    warned: list[What] = Field(default_factory=list[What])  # whose soft limits were reached
    paused_by: What | None = None

    def wall_s(self, now: datetime) -> float:
        """Seconds that it was active until now."""
        since = 0.0 if self.active_since is None else (now - self.active_since).total_seconds()
        return self.active_s + max(0.0, since)

    def run_on(self, now: datetime, *, is_active: bool) -> None:
        """Note whether an experiment is active from now on. One that is activated is not paused by its budget."""
        if is_active and self.active_since is None:
            self.paused_by = None
        self.tick(now, is_active=is_active)

    def tick(self, now: datetime, *, is_active: bool) -> None:
        """Note whether time counts from now on."""
        if is_active and self.active_since is None:
            self.active_since = now
        elif not is_active and self.active_since is not None:
            self.active_s, self.active_since = self.wall_s(now), None


def used(meter: Meter, clock: Clock, now: datetime) -> dict[What, float]:
    """What was used of each kind until now, in the units of `Limits`."""
    return {
        What.SLOT_HOURS: meter.slot_s(now) / 3600,
        What.PRICE: meter.price(now),
        What.WALL_TIME: clock.wall_s(now),
        What.TRIALS: float(clock.trials),
    }


def spent(meter: Meter, clock: Clock, now: datetime) -> What | None:
    """The first limit of time that is reached. That of trials is reached when another one is to start."""
    so_far = used(meter, clock, now)
    limits = meter.limits.known()
    return next((w for w in limits if w is not What.TRIALS and so_far[w] >= limits[w]), None)


def to_warn_of(meter: Meter, clock: Clock, now: datetime) -> list[What]:
    """Soft limits that are reached, and that nothing was said of."""
    return [what for what in _soft(meter, clock, now) if what not in clock.warned]


def still_warned_of(meter: Meter, clock: Clock, now: datetime) -> list[What]:
    """What `Clock.warned` is after a change of the limits: above a raised one it is warned of again."""
    return [what for what in _soft(meter, clock, now) if what in clock.warned]


def _soft(meter: Meter, clock: Clock, now: datetime) -> list[What]:
    so_far = used(meter, clock, now)
    return [what for what, limit in meter.limits.known().items() if so_far[what] >= meter.limits.soft * limit]


def lasts_until(meter: Meter, clock: Clock) -> datetime | None:
    """When time alone has used it up. None: not before something changes."""
    said = clock.model_copy(update={"warned": list(What)})
    return next_look(meter, said)


def next_look(meter: Meter, clock: Clock) -> datetime | None:
    """When a limit, soft or hard, is reached that time alone leads to. None: not before something changes."""
    moments: list[datetime] = []
    for what, limit in meter.limits.known().items():
        shares = [1.0] if what in clock.warned else [meter.limits.soft, 1.0]
        for share in shares:
            if what is What.SLOT_HOURS and meter.held_slots:
                left_s = (share * limit * 3600 - meter.spent_slot_s) / meter.held_slots
                moments.append(meter.counted_at + _span(left_s))
            elif what is What.PRICE and meter.price_an_hour:
                left_s = (share * limit - meter.spent_price) / meter.price_an_hour * 3600
                moments.append(meter.counted_at + _span(left_s))
            elif what is What.WALL_TIME and clock.active_since is not None:
                moments.append(clock.active_since + _span(share * limit - clock.active_s))
    return min(moments, default=None)


def _span(seconds: float) -> timedelta:
    return timedelta(seconds=min(seconds, 1e10))


# -- words -------------------------------------------------------------------------------------------------------------


def duration(seconds: float) -> str:
    """As a configuration may have it: 12h, 1h30m, 90s."""
    whole = round(seconds)
    parts = ((whole // 3600, "h"), (whole % 3600 // 60, "m"), (whole % 60, "s"))
    return "".join(f"{count}{unit}" for count, unit in parts if count) or "0s"


def amount(what: What, value: float) -> str:
    """10 slot-hours, 250 at the prices of its pools, 12h of wall time, 20 trials."""
    if what is What.WALL_TIME:
        return f"{duration(value)} of wall time"
    if what is What.TRIALS:
        return f"{value:.0f} trial{'' if value == 1 else 's'}"
    if what is What.PRICE:
        return f"{_figure(value)} at the prices of its pools"
    return f"{_figure(value)} slot-hour{'' if value == 1 else 's'}"


def _figure(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"


def is_spent(limits: Limits, what: What) -> str:
    """That a budget is spent, to be read behind the name of what it is for."""
    return f"budget of {amount(what, limits.known().get(what, 0.0))} is spent"


def how_to_raise(limits: Limits, what: What, of: str) -> str:
    """The command that raises it: `of` is what follows `det`, as in `experiment budget set 7`."""
    limit = limits.known().get(what, 0.0)
    more = duration(2 * limit) if what is What.WALL_TIME else _figure(2 * limit)
    return f"`det {of} --{what.value.replace('_', '-')} {more}` raises it"


def warning(limits: Limits, what: What, so_far: float, whose: str = "its") -> str:
    """That a soft limit is reached."""
    limit = limits.known()[what]
    return f"{so_far / limit:.0%} of {whose} budget of {amount(what, limit)} is used"


def outlook(limits: Limits, so_far: Mapping[What, float], until: datetime | None) -> str:
    """How much of a budget is used, and until when it lasts, to be read behind whose it is."""
    parts = [f"{amount(what, limit)}: {so_far[what] / limit:.0%} used" for what, limit in limits.known().items()]
    lasts = "" if until is None else f"; as it is, it lasts until {until:%Y-%m-%d %H:%M} UTC"
    return f"budget is {', '.join(parts)}{lasts}"
