"""Agents that fall silent, many at once as when a switch fails: what they hold is found, and whether it could go on."""

from __future__ import annotations

import random

import pytest

from tests.kit.counting import counted
from tests.unit.scheduling.pools import agent, ask, pool_of, wish
from workflows.scheduling.decide import decide
from workflows.scheduling.model import Request
from workflows.scheduling.pool import Pool
from workflows.scheduling.room import Room

MIXED = {"allow_heterogeneous_fits": True}


def could_go_on(pool: Pool, request: Request, lost: set[str]) -> bool:
    """By a room that is made anew."""
    agents = pool.snapshot.agents.values()
    room = pool.new_room([each.at_best() for each in agents if each.agent_id not in lost])
    return room.fit(request) is not None


def check_room(pool: Pool, room: Room, anew: Room, draw: random.Random) -> None:
    """One that was kept up to date is as one that is made anew, and what fits ever is, too."""
    assert room.free == anew.free
    assert [room.free_of(f"a{n}") for n in range(6)] == [anew.free_of(f"a{n}") for n in range(6)]
    idle = pool.new_room([each.at_best() for each in pool.snapshot.agents.values()])
    for _ in range(6):
        request = drawn_request(draw, draw.randrange(10**6))
        assert room.fit(request) == anew.fit(request)
        assert room.free_aux(request) == anew.free_aux(request)
        assert pool.fits_ever(request) == (idle.fit(request) is not None)


def drawn_request(draw: random.Random, number: int) -> Request:
    return wish(
        draw.randrange(7), f"{number}", is_single_node=draw.random() < 0.3,
        excluded_agents=draw.choice(((), (), ("a0",), ("a0", "a1", "a2"))),
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(40))
def test_who_could_go_on_is_known_as_agents_come_and_go(seed: int) -> None:
    draw = random.Random(seed)
    pool = pool_of(*(draw.randrange(5) for _ in range(5)), settings=draw.choice(({}, MIXED)), aux=2)
    lost: set[str] = set()
    for number in range(60):
        agent_id = f"a{draw.randrange(6)}"
        what = draw.randrange(6)
        if what == 0:
            per_pod = draw.choice((None, None, 1, 2))
            pool.put_agent(agent(agent_id, draw.randrange(5), is_available=draw.random() < 0.5, slots_per_pod=per_pod))
        elif what == 1 and agent_id in pool.snapshot.agents:
            pool.lose(agent_id)
            lost.add(agent_id)
        elif what == 2:
            pool.find(agent_id)
            lost.discard(agent_id)
        elif what == 3:
            on = pool.grants_on(agent_id)
            assert pool.remove_agent(agent_id) == on
            lost.discard(agent_id)
        elif what == 4 and pool.snapshot.grants:
            pool.release(draw.choice(list(pool.snapshot.grants)))
        else:
            assert pool.ask(drawn_request(draw, number))
            decide(pool)
        for request in (drawn_request(draw, 1000 + k) for k in range(4)):
            assert pool.could_go_on(request) == could_go_on(pool, request, lost)
        check_room(pool, pool.room, pool.new_room(pool.snapshot.agents.values(), pool.snapshot.grants.values()), draw)
        for each in (*pool.snapshot.agents, "a0", "a5"):
            grants = pool.snapshot.grants.values()
            held = [grant for grant in grants if any(place.agent_id == each for place in grant.placements)]
            assert pool.grants_on(each) == held


@pytest.mark.parametrize("seed", range(20))
def test_room_whose_agents_change_is_that_of_those_who_are_there(seed: int) -> None:
    draw = random.Random(seed)
    pool = pool_of(settings=MIXED)
    agents = {each.agent_id: each for each in (agent(f"a{n}", draw.randrange(5), max_zero_slot=1) for n in range(4))}
    room = pool.new_room(agents.values())
    for _ in range(60):
        agent_id = f"a{draw.randrange(5)}"
        if draw.random() < 0.4:
            room.drop(agent_id)
            agents.pop(agent_id, None)
        else:
            per_pod = draw.choice((None, None, 2))
            agents[agent_id] = agent(agent_id, draw.randrange(5), is_enabled=draw.random() < 0.8, slots_per_pod=per_pod)
            room.put(agents[agent_id])
        check_room(pool, room, pool.new_room(agents.values()), draw)


def test_hundreds_that_fall_silent_are_asked_about_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = pool_of(*[4] * 300)
    for number in range(1200):
        ask(pool, 1, str(number))
    assert len(decide(pool).starts) == 1200
    made, fitted = counted(monkeypatch, Pool, "new_room"), counted(monkeypatch, Room, "fit")
    for number in range(200):
        pool.lose(f"a{number}")
        assert all(pool.could_go_on(grant.request) for grant in pool.grants_on(f"a{number}"))
    assert len(made) == 1
    assert len(fitted) == 200
