"""What a budget counts, when it is spent, and the words for both."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from workflows.config.budget import Budget
from workflows.lifecycle import budget
from workflows.lifecycle.budget import Clock, Limits, Meter, What
from workflows.lifecycle.experiment import ExperimentState
from workflows.lifecycle.explain import explain_experiment
from workflows.lifecycle.facts import BudgetFacts, ExperimentFacts

START = datetime(2026, 1, 1, 12, tzinfo=UTC)


def after(**span: float) -> datetime:
    return START + timedelta(**span)


def meter(**limits: Any) -> Meter:
    """Two slots since the start, after an hour of a slot; each costs 5 for an hour."""
    return Meter(
        limits=Limits(**limits), spent_slot_s=3600, held_slots=2, spent_price=5, price_an_hour=10, counted_at=START
    )


def test_limits_are_those_of_the_configuration() -> None:
    written = Budget(slot_hours=10, price=250, wall_time="1h30m", trials=4, soft=0.5)
    assert written.limits == Limits(slot_hours=10, price=250, wall_time_s=5400, trials=4, soft=0.5)
    known = {What.SLOT_HOURS: 10, What.PRICE: 250, What.WALL_TIME: 5400, What.TRIALS: 4}
    assert written.limits.known() == known


def test_slots_that_are_held_count_from_moment_to_moment() -> None:
    used = budget.used(meter(slot_hours=10), Clock(trials=3), after(hours=1))
    assert used == {What.SLOT_HOURS: 3, What.PRICE: 15, What.WALL_TIME: 0, What.TRIALS: 3}


def test_clock_stands_still_while_the_experiment_is_paused() -> None:
    clock = Clock()
    clock.run_on(START, is_active=True)
    clock.run_on(after(hours=1), is_active=True)
    clock.run_on(after(hours=2), is_active=False)
    assert clock.wall_s(after(hours=9)) == 2 * 3600
    clock.paused_by = What.WALL_TIME
    clock.run_on(after(hours=9), is_active=True)
    assert clock.wall_s(after(hours=10)) == 3 * 3600
    assert clock.paused_by is None, "it goes on"


@pytest.mark.parametrize(
    ("limits", "hours", "spent", "warned"),
    [
        ({"slot_hours": 10}, 3.4, None, []),
        ({"slot_hours": 10}, 3.5, None, [What.SLOT_HOURS]),
        ({"slot_hours": 10}, 4.5, What.SLOT_HOURS, [What.SLOT_HOURS]),
        ({"price": 50}, 3.5, None, [What.PRICE]),
        ({"price": 50}, 4.5, What.PRICE, [What.PRICE]),
        ({"wall_time_s": 7200}, 1.6, None, [What.WALL_TIME]),
        ({"wall_time_s": 7200}, 2, What.WALL_TIME, [What.WALL_TIME]),
        ({"wall_time_s": 7200, "slot_hours": 5}, 2, What.SLOT_HOURS, [What.SLOT_HOURS, What.WALL_TIME]),
        ({"trials": 5, "soft": 1}, 0, None, [What.TRIALS]),  # it is spent once another one is to start
        ({}, 1000, None, []),
    ],
)
def test_limits_are_reached_at_their_share_and_at_their_whole(
    limits: dict[str, Any], hours: float, spent: What | None, warned: list[What]
) -> None:
    clock = Clock(active_since=START, trials=5)
    assert budget.spent(meter(**limits), clock, after(hours=hours)) is spent
    assert budget.to_warn_of(meter(**limits), clock, after(hours=hours)) == warned


def test_next_look_is_at_the_first_limit_that_time_leads_to() -> None:
    clock = Clock(active_since=START)
    assert budget.next_look(meter(slot_hours=10), clock) == after(hours=3.5)
    clock.warned = [What.SLOT_HOURS]
    assert budget.next_look(meter(slot_hours=10), clock) == after(hours=4.5)
    assert budget.next_look(meter(slot_hours=10, wall_time_s=3600), clock) == after(minutes=48)
    assert budget.lasts_until(meter(slot_hours=10, wall_time_s=3600), clock) == after(hours=1)
    assert budget.next_look(meter(price=50), Clock()) == after(hours=3.5)
    assert budget.next_look(meter(price=50).model_copy(update={"price_an_hour": 0.0}), Clock()) is None
    idle = meter(slot_hours=10).model_copy(update={"held_slots": 0})
    assert budget.next_look(idle, clock) is None, "nothing is used"
    assert budget.next_look(meter(trials=5), clock) is None


def test_raised_limit_is_warned_of_again() -> None:
    clock = Clock(active_since=START, warned=[What.SLOT_HOURS, What.WALL_TIME])
    raised = meter(slot_hours=100, wall_time_s=3600)
    assert budget.still_warned_of(raised, clock, after(hours=1)) == [What.WALL_TIME]


def test_words_say_what_is_spent_and_how_to_raise_it() -> None:
    limits = Limits(slot_hours=1, price=250, wall_time_s=5400, trials=20)
    assert [budget.amount(what, value) for what, value in limits.known().items()] == [
        "1 slot-hour", "250 at the prices of its pools", "1h30m of wall time", "20 trials",
    ]  # fmt: skip
    assert budget.is_spent(limits, What.WALL_TIME) == "budget of 1h30m of wall time is spent"
    of = "experiment budget set 7"
    assert budget.how_to_raise(limits, What.WALL_TIME, of) == "`det experiment budget set 7 --wall-time 3h` raises it"
    assert budget.how_to_raise(limits, What.SLOT_HOURS, of) == "`det experiment budget set 7 --slot-hours 2` raises it"
    assert budget.how_to_raise(limits, What.TRIALS, of) == "`det experiment budget set 7 --trials 40` raises it"
    assert budget.warning(limits, What.TRIALS, 16) == "80% of its budget of 20 trials is used"


def test_why_says_how_long_the_budget_lasts_and_how_to_raise_one_that_is_spent() -> None:
    facts = ExperimentFacts(experiment_id=7, state=ExperimentState.ACTIVE)
    limits = Limits(slot_hours=10)
    its = {"whose": "its", "command": "experiment budget set 7"}
    facts.budgets = [BudgetFacts(**its, limits=limits, used={What.SLOT_HOURS: 4.0}, lasts_until=after(hours=2))]
    assert explain_experiment(facts, START)[1] == (
        "its budget is 10 slot-hours: 40% used; as it is, it lasts until 2026-01-01 14:00 UTC"
    )
    facts.budgets = [BudgetFacts(**its, limits=limits, used={What.SLOT_HOURS: 10.1}, spent=What.SLOT_HOURS)]
    assert explain_experiment(facts, START)[1] == (
        "its budget of 10 slot-hours is spent: `det experiment budget set 7 --slot-hours 20` raises it, then"
        " `det experiment activate 7`"
    )
