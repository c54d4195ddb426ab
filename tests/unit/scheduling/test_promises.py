"""What a pool promises whatever happens to it: any policy, any settings, agents and jobs that come, change and go."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from hypothesis import given, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.unit.scheduling.pools import agent, ask, decided, hold, pool_of, started, wish
from workflows.config.resources import Closeness
from workflows.scheduling.decide import decide
from workflows.scheduling.model import Claim, Decision, Grant, PoolSnapshot, Request
from workflows.scheduling.pool import Pool
from workflows.scheduling.settings import Policy, PoolSettings
from workflows.scheduling.topology import Topology

JOBS = 5
AGENTS = 5
RARELY = st.sampled_from([False, False, False, True])

QUOTAS = st.one_of(
    st.just({}),
    st.fixed_dictionaries(
        {"borrowing": st.booleans()},
        optional={
            "users": st.dictionaries(st.sampled_from(["u0", "u1", "*"]), st.integers(0, 6), max_size=2),
            "workspaces": st.dictionaries(st.sampled_from(["w0", "*"]), st.integers(0, 6), max_size=2),
        },
    ),
)


def all_settings(**fixed: Any) -> st.SearchStrategy[PoolSettings]:
    choices: dict[str, st.SearchStrategy[Any]] = {
        "scheduler": st.sampled_from(Policy),
        "preemption": st.booleans(),
        "fitting_policy": st.sampled_from(["best", "worst"]),
        "allow_heterogeneous_fits": st.booleans(),
        "quotas": QUOTAS,
    }
    choices |= {key: st.just(value) for key, value in fixed.items()}
    return st.fixed_dictionaries(choices).map(PoolSettings.model_validate)


def claims(job: int) -> st.SearchStrategy[Claim]:
    """No two jobs have the same position."""
    return st.builds(
        Claim,
        priority=st.sampled_from([None, 1, 42, 43, 99]),
        weight=st.sampled_from([0.5, 1.0, 3.0]),
        max_slots=st.sampled_from([None, None, None, 0, 1, 2, 4, 8]),
        position=st.integers(0, 9).map(lambda place: place * JOBS + job),
    )


def copy_of(pool: Pool) -> Pool:
    snapshot = pool.snapshot
    grants = {name: grant.model_copy() for name, grant in snapshot.grants.items()}
    return Pool(PoolSnapshot(agents=dict(snapshot.agents), queue=dict(snapshot.queue), grants=grants), pool.settings)


def ids(grants: list[Grant]) -> set[str]:
    return {grant.request.allocation_id for grant in grants}


def leavers(pool: Pool) -> list[Request]:
    return [grant.request for grant in pool.snapshot.grants.values() if grant.is_preempting]


def rank(pool: Pool, request: Request) -> tuple[int, int]:
    """Written again; those of one rank keep their order in the queue."""
    return request.claim.priority or pool.settings.default_priority, request.claim.position


def in_order(pool: Pool) -> list[Request]:
    return sorted(pool.snapshot.queue.values(), key=lambda request: rank(pool, request))


class Checked:
    """A pool, each decision of which is held against what was promised."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    def decide(self) -> Decision:
        before = copy_of(self.pool)
        decision = decide(self.pool)
        self._check_starts(before, decision)
        self._check_leaves(before, decision)
        if before.settings.scheduler is Policy.PRIORITY and not before.settings.quotas:
            self._check_order(before, decision)
        self._check_room()
        return decision

    def _check_starts(self, before: Pool, decision: Decision) -> None:
        queued = dict(before.snapshot.queue)
        taken = {
            (place.agent_id, slot)
            for grant in before.snapshot.grants.values()
            for place in grant.placements
            for slot in place.slot_ids
        }
        held = Counter[str]()
        zeros = Counter[str]()
        for grant in before.snapshot.grants.values():
            held[grant.request.job_id] += grant.request.slots
            for place in grant.placements:
                zeros[place.agent_id] += not place.slot_ids
        for grant in decision.starts:
            request = grant.request
            assert queued.pop(request.allocation_id) == request, (
                "who did not ask gets nothing, and nobody gets it twice"
            )
            assert sum(len(place.slot_ids) for place in grant.placements) == request.slots, "all or nothing"
            assert [place.rank for place in grant.placements] == list(range(len(grant.placements)))
            assert len({place.agent_id for place in grant.placements}) == len(grant.placements) > 0
            assert len(grant.placements) == 1 or not request.is_single_node
            for place in grant.placements:
                on = before.snapshot.agents[place.agent_id]
                assert on.is_available
                assert on.is_enabled
                assert place.agent_id not in request.excluded_agents
                for slot in place.slot_ids:
                    assert slot in on.slot_ids
                    assert slot not in on.disabled_slots
                    assert (place.agent_id, slot) not in taken, "no slot is given twice"
                    taken.add((place.agent_id, slot))
                zeros[place.agent_id] += not place.slot_ids
                if not place.slot_ids:
                    assert zeros[place.agent_id] <= (on.max_zero_slot or 0)
            held[request.job_id] += request.slots
            is_within = request.claim.max_slots is None or held[request.job_id] <= request.claim.max_slots
            assert is_within or request.slots == 0, "what takes no slot starts, also when the cap was lowered"
        assert set(self.pool.snapshot.queue) == set(queued)

    def _check_leaves(self, before: Pool, decision: Decision) -> None:
        told = before.settings
        asked = [leave.allocation_id for leave in decision.leaves]
        assert len(set(asked)) == len(asked)
        for leave in decision.leaves:
            grant = before.snapshot.grants[leave.allocation_id]
            assert grant.request.is_preemptible
            assert grant.request.slots > 0
            assert not grant.is_preempting, "nobody is asked twice"
            assert self.pool.snapshot.grants[leave.allocation_id].is_preempting
            assert leave.reason
        if told.scheduler is Policy.ROUND_ROBIN:
            assert not asked
        if told.scheduler is Policy.PRIORITY and not told.preemption and not told.quotas:
            assert not asked
        if told.scheduler is Policy.FAIR_SHARE:
            of_leavers = {before.snapshot.grants[name].request.job_id for name in asked}
            of_starters = {grant.request.job_id for grant in decision.starts if grant.request.slots}
            assert not of_leavers & of_starters, "a job takes or gives, not both"

    def _check_order(self, before: Pool, decision: Decision) -> None:
        """Without preemption nobody passes, and what fits is not held back; with it, only who can be made to leave."""
        starts = {grant.request.allocation_id: grant for grant in decision.starts}
        for has_slots in (False, True):
            held = Counter({job: before.slots_of_job(job) for job in (f"j{number}" for number in range(JOBS))})
            is_blocked = False
            for request in in_order(before):
                if (request.slots > 0) is not has_slots:
                    continue
                cap = request.claim.max_slots
                is_capped = has_slots and cap is not None and held[request.job_id] + request.slots > cap
                grant = starts.get(request.allocation_id)
                if grant is not None:
                    assert not is_capped
                    held[request.job_id] += request.slots
                    assert grant.is_backfilled is is_blocked
                    if is_blocked:
                        assert before.settings.preemption, "nobody passes one that waits"
                        assert request.is_preemptible
                elif not is_capped and before.fits_ever(request):
                    if not is_blocked and not decision.leaves:
                        assert self.pool.room.fit(request) is None, "what fits is not held back"
                    is_blocked = True

    def _check_room(self) -> None:
        """What was kept up to date is what a new look would find."""
        pool = self.pool
        kept, fresh = (
            {key: dict(value) if isinstance(value, defaultdict) else value for key, value in vars(room).items()}
            for room in (pool.room, pool.new_room(pool.snapshot.agents.values(), pool.snapshot.grants.values()))
        )
        assert kept == fresh


class PoolMachine(RuleBasedStateMachine):
    """Requests come, agents come and go, holders release, operators change their mind."""

    @initialize(told=all_settings(), sizes=st.lists(st.integers(1, 5), min_size=1, max_size=AGENTS), data=st.data())
    def start(self, told: PoolSettings, sizes: list[int], data: st.DataObject) -> None:
        self.pool = pool_of(*sizes, aux=2)
        self.pool.configure(told)
        self.sizes = dict(enumerate(sizes))
        self.claims = {f"j{job}": data.draw(claims(job)) for job in range(JOBS)}
        self.asked = 0

    @rule(
        job=st.integers(0, JOBS - 1),
        slots=st.sampled_from([0, 0, 1, 1, 1, 2, 2, 3, 4, 6, 8, 10]),
        count=st.integers(1, 4),
        is_preemptible=st.sampled_from([True, True, False]),
        is_single_node=RARELY,
        closeness=st.sampled_from([None, None, "soft", "strong"]),
        excluded=st.one_of(st.just(set[int]()), st.sets(st.integers(0, AGENTS - 1), max_size=2)),
    )
    def request(
        self,
        job: int,
        slots: int,
        count: int,
        is_preemptible: bool,
        is_single_node: bool,
        closeness: Closeness | None,
        excluded: set[int],
    ) -> None:
        for _ in range(count):
            self.ask(
                wish(
                    slots,
                    job=f"j{job}",
                    user=f"u{job % 3}",
                    workspace=f"w{job % 2}",
                    is_preemptible=is_preemptible,
                    is_single_node=is_single_node,
                    closeness=closeness,
                    excluded_agents=tuple(f"a{number}" for number in sorted(excluded)),
                )
            )

    def ask(self, request: Request) -> None:
        self.asked += 1
        name = f"r{self.asked}"
        claim = self.claims[request.job_id]
        request = request.model_copy(update={"allocation_id": name, "name": f"request {name}.", "claim": claim})
        assert self.pool.ask(request)
        assert not self.pool.ask(request), "asking twice is asking once"

    def known(self) -> list[str]:
        snapshot = self.pool.snapshot
        return [*snapshot.grants, *snapshot.queue]

    @precondition(lambda self: self.known())
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.known()))
        assert self.pool.release(name)
        assert not self.pool.release(name)

    @precondition(lambda self: leavers(self.pool))
    @rule(data=st.data(), asks_again=st.booleans())
    def leave(self, data: st.DataObject, asks_again: bool) -> None:
        request = data.draw(st.sampled_from(leavers(self.pool)))
        assert self.pool.release(request.allocation_id)
        if asks_again:
            self.ask(request)

    @rule(
        number=st.integers(0, AGENTS - 1),
        size=st.integers(0, 5),
        is_available=st.sampled_from([True, True, False]),
        is_enabled=st.sampled_from([True, True, False]),
        disabled=st.sets(st.integers(0, 4), max_size=2),
    )
    def put_agent(self, number: int, size: int, is_available: bool, is_enabled: bool, disabled: set[int]) -> None:
        """It joins, is back, away, or in or out of service; an agent that is there keeps its devices."""
        size = self.sizes.setdefault(number, size)
        slots = tuple(sorted(slot for slot in disabled if slot < size))
        self.pool.put_agent(
            agent(
                f"a{number}",
                size,
                max_zero_slot=2,
                is_available=is_available,
                is_enabled=is_enabled,
                disabled_slots=slots,
                topology=Topology(nvlink=((0, 3), (1, 2)) if number % 2 else ()),
            )
        )

    @precondition(lambda self: self.sizes)
    @rule(data=st.data())
    def remove_agent(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.sizes)))
        del self.sizes[number]
        gone = self.pool.remove_agent(f"a{number}")
        assert all(any(place.agent_id == f"a{number}" for place in grant.placements) for grant in gone)
        assert not ids(gone) & set(self.pool.snapshot.grants)

    @precondition(lambda self: self.pool.snapshot.grants)
    @rule(data=st.data())
    def operator_asks_to_leave(self, data: st.DataObject) -> None:
        """As when an agent is taken out of service."""
        self.pool.note_leaving(data.draw(st.sampled_from(list(self.pool.snapshot.grants))))

    @rule(job=st.integers(0, JOBS - 1), data=st.data())
    def claim(self, job: int, data: st.DataObject) -> None:
        self.claims[f"j{job}"] = data.draw(claims(job))
        self.pool.claim({f"j{job}": self.claims[f"j{job}"]})

    @rule(told=all_settings())
    def configure(self, told: PoolSettings) -> None:
        self.pool.configure(told)

    @rule()
    def take_hopeless(self) -> None:
        for request in self.pool.take_hopeless():
            assert request.excluded_agents
            assert not self.pool.fits_ever(request)

    @rule()
    def decide(self) -> None:
        """Often: most of what is promised is promised of decisions."""
        self.decide_twice()

    @rule()
    def decide_once_more(self) -> None:
        leave_all(self.pool)
        self.decide_twice()

    @rule()
    def hold_nothing(self) -> None:
        """All holders release at once, and the next ones start."""
        for name in list(self.pool.snapshot.grants):
            self.pool.release(name)
        self.decide_twice()

    def decide_twice(self) -> None:
        checked = Checked(self.pool)
        decision = checked.decide()
        if decision.leaves:
            return
        again = checked.decide()
        assert not again.starts, "what can start, starts at once: nothing else will ask for a decision"
        assert not again.leaves

    @invariant()
    def books_are_kept(self) -> None:
        snapshot = self.pool.snapshot
        assert len(set(self.known())) == len(self.known())
        slots = Counter(
            (place.agent_id, slot)
            for grant in snapshot.grants.values()
            for place in grant.placements
            for slot in place.slot_ids
        )
        assert all(count == 1 for count in slots.values())
        assert {agent_id for agent_id, _ in slots} <= set(snapshot.agents)
        for job in range(JOBS):
            held = sum(grant.request.slots for grant in snapshot.grants.values() if grant.request.job_id == f"j{job}")
            assert self.pool.slots_of_job(f"j{job}") == held
        Checked(self.pool)._check_room()

    def teardown(self) -> None:
        if hasattr(self, "pool"):
            everybody_is_served(self.pool)


def everybody_is_served(pool: Pool) -> None:
    """When agents are all there and holders go on leaving, all start that ever can, whatever the policy."""
    pool = copy_of(pool)
    for each in list(pool.snapshot.agents.values()):
        pool.put_agent(each.at_best())
    checked = Checked(pool)
    for _ in range(2 * len(pool.snapshot.queue) + 2):
        checked.decide()
        for name in list(pool.snapshot.grants):
            pool.release(name)
    for request in pool.snapshot.queue.values():
        cap = request.claim.max_slots
        quotas = [quota for quota in pool.settings.quotas.of(request.user, request.workspace) if quota is not None]
        assert (
            not pool.fits_ever(request)
            or (cap is not None and request.slots > cap)
            or (not pool.settings.quotas.borrowing and request.slots > min(quotas, default=request.slots))
        ), f"{request.allocation_id} waits for ever"


TestPoolKeepsItsPromisesWhenAnythingHappens = PoolMachine.TestCase
TestPoolKeepsItsPromisesWhenAnythingHappens.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


# -- those who leave do not leave in vain ------------------------------------------------------------------------------


@st.composite
def contended(draw: st.DrawFn, told: st.SearchStrategy[PoolSettings], *, alike: bool = False) -> Pool:
    """A pool whose slots are held by some and wanted by others of any rank.

    `alike`: requests of a job are of one size, as the trials of an experiment are.
    """
    pool = pool_of(*draw(st.lists(st.integers(1, 5), min_size=1, max_size=AGENTS)))
    pool.configure(draw(told))
    known = {f"j{job}": draw(claims(job)).model_copy(update={"max_slots": None}) for job in range(JOBS)}
    number, sizes = 0, dict[str, int]()
    for each in list(pool.snapshot.agents.values()):
        slots = list(each.slot_ids)
        while slots:
            part = [slots.pop() for _ in range(draw(st.integers(1, len(slots))))]
            of_job = _of_job(draw, known)
            if draw(st.sampled_from([True, True, True, False])) and sizes.setdefault(of_job["job"], len(part)) == len(
                part
            ):
                number += 1
                hold(pool, f"h{number}", each.agent_id, *part, **of_job)
            if not alike:
                sizes.clear()
    for number in range(draw(st.integers(1, 5))):
        of_job = _of_job(draw, known)
        slots = draw(st.integers(1, 8))
        request = wish(sizes.setdefault(of_job["job"], slots) if alike else slots, f"w{number}", **of_job)
        pool.ask(request.model_copy(update={"name": f"request {number}."}))
    return pool


def _of_job(draw: st.DrawFn, known: dict[str, Claim]) -> dict[str, Any]:
    job = draw(st.integers(0, JOBS - 1))
    claim = known[f"j{job}"]
    preemptible = draw(st.sampled_from([True, True, True, False]))
    return {
        "job": f"j{job}",
        "user": f"u{job % 3}",
        "workspace": f"w{job % 2}",
        "is_preemptible": preemptible,
        **claim.model_dump(),
    }


def beneficiaries(pool: Pool, decision: Decision) -> list[Request]:
    """Those for whom somebody was asked to leave, by the reasons, the first in rank first."""
    reasons = " ".join(leave.reason for leave in decision.leaves)
    return [request for request in in_order(pool) if request.name in reasons]


def told_of(pool: Pool) -> str:
    """For whoever reads of a test that failed."""
    held = [f"{name} {grant.request!r} on {grant.placements!r}" for name, grant in pool.snapshot.grants.items()]
    return "\n".join(
        [
            repr(pool.settings),
            *map(repr, pool.snapshot.agents.values()),
            *held,
            *map(repr, pool.snapshot.queue.values()),
        ]
    )


def leave_all(pool: Pool) -> list[Request]:
    """All that were asked to leave do so."""
    gone = leavers(pool)
    for request in gone:
        pool.release(request.allocation_id)
    return gone


@given(contended(all_settings(scheduler="priority", preemption=True, quotas={})))
@settings(max_examples=150, deadline=None)
def test_whoever_made_others_leave_starts_when_they_have_left(pool: Pool) -> None:
    note(told_of(pool))
    decision = Checked(pool).decide()
    note(f"leave: {decision.leaves}")
    for_whom = beneficiaries(pool, decision)
    assert bool(for_whom) is bool(decision.leaves)
    leave_all(pool)
    starts = ids(Checked(pool).decide().starts)
    if pool.settings.fitting_policy == "worst" or pool.settings.allow_heterogeneous_fits:
        del for_whom[1:]  # with more room than it was promised, the first may spread so that the next ones find less
    assert {request.allocation_id for request in for_whom} <= starts


def test_nobody_leaves_for_one_whose_room_goes_to_a_better_one_that_fits_already() -> None:
    """That one only waits for the next decision, because nothing starts while slots are asked back."""
    pool = pool_of(2, 2, settings={"preemption": True})
    hold(pool, "v", "a0", 0, priority=90)
    hold(pool, "w", "a1", 0, priority=80)
    ask(pool, 2, "first", priority=1)
    ask(pool, 1, "second", priority=2)
    ask(pool, 2, "third", priority=3)
    assert decided(pool) == (set(), {"v"})
    assert pool.release("v")
    assert decided(pool) == ({"first", "second"}, set())


def test_what_its_own_cap_keeps_waiting_uses_up_nothing_of_a_quota() -> None:
    pool = pool_of(8, settings={"quotas": {"users": {"ann": 4}, "borrowing": False}})
    for number in range(10):
        ask(pool, 1, f"capped.{number}", job="capped", user="ann", max_slots=1, position=1)
    ask(pool, 1, "other", user="ann", position=2)
    assert started(pool) == ["capped.0", "other"]


def test_what_the_pool_can_not_hold_uses_up_nothing_of_a_quota() -> None:
    pool = pool_of(2, 2, settings={"quotas": {"users": {"ann": 3}, "borrowing": False}})
    ask(pool, 3, "never", user="ann", position=1)
    ask(pool, 1, "small", user="ann", position=2)
    assert started(pool) == ["small"]


@given(contended(all_settings(scheduler="priority")))
@settings(max_examples=150, deadline=None)
def test_the_pool_comes_to_rest_when_those_who_left_ask_again(pool: Pool) -> None:
    """Else jobs would take each other's slots for ever, and none would get anywhere."""
    comes_to_rest(pool)


@given(contended(all_settings(scheduler="fair_share"), alike=True))
@settings(max_examples=150, deadline=None)
def test_the_pool_comes_to_rest_when_shares_are_fair(pool: Pool) -> None:
    comes_to_rest(pool)


def comes_to_rest(pool: Pool) -> None:
    note(told_of(pool))
    checked = Checked(pool)
    for _ in range(60):
        for request in leave_all(pool):
            pool.ask(request)
        decision = checked.decide()
        if not decision.starts and not decision.leaves:
            return
    raise AssertionError(f"it never does: {decision}")
