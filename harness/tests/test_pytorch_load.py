"""Checkpoints of every age are loaded: folders are laid out as those releases stored them."""

from __future__ import annotations

import json
import os
import pickle
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from determined import errors
from determined._stored import read_loop_state
from determined.pytorch import CheckpointLoadContext, PyTorchTrial, load_trial_from_checkpoint_path

#: What a trial looks like since 0.13, with a module beside it that it imports late.
FLEX = """
    import torch
    from determined import pytorch
    import sizes

    class MyTrial(pytorch.PyTorchTrial):
        def __init__(self, context, scale=1):
            import late
            self.context = context
            self.scale = scale
            self.first = context.wrap_model(torch.nn.Linear(1, sizes.WIDTH, bias=False))
            self.second = context.wrap_model(torch.nn.Linear(1, 1, bias=False))
            self.optimizer = context.wrap_optimizer(late.Optimizer())
            context.wrap_lr_scheduler(late.Scheduler(self.optimizer), late.EVERY_BATCH)

        def train_batch(self, batch, epoch_idx, batch_idx): return {}
        def evaluate_batch(self, batch): return {}
        def build_training_data_loader(self): ...
        def build_validation_data_loader(self): ...

    class Outer:
        class Inner(MyTrial): ...
"""
#: What one looked like before: it has no constructor, and builds a model.
OLD = """
    import os
    import torch
    from determined.pytorch import PyTorchTrial

    with open("settings.txt") as f:
        WIDTH = int(f.read())

    class MyTrial(PyTorchTrial):
        def build_model(self):
            assert self.context.get_hparam("layers") == 1
            return torch.nn.Linear(1, WIDTH, bias=False)

        def optimizer(self, model): ...
        def train_batch(self, batch, model, epoch_idx, batch_idx): return {}
        def evaluate_batch(self, batch, model): return {}
        def build_training_data_loader(self): ...
        def build_validation_data_loader(self): ...
"""
#: An optimizer of torch's would take seconds to import what it compiles with, and none is loaded.
LATE = """
    from determined.pytorch import LRScheduler

    EVERY_BATCH = LRScheduler.StepMode.STEP_EVERY_BATCH

    class Optimizer:
        def load_state_dict(self, state): raise AssertionError("optimizers are not loaded")

    class Scheduler:
        def __init__(self, optimizer): self.optimizer = optimizer
        def load_state_dict(self, state): raise AssertionError("schedulers are not loaded")
"""

MODELS = [{"weight": torch.tensor([[1.0], [2.0]])}, {"weight": torch.tensor([[3.0]])}]
HPARAMS = {"layers": 1, "global_batch_size": 8}
CONFIG = {
    "entrypoint": "model_def:MyTrial",
    "data": {"url": "x"},
    "resources": {"slots_per_trial": 8},
    "environment": {"image": "i"},
    "optimizations": {"aggregation_frequency": 4},
    "checkpoint_storage": {"type": "s3"},
}
METADATA = {"determined_version": "0.17.6", "framework": "torch-1.9.0", "format": "pickle"}


class Folder:
    """A checkpoint's folder, as some release has stored it."""

    def __init__(self, path: Path, code: str | None = FLEX, **state: Any) -> None:
        self.path = path
        path.mkdir(parents=True)
        if code is not None:
            for name, text in {
                "model_def.py": textwrap.dedent(code),
                "sizes.py": "WIDTH = 2\n",
                "late.py": textwrap.dedent(LATE),
                "settings.txt": "2",
            }.items():
                self.file("code/" + name, text)
        # What users add is more than weights.
        state = state or {"models_state_dict": MODELS, "optimizers_state_dict": [{}], "callbacks": {"c": Path("x")}}
        self.state("state_dict.pth", state)

    def file(self, name: str, text: str) -> Folder:
        (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        (self.path / name).write_text(text)
        return self

    def json(self, name: str, **content: Any) -> Folder:
        return self.file(name, json.dumps(content))

    def state(self, name: str, state: dict[str, Any]) -> Folder:
        (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        torch.save(state, self.path / name)
        return self

    def pickle(self, name: str, content: Any) -> Folder:
        (self.path / name).write_bytes(pickle.dumps(content))
        return self

    def load_data(self, spec: str = "model_def:MyTrial", **more: Any) -> Folder:
        self.json("metadata.json", **METADATA)
        known = {"trial_type": "PyTorchTrial", "experiment_config": None, "hparams": None, "trial_cls_spec": spec}
        return self.json("load_data.json", **{**known, **more})

    def downloaded(self, **more: Any) -> Folder:
        """As `Checkpoint.download` wrote it until 0.17.6."""
        about = {"experiment_id": 1, "trial_id": 2, "hparams": HPARAMS, "experiment_config": CONFIG, "metadata": {}}
        return self.json("metadata.json", **{**METADATA, **about, **more})


class Other(PyTorchTrial):
    """A class that a user has at hand."""

    def __init__(self, context: Any, scale: int = 1) -> None:
        self.context = context
        self.scale = scale
        self.first = context.wrap_model(nn.Linear(1, 2, bias=False))
        self.second = context.wrap_model(nn.Linear(1, 1, bias=False))

    def train_batch(self, *args: Any, **kwargs: Any) -> Any: ...
    def build_training_data_loader(self) -> Any: ...
    def build_validation_data_loader(self) -> Any: ...


SEQUENCER = {"trial_id": 2, "last_ckpt": 7, "latest_batch": 7, "step_id": 1, "last_val": 5}
STATE = {"trial_id": 2, "last_ckpt": 7, "step_id": 0, "last_val": 5, "batches_trained": 7, "epochs_trained": 2}
AGES: dict[str, Any] = {
    "0.13.13 flex": lambda path: Folder(path).downloaded(format="cloudpickle"),
    "0.17.6": lambda path: Folder(path).downloaded().pickle("workload_sequencer.pkl", SEQUENCER),
    "0.17.7": lambda path: (
        Folder(path).load_data(hparams=HPARAMS, experiment_config=CONFIG).pickle("workload_sequencer.pkl", SEQUENCER)
    ),
    "0.20.0": lambda path: (
        Folder(path)
        .load_data(hparams=HPARAMS, experiment_config=CONFIG)
        .pickle("workload_sequencer.pkl", {**SEQUENCER, "steps_completed": 7, "latest_batch": -1})
    ),
    "0.21.0": lambda path: Folder(path).load_data(is_trainer=True).pickle("trial_state.pkl", STATE),
}


@pytest.fixture
def age(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    return AGES[request.param](tmp_path / "checkpoint")


@pytest.mark.parametrize("age", AGES, indirect=True)
def test_checkpoints_of_all_ages_load_with_their_code(age: Folder) -> None:
    modules, path, folder = set(sys.modules), list(sys.path), os.getcwd()
    trial = load_trial_from_checkpoint_path(age.path, trial_kwargs={"scale": 3})
    assert [model.weight.tolist() for model in trial.context.models] == [[[1.0], [2.0]], [[3.0]]]
    assert (type(trial).__name__, trial.scale) == ("MyTrial", 3)
    assert trial.context.optimizers == [trial.optimizer]
    assert not {"model_def", "sizes", "late"} & set(sys.modules) - modules
    assert (sys.path, os.getcwd()) == (path, folder)


@pytest.mark.parametrize("age", AGES, indirect=True)
def test_a_class_that_is_given_counts_for_all_ages(age: Folder) -> None:
    trial = load_trial_from_checkpoint_path(str(age.path), Other, {"scale": 4})
    assert (type(trial), trial.scale, trial.first.weight.tolist()) == (Other, 4, [[1.0], [2.0]])


@pytest.mark.parametrize("age", AGES, indirect=True)
def test_how_far_runs_of_all_ages_were(age: Folder) -> None:
    if "sequencer" not in str(list(age.path.iterdir())) and not (age.path / "trial_state.pkl").exists():
        assert read_loop_state(age.path, 3) is None
        return
    state = read_loop_state(age.path, 3)
    assert state is not None
    assert {name: state[name] for name in STATE if name != "step_id"} == {
        **{k: v for k, v in STATE.items() if k != "step_id"}
    }
    if (age.path / "workload_sequencer.pkl").exists():
        unknown = read_loop_state(age.path, None)
        assert unknown is not None
        assert unknown["epochs_trained"] is None


def test_an_old_trial_comes_back_as_its_model(tmp_path: Path) -> None:
    for name, state in {
        "plural": {"models_state_dict": MODELS[:1]},
        "singular": {"model_state_dict": MODELS[0], "optimizer_state_dict": {}, "lr_scheduler": {}},
    }.items():
        folder = Folder(tmp_path / name, OLD, **state).downloaded(format="cloudpickle")
        model = load_trial_from_checkpoint_path(folder.path)
        assert type(model) is nn.Linear
        assert model.weight.tolist() == [[1.0], [2.0]]
    flex = Folder(tmp_path / "flex", FLEX, model_state_dict=MODELS[0]).downloaded()
    with pytest.raises(errors.InvalidCheckpointException, match="MyTrial has none"):
        load_trial_from_checkpoint_path(flex.path)


def test_a_script_s_class_can_t_be_imported(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "c", code="raise SystemExit(3)").load_data("__main__:MyTrial", is_trainer=True)
    with pytest.raises(ValueError, match=r"MyTrial was defined in a script.*pass the class as trial_class"):
        load_trial_from_checkpoint_path(folder.path)
    assert isinstance(load_trial_from_checkpoint_path(folder.path, Other), Other)


@pytest.mark.parametrize(
    ("spec", "code", "message"),
    [
        ("model_def:Missing", FLEX, "model_def:Missing can't be imported .* no attribute 'Missing'"),
        ("elsewhere:MyTrial", FLEX, "elsewhere:MyTrial can't be imported .*ModuleNotFoundError"),
        ("model_def:MyTrial", "import sys; sys.exit(3)", "SystemExit: 3"),
        ("model_def:MyTrial", "class MyTrial: ...", "is no subclass of determined.pytorch.PyTorchTrial"),
        ("python3 train.py", FLEX, "entrypoint 'python3 train.py', which names no class"),
        ("model_def:MyTrial", None, "has no code to import model_def:MyTrial from"),
    ],
)
@pytest.mark.parametrize("is_trainer", [True, False])
def test_code_that_can_t_be_imported(
    tmp_path: Path, spec: str, code: str | None, message: str, is_trainer: bool
) -> None:
    folder = Folder(tmp_path / "c", code).load_data(spec, is_trainer=is_trainer)
    with pytest.raises(ValueError, match=message) as caught:
        load_trial_from_checkpoint_path(folder.path)
    assert "pass the class as trial_class" in str(caught.value)
    assert not {"model_def", "elsewhere"} & set(sys.modules)


def test_a_nested_class_is_found(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "c").load_data("model_def:Outer.Inner", is_trainer=True)
    assert type(load_trial_from_checkpoint_path(folder.path)).__qualname__ == "Outer.Inner"


def test_what_the_context_has(tmp_path: Path) -> None:
    legacy = Folder(tmp_path / "legacy").load_data(hparams=HPARAMS, experiment_config=CONFIG)
    context = load_trial_from_checkpoint_path(legacy.path, Other).context
    assert context.get_experiment_config() == {"entrypoint": "model_def:MyTrial", "data": {"url": "x"}}
    assert (context.get_hparams(), context.get_per_slot_batch_size(), context.get_trial_seed()) == (HPARAMS, 8, 0)
    context = load_trial_from_checkpoint_path(
        Folder(tmp_path / "t").load_data(is_trainer=True, experiment_config=CONFIG).path, Other
    ).context
    assert context.get_experiment_config() == CONFIG
    with pytest.raises(ValueError):
        context.get_hparams()


def test_wrapping_in_the_load_context_does_nothing() -> None:
    context = CheckpointLoadContext(hparams={"a": 1})
    context.experimental.use_amp()
    model = nn.Linear(1, 1)
    forward = model.forward
    assert context.wrap_model(model) is model
    assert model.forward == forward
    assert context.configure_apex_amp([model], "optimizers") == ([model], "optimizers")
    assert (context.get_hparam("a"), context.distributed.size, str(context.device)) == (1, 1, "cpu")


def test_weights_of_ddp_load_on_one_slot(tmp_path: Path) -> None:
    # Acceptance case 15, the half of this function.
    saved = [{f"module.{name}": value for name, value in state.items()} for state in MODELS]
    folder = Folder(tmp_path / "c", models_state_dict=saved).load_data(is_trainer=True)
    assert load_trial_from_checkpoint_path(folder.path).second.weight.tolist() == [[3.0]]


def test_torch_load_s_arguments(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "c").load_data(is_trainer=True)
    with pytest.raises(errors.InvalidCheckpointException, match=r"state_dict\.pth can't be read: Weights only load"):
        load_trial_from_checkpoint_path(folder.path, Other, torch_load_kwargs={"weights_only": True})
    with pytest.warns(FutureWarning, match="pass map_location in torch_load_kwargs"):
        trial = load_trial_from_checkpoint_path(folder.path, Other, map_location="cpu")
    assert trial.second.weight.tolist() == [[3.0]]
    with pytest.raises(ValueError, match="map_location and torch_load_kwargs exclude each other"):
        load_trial_from_checkpoint_path(folder.path, Other, torch_load_kwargs={}, map_location="cpu")


def test_folders_that_hold_no_such_checkpoint(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    nothing = Folder(tmp_path / "nothing").json("metadata.json", **METADATA)
    with pytest.raises(AssertionError, match=r"by Checkpoint\.download\(\), or .*Checkpoint\.write_metadata_file\(\)"):
        load_trial_from_checkpoint_path(nothing.path)
    broken = Folder(tmp_path / "broken").file("load_data.json", "{")
    with pytest.raises(errors.InvalidCheckpointException, match=r"load_data\.json can't be read"):
        load_trial_from_checkpoint_path(broken.path)
    other = Folder(tmp_path / "other", models_state_dict=MODELS[:1]).load_data(
        trial_type="TFKerasTrial", is_trainer=True
    )
    with pytest.raises(errors.InvalidCheckpointException, match="has 1 models, but the trial has wrapped 2"):
        load_trial_from_checkpoint_path(other.path, Other)
    assert "was stored by a TFKerasTrial" in caplog.text
    (other.path / "state_dict.pth").write_bytes(b"torn")
    with pytest.raises(errors.InvalidCheckpointException, match=r"state_dict\.pth can't be read"):
        load_trial_from_checkpoint_path(other.path, Other)
    (other.path / "state_dict.pth").unlink()
    with pytest.raises(
        errors.InvalidCheckpointException, match=r"has none of state_dict\.pth, determined/state_dict\.pth"
    ):
        load_trial_from_checkpoint_path(other.path, Other)


@pytest.mark.parametrize("name", ["determined/state_dict.pth", "pedl/state_dict.pth", "checkpoint.pt"])
def test_old_places_of_the_state(tmp_path: Path, name: str) -> None:
    folder = Folder(tmp_path / "c").load_data(is_trainer=True)
    (folder.path / "state_dict.pth").unlink()
    folder.state(name, {"models_state_dict": MODELS})
    assert load_trial_from_checkpoint_path(folder.path, Other).second.weight.tolist() == [[3.0]]


def test_loop_states_that_say_nothing(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "c")
    for content, message in (
        ({"trial_id": 1}, "does not say how many batches"),
        ([1], "has a list, and no dict"),
    ):
        folder.pickle("workload_sequencer.pkl", content)
        with pytest.raises(errors.InvalidCheckpointException, match=message):
            read_loop_state(folder.path, 3)
    folder.file("workload_sequencer.pkl", "torn")
    with pytest.raises(errors.InvalidCheckpointException, match="can't be read"):
        read_loop_state(folder.path, 3)
