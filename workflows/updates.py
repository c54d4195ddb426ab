"""Updates of workflows, sent again at once when one meets a workflow that is about to continue as new.

Temporal refuses such an update as RESOURCE_EXHAUSTED, which its clients take for a busy server: they wait a second
before they try again. Here a search's decisions or a pool's grants wait meanwhile; the next run takes the update some
milliseconds later.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
import uuid
from datetime import timedelta
from typing import Any

from temporalio.client import Client
from temporalio.service import RetryConfig, RPCError, RPCStatusCode, ServiceClient

#: Seconds before the second attempt; twice as many before each further one.
_PAUSE_S, _LONGEST_S = 0.005, 1.0
#: What may be otherwise the next time: the codes that Temporal's own clients try again.
_PASSES = frozenset(
    {
        RPCStatusCode.ABORTED,
        RPCStatusCode.DATA_LOSS,
        RPCStatusCode.INTERNAL,
        RPCStatusCode.OUT_OF_RANGE,
        RPCStatusCode.RESOURCE_EXHAUSTED,
        RPCStatusCode.UNAVAILABLE,
        RPCStatusCode.UNKNOWN,
    }
)
#: Attempts at an update whose workflow task failed and is done again: just then, as the workflow continues as new.
_FAILED_TASKS = 6


class Updates:
    """Sends updates over a connection of its own, on which no call is tried again behind its back.

    Args:
        client: Whose address, credentials and converter it uses, an API key as it is at each call.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._prompt: Client | None = None

    async def send(
        self, workflow_id: str, update: str, *arguments: Any, within: timedelta, result_type: type | None = None
    ) -> Any:
        """The workflow's answer.

        Args:
            workflow_id: Of the workflow.
            update: Its name.
            arguments: One at most.
            within: How long it may take, with all attempts.
            result_type: Of the answer.

        Raises: WorkflowUpdateFailedError, as the workflow refused it; WorkflowUpdateRPCTimeoutOrCancelledError;
            RPCError.
        """
        id_ = str(uuid.uuid4())  # the same for all attempts: a run that has it already does nothing twice
        deadline, pause, failed_tasks = time.monotonic() + within.total_seconds(), _PAUSE_S, 0
        while True:
            left = timedelta(seconds=max(0.001, deadline - time.monotonic()))
            try:
                handle = (await self._connected()).get_workflow_handle(workflow_id)
                return await handle.execute_update(  # pyright: ignore[reportUnknownMemberType]
                    update, *arguments, id=id_, result_type=result_type, rpc_timeout=left
                )
            except RPCError as error:
                failed_tasks += error.status is RPCStatusCode.FAILED_PRECONDITION
                passes = error.status in _PASSES or 0 < failed_tasks < _FAILED_TASKS
                if not passes or time.monotonic() + pause > deadline:
                    raise
            await asyncio.sleep(pause)
            pause = min(_LONGEST_S, 2 * pause)

    async def _connected(self) -> Client:
        if self._prompt is None:
            theirs = self._client.service_client.config
            config = dataclasses.replace(theirs, retry_config=RetryConfig(max_retries=1), lazy=False)
            settings = self._client.config()
            try:
                settings["service_client"] = await ServiceClient.connect(config)
            except RuntimeError as error:  # how the SDK reports a failed connection
                raise RPCError(str(error), RPCStatusCode.UNAVAILABLE, b"") from None
            self._prompt = Client(**settings)
        if self._prompt.api_key != self._client.api_key:
            self._prompt.api_key = self._client.api_key
        return self._prompt
