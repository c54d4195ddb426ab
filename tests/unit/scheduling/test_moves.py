"""Where a job stands after it was moved: scheduling.md §4."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.scheduling.pools import ask, hold, pool_of, started
from workflows.scheduling.model import Claim
from workflows.scheduling.moves import moved
from workflows.scheduling.pool import Pool

NOW = 10_000


def queue(**positions: int) -> Pool:
    """Jobs of the usual priority that wait for one slot each."""
    pool = pool_of(1)
    for job, position in positions.items():
        ask(pool, 1, f"{job}.1", job=job, position=position)
    return pool


def claims(pool: Pool) -> dict[str, Claim]:
    grants = [grant.request for grant in pool.snapshot.grants.values()]
    return {request.job_id: request.claim for request in [*pool.snapshot.queue.values(), *grants]}


def move(pool: Pool, job: str, anchor: str, *, ahead: bool, now: int = NOW) -> Claim:
    known = claims(pool)
    claim = moved(pool, job, known[job], anchor, known[anchor], is_ahead=ahead, now=now, changed={})
    pool.claim({job: claim})
    return claim


def in_order(pool: Pool) -> list[str]:
    """The jobs in the order in which they start."""
    names: list[str] = []
    while pool.snapshot.queue:
        [name] = started(pool)
        names.append(name.removesuffix(".1"))
        pool.release(name)
    return names


def test_job_is_placed_halfway_between_the_anchor_and_its_neighbour() -> None:
    pool = queue(a=1000, b=2000, c=3000, d=4000)
    assert move(pool, "d", "b", ahead=True).position == 1500
    assert in_order(pool) == ["a", "d", "b", "c"]
    pool = queue(a=1000, b=2000, c=3000, d=4000)
    assert move(pool, "a", "b", ahead=False).position == 2500
    assert in_order(pool) == ["b", "a", "c", "d"]


def test_head_of_the_queue_is_just_above_zero() -> None:
    pool = queue(a=1000, b=2000)
    assert move(pool, "b", "a", ahead=True).position == 500
    assert in_order(pool) == ["b", "a"]


def test_tail_of_the_queue_is_now() -> None:
    pool = queue(a=1000, b=2000)
    assert move(pool, "a", "b", ahead=False).position == (2000 + NOW) // 2
    assert in_order(pool) == ["b", "a"]


def test_job_is_still_behind_when_the_last_one_was_moved_beyond_now() -> None:
    pool = queue(a=1000, b=NOW + 5)
    assert move(pool, "a", "b", ahead=False).position == NOW + 6


def test_position_is_nudged_by_the_smallest_step_when_there_is_nothing_between() -> None:
    pool = queue(a=5, b=6, c=100)
    assert move(pool, "c", "b", ahead=True).position == 5
    assert in_order(pool)[-1] == "b"
    pool = queue(c=1, a=5, b=6)
    assert move(pool, "c", "a", ahead=False).position == 6
    assert in_order(pool)[0] == "a"


def test_the_first_job_at_zero_can_be_passed() -> None:
    pool = queue(a=0, b=9)
    assert move(pool, "b", "a", ahead=True).position == -1
    assert in_order(pool) == ["b", "a"]


@pytest.mark.parametrize("ahead", [True, False])
def test_nothing_happens_when_a_job_is_moved_relative_to_itself(ahead: bool) -> None:
    pool = queue(a=1000, b=2000)
    assert move(pool, "a", "a", ahead=ahead) == Claim(position=1000)


@pytest.mark.parametrize("ahead", [True, False])
def test_job_takes_the_priority_of_the_anchor_and_keeps_the_rest_of_its_claim(ahead: bool) -> None:
    pool = queue(usual=7)
    ask(pool, 1, "urgent.1", job="urgent", priority=1, position=1000)
    ask(pool, 1, "moves.1", job="moves", priority=90, position=2000, weight=2.5, max_slots=4)
    claim = move(pool, "moves", "urgent", ahead=ahead)
    assert (claim.priority, claim.weight, claim.max_slots) == (1, 2.5, 4)
    assert in_order(pool)[:2] == (["moves", "urgent"] if ahead else ["urgent", "moves"])
    pool = queue(usual=7)
    ask(pool, 1, "urgent.1", job="urgent", priority=1)
    assert move(pool, "urgent", "usual", ahead=ahead).priority is None, "the pool's default, as the anchor has it"


def test_only_jobs_of_the_same_priority_are_neighbours() -> None:
    pool = queue(a=1000, d=9000)
    ask(pool, 1, "x.1", job="x", priority=1, position=900)
    ask(pool, 1, "y.1", job="y", priority=42, position=500)
    assert move(pool, "d", "a", ahead=True).position == 750, "42 is the default"


def test_jobs_that_run_are_neighbours_too_and_all_requests_of_a_job_move() -> None:
    pool = queue(b=2000, c=3000)
    hold(pool, "a.1", "a0", job="a", position=1000)
    ask(pool, 1, "c.2", job="c", position=3000)
    assert move(pool, "c", "b", ahead=True).position == 1500
    assert [request.claim.position for request in pool.snapshot.queue.values()] == [2000, 1500, 1500]


@given(
    st.lists(st.integers(1, NOW), min_size=2, max_size=8, unique=True),
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7), st.booleans()), max_size=12),
)
def test_job_stands_right_beside_the_anchor_as_long_as_there_are_places_between(
    places: list[int], steps: list[tuple[int, int, bool]]
) -> None:
    """Places a million apart: a dozen moves never run out of them."""
    count = len(places)
    pool = queue(**{f"j{number}": place * 1_000_000 for number, place in enumerate(places)})
    expected = sorted((f"j{number}" for number in range(count)), key=lambda name: places[int(name[1:])])
    for job_number, anchor_number, ahead in steps:
        job, anchor = f"j{job_number % count}", f"j{anchor_number % count}"
        move(pool, job, anchor, ahead=ahead, now=(NOW + 1) * 1_000_000)
        if job != anchor:
            expected.remove(job)
            expected.insert(expected.index(anchor) + (not ahead), job)
    assert in_order(pool) == expected


def test_moves_that_the_pool_has_yet_to_take_up_count() -> None:
    draw, jobs = random.Random(1), "abcdefgh"
    pool = queue(**{job: 1000 * number for number, job in enumerate(jobs, 1)})
    late = queue(**{job: 1000 * number for number, job in enumerate(jobs, 1)})
    known, changed = claims(late), dict[str, Claim]()
    for _ in range(30):
        job, anchor = draw.sample(jobs, 2)
        ahead = draw.random() < 0.5
        claim = moved(late, job, known[job], anchor, known[anchor], is_ahead=ahead, now=NOW, changed=changed)
        assert claim == move(pool, job, anchor, ahead=ahead)
        known[job] = changed[job] = claim
    late.claim(changed)
    assert claims(late) == claims(pool)
    assert in_order(late) == in_order(pool)
