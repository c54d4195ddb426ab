"""The runners of custom searches, against a cluster that queues events and takes operations as the contract says."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import random
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

import determined._info
from determined import errors, searcher
from determined.common.api import Session
from determined.experimental import client
from determined.searcher import _experiment, _search_runner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    from conftest import Call, Master, Trial

EVENTS = "GET /api/v1/experiments/5/searcher_events"
OPERATIONS = "POST /api/v1/experiments/5/searcher_operations"
CREATE = "POST /api/v1/experiments"
CONFIG = {"name": "custom", "entrypoint": "true", "searcher": {"name": "custom", "metric": "accuracy"}}
R = "00000000-0000-4000-8000-000000000001"


class Cluster:
    """One custom experiment, number 5: its queue, and trials that train in no time."""

    def __init__(self, master: Master) -> None:
        self.master = master
        self.lock = threading.RLock()
        # The metric of a trial after a length; None if its hyperparameters are invalid.
        self.metric_of: Callable[[dict[str, Any], int], Any] = getattr(
            self, "metric_of", lambda hparams, length: hparams["quality"] * length
        )
        self.state = "STATE_ACTIVE"
        self.queue: list[dict[str, Any]] = []
        self.next_id = 1
        self.keys: dict[str, int] = {}
        self.applied: list[dict[str, Any]] = []  # all operations that were taken, in order
        self.hparams: dict[str, dict[str, Any]] = {}
        master.answer(CREATE, self._create)
        master.answer(EVENTS, self._events)
        master.answer(OPERATIONS, self._operations)

    def put(self, kind: str, **body: Any) -> None:
        self.queue.append({"id": self.next_id, kind: body})
        self.next_id += 1

    def posted(self) -> list[tuple[int, list[dict[str, Any]]]]:
        """(event, operations) of all posts that arrived."""
        calls = self.master.of(OPERATIONS)
        return [(c.body["triggeredByEvent"]["id"], c.body["searcherOperations"]) for c in calls]

    def _create(self, call: Call) -> Any:
        key = call.headers["Idempotency-Key"]
        if key not in self.keys:
            self.keys[key] = 5
            self.put("initialOperations")
        return {"experiment": {"id": 5}, "warnings": ["a warning"]}

    def _events(self, call: Call) -> Any:
        with self.lock:
            if self.state != "STATE_ACTIVE":
                return {"searcherEvents": [{"id": -1, "experimentInactive": {"experimentState": self.state}}]}
            if self.queue:
                return {"searcherEvents": list(self.queue)}
        time.sleep(0.02)
        return {"searcherEvents": []}

    def _operations(self, call: Call) -> Any:
        with self.lock:
            event_id = call.body["triggeredByEvent"]["id"]
            if event_id not in [event["id"] for event in self.queue]:
                return 400, {"message": f"event {event_id} is not pending"}
            assert call.body["experimentId"] == 5
            if any("refuse" in str(operation) for operation in call.body["searcherOperations"]):
                return 400, {"message": "no such trial"}
            self.queue = [event for event in self.queue if event["id"] > event_id]
            for operation in call.body["searcherOperations"]:
                self._apply(operation)
            return {}

    def _apply(self, operation: dict[str, Any]) -> None:
        self.applied.append(operation)
        ((kind, body),) = operation.items()
        if kind == "createTrial":
            assert body["requestId"] not in self.hparams, "created twice"
            self.hparams[body["requestId"]] = json.loads(body["hyperparams"])
            self.put("trialCreated", requestId=body["requestId"])
        elif kind == "trialOperation":
            request_id, length = body["validateAfter"]["requestId"], int(body["validateAfter"]["length"])
            metric = self.metric_of(self.hparams[request_id], length)
            if metric is None:
                self.put("trialExitedEarly", requestId=request_id, exitedReason="EXITED_REASON_INVALID_HP")
                self.put("trialClosed", requestId=request_id)
                return
            self.put("trialProgress", requestId=request_id, partialUnits=length / 2)
            self.put("validationCompleted", requestId=request_id, metric=metric, validateAfterLength=str(length))
        elif kind == "closeTrial":
            self.put("trialClosed", requestId=body["requestId"])
        elif kind == "shutDown":
            self.state = "STATE_ERROR" if body.get("failure") else "STATE_COMPLETED"
            self.queue = []


class Sampling(searcher.SearchMethod):
    """Six trials, three at a time; those above the mean so far train on. Random, and resumes exactly."""

    def __init__(self, trials: int = 6) -> None:
        self.rng = random.Random(7)
        self.left = trials
        self.total = trials
        self.metrics: list[float] = []

    def _new(self) -> list[searcher.Operation]:
        self.left -= 1
        request_id = uuid.UUID(int=self.rng.getrandbits(128), version=4)
        hparams = {"quality": self.rng.random()}
        return [searcher.Create(request_id, hparams, None), searcher.ValidateAfter(request_id, 2)]

    def initial_operations(self, searcher_state: searcher.SearcherState) -> list[searcher.Operation]:
        return [operation for _ in range(3) for operation in self._new()]

    def on_trial_created(
        self, searcher_state: searcher.SearcherState, request_id: uuid.UUID
    ) -> list[searcher.Operation]:
        return []

    def on_validation_completed(
        self, searcher_state: searcher.SearcherState, request_id: uuid.UUID, metric: Any, train_length: int
    ) -> list[searcher.Operation]:
        self.metrics.append(metric)
        if train_length == 2 and metric >= sum(self.metrics) / len(self.metrics):
            return [searcher.ValidateAfter(request_id, 4)]
        return [searcher.Close(request_id)]

    def on_trial_closed(
        self, searcher_state: searcher.SearcherState, request_id: uuid.UUID
    ) -> list[searcher.Operation]:
        if self.left:
            return self._new()
        return [searcher.Shutdown()] if len(searcher_state.trials_closed) == self.total else []

    def progress(self, searcher_state: searcher.SearcherState) -> float:
        return len(searcher_state.trials_closed) / self.total

    def on_trial_exited_early(
        self, searcher_state: searcher.SearcherState, request_id: uuid.UUID, exited_reason: searcher.ExitedReason
    ) -> list[searcher.Operation]:
        return []

    def save_method_state(self, path: Path) -> None:
        state = [self.rng.getstate(), self.left, self.metrics]
        (path / "method.json").write_text(json.dumps(state))

    def load_method_state(self, path: Path) -> None:
        (version, words, gauss), self.left, self.metrics = json.loads((path / "method.json").read_text())
        self.rng.setstate((version, tuple(words), gauss))


class Scripted(Sampling):
    """Answers as it is told, and keeps what it was asked."""

    def __init__(self, **answers: Any) -> None:
        super().__init__()
        self.answers = answers
        self.asked: list[tuple[Any, ...]] = []

    def _ask(self, name: str, state: searcher.SearcherState, *args: Any) -> Any:
        self.asked.append((name, *args, state.to_dict()))
        answer = self.answers.get(name, [])
        return answer() if callable(answer) else answer

    def initial_operations(self, searcher_state: searcher.SearcherState) -> list[searcher.Operation]:
        return self._ask("initial_operations", searcher_state)

    def on_trial_created(self, searcher_state: Any, request_id: uuid.UUID) -> list[searcher.Operation]:
        return self._ask("on_trial_created", searcher_state, request_id)

    def on_validation_completed(
        self, searcher_state: Any, request_id: uuid.UUID, metric: Any, train_length: int
    ) -> list[searcher.Operation]:
        return self._ask("on_validation_completed", searcher_state, request_id, metric, train_length)

    def on_trial_closed(self, searcher_state: Any, request_id: uuid.UUID) -> list[searcher.Operation]:
        return self._ask("on_trial_closed", searcher_state, request_id)

    def progress(self, searcher_state: searcher.SearcherState) -> float:
        answer = self.answers.get("progress", 0.5)
        return answer() if callable(answer) else answer

    def on_trial_exited_early(
        self, searcher_state: Any, request_id: uuid.UUID, exited_reason: searcher.ExitedReason
    ) -> list[searcher.Operation]:
        return self._ask("on_trial_exited_early", searcher_state, request_id, exited_reason)


class Died(BaseException):
    """The runner's process is gone."""


@pytest.fixture
def cluster(master: Master, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Cluster]:
    session = Session(master.url, token="tok", username="ann")
    monkeypatch.setattr(client, "_determined", client.Determined.from_session(session))
    monkeypatch.setattr(_search_runner, "_IDLE_S", 0.01)
    monkeypatch.setattr(_search_runner, "_PAUSED_S", 0.02)
    monkeypatch.setattr(_search_runner, "_RETRY_BASE_S", 0.01)
    monkeypatch.setattr(_search_runner, "_RETRY_CAP_S", 0.02)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    yield Cluster(master)
    session.close()


def search(method: searcher.SearchMethod, folder: Path) -> searcher.LocalSearchRunner:
    runner = searcher.LocalSearchRunner(method, folder)
    assert runner.run(CONFIG) == 5
    return runner


def test_a_search_runs_to_its_end(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "work" / "train.py").write_text("pass")
    runner = search(Sampling(), tmp_path / "search")
    assert runner.state.experiment_completed
    assert not runner.state.experiment_failed
    assert len(cluster.hparams) == len(runner.state.trials_created) == len(runner.state.trials_closed) == 6
    created = cluster.master.of(CREATE)[0].body
    assert "name: custom" in created["config"]
    assert created["activate"] is True
    assert [f["path"] for f in created["modelDefinition"]] == ["train.py"]
    # Each event is answered once, in order.
    assert [event_id for event_id, _ in cluster.posted()] == list(range(1, cluster.next_id))
    assert (tmp_path / "search" / "experiment_id.txt").read_text() == "5"
    saved = sorted(p.relative_to(tmp_path / "search").as_posix() for p in (tmp_path / "search").rglob("*"))
    last = f"exp_5/event_{cluster.next_id - 1}"
    assert saved == [
        ".lock",
        "exp_5",
        last,
        f"{last}/method.json",
        f"{last}/ops",
        f"{last}/state",
        "exp_5/event_id",
        "experiment_id.txt",
    ]


def run_events(cluster: Cluster, method: searcher.SearchMethod, tmp_path: Path, *events: tuple[str, Any]) -> Any:
    """Run a method on these events, after `initialOperations`; the experiment is complete after them."""
    cluster.put("initialOperations")
    for kind, body in events:
        cluster.put(kind, **body)
    cluster.keys = dict.fromkeys(["any"], 5)
    runner = searcher.LocalSearchRunner(method, tmp_path / "search")
    (tmp_path / "search").mkdir()
    (tmp_path / "search" / "experiment_id.txt").write_text("5")
    post = cluster._operations

    def complete_at_last(call: Call) -> Any:
        answer = post(call)
        if not cluster.queue and cluster.state == "STATE_ACTIVE":
            cluster.state = "STATE_COMPLETED"
        return answer

    cluster.master.answer(OPERATIONS, complete_at_last)
    runner.run(CONFIG)
    return runner


def test_each_kind_of_event_reaches_its_handler(cluster: Cluster, tmp_path: Path) -> None:
    method = Scripted()
    request_id = uuid.UUID(R)
    runner = run_events(
        cluster,
        method,
        tmp_path,
        ("trialCreated", {"requestId": R}),
        ("trialProgress", {"requestId": R, "partialUnits": 12.5}),
        ("validationCompleted", {"requestId": R, "metric": {"a": "NaN"}, "validateAfterLength": "100"}),
        ("trialExitedEarly", {"requestId": R, "exitedReason": "EXITED_REASON_UNSPECIFIED"}),
        ("trialClosed", {"requestId": R}),
        ("somethingNew", {"requestId": R}),
    )
    assert [asked[:-1] for asked in method.asked if asked[0] != "on_validation_completed"] == [
        ("initial_operations",),
        ("on_trial_created", request_id),
        ("on_trial_exited_early", request_id, searcher.ExitedReason.ERRORED),
        ("on_trial_closed", request_id),
    ]
    _, seen_id, metric, length, state = method.asked[2]
    assert (seen_id, length) == (request_id, 100)
    assert math.isnan(metric["a"])
    assert state["trialProgress"] == {R: 12.5}
    # What happened is in the state before the handler is asked.
    assert [asked[-1]["trialsCreated"] for asked in method.asked] == [[], [R], [R], [R], [R]]
    assert [asked[-1]["failures"] for asked in method.asked] == [[], [], [], [R], [R]]
    assert [asked[-1]["trialsClosed"] for asked in method.asked] == [[], [], [], [], [R]]
    assert runner.state.failures == {request_id}
    progress = {"setSearcherProgress": {"progress": 0.5}}
    assert cluster.posted() == [
        (1, []),
        (2, []),
        (3, [progress]),
        (4, [progress]),
        (5, [progress]),
        (6, [progress]),
        (7, []),
    ]
    assert cluster.master.of(OPERATIONS)[3].body["triggeredByEvent"] == {
        "id": 4,
        "validationCompleted": {"requestId": R, "metric": {"a": "NaN"}, "validateAfterLength": "100"},
    }


@pytest.mark.parametrize(
    ("reason", "failures", "progress"),
    [("INVALID_HP", set(), {}), ("USER_CANCELED", set(), {R: 0.0}), ("UNSPECIFIED", {R}, {R: 0.0})],
)
def test_only_errors_count_as_failures(
    cluster: Cluster, tmp_path: Path, reason: str, failures: set[str], progress: dict[str, float]
) -> None:
    runner = run_events(
        cluster,
        Scripted(),
        tmp_path,
        ("trialCreated", {"requestId": R}),
        ("trialExitedEarly", {"requestId": R, "exitedReason": f"EXITED_REASON_{reason}"}),
    )
    assert {str(r) for r in runner.state.failures} == failures
    assert {str(r): units for r, units in runner.state.trial_progress.items()} == progress


@pytest.mark.parametrize(("told", "posted"), [(-1, 0.0), (3, 1.0), (math.nan, 0.0), (0.75, 0.75)])
def test_progress_stays_between_0_and_1(cluster: Cluster, tmp_path: Path, told: float, posted: float) -> None:
    run_events(cluster, Scripted(progress=told), tmp_path, ("trialProgress", {"requestId": R, "partialUnits": 1}))
    assert cluster.applied == [{"setSearcherProgress": {"progress": posted}}]


def test_events_that_were_answered_are_skipped(cluster: Cluster, tmp_path: Path) -> None:
    method = Scripted()
    stale = [{"id": 1, "initialOperations": {}}, {"id": 2, "trialCreated": {"requestId": R}}]
    polls: list[Any] = [
        [stale[0], stale[0], stale[1]],
        stale,  # a list that lags behind
        [],
        None,
        [*stale, {"id": 3, "trialClosed": {"requestId": R}}],
    ]

    def events(call: Call) -> Any:
        if not polls:
            return {"searcherEvents": [{"id": 3, "experimentInactive": {"experimentState": "STATE_COMPLETED"}}]}
        return {"searcherEvents": polls.pop(0)}

    cluster.master.answer(EVENTS, events)
    cluster.master.answer(OPERATIONS, {})
    search(method, tmp_path / "search")
    assert [asked[0] for asked in method.asked] == ["initial_operations", "on_trial_created", "on_trial_closed"]
    assert [event_id for event_id, _ in cluster.posted()] == [1, 2, 3]


@pytest.mark.parametrize(
    ("state", "completed", "failed"),
    [
        ("STATE_COMPLETED", True, False),
        ("STATE_CANCELED", False, False),
        ("STATE_ERROR", False, True),
        ("STATE_DELETED", False, False),
    ],
)
def test_an_experiment_that_has_ended_ends_the_run(
    cluster: Cluster, tmp_path: Path, state: str, completed: bool, failed: bool
) -> None:
    cluster.state = state
    runner = search(Scripted(), tmp_path)
    assert (runner.state.experiment_completed, runner.state.experiment_failed) == (completed, failed)
    assert cluster.posted() == []
    # The end is kept, and a second run ends at once.
    again = searcher.LocalSearchRunner(Scripted(), tmp_path)
    again.load_state(5)
    assert again.state == runner.state
    assert search(Scripted(), tmp_path).state == runner.state
    assert len(cluster.master.of(CREATE)) == 1


def test_a_paused_experiment_is_waited_for(cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    polls: list[str] = []
    events = cluster._events

    def with_pauses(call: Call) -> Any:
        polls.append(cluster.state)
        if len(polls) == 3:
            cluster.state = "STATE_PAUSED"
        elif len(polls) == 6:
            cluster.state = "STATE_STOPPING_COMPLETED"  # and back, which no cluster does: any other state is waited for
        elif len(polls) == 8:
            cluster.state = "STATE_ACTIVE"
        return events(call)

    cluster.master.answer(EVENTS, with_pauses)
    assert search(Sampling(), tmp_path / "search").state.experiment_completed
    assert len(cluster.hparams) == 6
    assert [r.levelname for r in caplog.records if "is paused" in r.message] == ["WARNING"]


def test_operations_that_a_pause_kept_off_are_posted_after_it(cluster: Cluster, tmp_path: Path) -> None:
    post = cluster._operations
    refusals = []

    def refuse_three(call: Call) -> Any:
        if len(refusals) < 3 and cluster.next_id > 3:
            refusals.append(call)
            cluster.state = "STATE_PAUSED"
            threading.Timer(0.05, lambda: setattr(cluster, "state", "STATE_ACTIVE")).start()
            return 400, {"message": "the experiment is paused"}
        return post(call)

    cluster.master.answer(OPERATIONS, refuse_three)
    assert search(Sampling(), tmp_path / "search").state.experiment_completed
    assert len(refusals) == 3


def test_an_experiment_that_ends_between_event_and_answer_ends_the_run(cluster: Cluster, tmp_path: Path) -> None:
    def cancelled(call: Call) -> Any:
        cluster.state = "STATE_CANCELED"
        return 400, {"message": "the experiment has ended"}

    cluster.master.answer(OPERATIONS, cancelled)
    runner = search(Sampling(), tmp_path / "search")
    assert not runner.state.experiment_completed


def test_an_experiment_that_is_deleted_ends_the_run(cluster: Cluster, tmp_path: Path) -> None:
    cluster.master.answer(OPERATIONS, lambda call: (404, {"message": "no such experiment"}))
    events = cluster._events
    cluster.master.answer(EVENTS, lambda call: (404, {"message": "gone"}) if cluster.posted() else events(call))
    search(Sampling(), tmp_path / "search")


def test_an_experiment_that_never_was_is_an_error(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "experiment_id.txt").write_text("6")
    with pytest.raises(errors.NotFoundException):
        searcher.LocalSearchRunner(Sampling(), tmp_path).run(CONFIG)
    assert cluster.master.of(CREATE) == []


# -- a master that fails -----------------------------------------------------------------------------------------------


def test_a_master_that_is_away_is_waited_for(cluster: Cluster, tmp_path: Path) -> None:
    faults = random.Random(3)
    kinds = [(503, {"message": "busy"}), (429, {}), (502, b"<html>"), None, None, None, None]
    # The first answers hold, so that the experiment is there.
    cluster.master.fault = lambda call: faults.choice([*kinds, cluster.master.Raw(b"")]) if cluster.keys else None
    assert search(Sampling(), tmp_path / "search").state.experiment_completed
    assert len(cluster.hparams) == 6
    assert len([o for o in cluster.applied if "shutDown" in o]) == 1


def test_an_answer_that_was_lost_is_not_posted_twice(cluster: Cluster, tmp_path: Path) -> None:
    lost: list[int] = []

    def lose(call: Call) -> bool:
        if not call.path.endswith("searcher_operations") or call.body["triggeredByEvent"]["id"] in lost:
            return False
        lost.append(call.body["triggeredByEvent"]["id"])
        return True

    cluster.master.lose = lose
    method = Sampling()
    assert search(method, tmp_path / "search").state.experiment_completed
    assert len(cluster.hparams) == 6
    assert lost == list(range(1, cluster.next_id))


def test_a_master_with_a_fault_is_not_asked_for_ever(cluster: Cluster, tmp_path: Path) -> None:
    cluster.master.answer(EVENTS, lambda call: (500, {"message": "a bug"}))
    with pytest.raises(errors.ServerException, match="a bug"):
        searcher.LocalSearchRunner(Sampling(), tmp_path).run(CONFIG)
    assert len(cluster.master.of(EVENTS)) == 5


def test_a_session_that_has_ended_is_an_error_and_the_next_run_goes_on(cluster: Cluster, tmp_path: Path) -> None:
    post = cluster._operations
    cluster.master.answer(OPERATIONS, lambda call: (401, {"message": "expired"}) if cluster.next_id > 5 else post(call))
    with pytest.raises(errors.UnauthenticatedException, match="expired"):
        searcher.LocalSearchRunner(Sampling(), tmp_path).run(CONFIG)
    assert cluster.state == "STATE_ACTIVE"
    cluster.master.answer(OPERATIONS, post)
    assert search(Sampling(), tmp_path).state.experiment_completed


def test_a_poll_that_lasts_too_long_is_asked_again(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_search_runner, "POLL_TIMEOUT_S", 0.1)
    events = cluster._events
    slow = [True]

    def first_is_slow(call: Call) -> Any:
        if slow.pop() if slow else False:
            time.sleep(0.4)
        return events(call)

    cluster.master.answer(EVENTS, first_is_slow)
    assert search(Sampling(), tmp_path).state.experiment_completed
    assert "can't reach" not in caplog.text


# -- a method that fails -----------------------------------------------------------------------------------------------


def fail() -> Any:
    raise ZeroDivisionError("in my method")


@pytest.mark.parametrize(
    ("answers", "events", "error", "message"),
    [
        ({"initial_operations": fail}, [], ZeroDivisionError, "in my method"),
        ({"on_trial_created": fail}, [("trialCreated", {"requestId": R})], ZeroDivisionError, "in my method"),
        ({"on_trial_closed": fail}, [("trialClosed", {"requestId": R})], ZeroDivisionError, "in my method"),
        ({"progress": fail}, [("trialProgress", {"requestId": R})], ZeroDivisionError, "in my method"),
        ({"initial_operations": None}, [], TypeError, "initial_operations must return a list of operations"),
        ({"initial_operations": ["x"]}, [], TypeError, "must return operations only, but returned 'x'"),
    ],
)
def test_an_error_of_the_method_ends_the_experiment(
    cluster: Cluster,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    answers: Any,
    events: Any,
    error: type[Exception],
    message: str,
) -> None:
    with pytest.raises(error, match=message):
        run_events(cluster, Scripted(**answers), tmp_path, *events)
    assert cluster.posted()[-1] == (len(events) + 1, [{"shutDown": {"failure": True}}])
    assert cluster.state == "STATE_ERROR"
    assert message in caplog.text
    # The failed decision was not kept.
    runner = searcher.LocalSearchRunner(Scripted(), tmp_path / "search")
    runner.load_state(5)
    assert runner.state.last_event_id == len(events)
    assert search(Scripted(), tmp_path / "search").state.experiment_failed


def test_the_error_of_the_method_is_raised_even_if_nobody_can_be_told(cluster: Cluster, tmp_path: Path) -> None:
    cluster.master.answer(OPERATIONS, lambda call: (400, {"message": "no"}))
    with pytest.raises(ZeroDivisionError):
        searcher.LocalSearchRunner(Scripted(initial_operations=fail), tmp_path).run(CONFIG)


def test_operations_that_are_refused_end_the_experiment(cluster: Cluster, tmp_path: Path) -> None:
    operations = [searcher.Create(uuid.UUID(R), {"refuse": 1}, None)]
    with pytest.raises(errors.InvalidRequestException, match="no such trial"):
        searcher.LocalSearchRunner(Scripted(initial_operations=operations), tmp_path).run(CONFIG)
    assert cluster.state == "STATE_ERROR"
    assert [len(posted) for _, posted in cluster.posted()] == [1, 1, 1]
    assert cluster.posted()[-1] == (1, [{"shutDown": {"failure": True}}])


def test_an_error_while_saving_ends_the_run_and_not_the_experiment(cluster: Cluster, tmp_path: Path) -> None:
    class Full(Sampling):
        def save_method_state(self, path: Path) -> None:
            if self.metrics:
                raise OSError("no space")
            super().save_method_state(path)

    with pytest.raises(OSError, match="no space"):
        searcher.LocalSearchRunner(Full(), tmp_path).run(CONFIG)
    assert cluster.state == "STATE_ACTIVE"
    assert search(Sampling(), tmp_path).state.experiment_completed


# -- a runner that dies ------------------------------------------------------------------------------------------------


@pytest.fixture
def undisturbed(cluster: Cluster, tmp_path: Path) -> list[dict[str, Any]]:
    """The operations of the search when nothing happens."""
    search(Sampling(), tmp_path / "undisturbed")
    applied = cluster.applied
    Cluster.__init__(cluster, cluster.master)
    cluster.master.calls.clear()
    return applied


class Mortal(searcher.LocalSearchRunner):
    """Dies at the n-th time that it passes `point`."""

    def __init__(self, method: Sampling, folder: Path, point: str, n: int) -> None:
        super().__init__(method, folder)
        self.point, self.n = point, n
        original = method.save_method_state

        def save_method_state(path: Path) -> None:
            original(path)
            self.passes("while saving")

        method.save_method_state = save_method_state  # type: ignore[method-assign]

    def passes(self, point: str) -> None:
        if point == self.point:
            self.n -= 1
            if self.n < 0:
                raise Died(point)

    def save_state(self, experiment_id: int, operations: list[searcher.Operation]) -> None:
        self.passes("before save")
        super().save_state(experiment_id, operations)
        self.passes("before post")

    def post_operations(self, session: Any, experiment_id: int, event: Any, operations: Any) -> None:
        super().post_operations(session, experiment_id, event, operations)
        self.passes("after post")

    def get_events(self, session: Any, experiment_id: int) -> Any:
        self.passes("before poll")
        events = super().get_events(session, experiment_id)
        self.passes("after poll")
        return events


@pytest.mark.parametrize(
    "point", ["before save", "while saving", "before post", "after post", "before poll", "after poll"]
)
@pytest.mark.parametrize("often", [True, False])
def test_a_runner_that_died_decides_as_if_it_had_not(
    cluster: Cluster, undisturbed: list[dict[str, Any]], tmp_path: Path, point: str, often: bool
) -> None:
    deaths = 0
    for n in range(200):
        try:
            # Often: each run gets past the point once. Otherwise once more than the run before, from not at all on.
            assert Mortal(Sampling(), tmp_path / "search", point, 1 if often else n).run(CONFIG) == 5
            break
        except Died:
            deaths += 1
    assert cluster.state == "STATE_COMPLETED"
    assert deaths >= 3
    assert cluster.applied == undisturbed


def test_a_runner_that_died_between_creation_and_writing_the_id_finds_its_experiment(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.master.lose = lambda call: call.path == "/api/v1/experiments"
    with pytest.raises(errors.MasterNotFoundException):
        searcher.LocalSearchRunner(Sampling(), tmp_path).run(CONFIG)
    assert not (tmp_path / "experiment_id.txt").exists()
    cluster.master.lose = lambda call: False
    assert search(Sampling(), tmp_path).state.experiment_completed
    assert len(cluster.keys) == 1
    assert len(cluster.master.of(CREATE)) > 1
    # Whoever removes the id wants a new experiment.
    assert not (tmp_path / "creation_key.txt").exists()


PROGRAM = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_searcher_runners import CONFIG, Sampling
from determined import searcher
from determined.common.api import Session
from determined.experimental import client
client._determined = client.Determined.from_session(Session(sys.argv[2], token="tok"))
print(searcher.LocalSearchRunner(Sampling(), Path(sys.argv[3])).run(CONFIG))
"""


def test_a_runner_that_is_killed_goes_on(cluster: Cluster, undisturbed: list[dict[str, Any]], tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(Path(__file__).parent), cluster.master.url, str(tmp_path / "s")]
    running: list[subprocess.Popen[str]] = []
    moments = [
        lambda call: call.path == "/api/v1/experiments",
        lambda call: call.path.endswith("searcher_operations") and call.body["triggeredByEvent"]["id"] == 1,
        lambda call: call.path.endswith("searcher_operations") and call.body["triggeredByEvent"]["id"] == 9,
        lambda call: call.path.endswith("searcher_events") and cluster.next_id > 20,
    ]

    def kill(call: Call) -> bool:
        if moments and moments[0](call):
            moments.pop(0)
            running[0].kill()
            return True
        return False

    cluster.master.lose = kill
    codes = []
    for _ in range(5):
        running[:] = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)]
        out, err = running[0].communicate(timeout=60)
        codes.append(running[0].returncode)
    assert codes == [-9, -9, -9, -9, 0], err
    assert out == "5\n"
    assert cluster.applied == undisturbed


# -- LocalSearchRunner -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"searcher": {"name": "single"}}, "its searcher.name is 'single'"),
        ({"searcher": "custom"}, "it has no searcher.name"),
        ({}, "it has no searcher.name"),
        ("single.yaml", r"configuration 'single.yaml' must have .*its searcher.name is 'single'"),
        ("list.yaml", "it has no searcher.name"),
        ("broken.yaml", "is not valid YAML"),
    ],
)
def test_a_configuration_of_another_searcher_is_refused(
    cluster: Cluster, tmp_path: Path, config: Any, message: str
) -> None:
    Path("single.yaml").write_text("searcher: {name: single}")
    Path("list.yaml").write_text("[1]")
    Path("broken.yaml").write_text("searcher: {")
    with pytest.raises(ValueError, match=message):
        searcher.LocalSearchRunner(Sampling(), tmp_path / "search").run(config)
    assert cluster.master.calls == []
    assert not (tmp_path / "search").exists()


def test_a_configuration_file_that_is_missing_is_an_error(cluster: Cluster) -> None:
    with pytest.raises(FileNotFoundError, match=r"nothing\.yaml"):
        searcher.LocalSearchRunner(Sampling()).run("nothing.yaml")


def test_a_configuration_file_is_sent_as_it_is(cluster: Cluster, tmp_path: Path) -> None:
    text = "# a comment\nsearcher: {name: custom, metric: accuracy}\n"
    Path("custom.yaml").write_text(text)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "train.py").write_text("pass")
    runner = searcher.LocalSearchRunner(Sampling())
    assert runner.searcher_dir == Path.cwd()
    runner.run("custom.yaml", model_dir=str(tmp_path / "model"))
    body = cluster.master.of(CREATE)[0].body
    assert body["config"] == text
    assert [f["path"] for f in body["modelDefinition"]] == ["train.py"]


def test_an_experiment_that_the_master_refuses_is_an_error(cluster: Cluster, tmp_path: Path) -> None:
    cluster.master.answer(CREATE, lambda call: (400, {"message": "<config>.entrypoint is missing"}))
    with pytest.raises(errors.InvalidRequestException, match="entrypoint is missing"):
        searcher.LocalSearchRunner(Sampling(), tmp_path).run(CONFIG)


def test_one_folder_belongs_to_one_process(cluster: Cluster, tmp_path: Path) -> None:
    class Nested(Sampling):
        def initial_operations(self, searcher_state: Any) -> list[searcher.Operation]:
            with pytest.raises(RuntimeError, match="another process runs the search"):
                searcher.LocalSearchRunner(Sampling(), tmp_path).run(CONFIG)
            return super().initial_operations(searcher_state)

    assert search(Nested(), tmp_path).state.experiment_completed


@pytest.mark.parametrize(
    ("path", "content", "message"),
    [
        ("experiment_id.txt", "five", "does not hold the id of an experiment"),
        ("exp_5/event_id", "99", "no folder event_99"),
        ("exp_5/event_1/ops", "\x80\x04]\x94.", "can go on with"),
        ("exp_5/event_1/state", "{", "Expecting"),
    ],
)
def test_a_damaged_folder_is_an_error(cluster: Cluster, tmp_path: Path, path: str, content: str, message: str) -> None:
    with pytest.raises(Died):
        Mortal(Sampling(), tmp_path, "before post", 1).run(CONFIG)
    (tmp_path / path).write_text(content, encoding="latin-1")
    with pytest.raises(ValueError, match=message):
        searcher.LocalSearchRunner(Sampling(), tmp_path).run(CONFIG)


# -- RemoteSearchRunner ------------------------------------------------------------------------------------------------


@pytest.fixture
def remote(cluster: Cluster, trial: Trial) -> Trial:
    return trial


def reported(trial: Trial) -> list[tuple[str, int]]:
    """(checkpoint, steps_completed) as the trial reported them."""
    calls = trial.master.of("POST /api/v1/checkpoints")
    return [(c.body["uuid"], c.body["metadata"]["steps_completed"]) for c in calls]


def test_a_search_inside_of_a_trial_runs_to_its_end(cluster: Cluster, remote: Trial) -> None:
    with remote.init() as context:
        runner = searcher.RemoteSearchRunner(Sampling(), context)
        assert runner.run(CONFIG) == 5
    assert runner.state.experiment_completed
    assert [steps for _, steps in reported(remote)] == list(range(cluster.next_id))
    # The last two remain.
    left = [name for name in os.listdir(remote.storage) if not name.startswith(".")]
    assert sorted(left) == sorted(uuid for uuid, _ in reported(remote)[-2:])


class MortalRemote(searcher.RemoteSearchRunner):
    """Dies at the n-th save, or before the post that follows it."""

    def __init__(self, method: Sampling, context: Any, point: str, n: int) -> None:
        super().__init__(method, context)
        self.point, self.n = point, n

    def save_state(self, experiment_id: int, operations: list[searcher.Operation]) -> None:
        self.n -= 1
        if self.n < 0 and self.point == "before save":
            raise Died
        super().save_state(experiment_id, operations)
        if self.n < 0 and self.point == "before post":
            raise Died


@pytest.mark.parametrize("point", ["before save", "before post"])
def test_a_trial_that_restarts_goes_on_with_its_search(
    cluster: Cluster, undisturbed: list[dict[str, Any]], remote: Trial, point: str
) -> None:
    deaths = 0
    for n in range(100):
        try:
            with remote.init() as context:
                # The first dies before its first checkpoint: its experiment is found by the key.
                assert MortalRemote(Sampling(), context, point, n).run(CONFIG) == 5
            break
        except Died:
            deaths += 1
            saved = reported(remote)
            remote.latest_checkpoint = saved[-1][0] if saved else None
    assert deaths >= 3
    assert len(cluster.keys) == 1
    assert cluster.state == "STATE_COMPLETED"
    assert cluster.applied == undisturbed


def test_a_search_makes_room_when_its_trial_is_asked_to(
    cluster: Cluster, undisturbed: list[dict[str, Any]], remote: Trial
) -> None:
    events = cluster._events

    def preempt(call: Call) -> Any:
        if cluster.next_id > 8 and not remote.preempt.is_set():
            remote.preempt.set()
            remote.master.wait_for(lambda: asked)
        return events(call)

    asked: list[bool] = []
    cluster.master.answer(EVENTS, preempt)
    with pytest.raises(SystemExit) as e, remote.init() as context:
        preempted = context.preempt
        threading.Thread(target=lambda: asked.append(_wait_for_preemption(preempted)), daemon=True).start()
        searcher.RemoteSearchRunner(Sampling(), context).run(CONFIG)
    assert e.value.code == 0
    assert len(remote.master.of("POST .*/ack_preemption")) == 1
    assert cluster.state == "STATE_ACTIVE"
    remote.preempt.clear()
    cluster.master.answer(EVENTS, events)
    remote.latest_checkpoint = reported(remote)[-1][0]
    with remote.init() as context:
        searcher.RemoteSearchRunner(Sampling(), context).run(CONFIG)
    assert cluster.applied == undisturbed


def _wait_for_preemption(preempt: Any) -> bool:
    deadline = time.monotonic() + 20
    while not preempt.should_preempt(auto_ack=False):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return True


def test_a_remote_search_needs_the_custom_searcher_too(cluster: Cluster, remote: Trial) -> None:
    with remote.init() as context, pytest.raises(ValueError, match="its searcher.name is 'grid'"):
        searcher.RemoteSearchRunner(Sampling(), context).run({"searcher": {"name": "grid"}})
    assert cluster.master.of(CREATE) == []


def test_a_checkpoint_that_can_not_be_deleted_does_not_end_the_search(
    cluster: Cluster, remote: Trial, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.master.answer("PATCH /api/v1/checkpoints", lambda call: (400, {"message": "it is in the registry"}))
    with remote.init() as context:
        assert searcher.RemoteSearchRunner(Sampling(3), context).run(CONFIG) == 5
    assert caplog.text.count("could not be deleted") == 1
    assert len(cluster.master.of("PATCH /api/v1/checkpoints")) == 1


def test_a_remote_search_works_without_a_cluster_around_it(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from determined import core

    monkeypatch.setenv("DET_RUN_DIR", str(tmp_path / "nothing"))
    monkeypatch.setattr(determined._info, "_cached", None)
    with core.init(checkpoint_storage=str(tmp_path / "checkpoints")) as context:
        assert searcher.RemoteSearchRunner(Sampling(), context).run(CONFIG) == 5
    assert cluster.state == "STATE_COMPLETED"


# -- the example -------------------------------------------------------------------------------------------------------

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_search"


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


asha = load(EXAMPLE / "asha.py")


@pytest.fixture
def training(cluster: Cluster) -> Cluster:
    """A cluster whose trials run the example's training; those that diverge report invalid hyperparameters."""
    train = load(EXAMPLE / "train" / "train.py")

    def metric_of(hparams: dict[str, Any], length: int) -> Any:
        state: dict[str, Any] = {"epochs": 0, "at": [1.0, 1.0], "speed": [0.0, 0.0]}
        losses = [train.train_one_epoch(state, hparams) for _ in range(length)]
        return None if max(losses) > 1e6 else losses[-1]

    cluster.metric_of = metric_of
    return cluster


def lengths(cluster: Cluster) -> dict[str, int]:
    """How far each trial was asked to train."""
    asked = [o["trialOperation"]["validateAfter"] for o in cluster.applied if "trialOperation" in o]
    return {o["requestId"]: int(o["length"]) for o in asked}


def test_the_example_searches(training: Cluster, tmp_path: Path) -> None:
    runner = searcher.LocalSearchRunner(asha.Asha(), tmp_path / "search")
    assert runner.run(str(EXAMPLE / "custom.yaml"), str(EXAMPLE / "train")) == 5
    assert runner.state.experiment_completed
    assert len(runner.state.trials_closed) == 16
    reached = sorted(lengths(training).values())
    assert len(reached) == 16
    assert reached.count(1) >= 8
    assert reached[-1] == 16


def test_the_example_goes_on_where_it_was(training: Cluster, tmp_path: Path) -> None:
    searcher.LocalSearchRunner(asha.Asha(), tmp_path / "undisturbed").run(str(EXAMPLE / "custom.yaml"))
    undisturbed = training.applied
    Cluster.__init__(training, training.master)
    for n in range(100):
        try:
            Mortal(asha.Asha(), tmp_path / "search", "before post", n).run(str(EXAMPLE / "custom.yaml"))
            break
        except Died:
            assert training.state == "STATE_ACTIVE"
    assert training.applied == undisturbed


def test_the_configurations_are_what_the_runners_need() -> None:
    assert "name: custom" in _experiment.config_text(str(EXAMPLE / "custom.yaml"))
    remote = yaml.safe_load((EXAMPLE / "remote.yaml").read_text())
    assert (EXAMPLE / remote["entrypoint"].split()[1]).exists()


def test_the_training_runs_without_a_cluster(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_DATA_HOME": str(tmp_path), "DET_RUN_DIR": str(tmp_path / "none")}
    subprocess.run([sys.executable, EXAMPLE / "train" / "train.py"], env=environment, check=True, timeout=60)
    (saved,) = tmp_path.rglob("state.json")
    assert json.loads(saved.read_text())["epochs"] == 1
