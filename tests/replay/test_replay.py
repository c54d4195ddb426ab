"""Today's workflows replay every history that a release recorded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer
from temporalio.workflow import NondeterminismError

from workers.orchestrator import WORKFLOWS
from workflows.converter import CONVERTER, RUNNER

HISTORIES = Path(__file__).parent / "histories"
RECORDED = sorted(HISTORIES.rglob("*.json"))


def _replayer() -> Replayer:
    return Replayer(workflows=WORKFLOWS, workflow_runner=RUNNER, data_converter=CONVERTER)


def test_every_scenario_is_recorded() -> None:
    kinds = {path.stem.partition("_")[0] for path in RECORDED}
    methods = {"random", "grid", "stop-once", "stopping", "pbt", "optuna", "custom"}
    assert (
        kinds
        == {
            "finished",
            "preempted",
            "shared",
            "failed",
            "fork",
            "continued",
            "pool",
            "agent",
            "elastic",
            "lost",
            "moved",
            "task",
            "campaign",
        }
        | methods
    )


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: f"{path.parent.name}/{path.stem}")
async def test_todays_code_replays_every_released_history(path: Path) -> None:
    await _replayer().replay_workflow(WorkflowHistory.from_json(path.stem, path.read_text()))


async def test_replay_fails_when_a_decision_differs() -> None:
    """The check is itself checked: a history in which another activity was called does not replay."""
    path = next(path for path in RECORDED if path.stem.startswith("finished_experiment"))
    history = json.loads(path.read_text())
    children = [event for event in history["events"] if "startChildWorkflowExecutionInitiatedEventAttributes" in event]
    children[0]["startChildWorkflowExecutionInitiatedEventAttributes"]["workflowId"] = "trial-of-somebody-else"
    with pytest.raises(NondeterminismError):
        await _replayer().replay_workflow(WorkflowHistory.from_json(path.stem, json.dumps(history)))
