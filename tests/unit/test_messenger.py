"""A pool whose task failed as it continued as new is asked again at once; one that does not run is not."""

from __future__ import annotations

from typing import Any, cast

import pytest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from activities.messenger import Messenger
from workflows.messages import SlotGrants, TrialOrders, TrialStart, TrialStarts, TrialTemplate

_FAILED = RPCError("due to unexpected workflow task failure", RPCStatusCode.FAILED_PRECONDITION, b"")
_UNKNOWN = RPCError("no such workflow", RPCStatusCode.NOT_FOUND, b"")


class _Temporal:
    """Answers updates in turn, and counts what is started."""

    def __init__(self, *answers: SlotGrants | RPCError) -> None:
        self.answers = list(answers)
        self.started = 0

    def get_workflow_handle(self, _: str) -> _Temporal:
        return self

    async def execute_update(self, *_: Any, **__: Any) -> SlotGrants:
        answer = self.answers.pop(0)
        if isinstance(answer, RPCError):
            raise answer
        return answer

    async def start_workflow(self, *_: Any, **__: Any) -> None:
        self.started += 1


async def _start(temporal: _Temporal) -> None:
    template = TrialTemplate(pool="p", slots=1, max_restarts=0)
    trial = TrialStart(trial_id=1, request_id="r", task_id="1.r", orders=TrialOrders())
    starts = TrialStarts(experiment_id=1, name="e", owner="o", job_id="j", template=template, trials=[trial])
    messenger = Messenger(cast("Client", temporal))
    await messenger._start_trials(starts, {})


@pytest.mark.parametrize("answers", [[SlotGrants(granted=[])], [_FAILED, SlotGrants(granted=[])], [_UNKNOWN]])
async def test_trial_is_started_once_the_pool_has_answered(answers: list[SlotGrants | RPCError]) -> None:
    temporal = _Temporal(*answers)
    await _start(temporal)
    assert temporal.started == 1
    assert not temporal.answers


async def test_record_is_written_again_when_the_pool_fails_and_fails() -> None:
    temporal = _Temporal(*[_FAILED] * 9)
    with pytest.raises(RPCError):
        await _start(temporal)
    assert temporal.started == 0
    assert len(temporal.answers) == 5, "three more attempts, within a third of a second"
