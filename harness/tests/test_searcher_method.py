"""What custom searches are made of: operations, state, events."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import uuid
from typing import TYPE_CHECKING, Any

import numpy
import pytest

from determined import searcher
from determined.experimental import client
from determined.searcher._event import SearcherEvent
from determined.searcher._operations import operation_from_wire

if TYPE_CHECKING:
    from pathlib import Path

R = uuid.UUID("00000000-0000-4000-8000-000000000001")
Q = uuid.UUID("00000000-0000-4000-8000-000000000002")
CHECKPOINT = "11111111-2222-4333-8444-555555555555"


class Counting(searcher.SearchMethod):
    """Counts what it is asked, and keeps that in its state."""

    def __init__(self) -> None:
        self.count = 0

    def initial_operations(self, searcher_state: searcher.SearcherState) -> list[searcher.Operation]:
        return []

    def on_trial_created(
        self, searcher_state: searcher.SearcherState, request_id: uuid.UUID
    ) -> list[searcher.Operation]:
        return []

    def on_validation_completed(
        self, searcher_state: searcher.SearcherState, request_id: uuid.UUID, metric: Any, train_length: int
    ) -> list[searcher.Operation]:
        return []

    def on_trial_closed(
        self, searcher_state: searcher.SearcherState, request_id: uuid.UUID
    ) -> list[searcher.Operation]:
        return []

    def progress(self, searcher_state: searcher.SearcherState) -> float:
        return 0.5

    def on_trial_exited_early(
        self, searcher_state: searcher.SearcherState, request_id: uuid.UUID, exited_reason: searcher.ExitedReason
    ) -> list[searcher.Operation]:
        return []

    def save_method_state(self, path: Path) -> None:
        (path / "count").write_text(str(self.count))

    def load_method_state(self, path: Path) -> None:
        self.count = int((path / "count").read_text())


def a_state() -> searcher.SearcherState:
    state = searcher.SearcherState()
    state.trials_created = {R, Q}
    state.trials_closed = {Q}
    state.failures = {Q}
    state.trial_progress = {R: 12.5, Q: 3.0}
    state.last_event_id = 9
    state.experiment_id = 7
    state.experiment_completed = True
    return state


@pytest.mark.parametrize(
    ("operation", "wire"),
    [
        (
            searcher.ValidateAfter(R, 100),
            {"trialOperation": {"validateAfter": {"requestId": str(R), "length": "100"}}},
        ),
        (searcher.Close(R), {"closeTrial": {"requestId": str(R)}}),
        (searcher.Progress(0.25), {"setSearcherProgress": {"progress": 0.25}}),
        (searcher.Shutdown(), {"shutDown": {}}),
        (searcher.Shutdown(failure=True), {"shutDown": {"failure": True}}),
        (searcher.Shutdown(cancel=True), {"shutDown": {"cancel": True}}),
        (
            searcher.Create(R, {"lr": 0.1, "layers": {"count": 2}}, None),
            {"createTrial": {"requestId": str(R), "hyperparams": '{"lr": 0.1, "layers": {"count": 2}}'}},
        ),
        (
            searcher.Create(R, {}, client.Checkpoint(None, uuid=CHECKPOINT)),  # type: ignore[arg-type]
            {"createTrial": {"requestId": str(R), "hyperparams": "{}", "checkpoint": {"uuid": CHECKPOINT}}},
        ),
    ],
)
def test_an_operation_looks_as_the_contract_says_and_can_be_read_back(
    operation: searcher.Operation, wire: dict[str, Any]
) -> None:
    assert operation.to_wire() == wire
    again = operation_from_wire(json.loads(json.dumps(wire)))
    assert type(again) is type(operation)
    assert again == operation
    assert again.to_wire() == wire


def test_scalars_of_numpy_are_hyperparameters() -> None:
    operation = searcher.Create(R, {"lr": numpy.float32(0.5), "size": numpy.int64(3)}, None)
    assert json.loads(operation.hparams) == {"lr": 0.5, "size": 3}
    assert searcher.ValidateAfter(R, numpy.int64(3)).to_wire()["trialOperation"]["validateAfter"]["length"] == "3"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: searcher.ValidateAfter(R, 0), "length is 0"),
        (lambda: searcher.ValidateAfter(R, 1.5), "length is 1.5"),
        (lambda: searcher.ValidateAfter("no id", 1), "request id must be a uuid.UUID, but is 'no id'"),
        (lambda: searcher.Close(None), "request id must be a uuid.UUID, but is None"),
        (lambda: searcher.Progress(math.nan), "not between 0 and 1"),
        (lambda: searcher.Create(R, {"lr": math.inf}, None), "hparams can't be written as JSON"),
        (lambda: operation_from_wire({"nonsense": 1}), "is not a searcher operation"),
        (lambda: operation_from_wire([1]), "is not a searcher operation"),
    ],
)
def test_an_operation_that_can_not_be_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("hparams", [{"lr": object()}, [1]])
def test_hyperparameters_that_json_does_not_have_are_refused(hparams: Any) -> None:
    with pytest.raises(TypeError, match="Create: hparams"):
        searcher.Create(R, hparams, None)


def test_the_state_survives_json() -> None:
    state = a_state()
    text = json.dumps(state.to_dict())
    again = searcher.SearcherState()
    assert again != state
    again.from_dict(json.loads(text))
    assert again == state
    assert repr(again) == repr(state)
    assert json.loads(text) == {
        "failures": [str(Q)],
        "trialProgress": {str(R): 12.5, str(Q): 3.0},
        "trialsClosed": [str(Q)],
        "trialsCreated": [str(R), str(Q)],
        "lastEventId": 9,
        "experimentId": 7,
        "experimentCompleted": True,
        "experimentFailed": False,
    }


def test_a_state_of_the_older_generation_is_read() -> None:
    values = a_state().to_dict()
    del values["experimentFailed"]
    state = searcher.SearcherState()
    state.from_dict(values)
    assert state == a_state()


def test_a_method_saves_and_loads_both_states(tmp_path: Path) -> None:
    method = Counting()
    method.count = 3
    method.save(a_state(), tmp_path, experiment_id=7)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["count", "state"]
    again = Counting()
    state, experiment_id = again.load(tmp_path)
    assert (again.count, experiment_id) == (3, 7)
    assert state == a_state()


def test_a_method_must_have_all_handlers() -> None:
    class Half(searcher.SearchMethod):
        def initial_operations(self, searcher_state: searcher.SearcherState) -> list[searcher.Operation]:
            return []

    with pytest.raises(TypeError, match="abstract"):
        Half()  # type: ignore[abstract]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("EXITED_REASON_INVALID_HP", searcher.ExitedReason.INVALID_HP),
        ("EXITED_REASON_INIT_INVALID_HP", searcher.ExitedReason.INVALID_HP),
        ("EXITED_REASON_USER_CANCELED", searcher.ExitedReason.USER_CANCELED),
        ("EXITED_REASON_USER_REQUESTED_STOP", searcher.ExitedReason.USER_CANCELED),
        ("EXITED_REASON_UNSPECIFIED", searcher.ExitedReason.ERRORED),
        (None, searcher.ExitedReason.ERRORED),
    ],
)
def test_each_reason_to_exit_early_has_its_name(name: str | None, reason: searcher.ExitedReason) -> None:
    assert searcher.ExitedReason.of(name) is reason


def test_an_event_is_the_one_kind_that_is_set() -> None:
    wire = {
        "id": 4,
        "trialClosed": None,
        "validationCompleted": {"requestId": str(R), "metric": "NaN", "validateAfterLength": "100"},
    }
    event = SearcherEvent.from_wire(wire)
    assert (event.id, event.kind, event.request_id) == (4, "validationCompleted", R)
    assert math.isnan(event.metric)
    assert event.to_wire() == {"id": 4, "validationCompleted": wire["validationCompleted"]}


@pytest.mark.parametrize(
    ("sent", "seen"),
    [
        (0.5, 0.5),
        ("Infinity", math.inf),
        ({"loss": ["-Infinity", 1], "name": "adam"}, {"loss": [-math.inf, 1], "name": "adam"}),
        (None, None),
    ],
)
def test_a_metric_is_any_json(sent: Any, seen: Any) -> None:
    assert SearcherEvent(1, "validationCompleted", {"metric": sent}).metric == seen


def test_an_event_without_kind_is_no_error() -> None:
    event = SearcherEvent.from_wire({"id": 3})
    assert (event.kind, event.to_wire()) == ("", {"id": 3})


def test_importing_it_is_light() -> None:
    code = (
        "import sys, time; began = time.perf_counter(); import determined.searcher; "
        "print(time.perf_counter() - began, 'yaml' in sys.modules, 'determined.core' in sys.modules)"
    )
    runs = [subprocess.check_output([sys.executable, "-c", code], text=True).split() for _ in range(5)]
    assert min(float(seconds) for seconds, *_ in runs) < 0.1
    assert runs[0][1:] == ["False", "False"]


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        getattr(searcher, "nonsense")  # noqa: B009
