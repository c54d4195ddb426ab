"""What one trial costs in messages, history and SQL: counts, which no other load of the machine changes.

A change that makes a trial dearer fails here. Where that is worth it, raise the bound, and say why in the commit.
`python -m bench lifecycle hosts` has the times.
"""

from __future__ import annotations

import statistics
from collections import Counter

from sqlalchemy import event
from sqlalchemy.engine import Engine
from temporalio import activity
from temporalio.api.enums.v1 import EventType

from tests.kit.platform import Platform
from tests.kit.scripts import config
from tests.kit.simulated import runs

_TRIALS = 12
#: For each trial. Events of Trial and Experiment, of the pool, and what the first two take of Temporal's database;
#: messages that all three received; statements and commits of activities; rows that any process changes.
_MOST = {
    "events": 31.0, "pool events": 10.3, "bytes": 10_200.0, "messages": 4.5, "statements": 33.5, "commits": 4.5,
    "writes": 28.5,
}  # fmt: skip
_MESSAGES = (
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED,
    EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED,
)

SHORT = """
from determined import core
with core.init() as context:
    for op in context.searcher.operations():
        context.train.report_validation_metrics(op.length, {"accuracy": 1.0})
        op.report_completed(1.0)
"""


async def test_trial_costs_no_more_events_messages_and_statements_than_agreed(cluster: Platform) -> None:
    searcher = {"name": "random", "max_trials": _TRIALS, "max_concurrent_trials": 2, "max_length": 1}
    counted = Counter[str]()

    # those of records: how often the API looks at something, and the test at it, grows with the time that this takes
    def statement(*call: object) -> None:
        counted["statements"] += activity.in_activity()
        counted["writes"] += str(call[2]).lstrip().partition(" ")[0].upper() in ("INSERT", "UPDATE", "DELETE")

    def commit(_: object) -> None:
        counted["commits"] += activity.in_activity()

    event.listen(Engine, "before_cursor_execute", statement)
    event.listen(Engine, "commit", commit)
    try:
        experiment_id = await cluster.create(config(searcher), {"train.py": SHORT})
        assert (await cluster.finish(experiment_id))["state"] == "STATE_COMPLETED"
    finally:
        event.remove(Engine, "before_cursor_execute", statement)
        event.remove(Engine, "commit", commit)
    ids = [f"trial-{trial['id']}" for trial in await cluster.trials(experiment_id)]
    assert len(ids) == _TRIALS
    for workflow_id in (f"experiment-{experiment_id}", *ids):
        counted["bytes"] += await _count(cluster, workflow_id, "events", counted)
    await _count(cluster, f"pool-{cluster.pool}", "pool events", counted)
    each = {name: counted[name] / _TRIALS for name in _MOST}
    print(each)
    assert {name: cost for name, cost in each.items() if cost > _MOST[name]} == {}
    assert await _records_way(cluster, experiment_id) < 1, "records go by a task queue again: see ADR 77"


async def _records_way(cluster: Platform, experiment_id: int) -> float:
    """The median time from the order of an experiment's record to its start, in ms."""
    history = await cluster.temporal.get_workflow_handle(f"experiment-{experiment_id}").fetch_history()
    ordered = {
        each.event_id: each.event_time.ToDatetime()
        for each in history.events
        if each.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
    }
    began = {
        each.activity_task_started_event_attributes.scheduled_event_id: each.event_time.ToDatetime()
        for each in history.events
        if each.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED
    }
    return statistics.median((began[id_] - at).total_seconds() * 1000 for id_, at in ordered.items())


async def _count(cluster: Platform, workflow_id: str, events: str, counted: Counter[str]) -> int:
    """Add the events of a workflow, and the messages that it received; returns the bytes of its history."""
    [run] = await runs(cluster.temporal, workflow_id)
    counted[events] += run.events
    history = await cluster.temporal.get_workflow_handle(workflow_id, run_id=run.run_id).fetch_history()
    counted["messages"] += sum(each.event_type in _MESSAGES for each in history.events)
    return run.size_bytes
