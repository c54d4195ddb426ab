"""Twenty trials that report at the same moment: each gets its next length, whatever the orchestrator goes through."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

from sqlalchemy import select

from api.settings import TemporalSettings
from api.temporal.commands import Commands
from api.temporal.connection import Connection
from database.experiment_records import record_experiment
from database.models import Trial as TrialRow
from tests.kit.platform import Platform, platform
from tests.kit.servers import temporal_server
from tests.kit.simulated import IdleTrial
from workers.orchestrator import WORKFLOWS
from workflows import names
from workflows.messages import OperationReport, Timing
from workflows.trial import Trial

TRIALS, RUNGS = 20, 6


async def test_each_trial_gets_its_next_length_when_all_report_at_once(tmp_path: Path) -> None:
    idle = [IdleTrial if each is Trial else each for each in WORKFLOWS]
    # nothing cached: each task of the workflow is done from the start, as after the death of the orchestrator
    with temporal_server(tmp_path) as address:
        async with platform(
            temporal_address=address, database_url=f"sqlite:///{tmp_path}/db", folder=tmp_path, pool="default",
            workflows=idle, cached=0,
        ) as running:  # fmt: skip
            searcher = {
                "name": "async_halving", "metric": "x", "stop_once": True, "num_rungs": RUNGS, "divisor": 1.2,
                "max_length": 100, "max_trials": TRIALS, "max_concurrent_trials": TRIALS,
            }  # fmt: skip
            wanted = {"entrypoint": "true", "hyperparameters": {}, "searcher": searcher}
            experiment_id = await running.create(wanted, {"train.py": ""})

            async def all_there() -> bool:
                return len(_open(running, experiment_id)) == TRIALS

            await running.until(all_there)
            connection = Connection(TemporalSettings(temporal_address=address))
            commands = Commands(connection, Timing(), partial(asyncio.to_thread, record_experiment, running.database))
            operations: dict[str, int] = dict(_open(running, experiment_id))
            went_on = 0
            while operations:
                reports = [OperationReport(request_id=r, length=n, metric=1.0) for r, n in operations.items()]
                answers = await asyncio.gather(*(commands.complete_operation(experiment_id, each) for each in reports))
                before = operations
                operations = {r: n for r, n in zip(before, answers, strict=True) if n is not None}
                assert all(length > before[request_id] for request_id, length in operations.items())
                went_on += len(operations)

                async def recorded(expected: dict[str, int] = operations) -> bool:
                    return dict(_open(running, experiment_id)) == expected

                await running.until(recorded)
            assert went_on >= TRIALS, "most trials are answered with what they do next"
            for trial in await running.trials(experiment_id):
                await commands.signal(names.trial_workflow(trial["id"]), "leave", None)
            assert (await running.finish(experiment_id))["state"] == "STATE_COMPLETED"


def _open(running: Platform, experiment_id: int) -> list[tuple[str, int]]:
    """(request id, length) of each trial that has one to train to."""
    with running.database.read() as session:
        rows = session.execute(
            select(TrialRow.request_id, TrialRow.operation_length).where(
                TrialRow.experiment_id == experiment_id, TrialRow.operation_length.is_not(None)
            )
        )
        return [(request_id, length) for request_id, length in rows.tuples() if length is not None]
