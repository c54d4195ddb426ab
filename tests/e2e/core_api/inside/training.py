"""What a trial reports."""

from __future__ import annotations

import pathlib
import shutil
from typing import Any

from determined import core, errors
from determined.experimental import client

from .worker import Worker, check, equal, expect, refused


@check("TrainContext.report_training_metrics")
def _(w: Worker) -> Any:
    if w.is_chief:
        batches = [{"loss": 0.75}, {"loss": 0.25}]
        w.context.train.report_training_metrics(1, {"loss": 0.5, "text": "words"}, batches)
        w.context.train.report_training_metrics(2, {"loss": 0.125})
    with refused(errors.InvalidDataTypeException, "steps_completed"):
        w.context.train.report_training_metrics("1", {"loss": 0.5})  # type: ignore[arg-type]


@check("TrainContext.report_validation_metrics")
def _(w: Worker) -> Any:
    if w.is_chief:
        for step, value in ((1, 0.5), (2, 0.75), (3, 0.625)):
            w.context.train.report_validation_metrics(step, {"accuracy": value, "nested": {"deep": [step]}})
    with refused(RuntimeError, "None"):
        w.context.train.report_validation_metrics(3, {"accuracy": None})


@check("TrainContext.report_metrics")
def _(w: Worker) -> Any:
    if w.is_chief:
        w.context.train.report_metrics("inference", 3, {"latency_ms": 12.5})
    with refused(ValueError, "a.b"):
        w.context.train.report_metrics("a.b", 3, {"latency_ms": 12.5})


@check("TrainContext.report_curves")
def _(w: Worker) -> Any:
    if w.is_chief:
        w.context.train.report_curves("curves", [1, 2, 4], {"loss": [0.5, 0.25, 0.125], "rate": [0.1, None, 0.2]})
    with refused(ValueError, "validation"):
        w.context.train.report_curves("validation", [1], {"loss": [0.5]})
    with refused(errors.InvalidDataTypeException, "'loss' has 2 values"):
        w.context.train.report_curves("curves", [1], {"loss": [0.5, 0.25]})


@check("TrainContext.get_experiment_best_validation")
def _(w: Worker) -> Any:
    best = w.context.train.get_experiment_best_validation() if w.is_chief else None
    w.distributed.broadcast(best)  # the chief's reports have arrived, before the others ask
    return best if w.is_chief else w.context.train.get_experiment_best_validation()


@check("TrainContext.report_progress")
def _(w: Worker) -> Any:
    if w.is_chief:
        w.context.train.report_progress(0.25)
    with refused(ValueError, "1.5"):
        w.context.train.report_progress(1.5)


@check("TrainContext.get_tensorboard_path")
def _(w: Worker) -> Any:
    path = w.context.train.get_tensorboard_path()
    expect(path.is_dir())
    equal(len(set(w.distributed.allgather(str(path)))), w.size)
    (path / "plugins").mkdir()
    (path / "plugins" / "events.txt").write_text(f"events of rank {w.rank}")
    (path / "left-out.txt").write_text("")
    (path / f"default-{w.rank}.txt").write_text(f"default of rank {w.rank}")
    return str(path)


@check("TrainContext.upload_tensorboard_files")
def _(w: Worker) -> Any:
    w.context.train.upload_tensorboard_files(lambda path: path.name.startswith("default-"))


@check("TrainContext.upload_tensorboard_files(selector, mangler)")
def _(w: Worker) -> Any:
    w.context.train.upload_tensorboard_files(
        selector=lambda path: path == pathlib.Path("plugins/events.txt"),
        mangler=lambda path, rank: path.with_name(f"{path.stem}#{rank}{path.suffix}"),
    )
    with refused(ValueError, "leaves the folder"):
        w.context.train.upload_tensorboard_files(mangler=lambda path, rank: pathlib.Path("..") / path)


@check("TensorboardMode.AUTO")
def _(w: Worker) -> Any:
    shutil.rmtree(w.context.train.get_tensorboard_path())  # what was left there by hand
    with w.made(tensorboard_mode=core.TensorboardMode.AUTO) as context:
        with refused(RuntimeError, "MANUAL"):
            context.train.upload_tensorboard_files()
        (context.train.get_tensorboard_path() / f"auto-{w.rank}.txt").write_text(f"auto of rank {w.rank}")
        if w.is_chief:
            context.train.report_metrics("automatic", 5, {"speed": 2.5})


@check("TrainContext.set_metadata")
def _(w: Worker) -> Any:
    noted = {"commit": "4f2a", "data": {"rows": 12, "parts": ["a", "b"]}}
    if w.is_chief:
        w.context.train.set_metadata({"commit": "before"})
        equal(w.context.train.set_metadata(noted), noted)
    with refused(errors.InvalidDataTypeException, "dictionary"):
        w.context.train.set_metadata("words")  # type: ignore[arg-type]
    return noted


@check("TrainContext.get_metadata")
def _(w: Worker) -> Any:
    w.distributed.broadcast("noted")
    return w.context.train.get_metadata()


@check("ExperimentalCoreContext.report_task_using_checkpoint")
def _(w: Worker) -> Any:
    if w.is_chief:
        w.context.experimental.report_task_using_checkpoint(client.get_checkpoint(w.kept["plain"]))


@check("ExperimentalCoreContext.report_task_using_model_version")
def _(w: Worker) -> Any:
    name = f"core api {w.info.trial.trial_id}"
    if w.is_chief:
        version = client.create_model(name).register_version(w.kept["stored"])
        w.context.experimental.report_task_using_model_version(version)
    return name
