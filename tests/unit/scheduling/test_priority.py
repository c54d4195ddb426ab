"""By priority, with and without preemption: the worked examples of scheduling.md §3, and what we promise beyond them."""

from __future__ import annotations

from tests.unit.scheduling.pools import ask, decided, hold, pool_of, started, waiting, wish
from workflows.scheduling.decide import decide
from workflows.scheduling.pool import Pool

PREEMPTION = {"preemption": True}


# -- without preemption ------------------------------------------------------------------------------------------------


def test_requests_start_in_the_order_they_came_when_all_fit() -> None:
    pool = pool_of(4)
    assert started(pool) == []
    for name, slots in (("1", 1), ("2", 2), ("3", 1)):
        ask(pool, slots, name)
    assert started(pool) == ["1", "2", "3"]
    assert list(pool.snapshot.grants) == ["1", "2", "3"]
    assert waiting(pool) == []


def test_better_priorities_start_first_and_then_older_jobs() -> None:
    pool = pool_of(3)
    ask(pool, 1, "low", priority=50)
    ask(pool, 1, "usual", position=2)
    ask(pool, 1, "older", position=1)
    ask(pool, 1, "high", priority=1, position=9)
    assert started(pool) == ["high", "older", "usual"]
    assert waiting(pool) == ["low"]


def test_requests_of_older_jobs_start_first_when_they_were_made_later() -> None:
    pool = pool_of(1)
    ask(pool, 1, "young", position=2)
    ask(pool, 1, "old", position=1)
    assert started(pool) == ["old"]


def test_small_requests_wait_when_a_large_one_before_them_does_not_fit() -> None:
    pool = pool_of(4)
    ask(pool, 2, "first")
    ask(pool, 3, "large")
    ask(pool, 1, "small")
    assert started(pool) == ["first"]
    assert waiting(pool) == ["large", "small"]
    assert started(pool) == [], "asking again changes nothing"
    assert pool.release("first")
    assert started(pool) == ["large", "small"]


def test_requests_without_slots_pass_when_a_large_one_blocks_the_others() -> None:
    pool = pool_of(2, aux=1)
    ask(pool, 2, "held")
    assert started(pool) == ["held"]
    ask(pool, 2, "large")
    ask(pool, 0, "zero")
    ask(pool, 1, "small")
    ask(pool, 0, "zero too")
    assert started(pool) == ["zero"]
    assert waiting(pool) == ["large", "small", "zero too"]
    assert pool.release("zero")
    assert started(pool) == ["zero too"]


def test_a_request_that_never_fits_holds_nobody_up_until_an_agent_of_its_size_joins() -> None:
    pool = pool_of(2, 2)
    ask(pool, 64, "huge")
    ask(pool, 1, "small")
    assert started(pool) == ["small"]
    ask(pool, 2, "small too")
    assert started(pool) == ["small too"]
    ask(pool, 1, "smallest")
    for number in range(2):
        pool.put_agent(pool.snapshot.agents["a0"].model_copy(update={"agent_id": f"b{number}", "slot_ids": range(32)}))
    assert started(pool) == ["huge", "smallest"]


def test_job_gets_no_more_than_its_cap_when_slots_are_free_and_holds_nobody_up() -> None:
    pool = pool_of(8)
    for number in range(4):
        ask(pool, 1, f"capped.{number}", job="capped", max_slots=2)
    ask(pool, 1, "free")
    assert started(pool) == ["capped.0", "capped.1", "free"]
    assert pool.release("capped.0")
    assert started(pool) == ["capped.2"]


def test_cap_counts_for_what_waits_when_it_is_changed() -> None:
    pool = pool_of(8)
    for number in range(4):
        ask(pool, 1, f"j.{number}", job="j", max_slots=1)
    assert started(pool) == ["j.0"]
    claim = pool.snapshot.grants["j.0"].request.claim
    pool.claim({"j": claim.model_copy(update={"max_slots": 3})})
    assert started(pool) == ["j.1", "j.2"]


# -- with preemption ---------------------------------------------------------------------------------------------------


def published(**more: object) -> Pool:
    """The first example of the spec: two agents of four slots, priorities 55 and 40 run."""
    pool = pool_of(4, 4, settings=PREEMPTION)
    hold(pool, "55", "a0", 0, priority=55)
    hold(pool, "40", "a1", 0, 1, 2, 3, priority=40)
    return pool


def test_the_first_published_example() -> None:
    pool = published()
    ask(pool, 1, "50", priority=50)
    ask(pool, 1, "45", priority=45)
    ask(pool, 2, "40/2", priority=40)
    ask(pool, 8, "40/8", priority=40)
    decision = decide(pool)
    assert {grant.request.allocation_id: grant.is_backfilled for grant in decision.starts} == {
        "40/2": False,
        "45": True,
    }
    assert [leave.allocation_id for leave in decision.leaves] == ["55"]
    assert decision.leaves[0].reason == "request 50 comes first: its priority is 50, not 55"
    assert waiting(pool) == ["50", "40/8"]
    assert decided(pool) == (set(), set()), "it waits for the one that leaves, and asks nobody else"
    assert pool.release("55")
    assert decided(pool) == ({"50"}, set())


def test_in_one_priority_only_jobs_behind_have_to_leave() -> None:
    pool = pool_of(4, 4, settings=PREEMPTION)
    hold(pool, "first", "a0", 0, position=10)
    hold(pool, "second", "a1", 0, 1, 2, 3, position=20)
    ask(pool, 4, "between", position=15)
    decision = decide(pool)
    assert [leave.allocation_id for leave in decision.leaves] == ["second"]
    assert decision.leaves[0].reason == "request between comes first in the queue of priority 42"


def test_nobody_has_to_leave_when_it_would_not_help() -> None:
    pool = pool_of(4, 4, settings=PREEMPTION)
    hold(pool, "first", "a0", 0, position=10)
    hold(pool, "second", "a1", 0, 1, 2, 3, position=20)
    ask(pool, 8, "between", position=15)
    assert decided(pool) == (set(), set())


def test_only_those_leave_whose_slots_are_needed() -> None:
    """Determined releases all that it removed while it searched, helpful or not."""
    pool = pool_of(1, 4, settings=PREEMPTION)
    hold(pool, "useless", "a0", 0, priority=90)
    hold(pool, "useful", "a1", 0, 1, 2, 3, priority=80)
    ask(pool, 4, "wants", priority=10)
    assert decided(pool) == (set(), {"useful"})


def test_the_last_in_rank_leaves_first() -> None:
    pool = pool_of(2, settings=PREEMPTION)
    hold(pool, "better", "a0", 0, priority=50)
    hold(pool, "worse", "a0", 1, priority=60)
    ask(pool, 1, "wants", priority=10)
    assert decided(pool) == (set(), {"worse"})


def test_who_can_not_be_made_to_leave_stays() -> None:
    pool = pool_of(2, settings=PREEMPTION)
    hold(pool, "stays", "a0", 0, 1, priority=99, is_preemptible=False)
    ask(pool, 1, "wants", priority=1)
    assert decided(pool) == (set(), set())


def test_what_can_not_be_made_to_leave_does_not_pass_one_that_waits() -> None:
    pool = pool_of(2, settings=PREEMPTION)
    hold(pool, "held", "a0", 0, priority=1)
    ask(pool, 2, "waits", priority=10)
    ask(pool, 1, "stays", priority=20, is_preemptible=False)
    ask(pool, 1, "leaves", priority=30)
    assert decided(pool) == ({"leaves"}, set())
    assert pool.snapshot.grants["leaves"].is_backfilled
    assert pool.release("held")
    assert decided(pool) == (set(), {"leaves"}), "what passed makes room"


def test_slots_that_come_free_one_by_one_are_kept_for_whom_they_were_asked_back() -> None:
    pool = pool_of(2, settings=PREEMPTION)
    hold(pool, "x", "a0", 0, priority=60)
    hold(pool, "y", "a0", 1, priority=60)
    ask(pool, 2, "wants", priority=10)
    ask(pool, 1, "small", priority=50)
    assert decided(pool) == (set(), {"x", "y"})
    assert pool.release("x")
    assert decided(pool) == (set(), set())
    assert pool.release("y")
    assert decided(pool) == ({"wants"}, set())


def test_nothing_starts_after_somebody_was_asked_to_leave() -> None:
    pool = pool_of(2, settings=PREEMPTION)
    hold(pool, "held", "a0", 0, priority=90)
    ask(pool, 2, "first", priority=1)
    ask(pool, 1, "second", priority=2)
    assert decided(pool) == (set(), {"held"})


def test_without_preemption_priorities_only_order_the_queue() -> None:
    pool = pool_of(1)
    hold(pool, "low", "a0", 0, priority=99)
    ask(pool, 1, "high", priority=1)
    assert decided(pool) == (set(), set())


# -- quotas ------------------------------------------------------------------------------------------------------------


def shared(**quotas: object) -> Pool:
    return pool_of(4, settings={"quotas": quotas})


def test_slots_beyond_a_quota_are_lent_and_asked_back_when_somebody_claims_his() -> None:
    pool = shared(users={"*": 2})
    for number in range(4):
        ask(pool, 1, f"ann.{number}", user="ann")
    assert len(started(pool)) == 4, "nobody else wants them"
    ask(pool, 1, "bob.0", user="bob")
    decision = decide(pool)
    assert [leave.allocation_id for leave in decision.leaves] == ["ann.3"], "the last in rank of those that were lent"
    assert decision.leaves[0].reason == "its slots were borrowed beyond the quota, and request bob.0 is within its own"
    assert pool.release("ann.3")
    ask(pool, 1, "ann.3", user="ann")
    assert started(pool) == ["bob.0"], "who is within his quota comes first"
    ask(pool, 2, "bob.1", user="bob")
    assert decided(pool) == (set(), set()), "bob would borrow himself: from nobody who has to leave"


def test_who_borrows_comes_last_whatever_his_priority() -> None:
    pool = shared(users={"ann": 1})
    hold(pool, "ann.0", "a0", 0, user="ann")
    ask(pool, 3, "ann.1", user="ann", priority=1)
    ask(pool, 1, "bob.0", user="bob", priority=99)
    assert started(pool) == ["bob.0"]


def test_nothing_is_lent_where_that_is_off() -> None:
    pool = shared(users={"ann": 1}, borrowing=False)
    for number in range(2):
        ask(pool, 1, f"ann.{number}", user="ann")
    ask(pool, 1, "bob.0", user="bob")
    assert started(pool) == ["ann.0", "bob.0"]
    assert started(pool) == []


def test_a_workspace_has_a_quota_of_its_own() -> None:
    pool = shared(workspaces={"vision": 2}, borrowing=False)
    for number, user in enumerate(("ann", "bob", "eve")):
        ask(pool, 1, f"{number}", user=user, workspace="vision")
    ask(pool, 1, "3", user="ann", workspace="audio")
    assert started(pool) == ["0", "1", "3"]


def test_request_without_slots_borrows_nothing() -> None:
    pool = shared(users={"*": 0}, borrowing=False)
    ask(pool, 0, "zero", user="ann")
    ask(pool, 1, "one", user="ann")
    assert started(pool) == ["zero"]
    assert wish(1).claim.priority is None
