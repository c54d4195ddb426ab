"""Cron expressions: five fields in a time zone, as people know them. Pure: no clock.

minute, hour, day of month, month, day of week: `*`, numbers, names (`mon`, `jan`), ranges `1-5`, steps `*/15`, lists
with commas. If both days are restricted, either one suffices, as cron has it. `@hourly`, `@daily`, `@weekly`,
`@monthly` and `@yearly` stand for their expressions. A minute is the shortest interval.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo

LONGEST = 200
_NAMED = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FIELDS = (("minute", 0, 59), ("hour", 0, 23), ("day of month", 1, 31), ("month", 1, 12), ("day of week", 0, 7))
_ITEM = re.compile(r"(\*|[0-9]{1,2}|[a-z]{3})(?:-([0-9]{1,2}|[a-z]{3}))?(?:/([0-9]{1,2}))?")
#: A time that comes only in leap years comes within this.
_HORIZON_DAYS = 366 * 8 + 1


class CronError(ValueError):
    """An expression that can't be read, or whose time never comes."""


@dataclass(frozen=True)
class Cron:
    """When something is due.

    Attributes:
        minutes: Of an hour, in order, as all that follow.
        hours: Of a day.
        days: Of a month.
        months: Of a year.
        weekdays: Of a week; 0 is Sunday.
        is_any_day: Whether the days of month are not restricted.
        is_any_weekday: Whether the days of week are not.
    """

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: tuple[int, ...]
    months: tuple[int, ...]
    weekdays: tuple[int, ...]
    is_any_day: bool
    is_any_weekday: bool

    def is_day(self, day: datetime) -> bool:
        """Whether it is due at some time of this day."""
        if day.month not in self.months:
            return False
        by_month, by_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        if self.is_any_day or self.is_any_weekday:
            return by_month and by_week
        return by_month or by_week


def parse_cron(text: str) -> Cron:
    """Read an expression. Raises: CronError."""
    if len(text) > LONGEST:
        raise CronError(f"{len(text)} characters, the limit is {LONGEST}")
    fields = _NAMED.get(text.strip().lower(), text.lower()).split()
    if len(fields) != len(_FIELDS):
        raise CronError(
            f"{text!r}: expected five fields, minute, hour, day of month, month and day of week, as in 30 2 * * 1-5;"
            " or @hourly, @daily, @weekly, @monthly, @yearly"
        )
    sets = [_values(field, *bounds) for field, bounds in zip(fields, _FIELDS, strict=True)]
    weekdays = tuple(sorted({day % 7 for day in sets[4]}))
    cron = Cron(
        minutes=tuple(sets[0]),
        hours=tuple(sets[1]),
        days=tuple(sets[2]),
        months=tuple(sets[3]),
        weekdays=weekdays,
        is_any_day=fields[2].startswith("*"),
        is_any_weekday=fields[4].startswith("*"),
    )
    if next(times(cron, datetime(2000, 1, 1, tzinfo=UTC), UTC), None) is None:
        raise CronError(f"{text!r}: no such day ever comes")
    return cron


def _values(field: str, name: str, least: int, most: int) -> list[int]:
    found: set[int] = set()
    for item in field.split(","):
        match = _ITEM.fullmatch(item)
        if match is None:
            raise CronError(f"{name} {item[:40]!r}: expected *, a number, a range as 1-5, or one with a step as */15")
        first, last, step = match.groups()
        low = least if first == "*" else _number(first, name, least, most)
        high = most if first == "*" or (step and not last) else low
        if last:
            if first == "*":
                raise CronError(f"{name} {item!r}: expected a range of two numbers")
            high = _number(last, name, least, most)
        if high < low:
            raise CronError(f"{name} {item!r}: expected a range that goes up")
        if step is not None and int(step) == 0:
            raise CronError(f"{name} {item!r}: expected a step of at least 1")
        found.update(range(low, high + 1, int(step or 1)))
    return sorted(found)


def _number(text: str, name: str, least: int, most: int) -> int:
    names = _MONTHS if name == "month" else _DAYS if name == "day of week" else ()
    if text in names:
        return names.index(text) + (name == "month")
    if not text.isdigit() or not least <= int(text) <= most:
        raise CronError(f"{name} {text!r}: expected {least} to {most}{', or a name as ' + names[1] if names else ''}")
    return int(text)


def times(cron: Cron, after: datetime, zone: tzinfo) -> Iterator[datetime]:
    """The times at which it is due, later than `after`, in UTC and in order. They end if none comes in eight years.

    Local times that a change of clocks skips do not come; one that comes twice counts once.
    """
    local = after.astimezone(zone)
    day = datetime(local.year, local.month, local.day)
    for _ in range(_HORIZON_DAYS):
        if cron.is_day(day):
            for hour in cron.hours:
                for minute in cron.minutes:
                    moment = day.replace(hour=hour, minute=minute, tzinfo=zone)
                    instant = moment.astimezone(UTC)
                    is_real = instant.astimezone(zone).replace(tzinfo=None) == moment.replace(tzinfo=None)
                    if is_real and instant > after:
                        yield instant
        day += timedelta(days=1)
