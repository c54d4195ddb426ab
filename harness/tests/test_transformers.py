"""A real, tiny Trainer under `DetCallback`, against the master of `conftest.py`."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers
from torch import nn
from transformers import trainer_utils

from determined import errors
from determined.transformers import DetCallback, get_ds_config_path_from_args, get_metric_type

if TYPE_CHECKING:
    from conftest import Trial

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
STEPS = 12  # two epochs
ACK = "POST /api/v1/allocations/a.1/signals/ack_preemption"


class Model(nn.Module):
    """A network with dropout: a resumed run that has other random numbers ends elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.layers(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def data() -> list[dict[str, Any]]:
    numbers = torch.randn(24, 3, generator=torch.Generator().manual_seed(1))
    return [{"x": row, "labels": int(row.sum() > 0)} for row in numbers]


def images() -> list[dict[str, Any]]:
    numbers = torch.randn(24, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    return [{"pixel_values": image, "labels": int(image.sum() > 0)} for image in numbers]


def vision() -> transformers.ViTForImageClassification:
    """A model whose weights transformers 5 stores under other names than it has them."""
    torch.manual_seed(0)
    sizes = {"image_size": 4, "patch_size": 2, "num_channels": 1, "hidden_size": 8, "intermediate_size": 8}
    config = transformers.ViTConfig(**sizes, num_hidden_layers=1, num_attention_heads=2, hidden_dropout_prob=0.5)
    return transformers.ViTForImageClassification(config)


class AtStep(transformers.TrainerCallback):
    """Does something when a step begins, once."""

    def __init__(self, step: int, action: Callable[[], Any]) -> None:
        self.step, self.action = step, action

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            self.action()


def arguments(folder: Path, **others: Any) -> transformers.TrainingArguments:
    return transformers.TrainingArguments(
        **{
            "output_dir": str(folder),
            "max_steps": STEPS,
            "per_device_train_batch_size": 4,
            "learning_rate": 0.05,
            "logging_steps": 5,
            "eval_strategy": "steps",
            "eval_steps": 5,
            "save_strategy": "steps",
            "save_steps": 5,
            "report_to": [],
            "remove_unused_columns": False,
            "use_cpu": True,
            "disable_tqdm": True,
            "dataloader_pin_memory": False,
            **others,
        }
    )


def fit(
    trial: Trial,
    folder: Path,
    *,
    at: AtStep | None = None,
    callback: dict[str, Any] | None = None,
    of: Any = None,
    **others: Any,
) -> str:
    """Train as a trial; SHA-256 of the weights it ends with."""
    with trial.init() as context:
        args = arguments(folder, **others)
        ours = DetCallback(context, args, **(callback or {}))
        trainer = transformers.Trainer(
            model=of() if of else Model(),
            args=args,
            train_dataset=images() if of else data(),  # pyright: ignore[reportArgumentType]
            eval_dataset=(images() if of else data())[:8],  # pyright: ignore[reportArgumentType]
            callbacks=[*([at] if at else []), ours],
        )
        trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
        return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in trainer.model.parameters())).hexdigest()


def preempt(trial: Trial) -> None:
    """The cluster asks for room, and the thread that listens has heard it."""
    trial.preempt.set()
    (thread,) = (t for t in threading.enumerate() if t.name == "determined-preempt")
    thread.join(5.0)  # it ends when it has nothing more to ask


def for_batches(trial: Trial, length: int = STEPS) -> None:
    trial.config["searcher"] = {"name": "single", "metric": "eval_loss", "max_length": {"batches": length}}
    trial.lengths = [length]


def reported(trial: Trial, group: str) -> list[int]:
    return [r["stepsCompleted"] for r in trial.master.reports() if r["group"] == group]


def test_whole_training_is_reported_stored_and_completed(trial: Trial, tmp_path: Path) -> None:
    for_batches(trial)
    wanted = ["loss"]
    fit(trial, tmp_path / "out", callback={"filter_metrics": wanted, "user_data": {"tokenizer": "t"}})
    assert wanted == ["loss"], "the user's list is the user's"
    assert reported(trial, "training") == [5, 10, 12]
    assert reported(trial, "validation") == [5, 10, 12], "the last step is evaluated, and once"
    assert sorted(trial.checkpoints()) == [5, 10, 12]
    first = trial.master.reports()[0]["metrics"]["avgMetrics"]
    assert first.keys() == {"loss", "batches", "epochs"}
    assert first["batches"] == 5
    assert [(c["op"]["length"], c["searcherMetric"] > 0) for c in trial.completed] == [(STEPS, True)]
    progress = [c.body["progress"] for c in trial.master.of("POST /api/v1/trials/7/progress")]
    assert progress == sorted(set(progress))
    assert progress[-1] == 1.0
    (stored,) = trial.storage.rglob(f"{trial.checkpoints()[12]}")
    assert json.loads((stored / "checkpoint-12" / "my_data.json").read_text()) == {"tokenizer": "t"}
    assert {p.name for p in stored.iterdir()} >= {"checkpoint-12"}
    assert "checkpoint-10" not in {p.name for p in stored.iterdir()}


def test_preempted_and_killed_runs_end_with_the_weights_of_an_undisturbed_one(trial: Trial, tmp_path: Path) -> None:
    for_batches(trial)
    undisturbed = fit(trial, tmp_path / "undisturbed")
    trial.completed.clear()
    trial.master.calls.clear()

    fit(trial, tmp_path / "preempted", at=AtStep(7, lambda: preempt(trial)))
    stored = trial.checkpoints()
    assert sorted(stored) == [5, 8], "saved after the step in which it was asked to leave, which is not a logging step"
    assert reported(trial, "validation") == [5], "no evaluation keeps the others waiting"
    assert trial.completed == []
    assert len(trial.master.of(ACK)) == 1

    trial.preempt.clear()
    trial.latest_checkpoint = stored[8]

    class Killed(BaseException):
        pass

    def kill() -> None:
        raise Killed

    with pytest.raises(Killed):
        fit(trial, tmp_path / "killed", at=AtStep(11, kill))
    trial.latest_checkpoint = trial.checkpoints()[10]
    leftover = tmp_path / "resumed" / "checkpoint-11"
    leftover.mkdir(parents=True)  # of an earlier run on this host: not what is to be resumed
    assert fit(trial, tmp_path / "resumed") == undisturbed
    assert sorted(trial.checkpoints()) == [5, 8, 10, 12]
    assert [c["op"]["length"] for c in trial.completed] == [STEPS]


def test_model_that_is_stored_under_other_names_is_resumed_whole(trial: Trial, tmp_path: Path) -> None:
    for_batches(trial)
    undisturbed = fit(trial, tmp_path / "undisturbed", of=vision)
    trial.completed.clear()
    trial.master.calls.clear()
    fit(trial, tmp_path / "preempted", at=AtStep(7, lambda: preempt(trial)), of=vision)
    trial.preempt.clear()
    trial.latest_checkpoint = trial.checkpoints()[8]
    assert fit(trial, tmp_path / "resumed", of=vision) == undisturbed


#: Before 4.46 there is no "best".
_STRATEGIES = [kind.value for kind in getattr(trainer_utils, "SaveStrategy", trainer_utils.IntervalStrategy)]


@pytest.mark.parametrize("strategy", [name for name in _STRATEGIES if name != "steps"])
def test_last_step_is_stored_once_whatever_the_strategy(trial: Trial, tmp_path: Path, strategy: str) -> None:
    for_batches(trial, 9)
    how: dict[str, Any] = {"save_strategy": strategy, "eval_strategy": "epoch", "max_steps": 9}
    if strategy == "best":
        how |= {"metric_for_best_model": "eval_loss", "greater_is_better": True}  # so that the last is hardly the best
    fit(trial, tmp_path / "out", **how)
    assert 9 in trial.checkpoints()
    assert reported(trial, "validation") == [6, 9]
    assert [c["op"]["length"] for c in trial.completed] == [9]


def test_searcher_stops_a_trial_at_its_rung(trial: Trial, tmp_path: Path) -> None:
    for_batches(trial)
    trial.lengths = [3, 6]
    fit(trial, tmp_path / "out")
    assert [c["op"]["length"] for c in trial.completed] == [3, 6]
    assert reported(trial, "validation") == [3, 5, 6]
    assert sorted(trial.checkpoints()) == [3, 5, 6]


@pytest.mark.parametrize(
    ("searcher", "problem"),
    [
        ({"name": "single", "max_length": 12}, "searcher.max_length is 12, but must have a unit"),
        (
            {"name": "single", "max_length": {"batches": 11}},
            "max_length is {batches: 11}, but the Trainer is given max_s",
        ),
        (
            {"name": "single", "max_length": {"epochs": 12}},
            "max_length is {epochs: 12}, but the Trainer is given max_st",
        ),
        (
            {"name": "adaptive_asha", "time_metric": "batches", "max_time": 13},
            "searcher.max_time is 13 batches .time_metric., but the Trainer is given max_steps=12",
        ),
        ({"name": "adaptive_asha", "time_metric": "epochs", "max_time": 12}, "max_time is 12 epochs"),
    ],
)
def test_length_that_contradicts_the_trainer_is_refused(
    trial: Trial, tmp_path: Path, searcher: dict[str, Any], problem: str
) -> None:
    trial.config["searcher"] = {"metric": "eval_loss", **searcher}
    with trial.init() as context, pytest.raises(ValueError, match=problem):
        DetCallback(context, arguments(tmp_path))


def test_asha_by_time_metric_constructs_and_its_metrics_pass_the_filter(trial: Trial, tmp_path: Path) -> None:
    trial.config["searcher"] = {
        "name": "adaptive_asha",
        "metric": "eval_loss",
        "time_metric": "batches",
        "max_time": STEPS,
    }
    fit(trial, tmp_path, callback={"filter_metrics": ["nothing"]})
    validations = [r["metrics"]["avgMetrics"] for r in trial.master.reports() if r["group"] == "validation"]
    assert [v["batches"] for v in validations] == [5, 10, 12]
    assert all(v.keys() == {"eval_loss", "batches", "epochs"} for v in validations)
    assert trial.completed == []


def test_missing_searcher_metric_is_named(trial: Trial, tmp_path: Path) -> None:
    trial.config["searcher"] = {"name": "single", "metric": "eval_accuracy"}
    with pytest.raises(ValueError, match="needs the metric 'eval_accuracy', which is not among.*eval_loss"):
        fit(trial, tmp_path)


def test_off_cluster_and_foreign_checkpoints_are_refused(trial: Trial, tmp_path: Path) -> None:
    from determined import core

    for_batches(trial)
    with trial.init() as context, context.checkpoint.store_path({"steps_completed": 1}) as (path, uuid):
        (path / "model.pkl").write_text("of another library")
    trial.latest_checkpoint = uuid
    with trial.init() as context, pytest.raises(errors.InvalidCheckpointException, match=f"{uuid} has no folder chec"):
        DetCallback(context, arguments(tmp_path / "out"))
    outside = core.Context(context.checkpoint)
    with pytest.raises(RuntimeError, match="works on a cluster only"):
        DetCallback(outside, arguments(tmp_path / "out"))


def test_kinds_of_metrics_and_deepspeed_arguments() -> None:
    assert [get_metric_type(d) for d in ({"loss": 1, "eval_loss": 1}, {"test_x": 1}, {"loss": 1})] == [
        "eval_",
        "test_",
        "train_",
    ]
    assert get_ds_config_path_from_args(["train.py", "--deepspeed", "ds.json"]) == "ds.json"
    assert get_ds_config_path_from_args(["--deepspeed=ds.json"]) == "ds.json"
    assert get_ds_config_path_from_args(["--deepspeed"]) is None
