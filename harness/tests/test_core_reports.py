"""Reports of a trial: cost, order, outages, refusals."""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy
import pytest

import determined as det
from determined import core, errors
from determined.launch._folder import GangFolder

if TYPE_CHECKING:
    from conftest import Call, Trial

BATCH = "POST /api/v1/trials/7/metrics/batch"
CURVES = "POST /api/v1/trials/7/metrics/curves"


def test_reports_arrive_with_all_fields(trial: Trial) -> None:
    with trial.init() as ctx:
        ctx.train.report_training_metrics(1, {"loss": 0.5}, batch_metrics=[{"loss": 0.4}, {"loss": 0.6}])
        ctx.train.report_validation_metrics(1, {"accuracy": 0.9})
        ctx.train.report_metrics("inference", 2, {"x": 1})
    first, second, third = trial.master.reports()
    assert first["group"] == "training"
    assert first["trialRunId"] == 2
    assert first["stepsCompleted"] == 1
    assert first["metrics"] == {"avgMetrics": {"loss": 0.5}, "batchMetrics": [{"loss": 0.4}, {"loss": 0.6}]}
    assert first["reportTime"].endswith("Z")
    assert abs(time.time() - _parse(first["reportTime"])) < 60
    assert (second["group"], second["metrics"]) == ("validation", {"avgMetrics": {"accuracy": 0.9}})
    assert (third["group"], third["stepsCompleted"]) == ("inference", 2)
    headers = trial.master.of(BATCH)[0].headers
    assert headers["Grpc-Metadata-x-allocation-token"] == "Bearer secret-token"
    assert headers["Idempotency-Key"]


def _parse(text: str) -> float:
    import datetime

    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def test_a_report_costs_the_loop_little(trial: Trial) -> None:
    metrics = {f"metric{i}": float(i) for i in range(10)}
    with trial.init() as ctx:
        ctx.train.report_training_metrics(0, metrics)
        costs = []
        for step in range(1, 2001):
            began = time.perf_counter()
            ctx.train.report_training_metrics(step, metrics)
            costs.append(time.perf_counter() - began)
            if step % 100 == 0:
                threading.Event().wait(0.005)  # the loop's own work
    assert statistics.median(costs) < 100e-6
    print(f"median {statistics.median(costs) * 1e6:.1f} µs, 99 % below {sorted(costs)[1980] * 1e6:.1f} µs")
    assert [r["stepsCompleted"] for r in trial.master.reports()] == list(range(2001))


def test_reports_that_wait_are_sent_in_batches_of_at_most_3840(trial: Trial) -> None:
    gate = threading.Event()
    trial.master.fault = lambda call: _after(gate) if call.path.endswith("/batch") else None
    with trial.init() as ctx:
        for step in range(9000):
            ctx.train.report_training_metrics(step, {"loss": 1.0})
        gate.set()
    sizes = [len(c.body["reports"]) for c in trial.master.of(BATCH)]
    assert sum(sizes) == 9000
    assert max(sizes) == 3840
    assert len(sizes) <= 6


def _after(gate: threading.Event) -> None:
    assert gate.wait(10)


def test_odd_values_become_json(trial: Trial) -> None:
    class Tensor:
        def detach(self) -> Tensor:
            return self

        def tolist(self) -> float:
            return 2.5

    class Index:
        def __index__(self) -> int:
            return 3

    with trial.init() as ctx:
        ctx.train.report_training_metrics(
            Index(),  # type: ignore[arg-type]
            {
                "tensor": Tensor(),
                "nan": math.nan,
                "inf": math.inf,
                "minus": -math.inf,
                "none": None,
                "text": "x",
                "nested": {"a": (1, 2.0)},
                "dropped": b"bytes",
            },
        )
    (report,) = trial.master.reports()
    assert report["stepsCompleted"] == 3
    assert report["metrics"]["avgMetrics"] == {
        "tensor": 2.5,
        "nan": "NaN",
        "inf": "Infinity",
        "minus": "-Infinity",
        "none": None,
        "text": "x",
        "nested": {"a": [1, 2.0]},
    }


def test_numpy_values_become_json(trial_python: str) -> None:
    script = """
import json, math, numpy as np
from determined.core._convert import to_json_value
from determined.core._train import _steps
print(json.dumps(to_json_value({
    "f32": np.float32(0.5), "f64": np.float64("nan"), "int": np.int64(7), "bool": np.bool_(True),
    "zero_d": np.array(4.0), "list": np.array([1.0, math.inf]), "steps": _steps(np.int64(3)),
}, "x"), allow_nan=False))
"""
    out = subprocess.run([trial_python, "-c", script], capture_output=True, text=True, check=True, timeout=60).stdout
    assert json.loads(out) == {
        "f32": 0.5,
        "f64": "NaN",
        "int": 7,
        "bool": True,
        "zero_d": 4.0,
        "list": [1.0, "Infinity"],
        "steps": 3,
    }


def test_wrong_arguments_are_refused_at_once(trial: Trial) -> None:
    with trial.init() as ctx:
        with pytest.raises(RuntimeError, match="metrics is None"):
            ctx.train.report_validation_metrics(1, None)  # type: ignore[arg-type]
        with pytest.raises(RuntimeError, match="'accuracy' is None"):
            ctx.train.report_validation_metrics(1, {"accuracy": None})
        with pytest.raises(errors.InvalidDataTypeException, match="must be a dictionary"):
            ctx.train.report_training_metrics(1, [1])  # type: ignore[arg-type]
        for steps in (1.0, "1", True, -1, None):
            with pytest.raises(TypeError, match="steps_completed is"):
                ctx.train.report_training_metrics(steps, {})  # type: ignore[arg-type]
        for group in ("", "a.b", 3):
            with pytest.raises(ValueError, match="group is"):
                ctx.train.report_metrics(group, 1, {})  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="between 0 and 1"):
            ctx.train.report_progress(1.5)
    assert trial.master.reports() == []


def test_a_value_that_json_cannot_say_is_raised_from_the_next_call_and_the_rest_goes_on(trial: Trial) -> None:
    with trial.init() as ctx:
        ctx.train.report_training_metrics(1, {"model": object()})
        with pytest.raises(errors.InvalidDataTypeException, match="training metric 'model' is a builtins.object"):
            _call_until_it_raises(lambda: ctx.train.report_training_metrics(2, {"loss": 1.0}))
        ctx.train.report_training_metrics(3, {"loss": 1.0})
    steps = [r["stepsCompleted"] for r in trial.master.reports()]
    assert 1 not in steps
    assert steps[-1] == 3


def _call_until_it_raises(call: Any) -> None:
    for _ in range(1000):
        call()
        threading.Event().wait(0.01)


def test_a_refused_report_is_raised_once_and_its_neighbours_are_kept(trial: Trial) -> None:
    def batch(call: Call) -> Any:
        bad = [r for r in call.body["reports"] if r["metrics"]["avgMetrics"].get("bad")]
        return (400, {"message": "bad is not allowed"}) if bad else {}

    trial.master.answer(BATCH, batch)
    with pytest.raises(errors.InvalidRequestException, match="bad is not allowed"), trial.init() as ctx:
        ctx.train.report_training_metrics(0, {"ok": 1})
        for step in range(1, 50):
            ctx.train.report_training_metrics(step, {"bad": step == 20})
    accepted = [r["stepsCompleted"] for c in trial.master.of(BATCH) for r in c.body["reports"] if not batch(c)]
    assert accepted == [s for s in range(50) if s != 20]


def test_the_error_of_the_block_wins_over_a_refusal(trial: Trial) -> None:
    trial.master.answer(BATCH, (400, {"message": "no"}))
    with pytest.raises(KeyError, match="mine"), trial.init() as ctx:
        ctx.train.report_training_metrics(0, {"ok": 1})
        raise KeyError("mine")


def test_everything_arrives_once_and_in_order_through_an_outage(trial: Trial, quick_backoff: None) -> None:
    """Connections refused, 503s, answers lost in the middle: for 2.5 s, at waiting times of a fiftieth."""
    master = trial.master
    until = time.monotonic() + 2.5
    kinds: list[str] = []

    def fault(call: Call) -> Any:
        if time.monotonic() > until or "preemption" in call.path:
            return None
        kinds.append(("503", "502", "cut", "429")[len(kinds) % 4])
        return {
            "503": (503, {"message": "starting"}),
            "502": (502, b"<html>bad gateway</html>"),
            "cut": master.Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"),
            "429": (429, {"message": "slow down"}),
        }[kinds[-1]]

    with trial.init() as ctx:
        ctx.train.report_training_metrics(0, {"loss": 1.0})
        master.wait_for(lambda: master.reports())
        master.fault = fault
        for step in range(1, 300):
            ctx.train.report_training_metrics(step, {"loss": 1.0})
            if step == 100:
                master.stop()
            if step == 200:
                master.start()
            threading.Event().wait(0.002)
        ctx.train.report_validation_metrics(300, {"accuracy": 1.0})
        for op in ctx.searcher.operations():
            op.report_completed(1.0)
    assert len(kinds) > 5
    assert [r["stepsCompleted"] for r in master.reports()] == list(range(301))
    paths = [c.path for c in master.calls if "signals/preemption" not in c.path]
    assert paths.index("/api/v1/trials/7/searcher/completed_operation") > max(
        i for i, p in enumerate(paths) if p.endswith("metrics/batch")
    )


def test_a_lost_answer_is_sent_again_under_the_same_key(trial: Trial, quick_backoff: None) -> None:
    lost: list[str] = []

    def lose(call: Call) -> bool:
        if call.path.endswith("/batch") and len(lost) < 3:
            lost.append(call.headers["Idempotency-Key"])
            return True
        return False

    trial.master.lose = lose
    with trial.init() as ctx:
        ctx.train.report_training_metrics(1, {"loss": 1.0})
    calls = trial.master.of(BATCH)
    assert len(calls) == 4
    assert len({c.headers["Idempotency-Key"] for c in calls}) == 1
    assert len({str(c.body) for c in calls}) == 1


def test_leaving_the_context_waits_for_the_queue(trial: Trial, quick_backoff: None) -> None:
    with trial.init() as ctx:
        trial.master.stop()
        for step in range(500):
            ctx.train.report_training_metrics(step, {"loss": 1.0})
        threading.Timer(0.5, trial.master.start).start()
    assert [r["stepsCompleted"] for r in trial.master.reports()] == list(range(500))


def test_a_failed_process_gives_up_on_a_dead_master(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("determined.core._context._GIVE_UP_AFTER_ERROR_S", 0.3)
    began = time.monotonic()
    with pytest.raises(KeyError, match="mine"), trial.init() as ctx:
        trial.master.stop()
        for step in range(500):
            ctx.train.report_training_metrics(step, {"loss": 1.0})
        raise KeyError("mine")
    assert time.monotonic() - began < 15


@pytest.mark.parametrize("status", [401, 403])
def test_an_ended_allocation_stops_everything(trial: Trial, status: int, caplog: pytest.LogCaptureFixture) -> None:
    trial.master.answer(BATCH, (status, {"message": "allocation a.1 is over"}))
    with pytest.raises(errors.AllocationEnded, match="has ended allocation a.1"), trial.init() as ctx:
        ctx.train.report_training_metrics(1, {"loss": 1.0})
        _call_until_it_raises(lambda: ctx.train.report_training_metrics(2, {"loss": 1.0}))
    assert len(trial.master.of(BATCH)) == 1
    assert sum("has ended allocation" in record.message for record in caplog.records) == 1
    assert ctx.preempt is not None


def test_progress_and_status_are_reported_and_superseded_ones_dropped(trial: Trial) -> None:
    with trial.init() as ctx:
        ctx.train.set_status("warming up")
        gate = threading.Event()
        trial.master.wait_for(lambda: trial.master.of("POST /api/v1/trials/7/runner/metadata"))
        trial.master.fault = lambda call: _after(gate)
        ctx.train.report_training_metrics(0, {"loss": 1.0})
        for step in range(1, 30):
            ctx.train.report_training_metrics(step, {"loss": 1.0})
            ctx.train.report_progress(step / 30)
        gate.set()
    assert trial.master.of("POST /api/v1/trials/7/runner/metadata")[0].body == {"state": "warming up"}
    progress = [c.body for c in trial.master.of("POST /api/v1/trials/7/progress")]
    assert progress[-1] == {"progress": 29 / 30, "isRaw": True}
    assert len(progress) <= 3
    assert [r["stepsCompleted"] for r in trial.master.reports()] == list(range(30))


def test_the_best_validation_is_none_until_there_is_one(trial: Trial) -> None:
    route = "GET /api/v1/experiments/3/searcher/best_searcher_validation_metric"
    with trial.init() as ctx:
        assert ctx.train.get_experiment_best_validation() is None
        trial.master.answer(route, {"metric": 0.25})
        assert ctx.train.get_experiment_best_validation() == 0.25


def test_invalid_hp_is_reported_and_exits_with_0(trial: Trial) -> None:
    with pytest.raises(SystemExit) as caught, trial.init() as ctx:
        ctx.train.report_training_metrics(1, {"loss": 1.0})
        raise det.InvalidHP("too many layers")
    assert caught.value.code == 0
    assert trial.master.of("POST /api/v1/trials/7/early_exit")[0].body == {"reason": "EXITED_REASON_INVALID_HP"}
    assert trial.master.reports()


def test_invalid_hp_is_reported_even_after_a_refused_report(trial: Trial, caplog: pytest.LogCaptureFixture) -> None:
    trial.master.answer(BATCH, (400, {"message": "refused"}))
    with pytest.raises(SystemExit) as caught, trial.init() as ctx:
        ctx.train.report_training_metrics(1, {"loss": 1.0})
        trial.master.wait_for(lambda: trial.master.of(BATCH))
        raise det.InvalidHP("too many layers")
    assert caught.value.code == 0
    assert len(trial.master.of("POST /api/v1/trials/7/early_exit")) == 1
    assert "refused" in caplog.text


def test_curves_are_sent_after_earlier_reports_and_stored_when_the_call_returns(trial: Trial) -> None:
    """Arrays are lists by then, and numbers that JSON has not are texts."""
    trial.master.answer(CURVES, {})
    with trial.init() as ctx:
        ctx.train.report_training_metrics(1, {"loss": 1.0})
        ctx.train.report_curves(
            "fine", numpy.arange(3), {"loss": numpy.array([1.0, math.nan, 2.5]), "lr": [1, None, 0.5]},
            report_times=[1.0, 2.0, 3.0],
        )  # fmt: skip
        assert [call.path.rpartition("/")[2] for call in trial.master.calls][-2:] == ["batch", "curves"]
    assert trial.master.of(CURVES)[0].body == {
        "group": "fine", "trialRunId": 2, "stepsCompleted": [0, 1, 2], "reportTimes": [1.0, 2.0, 3.0],
        "metrics": {"loss": [1.0, "NaN", 2.5], "lr": [1, None, 0.5]},
    }  # fmt: skip


def test_many_curves_are_several_requests(trial: Trial) -> None:
    trial.master.answer(CURVES, {})
    with trial.init() as ctx:
        ctx.train.report_curves("training", range(50_001), {"loss": [0.5] * 50_001})
        ctx.train.report_curves("training", range(60_000, 80_000), {str(name): [0.5] * 20_000 for name in range(25)})
    sent = [call.body["stepsCompleted"] for call in trial.master.of(CURVES)]
    assert [len(steps) for steps in sent] == [25_000, 25_000, 1, 10_000, 10_000]


@pytest.mark.parametrize(
    ("sent", "refused"),
    [
        (([], {}), "steps_completed is empty"),
        (([1, 2], {"loss": [1.0]}), "'loss' has 1 values, but there are 2 steps"),
        (([1], {"loss": 1.0}), "metric 'loss' is a float, but must be a sequence of numbers"),
        (([1], {"loss": [object()]}), r"metric 'loss'\[0\] is a builtins.object, which can't be sent"),
        (([1, 2], {"loss": [1.0, 10**400]}), r"metric 'loss'\[1\] has 1329 bits, and is too large a number"),
    ],
)
def test_what_is_no_curve_is_refused(trial: Trial, sent: tuple[Any, Any], refused: str) -> None:
    with trial.init() as ctx:
        with pytest.raises(errors.InvalidDataTypeException, match=refused):
            ctx.train.report_curves("training", *sent)
        with pytest.raises(ValueError, match="report each by itself"):
            ctx.train.report_curves("validation", [1], {"loss": [1.0]})


def test_an_early_exit_may_be_reported_twice(trial: Trial) -> None:
    trial.master.answer("POST /api/v1/trials/7/early_exit", (400, {"message": "already"}))
    with trial.init() as ctx:
        ctx.train.report_early_exit(core.EarlyExitReason.USER_REQUESTED_STOP)
    body = trial.master.of("POST /api/v1/trials/7/early_exit")[0].body
    assert body == {"reason": "EXITED_REASON_USER_REQUESTED_STOP"}


def test_reports_after_the_context_are_an_error(trial: Trial) -> None:
    with trial.init() as ctx:
        pass
    with pytest.raises(RuntimeError, match="core context is closed"):
        ctx.train.report_training_metrics(1, {"loss": 1.0})


def test_server_errors_are_retried_a_few_times_and_then_raised(trial: Trial, quick_backoff: None) -> None:
    trial.master.answer(BATCH, (500, {"message": "boom"}))
    with pytest.raises(errors.ServerException, match="boom"), trial.init() as ctx:
        ctx.train.report_training_metrics(1, {"loss": 1.0})
    assert len(trial.master.of(BATCH)) == 6


def test_tensorboard_files_are_copied(trial: Trial) -> None:
    mode = core.TensorboardMode.MANUAL
    with trial.init(tensorboard_mode=mode) as ctx:
        path = ctx.train.get_tensorboard_path()
        (path / "sub").mkdir(exist_ok=True)
        (path / "sub" / "events").write_text("e")
        (path / "skip").write_text("s")
        ctx.train.upload_tensorboard_files(lambda p: p.name != "skip", lambda p, rank: p.with_name(f"{p.name}#{rank}"))
        with pytest.raises(ValueError, match="leaves the folder"):
            ctx.train.upload_tensorboard_files(mangler=lambda p, rank: p.parent / ".." / ".." / "x")
    target = trial.storage / "cluster" / "tensorboard" / "experiment" / "3" / "trial" / "7"
    assert [p.relative_to(target).as_posix() for p in target.rglob("*") if p.is_file()] == ["sub/events#0"]
    with trial.init() as ctx, pytest.raises(RuntimeError, match=r"TensorboardMode\.MANUAL"):
        ctx.train.upload_tensorboard_files()


def test_metadata_is_replaced_and_read(trial: Trial) -> None:
    noted: dict[str, Any] = {}

    def note(call: Call) -> Any:
        noted.clear()
        noted.update(call.body["metadata"])
        return {"metadata": noted}

    trial.master.answer("POST /api/v1/runs/7/metadata", note)
    trial.master.answer("GET /api/v1/runs/7/metadata", lambda call: {"metadata": noted})
    with trial.init() as ctx:
        assert ctx.train.get_metadata() == {}
        assert ctx.train.set_metadata({"data": {"rows": 3, "names": ["a"]}}) == {"data": {"rows": 3, "names": ["a"]}}
        assert ctx.train.set_metadata({"commit": "abc"}) == {"commit": "abc"}
        assert ctx.train.get_metadata() == {"commit": "abc"}
        with pytest.raises(errors.InvalidDataTypeException, match=r"metadata\.x is a builtins\.object"):
            ctx.train.set_metadata({"x": object()})
        with pytest.raises(errors.InvalidDataTypeException, match="metadata is of type list"):
            ctx.train.set_metadata([])  # type: ignore[arg-type]
    assert noted == {"commit": "abc"}


def test_the_checkpoint_that_a_trial_works_with_is_reported(trial: Trial) -> None:
    route = "POST /api/v1/trial-source-info"
    trial.master.answer(route, {})
    checkpoint: Any = SimpleNamespace(uuid="u1")
    version: Any = SimpleNamespace(checkpoint=checkpoint, model_id=5, model_version=2)
    with trial.init() as ctx:
        ctx.experimental.report_task_using_checkpoint(checkpoint)
        ctx.experimental.report_task_using_model_version(version)
        version.checkpoint = None
        with pytest.raises(ValueError, match="has no checkpoint to work with"):
            ctx.experimental.report_task_using_model_version(version)
    told = {"trialId": 7, "trialSourceInfoType": "TRIAL_SOURCE_INFO_TYPE_INFERENCE", "checkpointUuid": "u1"}
    assert [call.body["trialSourceInfo"] for call in trial.master.of(route)] == [
        told,
        {**told, "modelId": 5, "modelVersion": 2},
    ]


def test_launcher_sees_that_a_worker_which_only_reports_goes_on(
    trial: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = GangFolder(str(tmp_path))
    open(folder.progress_path("1"), "w").close()
    os.utime(folder.progress_path("1"), (1, 1))
    monkeypatch.setenv("DET_GANG_DIR", folder.path)
    monkeypatch.setenv("DET_GANG_RANK", "1")
    before = folder.progress()
    with trial.init() as ctx:
        assert folder.progress() == before
        ctx.train.report_training_metrics(1, {"loss": 1.0})
        assert folder.progress() != before
