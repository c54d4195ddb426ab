"""Replays in virtual time: small ones with numbers worked out by hand, and what holds of every one of them."""

from __future__ import annotations

import random
from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest
from pydantic import ValidationError

from workflows.scheduling.simulate import Outcome, Trace, simulate

POLICIES: dict[str, dict[str, Any]] = {
    "priority": {},
    "preemption": {"preemption": True},
    "quotas": {"preemption": True, "quotas": {"users": {"*": 12}}},
    "fair_share": {"scheduler": "fair_share"},
    "round_robin": {"scheduler": "round_robin"},
}


def job(name: str, slots: int, duration_s: float, **more: Any) -> dict[str, Any]:
    return {"name": name, "slots": slots, "duration_s": duration_s, **more}


def trace_of(sizes: list[int], *jobs: dict[str, Any], **more: Any) -> Trace:
    return Trace.model_validate({"agents": [{"slots": size} for size in sizes], "jobs": jobs, **more})


def replay(sizes: list[int], *jobs: dict[str, Any], **more: Any) -> Outcome:
    return simulate(trace_of(sizes, *jobs, **more))


def runs_of(outcome: Outcome) -> list[tuple[str, float, float | None, float]]:
    """Name, start, when it was asked to leave, and end of each run, in order of the ends."""
    return [(outcome.requests[run.place].name, run.start_s, run.asked_s, run.gone_s) for run in outcome.runs]


def worked(outcome: Outcome) -> float:
    """Slot-seconds of work, without those of holders that were leaving."""
    return sum(
        outcome.requests[run.place].job.slots * ((run.gone_s if run.asked_s is None else run.asked_s) - run.start_s)
        for run in outcome.runs
    )


# -- by hand -----------------------------------------------------------------------------------------------------------


def test_jobs_run_one_after_the_other_when_there_is_one_slot() -> None:
    outcome = replay([1], job("a", 1, 10), job("b", 1, 5, at_s=2))
    assert runs_of(outcome) == [("a", 0, None, 10), ("b", 10, None, 15)]
    assert [request.wait_s for request in outcome.requests] == [0, 8]
    assert [request.end_s for request in outcome.requests] == [10, 15]
    assert (outcome.slots, outcome.makespan_s, outcome.active_s, outcome.contended_s) == (1, 15, 15, 8)
    assert outcome.fairness == 1, "there is one user"
    assert len(outcome.decisions_s) == 3, "at 0, 2 and 10; at 15 nobody waits"


def test_time_in_which_nothing_waits_or_runs_counts_for_nothing() -> None:
    outcome = replay([1], job("a", 1, 10, at_s=5), job("b", 1, 10, at_s=100))
    assert (outcome.makespan_s, outcome.active_s, outcome.contended_s) == (105, 20, 0)
    assert outcome.fairness is None


def test_decisions_keep_their_distance() -> None:
    outcome = replay(
        [4], job("a", 1, 1), job("b", 1, 1, at_s=0.5), job("c", 1, 1, at_s=3), job("d", 1, 1, at_s=9), tick_s=4
    )
    assert [request.first_start_s for request in outcome.requests] == [0, 4, 4, 9]
    assert outcome.contended_s == 0, "they waited for a decision, not for slots"


def test_requests_of_a_job_run_side_by_side() -> None:
    outcome = replay([2, 2], job("a", 1, 10, count=5))
    assert [request.name for request in outcome.requests] == ["a.1", "a.2", "a.3", "a.4", "a.5"]
    assert sorted(request.wait_s or 0 for request in outcome.requests) == [0, 0, 0, 0, 10]


def test_work_is_kept_when_a_holder_has_to_leave() -> None:
    outcome = replay(
        [2],
        job("low", 2, 100, priority=50, user="ada"),
        job("high", 2, 20, at_s=40, priority=10, user="bob"),
        settings={"preemption": True},
        preemption_s=30,
    )
    assert runs_of(outcome) == [("low", 0, 40, 70), ("high", 70, None, 90), ("low", 90, None, 150)]
    low, high = outcome.requests
    assert (low.preemptions, low.suspended_s, low.wait_s, low.end_s) == (1, 20, 0, 150)
    assert (high.preemptions, high.wait_s, high.end_s) == (0, 30, 90)
    assert worked(outcome) == 240
    assert len(outcome.decisions_s) == 4, "at 0, 40, 70 and 90; not at 100, when `low` had ended"
    assert (outcome.active_s, outcome.contended_s) == (150, 50)
    assert outcome.fairness == 0.5, "from 40 to 90 one of two has everything"


def test_a_holder_leaves_at_once_when_that_takes_no_time() -> None:
    outcome = replay(
        [1],
        job("low", 1, 10, priority=50),
        job("high", 1, 2, at_s=4, priority=10),
        settings={"preemption": True},
        preemption_s=0,
    )
    assert runs_of(outcome) == [("low", 0, 4, 4), ("high", 5, None, 7), ("low", 7, None, 13)]


def test_fairness_is_of_what_would_be_fair_to_each() -> None:
    # bob wants 1 slot and ada 4: fair are 1 and 3 of 4; ada holds 4 of her 3, bob 0 of his 1, and then each has all
    outcome = replay([4], job("a", 1, 10, count=5, user="ada"), job("b", 1, 10, at_s=5, user="bob"))
    assert outcome.contended_s == 10
    alone, both = 1.0, (4 / 3) ** 2 / (2 * (4 / 3) ** 2)
    assert outcome.fairness == pytest.approx((5 * alone + 5 * both) / 10)


def test_who_waits_for_the_cap_of_the_own_job_is_in_nobodys_way() -> None:
    outcome = replay([4], job("a", 1, 10, count=3, max_slots=1, user="ada"), job("b", 1, 30, user="bob"))
    assert sorted(request.first_start_s or 0 for request in outcome.requests) == [0, 0, 10, 20]
    assert (outcome.contended_s, outcome.active_s) == (0, 30)


def test_jobs_that_there_is_no_room_for_are_named_and_do_not_count() -> None:
    outcome = replay(
        [8, 8],
        job("odd", 12, 1),
        job("capped", 4, 1, max_slots=2),
        job("beyond", 4, 1, user="eve"),
        job("fits", 16, 10, user="bob", at_s=1),
        settings={"quotas": {"users": {"eve": 3}, "borrowing": False}},
    )
    assert [request.name for request in outcome.never_ran] == ["odd", "capped", "beyond"]
    assert not any(request.may_run for request in outcome.never_ran)
    assert (outcome.active_s, outcome.contended_s) == (10, 0)


def test_jobs_without_slots_or_length_end_too() -> None:
    outcome = replay([1], job("zero", 0, 5), job("at once", 1, 0))
    assert [request.end_s for request in outcome.requests] == [5, 0]


def test_a_trace_without_jobs_comes_to_nothing() -> None:
    outcome = replay([1])
    assert (outcome.requests, outcome.makespan_s, outcome.fairness) == ([], 0, None)


def test_names_must_be_distinct() -> None:
    with pytest.raises(ValidationError, match="'a' is the name of 2 jobs; give each its own"):
        trace_of([1], job("a", 1, 1), job("a", 1, 2))


def test_decisions_are_measured_and_progress_is_told() -> None:
    times = iter(range(100))
    told: list[tuple[int, int]] = []
    outcome = simulate(
        trace_of([1], job("a", 1, 10), job("b", 1, 5)), lambda: next(times) ** 2, lambda *at: told.append(at)
    )
    assert outcome.decisions_s == [1, 5]
    assert told == [(0, 2), (1, 2), (2, 2)]


# -- of every trace ----------------------------------------------------------------------------------------------------


def drawn(seed: int, settings: dict[str, Any]) -> Trace:
    rng = random.Random(seed)
    jobs = [
        job(
            f"j{number}",
            rng.choice([0, 1, 1, 2, 4, 8, 16, 24]),
            rng.choice([rng.uniform(0, 200), 30, 0]),
            at_s=rng.uniform(0, 600),
            count=rng.choice([1, 1, 3]),
            user=rng.choice(["ada", "bob", "eve"]),
            priority=rng.choice([None, 10, 50]),
            max_slots=rng.choice([None, None, 8]),
            is_preemptible=rng.random() < 0.8,
        )
        for number in range(80)
    ]
    return trace_of(
        [8, 8, 4, 2], *jobs, settings=settings, preemption_s=rng.choice([0, 7.5]), tick_s=rng.choice([0.5, 5])
    )


@pytest.mark.parametrize("settings", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("seed", range(4))
def test_no_slot_is_held_twice_and_all_work_is_done_once(seed: int, settings: dict[str, Any]) -> None:
    trace = drawn(seed, settings)
    outcome = simulate(trace)
    held: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    for run in outcome.runs:
        places = [(part.agent_id, slot) for part in run.placements for slot in part.slot_ids]
        assert len(set(places)) == outcome.requests[run.place].job.slots
        for place in places:
            held[place].append((run.start_s, run.gone_s))
    for spans in held.values():
        spans.sort()
        assert all(before[1] <= after[0] for before, after in pairwise(spans))
    assert len(held) <= outcome.slots == 22
    for request in outcome.requests:
        assert (request.end_s is not None) is request.may_run, request.name
    demanded = sum(each.job.slots * each.job.duration_s for each in outcome.requests if each.may_run)
    assert worked(outcome) == pytest.approx(demanded)
    assert 0 < (outcome.fairness or 0) <= 1
    assert 0 < outcome.contended_s <= outcome.active_s <= outcome.makespan_s
    if "fair" in str(settings) or "preemption" in settings:
        assert any(request.preemptions for request in outcome.requests)


@pytest.mark.parametrize("settings", POLICIES.values(), ids=POLICIES)
def test_the_same_trace_gives_the_same_outcome(settings: dict[str, Any]) -> None:
    first, second = simulate(drawn(7, settings)), simulate(drawn(7, settings))
    assert first.runs == second.runs
    assert (first.fairness, first.active_s, first.contended_s) == (second.fairness, second.active_s, second.contended_s)
