"""How workflows call activities and continue as new: time-outs, retries and sizes, spelled once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, TypeVar, cast, get_type_hints

from pydantic import TypeAdapter
from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError

from workflows import calls
from workflows.codec import REFUSED
from workflows.messages import ErrorType
from workflows.names import ORCHESTRATOR_QUEUE
from workflows.searchers.study import Suggestion, SuggestOrder

In = TypeVar("In")
Out = TypeVar("Out")
#: An activity, which waits for something in its event loop or runs in a thread.
Call = Callable[[In], Awaitable[Out]] | Callable[[In], Out]

#: Records are written until they are written: a database that is away delays decisions, it does not lose them.
RECORD_RETRY = RetryPolicy(
    initial_interval=timedelta(milliseconds=200), backoff_coefficient=2.0, maximum_interval=timedelta(seconds=30)
)

#: An orchestrator that dies while it writes a record is noticed so soon; it beats by `activities.heartbeats`.
_NOTICED_WITHIN = timedelta(seconds=3)

#: Events after which a run continues as new. Temporal suggests it at 4,096, but a message that comes in just then has
#: the whole run replayed, as a worker's death has; that takes a millisecond an event.
_EVENTS_PER_RUN = 1000
_MOMENT = timedelta(milliseconds=1)


def is_old() -> bool:
    """Whether this run has enough events for the next one to begin."""
    info = workflow.info()
    return info.is_continue_as_new_suggested() or info.get_current_history_length() > _EVENTS_PER_RUN


async def short_task() -> None:
    """Begin a workflow task of its own, which takes milliseconds: the one to continue as new in, if no signal came.

    A signal that comes before that task is over makes it fail. What is done again then replays the whole history, so
    long that another signal comes: it must not try once more itself.
    """
    await workflow.sleep(_MOMENT)


async def record_once(call: Call[In, Out], order: In) -> Out:
    """Write a record that holds changes only: by an ordinary activity, whose order is in the history before it is done.

    A local activity would be done again, perhaps with other contents under the same revision, when its workflow task is
    done again with messages that came meanwhile.
    """
    return await workflow.execute_activity(
        cast("Callable[[In], Awaitable[Out]]", call),
        order,
        task_queue=ORCHESTRATOR_QUEUE,
        start_to_close_timeout=timedelta(seconds=30),
        heartbeat_timeout=_NOTICED_WITHIN,
        retry_policy=RECORD_RETRY,
        summary=call.__name__.replace("_", " "),
    )


async def record(call: Call[In, Out], order: In) -> Out:
    """Write a record of a whole state by a local activity: about 2 ms instead of 10, repeated if the worker dies."""
    return await workflow.execute_local_activity(
        cast("Callable[[In], Awaitable[Out]]", call),
        order,
        start_to_close_timeout=timedelta(seconds=30),
        retry_policy=RECORD_RETRY,
        # past this, the back-off is a durable timer instead of an open workflow task
        local_retry_threshold=timedelta(seconds=5),
        summary=call.__name__.replace("_", " "),
    )


async def on_agent(call: Callable[[In], Any], order: In, *, task_queue: str, **options: Any) -> Any:
    """Call an activity on an agent's queue; `options` are those of `workflow.execute_activity`.

    What an agent answers is only believed to be an answer once it was read: one that can't be, as it is no JSON, of
    another type, or too large (`workflows/codec.py`), fails the activity. If the converter found that out, it would
    fail the workflow's task instead, now and at each replay.

    Raises: ActivityError.
    """
    raw = await workflow.execute_activity(call.__name__, order, task_queue=task_queue, result_type=RawValue, **options)
    kind = get_type_hints(call)["return"]
    try:
        if raw is None:
            return TypeAdapter(kind).validate_python(None)
        if raw.payload.metadata.get("encoding") == REFUSED:
            raise ValueError(raw.payload.data.decode())
        return workflow.payload_converter().from_payload(raw.payload, kind)
    except Exception as error:  # noqa: BLE001 (whatever others can make a converter raise)
        name, what = call.__name__, str(error).partition("\n")[0][:300]
        failed = ActivityError("an answer can't be used", scheduled_event_id=0, started_event_id=0,
                               identity=task_queue, activity_type=name, activity_id="", retry_state=None)  # fmt: skip
        raise failed from ApplicationError(
            f"the answer of {name} from {task_queue} can't be used: {what}", type=ErrorType.BAD_ANSWER
        )


async def suggest(order: SuggestOrder) -> Suggestion:
    """Have a sampler choose a point, on any orchestrator. Raises: ActivityError, if it never will."""
    return await workflow.execute_activity(
        calls.suggest,
        order,
        task_queue=ORCHESTRATOR_QUEUE,
        start_to_close_timeout=timedelta(minutes=10),
        heartbeat_timeout=timedelta(seconds=30),
        retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=30)),
        summary=f"point {order.number}",
    )


async def tell(workflow_id: str, signal: str, message: Any) -> bool:
    """Signal another workflow. False if it is closed or was never started."""
    try:
        await workflow.get_external_workflow_handle(workflow_id).signal(signal, message)
    except ApplicationError:
        return False
    return True
