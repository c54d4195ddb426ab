"""Reading checkpoints of every age: into a trial that a script uses, and how far their runs were."""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import pathlib
import pickle
import re
import warnings
from typing import Any, cast

from torch import nn

from determined import errors
from determined._import import import_from_path
from determined.core._checkpoint import CheckpointContext
from determined.core._context import Context
from determined.core._distributed import DummyDistributedContext
from determined.pytorch import _state
from determined.pytorch._context import PyTorchTrialContext
from determined.pytorch._trial import PyTorchTrial

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator

logger = logging.getLogger("determined.pytorch")

_SPEC = re.compile(r"([\w.]+):([\w.]+)")
#: What a stored configuration says of the cluster that it was for.
_OF_CLUSTER = ("checkpoint_storage", "environment", "resources", "optimizations")
_PASS_CLASS = "pass the class as trial_class"


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
    about = _About(folder)
    # The stack ends with the trial made: its constructor may import what lies beside the class.
    with contextlib.ExitStack() as stack:
        if trial_class is None:
            trial_class = stack.enter_context(_imported(folder, about))
        trial = _construct(trial_class, about, trial_kwargs or {})
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
    _load_models(cast("PyTorchTrialContext", about.context).models, state)
    return trial


class _About:
    """What a checkpoint's folder says about the code that it was trained with."""

    def __init__(self, folder: pathlib.Path) -> None:
        load_data, metadata = (_json_of(folder / name) for name in ("load_data.json", "metadata.json"))
        self.is_metadata_only = load_data is None
        self.context: CheckpointLoadContext | None = None
        self.config: dict[str, Any] | None
        self.hparams: dict[str, Any] | None
        self.spec: Any
        if load_data is not None:
            kind = load_data.get("trial_type")
            if kind != "PyTorchTrial":
                logger.warning(f"{folder} was stored by a {kind}, and is loaded as one of a PyTorchTrial")
            self.spec = load_data.get("trial_cls_spec")
            self.config, self.hparams = load_data.get("experiment_config"), load_data.get("hparams")
            self.is_trainer = bool(load_data.get("is_trainer"))
        elif metadata is not None and "experiment_config" in metadata and "hparams" in metadata:
            self.config, self.hparams = metadata["experiment_config"], metadata["hparams"]
            self.spec = (self.config or {}).get("entrypoint")
            self.is_trainer = False
        else:
            raise errors.NoCheckpointException(
                f"{folder} has no load_data.json, and no metadata.json with experiment_config and hparams; get the "
                "folder by Checkpoint.download(), or write that file by Checkpoint.write_metadata_file()"
            )
        if not self.is_trainer and self.config is not None:
            self.config = {name: value for name, value in self.config.items() if name not in _OF_CLUSTER}


def _json_of(path: pathlib.Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as e:
        raise errors.InvalidCheckpointException(f"{path} can't be read: {e}") from e
    if not isinstance(value, dict):
        raise errors.InvalidCheckpointException(f"{path} has a {type(value).__name__}, but must have an object")
    return cast("dict[str, Any]", value)


@contextlib.contextmanager
def _imported(folder: pathlib.Path, about: _About) -> Generator[type[PyTorchTrial]]:
    """The trial class of a checkpoint's code, which can import its own modules within the block."""
    found = _SPEC.fullmatch(about.spec) if isinstance(about.spec, str) else None
    if found is None:
        raise ValueError(f"{folder} was stored by the entrypoint {about.spec!r}, which names no class; {_PASS_CLASS}")
    module_name, path = found.groups()
    if module_name == "__main__":
        raise ValueError(f"the trial class {path} was defined in a script, which can't be imported; {_PASS_CLASS}")
    code = folder / "code"
    if not code.is_dir():
        raise ValueError(f"{folder} has no code to import {about.spec} from; {_PASS_CLASS}")
    with contextlib.ExitStack() as stack:
        stack.enter_context(import_from_path(code))
        if not about.is_trainer:
            stack.enter_context(_in_folder(code))
        try:
            cls: Any = importlib.import_module(module_name)
            for name in path.split("."):
                cls = getattr(cls, name)
        except (Exception, SystemExit) as e:
            raise ValueError(
                f"{about.spec} can't be imported from {code}: {type(e).__name__}: {e}; {_PASS_CLASS}"
            ) from e
        yield cls


@contextlib.contextmanager
def _in_folder(folder: pathlib.Path) -> Generator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def _construct(cls: Any, about: _About, trial_kwargs: dict[str, Any]) -> Any:
    if not isinstance(cls, type) or not issubclass(cls, PyTorchTrial):
        raise ValueError(f"{cls!r} is no subclass of determined.pytorch.PyTorchTrial; {_PASS_CLASS}")
    about.context = CheckpointLoadContext(about.hparams, about.config)
    missing = cast("frozenset[str]", getattr(cls, "__abstractmethods__", ()))
    if missing and hasattr(cls, "build_model"):
        # Old trials are not asked for what was not there yet.
        cls = type(cls.__name__, (cls,), {name: _absent(name) for name in missing})
    try:
        return cls(about.context, **trial_kwargs)
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


def read_loop_state(folder: pathlib.Path, epoch_length: int | None) -> dict[str, Any] | None:
    """How far the run of a checkpoint was, in the names of today; None if the checkpoint does not say.

    Args:
        folder: Of the checkpoint.
        epoch_length: Batches of an epoch; None if unknown: then old checkpoints have no `epochs_trained`.

    Returns:
        `trial_id`, `last_ckpt`, `step_id`, `last_val`, `batches_trained`, `epochs_trained`.

    Raises:
        InvalidCheckpointException: The file can't be read.
    """
    for name in ("trial_state.pkl", "workload_sequencer.pkl"):
        if (folder / name).is_file():
            break
    else:
        return None
    try:
        saved: Any = pickle.loads((folder / name).read_bytes())
    except (pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError, ValueError, OSError) as e:
        raise errors.InvalidCheckpointException(f"{name} of the checkpoint can't be read: {e}") from e
    if not isinstance(saved, dict):
        raise errors.InvalidCheckpointException(f"{name} of the checkpoint has a {type(saved).__name__}, and no dict")
    stored = cast("dict[str, Any]", saved)
    if "batches_trained" in stored:
        return stored
    batches = stored.get("steps_completed", stored.get("latest_batch"))
    if not isinstance(batches, int):
        raise errors.InvalidCheckpointException(f"{name} of the checkpoint does not say how many batches were trained")
    return {
        "trial_id": stored.get("trial_id"),
        "last_ckpt": stored.get("last_ckpt", batches),
        "step_id": stored.get("step_id", 0),
        "last_val": stored.get("last_val", 0),
        "batches_trained": batches,
        "epochs_trained": batches // epoch_length if epoch_length else None,
    }
