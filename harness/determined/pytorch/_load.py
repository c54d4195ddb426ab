"""Reading checkpoints of every age into a trial that a script uses."""

from __future__ import annotations

import contextlib
import os
import pathlib
import warnings
from typing import Any, cast

from torch import nn

from determined import errors
from determined._stored import PASS_CLASS, Stored, imported
from determined.core._checkpoint import CheckpointContext
from determined.core._context import Context
from determined.core._distributed import DummyDistributedContext
from determined.pytorch import _state
from determined.pytorch._context import PyTorchTrialContext
from determined.pytorch._trial import PyTorchTrial


class CheckpointLoadContext(PyTorchTrialContext):
    """What a trial is constructed with to load a checkpoint: wrapping does nothing, and there is no cluster.

    Args:
        hparams: The hyperparameters that `get_hparams` returns.
        exp_conf: The configuration that `get_experiment_config` returns.
    """

    def __init__(self, hparams: dict[str, Any] | None = None, exp_conf: dict[str, Any] | None = None) -> None:
        from determined.common import storage
        from determined.core._local import local_dir

        place = CheckpointContext(DummyDistributedContext(), storage.build(local_dir("checkpoints")), None, "", "")
        super().__init__(
            Context(place),
            trial_seed=0,
            hparams=hparams,
            slots_per_trial=1,
            num_gpus=0,
            exp_conf=exp_conf,
            enable_tensorboard_logging=False,
        )

    def autocast_forward_pass(self, to_wrap: nn.Module) -> nn.Module:
        """The model as it is: what it is loaded for decides on the precision."""
        return to_wrap

    def configure_apex_amp(self, models: Any, optimizers: Any, **options: Any) -> tuple[Any, Any]:
        """Models and optimizers as they are."""
        return models, optimizers


def load_trial_from_checkpoint_path(
    path: str | os.PathLike[str],
    trial_class: type[PyTorchTrial] | None = None,
    trial_kwargs: dict[str, Any] | None = None,
    torch_load_kwargs: dict[str, Any] | None = None,
    **kwargs: Any,
) -> Any:
    """A trial with the weights of a checkpoint, of this package or any release of Determined since 0.12::

        path = client.get_checkpoint(uuid).download()
        trial = pytorch.load_trial_from_checkpoint_path(path)

    Only models are loaded. The code of a checkpoint is executed, and its files can execute code: load what you trust.

    Args:
        path: The folder of the checkpoint.
        trial_class: The class to construct; by default it is imported from the checkpoint's code.
        trial_kwargs: Further arguments of its constructor.
        torch_load_kwargs: Arguments of `torch.load`, for example `{"map_location": "cuda"}`; by default weights are
            loaded into the host's memory.

    Returns:
        The trial; of code whose trial has `build_model()`, the model that it returns.

    Raises:
        NoCheckpointException: The folder does not say what it has; it is an AssertionError too.
        ValueError: The class can't be imported.
        InvalidCheckpointException: The files can't be read, or do not fit the trial.
    """
    if kwargs:
        if torch_load_kwargs is not None:
            raise ValueError(
                f"load_trial_from_checkpoint_path: {', '.join(kwargs)} and torch_load_kwargs exclude each other; "
                "put all into torch_load_kwargs"
            )
        warnings.warn(
            f"load_trial_from_checkpoint_path: pass {', '.join(kwargs)} in torch_load_kwargs",
            FutureWarning,
            stacklevel=2,
        )
        torch_load_kwargs = kwargs
    folder = pathlib.Path(os.path.abspath(path))
    about = Stored(folder, "PyTorchTrial")
    # The stack ends with the trial made: its constructor may import what lies beside the class.
    with contextlib.ExitStack() as stack:
        if trial_class is None:
            trial_class = stack.enter_context(imported(folder, about))
        context = CheckpointLoadContext(about.hparams, about.config)
        trial = _construct(trial_class, context, trial_kwargs or {})
    state = _state.load_state_file(folder, **(torch_load_kwargs or {}))
    build: Any = getattr(trial, "build_model", None)
    if about.is_metadata_only and build is not None:
        model: nn.Module = build()
        _load_models([model], state)
        return model
    if "model_state_dict" in state:
        raise errors.InvalidCheckpointException(
            f"{folder} has one model_state_dict, as checkpoints of trials with build_model(), but "
            f"{type(trial).__name__} has none"
        )
    _load_models(context.models, state)
    return trial


def _construct(cls: Any, context: CheckpointLoadContext, trial_kwargs: dict[str, Any]) -> Any:
    if not isinstance(cls, type) or not issubclass(cls, PyTorchTrial):
        raise ValueError(f"{cls!r} is no subclass of determined.pytorch.PyTorchTrial; {PASS_CLASS}")
    missing = cast("frozenset[str]", getattr(cls, "__abstractmethods__", ()))
    if missing and hasattr(cls, "build_model"):
        # Old trials are not asked for what was not there yet.
        cls = type(cls.__name__, (cls,), {name: _absent(name) for name in missing})
    try:
        return cls(context, **trial_kwargs)
    except SystemExit as e:
        raise ValueError(f"{cls.__name__} ended the process with {e.code!r} in its constructor") from e


def _absent(name: str) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> None:
        if name == "__init__":
            self.context = args[0]
            return
        raise NotImplementedError(f"this trial has no {name}()")

    return method


def _load_models(models: list[nn.Module], state: dict[str, Any]) -> None:
    try:
        states = _state.states_of(state, "models_state_dict", len(models))
        if len(states) != len(models):
            raise RuntimeError(f"it has {len(states)} models, but the trial has wrapped {len(models)}")
        for model, its_state in zip(models, states):
            _state.load_model_state(model, its_state)
    except RuntimeError as e:
        raise errors.InvalidCheckpointException(f"the checkpoint does not fit the trial: {e}") from e
