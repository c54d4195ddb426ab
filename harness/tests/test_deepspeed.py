"""What a `DeepSpeedTrial` does when: spec training-apis.md §6, on one rank and on two, on the CPU."""

from __future__ import annotations

import json
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from determined import errors
from determined.pytorch import deepspeed

from .deepspeed_runs import Runs
from .pytorch_trials import Jobs

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def jobs() -> Iterator[Jobs]:
    jobs = Jobs("deepspeed_trials.py")
    yield jobs
    jobs.close()


@pytest.fixture
def runs(jobs: Jobs, trial: Any, tmp_path: Path) -> Runs:
    return Runs(jobs, trial, tmp_path)


def test_batches_are_counted_over_the_whole_run(runs: Runs) -> None:
    """§14.18: what is due depends on the batch, and not on when metrics were reported last."""
    (found,) = runs.run("Simple", fit={"max_length": 6, "reporting_period": 2, "validation_period": 3})
    assert list(runs.reported("validation")) == [3, 6]
    assert list(runs.reported("training")) == [2, 3, 4, 6]
    assert [(epoch, batch) for epoch, batch, _ in found["seen"]] == [(b // 3, b) for b in range(6) for _ in range(2)]
    assert [values for _, _, values in found["seen"]][:7] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11], [0, 1]]
    assert [metrics["epochs"] for metrics in runs.reported("training").values()] == [0, 1, 1, 2]
    assert set(runs.trial.checkpoints()) == {6}


def test_two_ranks_share_data_and_metrics(runs: Runs) -> None:
    first, second = runs.run("Simple", 2, fit={"max_length": 2, "reporting_period": 1})
    assert [values for _, _, values in first["seen"]] == [[0, 1], [4, 5], [8, 9], [0, 1]]
    assert [values for _, _, values in second["seen"]] == [[2, 3], [6, 7], [10, 11], [2, 3]]
    assert [metrics["rank"] for metrics in runs.reported("training").values()] == [0.5, 0.5], "averaged once"
    assert first["weights"] == second["weights"]
    assert [each[1] for each in first["told"]] == [[0, 1], [4, 5]]


def test_deepspeeds_own_launcher_says_which_rank_it_is(runs: Runs) -> None:
    names = {"USE_DEEPSPEED": "1", "LOCAL_SIZE": "2", "CROSS_RANK": "0", "CROSS_SIZE": "1"}
    first, second = runs.run("Simple", 2, fit={"max_length": 1}, env={**names, "USE_TORCH_DISTRIBUTED": ""})
    assert [each["seen"][0][2] for each in (first, second)] == [[0, 1], [2, 3]]


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_every_stage_of_zero_trains_to_the_same_weights(runs: Runs, stage: int) -> None:
    first, second = runs.run("Simple", 2, hparams={"stage": stage}, fit={"max_length": 3})
    assert first["weights"] == second["weights"]
    assert (
        f"model0/zero_pp_rank_1_mp_rank_00_{'model' if stage == 3 else 'optim'}_states.pt" in runs.files() or not stage
    )
    assert {"det_state_dict_rank0.pth", "det_state_dict_rank1.pth", "trial_state.pkl", "load_data.json"} < runs.files()


def test_pipeline_has_one_call_for_a_batch(runs: Runs) -> None:
    first, last = runs.run("Piped", 2, fit={"max_length": 4, "validation_period": 2})
    assert first["weights"] != last["weights"], "each stage has its own"
    assert [batch for _, batch, _ in first["seen"]] == [0, 1, 2, 3]
    assert list(runs.reported("validation")) == [2, 4]
    assert any(file.startswith("model0/layer_03") for file in runs.files())


def test_own_share_of_the_data(runs: Runs) -> None:
    first, second = runs.run("Alike", 2, fit={"max_length": 2, "reporting_period": 1})
    assert first["seen"] == second["seen"]
    assert [metrics["rank"] for metrics in runs.reported("training").values()] == [1.0, 1.0]
    assert runs.reported("validation")[2]["sum"] == pytest.approx(28 / 8 / 4)


def test_manual_accumulation_is_one_call(runs: Runs) -> None:
    (found,) = runs.run("Manual", fit={"max_length": 3})
    assert [batch for _, batch, _ in found["seen"]] == [0, 0, 1, 1, 2, 2]


def test_whole_data_are_evaluated_by_the_chief(runs: Runs) -> None:
    first, second = runs.run("Whole", 2, fit={"max_length": 1})
    assert first["told"] == [["validated", [[0, 1], [2, 3], [4, 5], [6, 7]]]]
    assert second["told"] == []
    assert runs.reported("validation")[1]["accuracy"] == 0.5
    told = r"InvalidExperimentException: .*py:\d+: evaluate_full_dataset runs on rank 0 alone, which has a part of the"
    runs.fails("Whole", told, 2, hparams={"stage": 3})


def test_two_engines_are_saved_side_by_side(runs: Runs) -> None:
    (found,) = runs.run("TwoEngines", fit={"max_length": 2})
    assert {file.partition("/")[0] for file in runs.files() if file.startswith("model")} == {"model0", "model1"}
    (again,) = runs.run("TwoEngines", latest=runs.latest(), fit={"max_length": 2})
    assert again["weights"] == found["weights"]


def test_callbacks_come_on_all_ranks_and_keep_states_of_their_own(runs: Runs) -> None:
    _, second = runs.run("Calls", 2, fit={"max_length": 3, "reporting_period": 2})
    assert [each for each in second["told"] if isinstance(each, str)] == [
        *("on_trial_startup", "on_training_start"),
        *(("on_training_epoch_start", "on_training_epoch_end") * 2),
        *("on_training_workload_end", "on_training_epoch_start", "on_training_epoch_end", "on_training_workload_end"),
        *("on_validation_start", "on_validation_epoch_start", "on_validation_epoch_end", "on_validation_end"),
        *("on_checkpoint_save_start", "on_checkpoint_end", "on_checkpoint_write_end", "on_checkpoint_upload_end"),
        "on_trial_shutdown",
    ]
    assert {"mine0", "mine1"} < runs.files()
    first, second = runs.run("Calls", 2, latest=runs.latest(), fit={"max_length": 3})
    assert ["loaded", 0] in first["told"]
    assert ["loaded", 1] in second["told"]


def test_invalid_hp_ends_well_and_says_so(runs: Runs) -> None:
    _, ended_by = runs.start("InvalidHp", fit={"max_length": 4})
    assert ended_by.splitlines()[-1] == "SystemExit: 0"
    assert set(runs.trial.checkpoints()) == {2}
    ended = runs.trial.master.of("POST /api/v1/trials/7/early_exit")
    assert ended[0].body["reason"] == "EXITED_REASON_INVALID_HP"


_INVALID = r"InvalidExperimentException: .*deepspeed_trials.py:\d+: "


@pytest.mark.parametrize(
    ("cls", "told"),
    [
        ("Nothing", _INVALID + "Nothing has wrapped no engine: use self.engine = context.wrap_model_engine"),
        ("NoEngine", _INVALID + "wrap_model_engine got a tuple, but must get a DeepSpeedEngine"),
        ("Early", _INVALID + "get_train_micro_batch_size_per_gpu was called before wrap_model_engine"),
        ("MpuEarly", _INVALID + "set_mpu was called before wrap_model_engine"),
        ("MpuTwice", _INVALID + "set_mpu was called twice"),
        ("MpuTooLarge", _INVALID + "set_mpu got data_parallel_rank 1 of data_parallel_world_size 2"),
        ("Silent", _INVALID + "should_report_metrics is False in the ModelParallelUnit of each rank"),
        ("NoLoader", _INVALID + ".*is called on no rank, as should_build_data_loader is False"),
        ("Returns", _INVALID + "train_batch returned a int, but must return a dictionary of metrics or the loss"),
        ("Takes", _INVALID + "train_batch.* must take dataloader_iter, epoch_idx, batch_idx"),
        (
            "NoStep",
            r"ArgumentsError: .*py:\d+: after batch 0 engine 0 has made 1 micro steps, but must have made a mul",
        ),
        ("Plain", r"RuntimeError: .*py:\d+: build_training_data_loader returned a torch.*disable_dataset_repro"),
        ("Small", _INVALID + "build_training_data_loader returned a loader of 1 micro batches for a rank, but a batch"),
        ("Neither", _INVALID + "Neither must override evaluate_batch or evaluate_full_dataset, but has neither"),
        ("Differs", r"ValueError: .*py:\d+: train_batch returned the metrics .*for another part of the same batch"),
    ],
)
def test_mistakes_of_a_trial_are_one_sentence(runs: Runs, cls: str, told: str) -> None:
    runs.fails(cls, told)


def test_where_deepspeed_can_not_compute_is_said(runs: Runs) -> None:
    told = "InvalidExperimentException: DeepSpeed would train on a GPU, and this trial has none: .*DS_ACCELERATOR=cpu"
    runs.fails("Simple", told, accelerator="cuda")
    runs.fails("Simple", "would train on 'xpu', but a DeepSpeedTrial trains on cuda or cpu", accelerator="xpu")


def test_configuration_is_merged_into_a_new_one(tmp_path: Path) -> None:
    base = {"zero_optimization": {"stage": 1, "overlap_comm": False}, "steps_per_print": 1}
    (tmp_path / "ds.json").write_text(json.dumps(base))
    for given in (base, str(tmp_path / "ds.json")):
        found = deepspeed.overwrite_deepspeed_config(given, {"zero_optimization": {"stage": 3}})
        assert found == {"zero_optimization": {"stage": 3, "overlap_comm": False}, "steps_per_print": 1}
    assert base["zero_optimization"] == {"stage": 1, "overlap_comm": False}
    (tmp_path / "torn.json").write_text("{")
    wrong: list[tuple[Any, Any, str]] = [
        (str(tmp_path / "none.json"), {}, r"none.json' can't be read: .*No such file"),
        (str(tmp_path / "torn.json"), {}, r"torn.json' can't be read: "),
        ([], {}, r"base_ds_config is \[\], but must be a dictionary or the path of a JSON file"),
        ({}, None, "source_ds_dict is None, but must be a dictionary$"),
    ]
    for config, source, told in wrong:
        with pytest.raises(errors.InvalidExperimentException, match=told):
            deepspeed.overwrite_deepspeed_config(config, source)


@pytest.mark.parametrize(
    ("first", "last", "part", "builds"),
    [(True, False, 0, True), (False, True, 0, True), (False, False, 0, False), (True, False, 1, False)],
)
def test_loaders_are_where_a_grid_begins_and_ends(first: bool, last: bool, part: int, builds: bool) -> None:
    grid = types.SimpleNamespace(
        is_first_stage=first,
        is_last_stage=last,
        get_slice_parallel_rank=lambda: part,
        get_data_parallel_rank=lambda: 2,
        get_data_parallel_world_size=lambda: 3,
    )
    assert deepspeed.make_deepspeed_mpu(grid) == deepspeed.ModelParallelUnit(2, 3, True, builds)


def test_several_slots_need_a_launcher(runs: Runs) -> None:
    told = "ValueError: this trial has 2 slots in 1 containers: start it with a launcher"
    runs.fails("Simple", told, 2, env={"USE_TORCH_DISTRIBUTED": ""})
