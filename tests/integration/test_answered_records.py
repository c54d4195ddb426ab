"""The record of a decision goes with the answer to who reported: nothing is lost, whoever fails to carry it out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import select
from temporalio.api.enums.v1 import EventType
from temporalio.service import RPCError, RPCStatusCode

from activities.messenger import Messenger
from api.settings import TemporalSettings
from api.temporal.commands import Commands
from api.temporal.connection import Connection
from database.experiment_records import record_experiment
from database.models import Experiment, SearchDecision
from database.models import Trial as TrialRow
from tests.kit.platform import Platform, platform
from tests.kit.servers import temporal_server
from tests.kit.simulated import IdleTrial
from workers.orchestrator import WORKFLOWS
from workflows import names
from workflows.lifecycle.trial import TrialState
from workflows.messages import OperationReport, RecordExperiment, Timing, TrialEnded, TrialStarts
from workflows.trial import Trial

TRIALS, LENGTH = 4, 3
#: After so long a search is not busy: see `workflows/trial_reports.py`.
QUIET_S = 0.15


class Sender:
    """A process of the API that reports for trials."""

    def __init__(self, running: Platform, experiment_id: int) -> None:
        self._is_away = False  # the database, for this process
        self.tried: list[RecordExperiment] = []
        self._database, self._experiment_id = running.database, experiment_id
        address = running.temporal.service_client.config.target_host
        self._commands = Commands(Connection(TemporalSettings(temporal_address=address)), Timing(), self._write)

    async def _write(self, record: RecordExperiment) -> None:
        self.tried.append(record)
        if self._is_away:
            raise OSError("the database is away")
        await asyncio.to_thread(record_experiment, self._database, record)

    async def complete(self, request_id: str) -> None:
        """A trial has trained to its only length."""
        report = OperationReport(request_id=request_id, length=LENGTH, metric=0.5)
        assert await self._commands.complete_operation(self._experiment_id, report) is None

    async def fail(self, request_id: str) -> None:
        """The same, but this process cannot write what it is answered."""
        self._is_away = True
        with pytest.raises(OSError, match="the database is away"):
            await self.complete(request_id)
        self._is_away = False

    async def leave(self, trial_id: int) -> None:
        """A trial's container leaves."""
        await self._commands.signal(names.trial_workflow(trial_id), "leave", None)


class Ender(Messenger):
    """An orchestrator that tells of the ends of trials."""

    def __init__(self, running: Platform, experiment_id: int, *, waiting: int = 1) -> None:
        self._is_dying = False
        self.started: list[TrialStarts] = []
        self._database, self._experiment_id = running.database, experiment_id
        super().__init__(running.temporal, self._record, waiting=waiting)

    async def _record(self, record: RecordExperiment) -> None:
        await asyncio.to_thread(record_experiment, self._database, record)

    async def start_trials(self, starts: TrialStarts, ids: dict[str, int]) -> None:
        """As orchestrators do, if it does not die before."""
        self.started.append(starts)
        if self._is_dying:
            raise OSError("the orchestrator died")
        await super().start_trials(starts, ids)

    async def end(self, trial: tuple[int, str]) -> None:
        """A trial has ended, and its record is written."""
        with self._database.read() as session:
            revision = session.get_one(Experiment, self._experiment_id).revision
        ended = TrialEnded(request_id=trial[1], trial_id=trial[0], state=TrialState.COMPLETED, recorded=revision)
        await self.trial_ended(self._experiment_id, ended)

    async def fail(self, trial: tuple[int, str]) -> None:
        """The same, but this process dies when it has written what it is answered."""
        self._is_dying = True
        with pytest.raises(OSError, match="the orchestrator died"):
            await self.end(trial)
        self._is_dying = False

    @property
    def started_ids(self) -> list[list[int]]:
        """Trials that it was to start, each time."""
        return [[trial.trial_id for trial in starts.trials] for starts in self.started]


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Platform]:
    idle = [IdleTrial if each is Trial else each for each in WORKFLOWS]
    with temporal_server(tmp_path) as address:
        async with platform(
            temporal_address=address, database_url=f"sqlite:///{tmp_path}/db", folder=tmp_path, pool="default",
            workflows=idle,
        ) as its:  # fmt: skip
            yield its


async def begun(running: Platform, at_once: int = TRIALS) -> tuple[int, list[tuple[int, str]]]:
    """A search whose first trials have begun, its id and theirs."""
    searcher = {"name": "random", "metric": "x", "max_length": LENGTH, "max_trials": TRIALS}
    searcher |= {"max_concurrent_trials": at_once}
    wanted = {"entrypoint": "true", "hyperparameters": {}, "searcher": searcher}
    experiment_id = await running.create(wanted, {"train.py": ""})

    async def all_there() -> bool:
        return len(open_trials(running, experiment_id)) == at_once and await _records(running, experiment_id) == 1

    await running.until(all_there)
    return experiment_id, open_trials(running, experiment_id)


def open_trials(running: Platform, experiment_id: int) -> list[tuple[int, str]]:
    """By the records: those that have a length to train to."""
    is_open = TrialRow.experiment_id == experiment_id, TrialRow.operation_length.is_not(None)
    with running.database.read() as session:
        return list(session.execute(select(TrialRow.id, TrialRow.request_id).where(*is_open)).tuples())


def decided(running: Platform, experiment_id: int) -> list[int]:
    """The numbers of the decisions that are recorded."""
    mine = SearchDecision.experiment_id == experiment_id
    with running.database.read() as session:
        return list(session.scalars(select(SearchDecision.number).where(mine).order_by(SearchDecision.number)))


async def _records(running: Platform, experiment_id: int) -> int:
    """How many records of an experiment its workflow has had written."""
    history = await running.temporal.get_workflow_handle(f"experiment-{experiment_id}").fetch_history()
    written = [each for each in history.events if each.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED]
    return len(written)


async def test_what_follows_on_a_report_needs_no_activity_until_the_search_ends(running: Platform) -> None:
    experiment_id, trials = await begun(running)
    sender = Sender(running, experiment_id)
    for trial_id, request_id in trials:
        await sender.complete(request_id)
        assert (trial_id, request_id) not in open_trials(running, experiment_id)
    assert [len(record.decisions) for record in sender.tried] == [1] * TRIALS, "what was written is not sent again"
    for trial_id, _ in trials[:-1]:
        await sender.leave(trial_id)

    async def all_but_one_have_left() -> bool:
        return len(decided(running, experiment_id)) == 1 + TRIALS + TRIALS - 1

    await running.until(all_but_one_have_left)
    assert await _records(running, experiment_id) == 1
    await sender.leave(trials[-1][0])
    assert (await running.finish(experiment_id))["state"] == "STATE_COMPLETED"
    assert decided(running, experiment_id) == list(range(1, 1 + 1 + 2 * TRIALS))


async def test_sender_that_could_not_write_reports_again_and_gets_it_again(running: Platform) -> None:
    experiment_id, trials = await begun(running)
    sender = Sender(running, experiment_id)
    for _, request_id in trials[:2]:
        await sender.fail(request_id)
    assert open_trials(running, experiment_id) == trials
    await sender.complete(trials[0][1])
    assert open_trials(running, experiment_id) == trials[2:], "with what others could not write"
    assert len({record.revision for record in sender.tried}) == 2, "a repeat decides nothing"
    assert await _records(running, experiment_id) == 1


async def test_record_that_was_never_written_is_part_of_the_next_whoever_writes_that(running: Platform) -> None:
    experiment_id, trials = await begun(running)
    dying, other = Sender(running, experiment_id), Sender(running, experiment_id)
    await dying.fail(trials[0][1])
    await other.complete(trials[1][1])
    assert open_trials(running, experiment_id) == trials[2:]
    await dying.fail(trials[2][1])
    await running.command(experiment_id, "pause")
    await running.until_state(experiment_id, "PAUSED")
    assert open_trials(running, experiment_id) == trials[3:]
    assert decided(running, experiment_id) == [1, 2, 3, 4]


async def test_record_that_comes_late_undoes_nothing(running: Platform) -> None:
    experiment_id, trials = await begun(running)
    slow, other = Sender(running, experiment_id), Sender(running, experiment_id)
    await slow.fail(trials[0][1])
    for _, request_id in trials[1:]:
        await other.complete(request_id)
    for trial_id, _ in trials:
        await other.leave(trial_id)
    ended = await running.finish(experiment_id)
    record_experiment(running.database, slow.tried[0])
    after = await running.experiment(experiment_id)
    assert (after["state"], after["progress"]) == (ended["state"], ended["progress"]) == ("STATE_COMPLETED", 1)
    assert open_trials(running, experiment_id) == []


async def statuses(running: Platform, trial_ids: list[int]) -> list[str]:
    """Of the workflows of trials."""
    found: list[str] = []
    for trial_id in trial_ids:
        try:
            described = await running.temporal.get_workflow_handle(names.trial_workflow(trial_id)).describe()
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            found.append("none")
        else:
            assert described.status is not None
            found.append(described.status.name.lower())
    return found


async def test_trial_that_follows_on_an_end_needs_no_activity(running: Platform) -> None:
    experiment_id, trials = await begun(running, at_once=2)
    first = trials[0][0]
    sender = Ender(running, experiment_id)
    await sender.end(trials[0])
    assert open_trials(running, experiment_id)[1:] != trials[1:], "it is recorded"
    await asyncio.sleep(QUIET_S)
    await sender.end(trials[1])
    assert sender.started_ids == [[first + 2], [first + 3]], "what was started is not started again"
    assert await statuses(running, [first + 2, first + 3]) == ["running", "running"]
    assert await _records(running, experiment_id) == 1


async def test_trials_that_follow_on_ends_in_a_row_are_started_by_an_activity(running: Platform) -> None:
    experiment_id, trials = await begun(running, at_once=2)
    sender = Ender(running, experiment_id)
    for trial in trials:
        await sender.end(trial)

    async def both_run() -> bool:
        return await statuses(running, [trials[0][0] + 2, trials[0][0] + 3]) == ["running", "running"]

    await running.until(both_run)
    assert sender.started_ids == [[trials[0][0] + 2]]
    assert await _records(running, experiment_id) == 2


async def test_orchestrator_that_dies_before_it_starts_a_trial_is_told_of_it_again(running: Platform) -> None:
    experiment_id, trials = await begun(running, at_once=2)
    next_ones = [trials[0][0] + 2, trials[0][0] + 3]
    dying, other = Ender(running, experiment_id), Ender(running, experiment_id)
    await dying.fail(trials[0])
    assert await statuses(running, next_ones) == ["none", "none"]
    await other.end(trials[1])
    assert other.started_ids == [next_ones]
    assert [trial.is_repeat for trial in other.started[0].trials] == [True, False]
    assert await statuses(running, next_ones) == ["running", "running"]
    assert await _records(running, experiment_id) == 1
    await dying.end(trials[0])
    assert decided(running, experiment_id) == [1, 2, 3], "a repeat decides nothing"


@pytest.mark.parametrize("waiting", [1, 0], ids=["update", "signal"])
async def test_end_that_is_told_again_starts_what_follows_and_nothing_else_would(
    running: Platform, waiting: int
) -> None:
    experiment_id, [trial] = await begun(running, at_once=1)
    await Ender(running, experiment_id).fail(trial)
    await Ender(running, experiment_id, waiting=waiting).end(trial)

    async def is_started() -> bool:
        return await statuses(running, [trial[0] + 1]) == ["running"]

    await running.until(is_started)
    assert await _records(running, experiment_id) == 2, "by an activity"


async def test_trial_that_no_sender_started_is_started_with_the_next_record(running: Platform) -> None:
    experiment_id, trials = await begun(running, at_once=2)
    next_one = trials[0][0] + 2
    await Ender(running, experiment_id).fail(trials[0])
    await Sender(running, experiment_id).complete(trials[1][1])  # the API starts none
    assert await statuses(running, [next_one]) == ["none"]
    await running.command(experiment_id, "pause")
    await running.until_state(experiment_id, "PAUSED")
    assert await statuses(running, [next_one]) == ["running"]
    await running.command(experiment_id, "kill")
    assert (await running.finish(experiment_id))["state"] == "STATE_CANCELED"


async def test_trial_that_is_started_late_does_not_run_once_more(running: Platform) -> None:
    experiment_id, trials = await begun(running, at_once=2)
    next_one = trials[0][0] + 2
    slow = Ender(running, experiment_id)
    await slow.fail(trials[0])
    await running.command(experiment_id, "kill")
    assert (await running.finish(experiment_id))["state"] == "STATE_CANCELED"
    await slow.start_trials(slow.started[0], {})
    assert await statuses(running, [next_one]) == ["completed"]


async def test_numbers_that_are_reserved_are_no_other_searches(running: Platform) -> None:
    one, first = await begun(running, at_once=2)
    other, second = await begun(running, at_once=2)
    ids = [trial_id for trial_id, _ in first + second]
    assert ids == [ids[0], ids[0] + 1, ids[0] + TRIALS, ids[0] + TRIALS + 1]
    for experiment_id, trials in ((other, second), (one, first)):
        for trial in trials:
            await Ender(running, experiment_id).end(trial)
        assert sorted(await _ids(running, experiment_id)) == [trials[0][0] + number for number in range(TRIALS)]


async def _ids(running: Platform, experiment_id: int) -> list[int]:
    return [trial["id"] for trial in await running.trials(experiment_id)]
