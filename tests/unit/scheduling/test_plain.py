"""Fair share, round robin and quotas decide as who looks at each request, and look at each kind only."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kit.counting import counted
from tests.unit.scheduling import plain
from tests.unit.scheduling.pools import agent, ask, hold, pool_of
from workflows.scheduling.decide import decide
from workflows.scheduling.fair_share import schedule as fair_share
from workflows.scheduling.model import Claim, Decision, Request
from workflows.scheduling.order import order
from workflows.scheduling.pool import Draft, Pool
from workflows.scheduling.round_robin import schedule as round_robin
from workflows.scheduling.shares import in_order

POLICIES = {"fair_share": fair_share, "round_robin": round_robin}
QUOTAS: dict[str, dict[str, Any]] = {
    "no quotas": {},
    "quotas": {"users": {"*": 3}},
    "quotas that lend nothing": {"users": {"*": 3}, "borrowing": False},
    "quotas of both": {"users": {"x": 2}, "workspaces": {"*": 5}},
}
USERS = dict(zip("ABCDEFG", "xxyyzxw", strict=True))


def claim(draw: random.Random) -> Claim:
    return Claim(
        priority=draw.choice((None, None, 1, 50)),
        weight=draw.choice((0.0, 0.3, 1.0, 1.0, 2.0, 7.5)),
        max_slots=draw.choice((None, None, None, 2, 4)),
        position=draw.randrange(4),
    )


class Life:
    """A pool to which things happen, drawn by chance."""

    def __init__(self, seed: int, settings: dict[str, Any]) -> None:
        self._draw = random.Random(seed)
        self._numbers = iter(range(10**6))
        self._claims = {job: claim(self._draw) for job in USERS}
        sizes = [self._draw.randrange(6) for _ in range(self._draw.randrange(1, 5))]
        self.pool: Pool = pool_of(*sizes, settings=settings, aux=2)

    def go_on(self) -> None:
        """One thing more."""
        pool, draw = self.pool, self._draw
        what = draw.choice(("ask", "ask", "ask", "ask", "end", "end", "withdraw", "agent", "claim", "leave", "lose"))
        if what == "ask":
            for _ in range(draw.randrange(1, 6)):
                self._ask()
        elif what in ("end", "leave") and pool.snapshot.grants:
            act = pool.release if what == "end" else pool.note_leaving
            for allocation_id in draw.sample(sorted(pool.snapshot.grants), min(2, len(pool.snapshot.grants))):
                act(allocation_id)
        elif what == "withdraw" and pool.snapshot.queue:
            pool.release(draw.choice(sorted(pool.snapshot.queue)))
        elif what == "agent":
            disabled = draw.choice(((), (0,)))
            pool.put_agent(agent(f"a{draw.randrange(5)}", draw.randrange(6), max_zero_slot=2, disabled_slots=disabled))
        elif what == "claim":
            job = draw.choice(sorted(USERS))
            self._claims[job] = claim(draw)
            pool.claim({job: self._claims[job]})
        elif what == "lose" and pool.snapshot.agents:
            pool.remove_agent(draw.choice(sorted(pool.snapshot.agents)))

    def _ask(self) -> None:
        draw, job = self._draw, self._draw.choice(sorted(USERS))
        name = f"{next(self._numbers)}"
        self.pool.ask(
            Request(
                allocation_id=name, holder=f"trial-{name}", slots=draw.choice((0, 1, 1, 1, 2, 2, 3, 4, 8)), job_id=job,
                user=USERS[job], workspace="v" if job in "ABCD" else "w", claim=self._claims[job],
                is_preemptible=draw.random() < 0.8, is_single_node=draw.random() < 0.2,
                excluded_agents=draw.choice(((), (), ("a0",))),
            )
        )  # fmt: skip


@pytest.mark.parametrize("quotas", QUOTAS)
@pytest.mark.parametrize("policy", POLICIES)
def test_decision_is_the_plain_one(policy: str, quotas: str) -> None:
    starts, leaves = 0, 0
    for seed in range(120):
        life = Life(seed, {"scheduler": policy, "quotas": QUOTAS[quotas], "allow_heterogeneous_fits": seed % 2 == 0})
        for _ in range(15):
            life.go_on()
            plainly = plain.decide(life.pool)
            decision = decide(life.pool)
            assert decision == plainly
            starts, leaves = starts + len(decision.starts), leaves + len(decision.leaves)
    assert starts > 500
    assert leaves > 30 or policy == "round_robin"


@pytest.mark.parametrize("quotas", [name for name in QUOTAS if QUOTAS[name]])
def test_order_is_the_plain_one(quotas: str) -> None:
    borrowing = 0
    for seed in range(120):
        life = Life(seed, {"quotas": QUOTAS[quotas], "preemption": seed % 2 == 0})
        for _ in range(15):
            life.go_on()
            found, plainly = order(life.pool), plain.order(life.pool)
            assert (list(found.grants), list(found.queue)) == (plainly.grants, plainly.queue)
            borrowing += sum(rank.is_borrowing for rank, _ in found.queue)
            decide(life.pool)
    assert borrowing > 100


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("wanted", [{"slots": 1}, {"slots": 2}, {"slots": 9}, {"slots": 1, "max_slots": 1}])
def test_kinds_are_looked_at_and_not_each_of_thousands(
    monkeypatch: pytest.MonkeyPatch, policy: str, wanted: dict[str, Any]
) -> None:
    pool = pool_of(2)
    hold(pool, "held", "a0", 0, job="search")
    hold(pool, "held by another", "a0", 1, job="other")
    for number in range(3000):
        ask(pool, allocation_id=str(number), job="search", **wanted)
    looked = [counted(monkeypatch, Draft, name) for name in ("is_capped", "fit")]
    seen = list[str]()

    def each(*given: Any) -> Iterator[Any]:
        for wish, request in in_order(*given):
            seen.append(request.allocation_id)
            yield wish, request

    monkeypatch.setattr(f"workflows.scheduling.{policy}.in_order", each)
    assert POLICIES[policy](pool) == Decision()
    count = sum(map(len, (*looked, seen)))
    assert count < 10
    assert (count > 0) is (wanted["slots"] < 9), "what the agents can't hold is not even looked at"
