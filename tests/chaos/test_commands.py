"""Random commands from 20 users at once against a real cluster: what each is told fits some legal order of all of them.

Not a `RuleBasedStateMachine` of hypothesis: that one runs its rules one after the other, and what is to be found here is in
between. A seed takes its place (`UNDETERRED_CHAOS_SEED`), and a check for linearizability the place of its model.

To add a command: a line in `COMMANDS`, and its effect in `tests/chaos/linear.py`.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.client import Client, stored_state, until
from tests.chaos.leftovers import containers, held_slots, open_workflows, processes, temporal
from tests.chaos.linear import Call, explain
from tests.chaos.scale import chosen, seed
from tests.kit.embedded import Embedded
from tests.kit.scripts import TRAIN, config
from workflows.lifecycle.experiment import ExperimentState

CLIENTS = 20
TOTAL = chosen(100, 1000)
#: Experiments that are not over yet, of which the clients pick one each time.
LIVE = 6
#: How often each is drawn. Ends are rare, so that experiments live to see other commands.
COMMANDS = {"pause": 30, "activate": 30, "cancel": 5, "kill": 5, "archive": 8, "unarchive": 6, "continue": 10}
#: Where a command has a path of its own: path and body.
OWN_PATHS = {"continue": ("/api/v1/experiments/continue", "id")}
#: What no experiment has, or no cluster: status of the answer.
NONSENSE = {"/api/v1/experiments/{id}/explode": 404, "/api/v1/experiments/999999/kill": 404}


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Embedded]:
    with Embedded(tmp_path, slots=3).stopped() as cluster:
        yield cluster


class _Storm:
    """Users, and what they were told."""

    def __init__(self, client: Client, chance: int) -> None:
        self._client = client
        self._seed = chance
        self._live: list[int] = []
        self._creating = asyncio.Lock()
        self._over: list[int] = []
        self._continued: Counter[int] = Counter()  # requests to continue an experiment
        self._continuing: Counter[int] = Counter()  # those under way
        self.short: set[int] = set()  # those that end by themselves
        self.calls: dict[int, list[Call]] = defaultdict(list)
        self.answers: Counter[tuple[str, str]] = Counter()
        self.waits: list[float] = []

    async def user(self, number: int) -> None:
        """One user: thinks, commands, looks."""
        chance = random.Random(f"{self._seed}-{number}")
        for _ in range(TOTAL // CLIENTS):
            await asyncio.sleep(chance.expovariate(1 / 0.6))  # thinks
            experiment_id = await self._pick(chance)
            if chance.random() < 0.06:
                await self._say_nonsense(chance, experiment_id)
                continue
            (command,) = chance.choices(list(COMMANDS), list(COMMANDS.values()))
            await self._command(experiment_id, command)
            if chance.random() < 0.7:
                await self._look(experiment_id)

    async def end(self) -> None:
        """Kill what is not over, and wait until all is."""
        for experiment_id in list(self._live):
            await self._command(experiment_id, "kill")
        for experiment_id in [*self._live, *self._over]:
            await self._client.until_over(experiment_id, 90)
            await self._look(experiment_id)

    async def _pick(self, chance: random.Random) -> int:
        async with self._creating:
            while len(self._live) < LIVE:
                length = chance.choice((3, 10_000, 10_000))
                searcher = {"name": "random", "max_trials": 2, "max_concurrent_trials": 2, "max_length": length}
                wanted = config(searcher, hyperparameters={"sleep": 0.2})
                self._live.append(await self._client.create(wanted, TRAIN))
                self.short |= {self._live[-1]} if length == 3 else set()
        if self._over and chance.random() < 0.25:
            return chance.choice(self._over)
        return chance.choice(self._live)

    async def _command(self, experiment_id: int, command: str) -> None:
        began = time.monotonic()
        path, key = OWN_PATHS.get(command, (f"/api/v1/experiments/{experiment_id}/{command}", ""))
        continued = self._continued[experiment_id]
        is_continuing = bool(self._continuing[experiment_id])
        self._continued[experiment_id] += command == "continue"
        self._continuing[experiment_id] += command == "continue"
        response = await self._client.http.post(path, json={key: experiment_id} if key else None)
        self._continuing[experiment_id] -= command == "continue"
        ended = time.monotonic()
        self.waits.append(ended - began)
        if response.status_code == 503 and command != "continue":
            assert is_continuing or self._continued[experiment_id] > continued, response.text
            assert response.headers["retry-after"]  # it is recorded as active again, and its workflow is being started
            return
        assert response.status_code in (200, 400), f"{command} {experiment_id}: {response.status_code} {response.text}"
        outcome = "done" if response.status_code == 200 else "refused"
        if outcome == "refused":
            sentence = response.json()["message"]
            assert len(sentence.split()) >= 4, f"why is {command} refused? {sentence!r}"
        self.answers[command, outcome] += 1
        self.calls[experiment_id].append(Call(command, began, ended, outcome))
        if command in ("cancel", "kill"):
            self._move(experiment_id, self._live, self._over)
        if command == "continue" and outcome == "done":
            self._move(experiment_id, self._over, self._live)

    async def _look(self, experiment_id: int) -> None:
        began = time.monotonic()
        response = await self._client.http.get(f"/api/v1/experiments/{experiment_id}")
        ended = time.monotonic()
        assert response.status_code == 200, response.text
        shown = response.json()["experiment"]
        state = ExperimentState(stored_state(shown["state"]))
        assert not shown["archived"] or state.is_terminal, f"experiment {experiment_id} is archived and {state}"
        self.calls[experiment_id].append(Call("get", began, ended, state))
        if state.is_terminal:
            self._move(experiment_id, self._live, self._over)

    def _move(self, experiment_id: int, source: list[int], target: list[int]) -> None:
        if experiment_id in source:
            source.remove(experiment_id)
            target.append(experiment_id)

    async def _say_nonsense(self, chance: random.Random, experiment_id: int) -> None:
        path, status = chance.choice(list(NONSENSE.items()))
        response = await self._client.http.post(path.format(id=experiment_id))
        assert (response.status_code, bool(response.json()["message"])) == (status, True), response.text
        self.answers["nonsense", str(status)] += 1


@pytest.mark.timeout(chosen(300, 1800))
async def test_every_state_is_legal_when_twenty_users_command_at_once(embedded: Embedded) -> None:
    chance = seed()
    await asyncio.to_thread(embedded.up)
    async with Client(embedded) as client:
        storm = _Storm(client, chance)
        began = time.monotonic()
        await asyncio.gather(*(storm.user(number) for number in range(CLIENTS)))
        stormed = time.monotonic() - began
        await storm.end()
    waits = sorted(storm.waits)
    print(f"{len(waits)} commands to {len(storm.calls)} experiments from {CLIENTS} users in {stormed:.0f} s: "
          f"{dict(sorted((' '.join(key), count) for key, count in storm.answers.items()))}; "
          f"p50 {waits[len(waits) // 2]:.3f} s, p95 {waits[len(waits) * 95 // 100]:.3f} s")  # fmt: skip

    for experiment_id, calls in storm.calls.items():
        assert not (problem := explain(calls, may_complete=experiment_id in storm.short)), (
            f"experiment {experiment_id}: {problem}"
        )
    trials = embedded.rows("SELECT id, state, restarts FROM trials WHERE ended_at IS NULL OR restarts > 0")
    assert trials == [], "every trial is over, and a command is no failure of user code"
    assert embedded.rows("SELECT id FROM allocations WHERE ended_at IS NULL") == []
    server = await temporal(embedded)
    assert await held_slots(server) == []
    await asyncio.to_thread(embedded.until, lambda: not containers(embedded), 30, "the agent has tidied up")
    await asyncio.to_thread(embedded.until, lambda: not processes(embedded), 10, "no process is left")

    async def all_closed() -> bool:
        return await open_workflows(server) == []

    await until(all_closed, 60, "every workflow is closed")
