"""Reports go together when they come together, and by signals where no update is taken."""

from __future__ import annotations

import asyncio
import contextlib
import math
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest
from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.service import RPCError, RPCStatusCode

from workflows.answers import AnsweredRecords
from workflows.lifecycle.experiment import ExperimentState
from workflows.lifecycle.trial import TrialState
from workflows.messages import (
    ProgressReport,
    RecordExperiment,
    ReportAnswer,
    TrialEnded,
    TrialReport,
    ValidationReport,
)
from workflows.trial_reports import TrialReports
from workflows.updates import Updates

_UNKNOWN = RPCError("no such workflow", RPCStatusCode.NOT_FOUND, b"")
_DENIED = RPCError("who are you", RPCStatusCode.PERMISSION_DENIED, b"")


class _Temporal:
    """Notes what it is sent: as client, as handle and as `Updates`."""

    def __init__(self, refusal: Exception | None = None, *, takes_signals: bool = True) -> None:
        self.refusal, self.takes_signals = refusal, takes_signals
        self.signals: list[tuple[str, dict[str, Any]]] = []
        self.updates: list[list[dict[str, Any]]] = []
        self.known: list[int] = []
        self.busy: list[bool] = []
        self.answer: ReportAnswer | None = None

    def get_workflow_handle(self, _: str) -> _Temporal:
        return self

    async def signal(self, name: str, said: dict[str, Any], **_: Any) -> None:
        if not self.takes_signals:
            raise _UNKNOWN
        self.signals.append((name, said))

    async def send(self, _: str, __: str, said: dict[str, Any], **___: Any) -> ReportAnswer | None:
        await asyncio.sleep(0)
        if self.refusal is not None:
            raise self.refusal
        self.updates.append(said["reports"])
        self.known.append(said["recorded"])
        self.busy.append(said["is_busy"])
        return self.answer


def _sender(temporal: _Temporal) -> TrialReports:
    return TrialReports(cast("Client", temporal), cast("Updates", temporal), AnsweredRecords(AsyncMock()))


def _progress(number: int) -> TrialReport:
    return TrialReport(progress_reported=ProgressReport(request_id=f"r{number}", progress=0.5))


async def test_metric_that_is_no_number_stays_so_in_either_message() -> None:
    report = TrialReport(
        validation_reported=ValidationReport(request_id="r", steps_completed=1, metrics={"loss": math.nan})
    )
    temporal, away = _Temporal(), _Temporal(WorkflowUpdateFailedError(ValueError("no handler")))
    for each in (temporal, away):
        await _sender(each).send("experiment-1", report)
    [(name, signaled)], [[updated]] = away.signals, temporal.updates
    assert (name, temporal.signals) == ("validation_reported", [])
    for said in (signaled, updated["validation_reported"]):
        assert math.isnan(said["metrics"]["loss"])


async def test_messages_that_come_together_go_in_order_and_a_hundred_at_most() -> None:
    temporal = _Temporal()
    await _sender(temporal).send_together("experiment-1", [_progress(number) for number in range(250)])
    assert [len(each) for each in temporal.updates] == [100, 100, 50]
    sent = [each["progress_reported"]["request_id"] for batch in temporal.updates for each in batch]
    assert sent == [f"r{number}" for number in range(250)]
    assert temporal.signals == []


async def test_end_of_a_trial_goes_as_its_reports_do() -> None:
    temporal = _Temporal()
    sender, ended = _sender(temporal), TrialEnded(request_id="r", trial_id=1, state=TrialState.COMPLETED)
    await sender.send("experiment-1", TrialReport(trial_ended=ended))
    assert temporal.signals == []
    assert [[TrialReport.model_validate(each) for each in said] for said in temporal.updates] == [
        [TrialReport(trial_ended=ended)]
    ]


async def test_record_of_an_answer_is_written_and_the_next_message_says_so() -> None:
    temporal, written = _Temporal(), list[int]()

    async def write(record: RecordExperiment) -> None:
        written.append(record.revision)
        if record.revision == 3:
            raise OSError("the database is away")

    records = AnsweredRecords(write)
    sender = TrialReports(cast("Client", temporal), cast("Updates", temporal), records)
    for revision in (2, 3, 3):
        temporal.answer = ReportAnswer(
            record=RecordExperiment(experiment_id=1, revision=revision, state=ExperimentState.ACTIVE, progress=0.5)
        )
        with contextlib.suppress(OSError):
            await sender.send("experiment-1", _progress(1))
    assert (written, temporal.known) == ([2, 3, 3], [0, 2, 2])
    assert records.written("experiment-2") == 0


async def test_search_is_busy_when_its_trials_report_in_a_row() -> None:
    temporal = _Temporal()
    sender = _sender(temporal)
    for number in range(3):
        await sender.send("experiment-1", _progress(number))
    await sender.send("experiment-2", _progress(1))
    await asyncio.sleep(0.11)
    await sender.send("experiment-1", _progress(3))
    assert temporal.busy == [False, True, True, False, False]


async def test_signals_go_where_no_update_is_taken() -> None:
    temporal = _Temporal(WorkflowUpdateFailedError(ValueError("no handler")))
    await _sender(temporal).send_together("experiment-1", [_progress(1), _progress(2)])
    assert [said["request_id"] for _, said in temporal.signals] == ["r1", "r2"]


async def test_closed_experiment_needs_to_know_nothing() -> None:
    await _sender(_Temporal(_UNKNOWN)).send_together("experiment-1", [_progress(1), _progress(2)])
    await _sender(_Temporal(takes_signals=False)).send("experiment-1", _progress(1))


async def test_each_sender_hears_of_a_failure_and_the_next_message_goes() -> None:
    temporal = _Temporal()

    async def refused(*_: Any, **__: Any) -> None:
        raise _DENIED

    sender, temporal.refusal = _sender(temporal), WorkflowUpdateFailedError(ValueError("no handler"))
    kept, temporal.signal = temporal.signal, refused
    with pytest.raises(RPCError):
        await sender.send("experiment-1", _progress(1))
    temporal.signal = kept
    await sender.send("experiment-2", _progress(2))
    assert len(temporal.signals) == 1
