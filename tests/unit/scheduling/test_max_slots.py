"""A job's cap on slots holds, and holds nobody else up."""

from __future__ import annotations

from workflows.scheduling.fifo import schedule
from workflows.scheduling.model import AgentSlots, PoolSnapshot, Request


def _request(number: int, job: str, max_slots: int | None) -> Request:
    return Request(allocation_id=f"{job}.{number}", holder=f"w{number}", slots=1, job_id=job, max_slots=max_slots)


def test_job_gets_no_more_than_its_cap_when_slots_are_free() -> None:
    pool = PoolSnapshot(agents={"a": AgentSlots(agent_id="a", slot_ids=tuple(range(8)))})
    pool.queue = [_request(number, "capped", 2) for number in range(4)]
    assert [grant.request.allocation_id for grant in schedule(pool)] == ["capped.0", "capped.1"]
    assert len(pool.queue) == 2
    del pool.grants["capped.0"]
    assert [grant.request.allocation_id for grant in schedule(pool)] == ["capped.2"]


def test_others_pass_when_a_job_is_at_its_cap() -> None:
    pool = PoolSnapshot(agents={"a": AgentSlots(agent_id="a", slot_ids=tuple(range(8)))})
    pool.queue = [_request(1, "capped", 1), _request(2, "capped", 1), _request(3, "free", None)]
    assert [grant.request.allocation_id for grant in schedule(pool)] == ["capped.1", "free.3"]
