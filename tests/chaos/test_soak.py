"""Experiments of every kind while each part of the cluster, and the training itself, is killed again and again.

The seed (`UNDETERRED_CHAOS_SEED`) gives the order of victims and the pauses between them. Afterwards everything has ended as
it had to, everything is counted once, every decision follows from its events, and nothing is left over.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import signal
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pytest
from sqlalchemy import NullPool, create_engine, text

from tests.chaos.client import Client, until
from tests.chaos.leftovers import containers, held_slots, open_files, open_workflows, processes, temporal
from tests.chaos.scale import IS_LONG, chosen, seed
from tests.kit.embedded import PARTS, Embedded
from tests.kit.scripts import EPOCHS, TRAIN, config
from tests.kit.servers import Postgres, restartable_postgres
from workflows.searchers import OperationCompleted, Search, Started, TrialClosed
from workflows.searchers.decisions import Decision
from workflows.searchers.messages import Close, Create, TrainTo
from workflows.searchers.replay import parse_lines, replay

EXPERIMENTS = chosen(8, 100)
SLOTS = 3
#: Restarts cost a test's time only.
TIMING = {"restart_backoff_s": 0.2, "restart_backoff_cap_s": 2.0, "kill_repeat_s": 3.0}
#: Who is killed how often.
VICTIMS = {"api": 3, "orchestrator": 4, "agent": 3, "temporal": 2, "training": 4, "all": 1}
#: A process that is killed by us is to the cluster one that failed: user code gets another try.
PATIENT = {"max_restarts": 50}

FAILS = '''
import determined as det
from determined import core
if det.get_cluster_info().trial.hparams["quality"] < 0.5:
    raise ValueError("quality is too low")
''' + TRAIN  # fmt: skip
OUT_OF_MEMORY = '''
import os, signal
from determined import core
with core.init() as context:
    context.train.report_validation_metrics(1, {"accuracy": 1.0})
os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does it
'''  # fmt: skip
HANGS = '''
import threading
from determined import core
with core.init() as context:
    context.train.report_validation_metrics(1, {"accuracy": 1.0})
    threading.Event().wait()
'''  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """A sort of experiment, and how it must end whatever is killed."""

    script: str
    config: dict[str, Any]
    state: str = "COMPLETED"
    is_sequential: bool = False  # there is one order of decisions only
    is_killed: bool = False  # by its user, once it runs


def _config(searcher: dict[str, Any], **more: Any) -> dict[str, Any]:
    wanted = config(searcher, **{**PATIENT, **more})
    wanted["hyperparameters"]["sleep"] = 0.2
    wanted["searcher"] = {key: value for key, value in wanted["searcher"].items() if value is not None}
    return wanted


_ASHA = {"name": "async_halving", "max_trials": 4, "num_rungs": 2, "divisor": 2, "max_length": 8}
_BY_REPORTS = {"name": "adaptive_asha", "max_length": None, "max_time": 9, "time_metric": "epoch", "max_trials": 3}
KINDS = {
    "single": Kind(TRAIN, _config({"max_length": 12}), is_sequential=True),
    "asha": Kind(TRAIN, _config({**_ASHA, "max_concurrent_trials": 1}), is_sequential=True),
    "random": Kind(TRAIN, _config({"name": "random", "max_trials": 3, "max_length": 8, "max_concurrent_trials": 2})),
    "hangs": Kind(HANGS, _config({}), state="CANCELED", is_killed=True),
    "asha of two": Kind(TRAIN, _config({**_ASHA, "max_concurrent_trials": 2})),
    "some fail": Kind(
        FAILS, _config({"name": "random", "max_trials": 3, "max_length": 4, "max_concurrent_trials": 1}, max_restarts=4)
    ),
    "asha by reports": Kind(EPOCHS, _config({**_BY_REPORTS, "max_concurrent_trials": 2})),
    "out of memory": Kind(OUT_OF_MEMORY, _config({}, max_restarts=2), state="ERROR"),
}


@dataclass
class Chaos:
    """Kills by the seed's schedule, and has what was killed started again."""

    cluster: Embedded
    records: _Records
    chance: random.Random
    database: Postgres | None
    services: Services | None  # of a Temporal that the cluster did not bring along
    killed: set[str] = field(default_factory=set[str])  # allocations
    kills: Counter[str] = field(default_factory=Counter[str])
    starts_s: list[float] = field(default_factory=list[float])

    async def run(self, over: asyncio.Event) -> None:
        """Until it is over; ends what it does then."""
        victims = (
            dict(VICTIMS) | ({"database": 5} if self.database else {}) | ({"temporal": 16} if self.services else {})
        )
        for number in itertools.count(1):
            pause, which = self.chance.uniform(1.0, 3.0), self.chance.random()
            (victim,) = self.chance.choices(list(victims), list(victims.values()))
            if self.services is not None and not set(self.services.names) <= self.kills.keys():
                victim = "temporal"  # a short run may have few kills: each of these services is among them
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), pause)
                return
            print(f"kill {number}: after {pause:.1f} s {victim}", flush=True)
            await asyncio.to_thread(self._kill, victim, which)

    def _kill(self, victim: str, which: float) -> None:
        self.kills[victim] += 1
        if victim == "training":
            live = self.records.live()
            training = sorted(each for each in self.cluster.training().items() if each[0] in live)
            if training:
                allocation_id, pid = training[int(which * len(training))]
                self.killed.add(allocation_id)
                with contextlib.suppress(ProcessLookupError):  # it was over
                    os.kill(pid, signal.SIGKILL)
            return
        if victim == "database":
            assert self.database is not None
            self.database.kill()
            self.database.start()
            return
        parts = PARTS if victim == "all" else (victim,)
        if self.services is not None and "temporal" in parts:
            parts = tuple(part for part in parts if part != "temporal")
            left = [name for name in self.services.names if name not in self.kills] or self.services.names
            name = left[int(which * len(left))]  # each once before one has its second turn
            self.kills[name] += 1
            self.services.kill(name)
            self.services.start(name)
        for part in parts:
            os.kill(self.cluster.pid(part), signal.SIGKILL)
        if parts:
            self.starts_s.append(self.cluster.up())


class Services(Protocol):
    """The services of a Temporal, which can be killed one by one."""

    @property
    def names(self) -> Sequence[str]:
        """All of them."""
        ...

    def kill(self, name: str) -> None:
        """SIGKILL to one."""

    def start(self, name: str) -> None:
        """Start one."""


@pytest.fixture(params=["sqlite", "postgres"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Embedded, Postgres | None]]:
    """An embedded cluster, and its database if that is a server of its own."""
    with contextlib.ExitStack() as stack:
        database = stack.enter_context(restartable_postgres()) if request.param == "postgres" else None
        environment = {"UNDETERRED_TIMING": json.dumps(TIMING)}
        if database:
            environment["UNDETERRED_DATABASE_URL"] = database.url
        embedded = Embedded(tmp_path, slots=SLOTS, environment=environment)
        try:
            yield embedded, database
        finally:
            embedded.run("down")


@pytest.mark.timeout(chosen(420, 7200))
async def test_everything_ends_as_it_must_when_everything_is_killed_at_random(
    cluster: tuple[Embedded, Postgres | None],
) -> None:
    embedded, database = cluster
    await undergo(embedded, database, 6 if database and not IS_LONG else EXPERIMENTS)


async def undergo(
    embedded: Embedded, database: Postgres | None, count: int, services: Services | None = None
) -> Counter[str]:
    """Start a cluster, have so many experiments run while it is disturbed, and check everything; how often who was killed.

    Args:
        embedded: The cluster.
        database: Its own server, which is killed too; None: its file.
        count: Of experiments, which are of the kinds in turn.
        services: Of its Temporal, if that is not its own.
    """
    records = _Records(embedded)
    chaos = Chaos(embedded, records, random.Random(seed()), database, services)
    await asyncio.to_thread(embedded.up)
    kinds = [list(KINDS)[number % len(KINDS)] for number in range(count)]
    async with Client(embedded) as client:
        began = time.monotonic()
        over = asyncio.Event()
        killing = asyncio.create_task(chaos.run(over))
        try:
            experiments = await asyncio.gather(*(_experiment(client, KINDS[kind]) for kind in kinds))
        finally:
            over.set()
            await killing
        took = time.monotonic() - began
        kills = chaos.kills.total()
        print(f"{count} experiments, {took:.0f} s, {kills} kills ({dict(chaos.kills)}), one every {took / kills:.1f} s; "
              f"up again after {statistics.median(chaos.starts_s):.1f} s (median)")  # fmt: skip
        assert kills >= count / 2, "it was to be disturbed"
        for kind, (experiment_id, state) in zip(kinds, experiments, strict=True):
            is_cut = records.is_cut_short(experiment_id, chaos.killed)
            assert state == KINDS[kind].state or is_cut, f"experiment {experiment_id}, {kind}, is {state}"
            await _check_decisions(client, experiment_id, is_sequential=KINDS[kind].is_sequential and not is_cut)
        records.check()
        await _check_leftovers(embedded)
        if services is None:  # of others' processes nothing is counted
            await _check_growth(embedded, client)
    return chaos.kills


async def _experiment(client: Client, kind: Kind) -> tuple[int, str]:
    """Create one and see it to its end."""
    experiment_id = await client.create(kind.config, kind.script)
    if kind.is_killed:
        await client.until_steps(experiment_id, 1, chosen(300, 6000))
        await client.ask("POST", f"/api/v1/experiments/{experiment_id}/kill")
    return experiment_id, await client.until_over(experiment_id, chosen(300, 6000))


async def _check_decisions(client: Client, experiment_id: int, *, is_sequential: bool) -> None:
    response = await client.http.get(f"/api/v1/experiments/{experiment_id}/search/history")
    header, decisions = parse_lines(response.text.splitlines())
    difference = replay(header.new_search(), decisions)
    assert difference is None, f"experiment {experiment_id}: {difference}"
    if is_sequential:
        expected = [_decided(each) for each in _undisturbed(header.new_search()) if _decided(each)]
        assert [_decided(each) for each in decisions if _decided(each)] == expected, f"experiment {experiment_id}"


def _decided(decision: Decision) -> str:
    """What was decided and because of what; empty if nothing was. Whose container is gone first is up to chance."""
    if not decision.actions and not decision.verdicts:
        return ""
    if isinstance(decision.event, TrialClosed):
        return repr(decision.actions)
    return decision.model_copy(update={"number": 0}).canonical().decode()


def _undisturbed(search: Search) -> list[Decision]:
    """The decisions of a search of one trial at a time that nobody disturbs, with the metric of `TRAIN`."""
    qualities: dict[str, float] = {}
    events: list[Any] = [Started()]
    decisions: list[Decision] = []
    while events:
        decision = search.decide(events.pop(0))
        decisions.append(decision)
        for action in decision.actions:
            if isinstance(action, Create):
                qualities[action.request_id] = action.hparams["quality"]
            elif isinstance(action, TrainTo):
                metric = qualities[action.request_id] * action.length
                events.append(OperationCompleted(request_id=action.request_id, length=action.length, metric=metric))
            elif isinstance(action, Close):
                events.append(TrialClosed(request_id=action.request_id))
    return decisions


class _Records:
    """What the database says when all is over."""

    def __init__(self, embedded: Embedded) -> None:
        default = f"sqlite:///{embedded.folder / 'undeterred.db'}"
        self._url = embedded.environment.get("UNDETERRED_DATABASE_URL", default)

    def rows(self, query: str) -> list[Any]:
        """The rows of a query."""
        engine = create_engine(self._url, poolclass=NullPool)
        with engine.connect() as connection:
            return list(connection.execute(text(query)))

    def live(self) -> set[str]:
        """Allocations whose trial the search still counts on."""
        query = "SELECT a.id FROM allocations a JOIN trials t ON t.id = a.trial_id WHERE NOT t.is_closed AND a.ended_at IS NULL"
        return {row.id for row in self.rows(query)}

    def is_cut_short(self, experiment_id: int, killed: set[str]) -> bool:
        """Whether a process was killed just as it left, after all that was wanted of it: such a trial has failed."""
        failed = self.rows(
            "SELECT a.id FROM allocations a JOIN trials t ON t.id = a.trial_id AND t.run_id = a.run_id "
            f"WHERE t.experiment_id = {experiment_id} AND t.state = 'ERROR' AND t.is_closed AND a.end_cause = 'signal'"
        )
        return any(row.id in killed for row in failed)

    def check(self) -> None:
        """Everything is over, and counted once."""
        assert self.rows("SELECT id FROM experiments WHERE ended_at IS NULL") == []
        trials = self.rows("SELECT id, experiment_id, state, total_batches, summary, ended_at FROM trials ORDER BY id")
        assert {trial.state for trial in trials} <= {"COMPLETED", "CANCELED", "ERROR"}
        assert all(trial.ended_at for trial in trials)
        assert self.rows("SELECT id FROM allocations WHERE ended_at IS NULL") == []
        assert self.rows("SELECT id FROM outbox WHERE sent_at IS NULL") == []
        validations = 0
        for trial in trials:
            reports = self.rows(
                f"SELECT total_batches FROM metrics WHERE trial_id = {trial.id} AND group_name = 'validation' "
                f"AND NOT archived ORDER BY total_batches"
            )
            assert [row.total_batches for row in reports] == list(range(1, trial.total_batches + 1)), trial
            summary = json.loads(trial.summary) if isinstance(trial.summary, str) else trial.summary
            counted = summary["validation"]["accuracy"]["count"] if reports else 0
            assert counted == len(reports), f"trial {trial.id}: {counted} counted, {len(reports)} reported"
            validations += counted
        steps = self.rows("SELECT count(*) AS n FROM metrics WHERE archived AND group_name = 'validation'")[0].n
        restarts = self.rows("SELECT sum(restarts) AS n FROM trials")[0].n
        causes = self.rows("SELECT end_cause, count(*) AS n FROM allocations GROUP BY end_cause ORDER BY end_cause")
        print(f"{len(trials)} trials, {restarts} restarts, {validations} validations counted once, {steps} of runs that "
              f"were killed before a checkpoint put aside; ends: {dict(map(tuple, causes))}")  # fmt: skip
        assert {cause for cause, _ in causes} <= {
            "out_of_operations", "exit_zero", "user_code", "signal", "killed", "preempted", "out_of_memory"
        }, "no allocation ended for a fault of the cluster"  # fmt: skip


async def _check_leftovers(embedded: Embedded) -> None:
    server = await temporal(embedded)
    assert await held_slots(server) == []
    await asyncio.to_thread(embedded.until, lambda: not containers(embedded), 60, "the agent has tidied up")
    await asyncio.to_thread(embedded.until, lambda: not processes(embedded), 30, "no process is left")

    async def all_closed() -> bool:
        return await open_workflows(server) == []

    await until(all_closed, 60, "every workflow is closed")


async def _check_growth(embedded: Embedded, client: Client) -> None:
    """Files and connections do not grow with the work done. Pools grow, but not with every round."""
    short = Kind(TRAIN, config({"max_length": 2}))
    at_once = 8
    counts: list[dict[str, int]] = []
    for _ in range(chosen(3, 6)):
        await asyncio.gather(*(_experiment(client, short) for _ in range(at_once)))
        await asyncio.to_thread(embedded.until, lambda: not containers(embedded), 60, "the agent has tidied up")
        counts.append(open_files(embedded))
    print(f"open files after each {at_once} more experiments: {counts}")
    for part in counts[0]:
        growth = [later[part] - earlier[part] for earlier, later in itertools.pairwise(counts)]
        assert min(growth) < at_once / 2, f"{part} leaves files open with each experiment: {counts}"
