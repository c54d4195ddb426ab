"""The import of another cluster's database: kind by kind, by an activity that goes on where it stopped (ADR 51)."""

from __future__ import annotations

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError

from workflows import calls, names
from workflows.messages import ErrorType, ImportOrder, ImportOutcome, ImportPlan, ImportStep
from workflows.options import record_once

#: For so long it is tried again when a database is away, or the orchestrator dies: for each kind of record anew.
_LIMIT = timedelta(days=1)
#: An orchestrator that dies is noticed so soon.
_SILENCE = timedelta(seconds=10)
_RETRY = RetryPolicy(
    initial_interval=timedelta(seconds=1),
    maximum_interval=timedelta(seconds=30),
    non_retryable_error_types=[ErrorType.IMPORT_ENDED],
)


@workflow.defn(name="Import")
class Import:
    """Id `import-<id>`. How far it is, and whether it is to end, is in its records: activities read them."""

    @workflow.run
    async def run(self, order: ImportOrder) -> None:
        """Go through all kinds, once."""
        error = ""
        try:
            plan: ImportPlan = await workflow.execute_activity(
                calls.begin_import,
                order,
                task_queue=names.ORCHESTRATOR_QUEUE,
                start_to_close_timeout=timedelta(minutes=10),
                schedule_to_close_timeout=timedelta(minutes=30),
                heartbeat_timeout=_SILENCE,
                retry_policy=_RETRY,
                summary="look at the source",
            )
            for kind in plan.kinds:
                workflow.set_current_details(f"Import {order.import_id}: {kind}.")
                await workflow.execute_activity(
                    calls.import_records,
                    ImportStep(import_id=order.import_id, mode=order.mode, kind=kind),
                    task_queue=names.ORCHESTRATOR_QUEUE,
                    start_to_close_timeout=_LIMIT,
                    schedule_to_close_timeout=_LIMIT,
                    heartbeat_timeout=_SILENCE,
                    retry_policy=_RETRY,
                    summary=kind,
                )
        except ActivityError as failed:
            error = failed.cause.message if isinstance(failed.cause, ApplicationError) else str(failed.cause or failed)
        await record_once(calls.end_import, ImportOutcome(import_id=order.import_id, error=error or ""))
        workflow.set_current_details(f"Import {order.import_id}: {error or 'all is done'}.")
