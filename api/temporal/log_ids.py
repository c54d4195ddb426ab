"""The ids of what an activity is for, in each log line that is written meanwhile: those that the API's lines have.

A line of a workflow has them by `workers.logs`, from what Temporal's SDK adds to it.
"""

from __future__ import annotations

from typing import Any

import structlog
from temporalio import activity, client, worker

from workflows import names

_FIELDS = ("experiment_id", "trial_id", "task_id", "allocation_id")


class NamedLines(client.Interceptor, worker.Interceptor):
    """Of a client, and so of its workers."""

    def intercept_activity(self, next: worker.ActivityInboundInterceptor) -> worker.ActivityInboundInterceptor:
        """Called by the SDK for each worker."""
        return _Named(super().intercept_activity(next))


class _Named(worker.ActivityInboundInterceptor):
    async def execute_activity(self, input: worker.ExecuteActivityInput) -> Any:
        ids = names.ids_of_workflow(activity.info().workflow_id or "")
        for value in input.args[:1]:
            ids |= {name: str(found) for name in _FIELDS if (found := getattr(value, name, None))}
        ids = names.ids_of_allocation(ids.get("allocation_id", "")) | ids
        with structlog.contextvars.bound_contextvars(**ids):
            return await super().execute_activity(input)
