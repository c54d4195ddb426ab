"""The orchestrator: a Temporal worker with all workflows, and the activities that write records."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import structlog
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker, WorkflowRunner

from activities.announced import AnnouncedRecords, written
from activities.autoscaler import NodePrograms
from activities.campaigns import Campaigns
from activities.cleanup import Cleanup
from activities.heartbeats import Heartbeats
from activities.messenger import Messenger
from activities.records import Records
from activities.sampling import Sampling
from activities.webhooks import Webhooks
from api.health import Health, of_database, of_temporal
from api.temporal.connection import Connection
from database.experiment_records import record_experiment
from database.migrate import OtherSchema, is_current
from database.session import Database
from determined.common.outgoing import Outgoing
from workers.connect import GivenUp, connect, connection_of, ensure_search_attributes, following, mark_ready
from workers.connect import run as run_process
from workers.health import answering
from workers.importing.entry import ImportActivities
from workers.monitoring import runtime_of
from workers.settings import OrchestratorSettings
from workers.versioning import build_id, deployment, take_over
from workflows.agent import Agent
from workflows.autoscaler import Autoscaler
from workflows.campaign_run import CampaignRun
from workflows.cleanup import CheckpointGC, ExperimentDeletion, FileRemoval, NamespaceRemoval
from workflows.converter import RUNNER
from workflows.experiment import Experiment
from workflows.imports import Import
from workflows.messages import RecordExperiment
from workflows.names import ORCHESTRATOR_QUEUE
from workflows.resource_pool import ResourcePool
from workflows.task import Task
from workflows.trial import Trial
from workflows.webhooks import WebhookDelivery

log = structlog.get_logger()

#: Tasks of workflows at a time. One interpreter works on them: more would keep those that go first from being first.
_TASKS = 16
#: The SDK takes a workflow that computes for 2 s for a deadlock, and fails its task, each time anew. Reading the state
#: of 97,000 trials took that long on a busy machine. What limits a step is Temporal: `workflows.large.step_limit`.
_STANDS_STILL_S = 30

WORKFLOWS = [
    Experiment,
    Trial,
    Task,
    ResourcePool,
    Agent,
    Autoscaler,
    CheckpointGC,
    ExperimentDeletion,
    FileRemoval,
    NamespaceRemoval,
    WebhookDelivery,
    Import,
    CampaignRun,
]


def record_activities(
    database: Database,
    *,
    roots: Sequence[str] = (),
    outgoing: Outgoing | None = None,
    provider_folder: Path | None = None,
    threads: Executor,
    messenger: Messenger,
) -> list[object]:
    """The activities that write records, tell webhooks or run providers' programs, bound to a database."""
    records, cleanup, importing = Records(database), Cleanup(database, roots), ImportActivities(database)
    announced = AnnouncedRecords(records, messenger, threads)
    campaigns = Campaigns(database)
    return [
        Sampling().suggest,
        announced.record_experiment,
        announced.record_trial,
        records.record_task,
        records.task_use,
        records.note_task,
        records.open_allocation,
        records.request_preemption,
        announced.close_allocation,
        records.ended_jobs,
        records.record_agent,
        records.forget_agent,
        NodePrograms(provider_folder).run_provider,
        cleanup.claim_checkpoints,
        cleanup.mark_deleted,
        cleanup.erase_experiment,
        cleanup.note_deletion_failed,
        Webhooks(database, rules=outgoing).deliver_webhook,
        importing.begin_import,
        importing.import_records,
        importing.end_import,
        campaigns.begin_campaign_run,
        campaigns.record_campaign_run,
        campaigns.find_steps,
        campaigns.step_end,
    ]


async def _schema_is_current(database: Database, stop: asyncio.Event) -> None:
    """Wait for the API, which starts at the same time, to bring the schema up to date."""
    try:
        while not await asyncio.to_thread(is_current, database):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.1):
                    await stop.wait()
                return
    except OtherSchema as error:
        raise GivenUp(str(error)) from None


def new_worker(
    client: Client,
    database: Database,
    threads: ThreadPoolExecutor,
    *,
    workflows: Sequence[type] = WORKFLOWS,
    takes_over: bool = True,
    build: str = "",
    max_cached_workflows: int = 1000,
    roots: Sequence[str] = (),
    outgoing: Outgoing | None = None,
    provider_folder: Path | None = None,
    runner: WorkflowRunner = RUNNER,
    further: Callable[[Messenger], Sequence[Callable[..., Any]]] = lambda _: (),
) -> Worker:
    """The worker that an orchestrator is.

    `threads` write its records; `roots`: folders that the operator named for checkpoints; `takes_over`: see
    `workers/versioning.py`; `build`: the version, if it is not this code's; `runner`: how workflow code is kept from
    what would not be the same again; `further`: activities of other workflows, by what sends its messages.
    """
    versions = deployment(build or build_id(), takes_over=takes_over)
    # half of the tasks are left to those that are waited for; and without a cache there is one at a time
    waiting = min(_TASKS, max_cached_workflows) // 4

    async def write(record: RecordExperiment) -> None:
        await written(threads, partial(record_experiment, database), record)

    pinned = None if takes_over else versions.version
    messenger = Messenger(client, write, pinned=pinned, waiting=waiting)
    worker = Worker(
        client,
        task_queue=ORCHESTRATOR_QUEUE,
        workflows=workflows,
        activities=[
            *record_activities(  # pyright: ignore[reportArgumentType]
                database,
                roots=roots,
                outgoing=outgoing,
                provider_folder=provider_folder,
                threads=threads,
                messenger=messenger,
            ),
            *further(messenger),
        ],
        activity_executor=threads,
        workflow_runner=runner,
        max_cached_workflows=max_cached_workflows,
        max_concurrent_workflow_tasks=_TASKS,
        graceful_shutdown_timeout=timedelta(seconds=5),
        interceptors=[Heartbeats()],
        max_heartbeat_throttle_interval=timedelta(seconds=1),
        # what was sent to a worker that died waits for so long until another one takes it
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=1),
        deployment_config=versions,
    )
    # a private name, as there is no setting: a test notices when it is another one
    worker._workflow_worker._deadlock_timeout_seconds = _STANDS_STILL_S  # pyright: ignore[reportOptionalMemberAccess, reportPrivateUsage]
    return worker


async def main(settings: OrchestratorSettings, stop: asyncio.Event) -> None:
    """Work until asked to stop."""
    connection = connection_of(settings, runtime=runtime_of(settings))
    database = Database(settings.database_url)
    clients: list[Client] = []
    health = Health({"database": of_database(database), "temporal": of_temporal(clients)})
    async with answering(settings, health):
        client = await connect(connection, stop)
        if client is not None:
            clients.append(client)
            await ensure_search_attributes(client)
            await _schema_is_current(database, stop)
            await _work(settings, connection, client, database, health, stop)
    database.close()


async def _work(
    settings: OrchestratorSettings,
    connection: Connection,
    client: Client,
    database: Database,
    health: Health,
    stop: asyncio.Event,
) -> None:
    with ThreadPoolExecutor(8, "records") as threads:
        worker = new_worker(
            client,
            database,
            threads,
            takes_over=settings.running_experiments == "take_over",
            max_cached_workflows=settings.max_cached_workflows,
            roots=settings.roots,
            outgoing=Outgoing.of(settings.allowed_networks),
            provider_folder=Path(settings.provider_folder) if settings.provider_folder else None,
            # the sandbox has watched over this very code in the tests; here it would be a third of the work
            runner=UnsandboxedWorkflowRunner(),
        )
        async with worker, following(connection, client):
            await take_over(client, build_id(), stop)
            health.is_started = True
            mark_ready()
            log.info("orchestrator is ready", temporal=settings.temporal_address, version=build_id())
            await stop.wait()
            health.is_draining = True


def run() -> NoReturn:
    """Entry point of `undeterred-orchestrator`."""
    run_process(OrchestratorSettings, main)


if __name__ == "__main__":
    run()
