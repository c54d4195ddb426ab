"""What a trial costs, counted and not timed, so that a change that makes them dearer is seen in CI.

Who has a reason to raise a limit says it in the commit. `python -m bench lifecycle hosts` has the times.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from sqlalchemy import Engine, event

from tests.kit.platform import Platform
from tests.kit.scripts import config

TRIALS = 5
#: Of Temporal's history, those of the experiment included; bytes of them.
MOST_EVENTS, MOST_BYTES = 66, 16_500
#: Statements that change a row, of all processes.
MOST_WRITES = 32

SHORT = """
from determined import core
with core.init() as context:
    for op in context.searcher.operations():
        context.train.report_validation_metrics(op.length, {"accuracy": 1.0})
        op.report_completed(1.0)
"""


async def test_trial_costs_no_more_events_and_writes(cluster: Platform) -> None:
    writes = Counter[str]()

    def count(*call: Any) -> None:
        verb = call[2].lstrip().partition(" ")[0].upper()
        if verb in ("INSERT", "UPDATE", "DELETE"):
            writes[" ".join(call[2].split()[:3])] += 1

    searcher = {"name": "random", "max_length": 1, "max_trials": TRIALS, "max_concurrent_trials": 2}
    event.listen(Engine, "before_cursor_execute", count)
    try:
        experiment_id = await cluster.create(config(searcher), {"train.py": SHORT})
        assert (await cluster.finish(experiment_id))["state"] == "STATE_COMPLETED"
    finally:
        event.remove(Engine, "before_cursor_execute", count)
    ids = [f"trial-{trial['id']}" for trial in await cluster.trials(experiment_id)]
    assert len(ids) == TRIALS
    found = [
        (await cluster.temporal.get_workflow_handle(id_).describe()).raw_description.workflow_execution_info
        for id_ in (f"experiment-{experiment_id}", *ids)
    ]
    events = sum(info.history_length for info in found) / TRIALS
    size = sum(info.history_size_bytes for info in found) / TRIALS
    written = sum(writes.values()) / TRIALS
    print(f"a trial: {events:.1f} events of {size:.0f} bytes, {written:.1f} writes", writes.most_common(12))
    assert events <= MOST_EVENTS
    assert size <= MOST_BYTES
    assert written <= MOST_WRITES
