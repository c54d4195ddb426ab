"""What one trial costs in messages, history and SQL: counts, which no other load of the machine changes.

A change that makes a trial dearer fails here. Where that is worth it, raise the bound, and say why in the commit.
"""

from __future__ import annotations

from collections import Counter

from sqlalchemy import event
from sqlalchemy.engine import Engine
from temporalio import activity
from temporalio.api.enums.v1 import EventType

from tests.kit.platform import Platform
from tests.kit.simulated import runs

_TRIALS = 12
#: Of Trial and Experiment together, and of the pool. Those of the experiment and the pool depend on what comes together.
_EVENTS, _POOL_EVENTS = 28.0, 10.0
_MESSAGES, _STATEMENTS, _COMMITS = 3.5, 36.0, 5.0


async def test_trial_costs_no_more_events_messages_and_statements_than_agreed(cluster: Platform) -> None:
    searcher = {"name": "random", "metric": "x", "max_trials": _TRIALS, "max_concurrent_trials": 2, "max_length": 1}
    counted = Counter[str]()

    # those of records: how often the API looks at something, and the test at it, grows with the time that this takes
    def statement(*_: object) -> None:
        counted["statements"] += activity.in_activity()

    def commit(_: object) -> None:
        counted["commits"] += activity.in_activity()

    event.listen(Engine, "before_cursor_execute", statement)
    event.listen(Engine, "commit", commit)
    try:
        experiment_id = await cluster.create({"entrypoint": "true", "searcher": searcher}, {})
        await cluster.finish(experiment_id)
    finally:
        event.remove(Engine, "before_cursor_execute", statement)
        event.remove(Engine, "commit", commit)
    for trial in await cluster.trials(experiment_id):
        await _count(cluster, f"trial-{trial['id']}", counted)
    await _count(cluster, f"experiment-{experiment_id}", counted)
    own, counted["events"] = counted["events"], 0
    await _count(cluster, f"pool-{cluster.pool}", counted)
    each = {name: count / _TRIALS for name, count in counted.items()} | {"own": own / _TRIALS}
    print(each)
    assert each["own"] <= _EVENTS
    assert each["events"] <= _POOL_EVENTS
    assert each["messages"] <= _MESSAGES
    assert each["statements"] <= _STATEMENTS
    assert each["commits"] <= _COMMITS


async def _count(cluster: Platform, workflow_id: str, counted: Counter[str]) -> None:
    """Add the events of a workflow, and the messages that it received: signals, updates, and commands to others."""
    [run] = await runs(cluster.temporal, workflow_id)
    counted["events"] += run.events
    history = await cluster.temporal.get_workflow_handle(workflow_id, run_id=run.run_id).fetch_history()
    messages = (
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED,
        EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED,
    )
    counted["messages"] += sum(each.event_type in messages for each in history.events)
