"""What a run consists of, taken apart and put together again: for checkpoints, and to go on as if nothing had happened.

Each rank saves and loads random states and gradients of its own. What a checkpoint has in which file is in
docs/training-pytorch.md.
"""

from __future__ import annotations

import importlib
import logging
import pickle
from typing import Any, cast

import torch
from torch import nn

from determined import errors
from determined.pytorch import _random
from determined.pytorch._context import bare
from determined.pytorch._host import on_host

TYPE_CHECKING = False
if TYPE_CHECKING:
    import pathlib
    from collections.abc import Sequence

    from determined.pytorch._callback import PyTorchCallback
    from determined.pytorch._context import PyTorchTrialContext

logger = logging.getLogger("determined.pytorch")

STATE_FILE = "state_dict.pth"
#: In their order: the first that a checkpoint has counts.
_STATE_FILES = (STATE_FILE, "determined/state_dict.pth", "pedl/state_dict.pth", "checkpoint.pt")
LOOP_FILE = "trial_state.pkl"
RESUME_FILE = "resume_state.pth"
LOAD_FILE = "load_data.json"
#: Old checkpoints name what they have one of in the singular.
_SINGULAR = {
    "models_state_dict": "model_state_dict",
    "optimizers_state_dict": "optimizer_state_dict",
    "lr_schedulers_state_dict": "lr_scheduler",
}


# -- saving ------------------------------------------------------------------------------------------------------------


def state_of(context: PyTorchTrialContext, callbacks: dict[str, PyTorchCallback]) -> dict[str, Any]:
    """The content of `state_dict.pth`. Tensors are those in use: see `_host.on_host`."""
    state: dict[str, Any] = {
        "models_state_dict": [bare(model).state_dict() for model in context.models],
        "optimizers_state_dict": [optimizer.state_dict() for optimizer in context.optimizers],
        "lr_schedulers_state_dict": [scheduler.state_dict() for scheduler in context.lr_schedulers],
        "callbacks": {name: callback.state_dict() for name, callback in callbacks.items()},
        "rng_state": _random.states_of(context.device),
    }
    if context._scaler is not None:  # pyright: ignore[reportPrivateUsage]
        state["scaler_state_dict"] = context._scaler.state_dict()  # pyright: ignore[reportPrivateUsage]
    if context._is_apex:  # pyright: ignore[reportPrivateUsage]
        amp: Any = importlib.import_module("apex.amp")
        state["amp_state"] = amp.state_dict()  # pyright: ignore
    return state


def rank_state(context: PyTorchTrialContext, batches_trained: int) -> dict[str, Any]:
    """What of this rank no other has: random states, and in the middle of an aggregation its gradients."""
    state: dict[str, Any] = {"rng_state": _random.states_of(context.device)}
    if batches_trained % context._aggregation_frequency:  # pyright: ignore[reportPrivateUsage]
        state["gradients"] = [
            {name: parameter.grad for name, parameter in bare(model).named_parameters() if parameter.grad is not None}
            for model in context.models
        ]
    return on_host(state)


# -- loading -----------------------------------------------------------------------------------------------------------


def load_file(path: pathlib.Path, **options: Any) -> Any:
    """A file of ours, or of the published package, in the host's memory: these hold more than weights.

    Args:
        path: The file.
        options: Those of `torch.load`, which are otherwise chosen here.

    Raises: InvalidCheckpointException, if torch can't read it.
    """
    try:
        return torch.load(path, **{"map_location": "cpu", "weights_only": False, **options})  # pyright: ignore
    except (RuntimeError, EOFError, OSError, pickle.UnpicklingError) as error:
        raise errors.InvalidCheckpointException(f"{path} can't be read: {error}") from error


def load_state_file(folder: pathlib.Path, **options: Any) -> dict[str, Any]:
    """The content of the state file of a checkpoint of any age; `options` as for `load_file`.

    Raises: InvalidCheckpointException, if there is none, or torch can't read it.
    """
    for name in _STATE_FILES:
        if (folder / name).is_file():
            return load_file(folder / name, **options)
    raise errors.InvalidCheckpointException(
        f"{folder} has none of {', '.join(_STATE_FILES)}: it was not saved by a PyTorchTrial"
    )


def states_of(state: dict[str, Any], kind: str, count: int) -> list[Any]:
    """The states of all models, optimizers or schedulers of a checkpoint.

    Raises: RuntimeError, if the checkpoint has both forms, or the old one and there are several objects.
    """
    singular = _SINGULAR[kind]
    if singular not in state:
        return state.get(kind, [])
    if kind in state:
        raise RuntimeError(f"the checkpoint has both {kind} and {singular}: only one of them can be what was trained")
    if count > 1:
        raise RuntimeError(f"the checkpoint has one {singular}, but the trial has wrapped {count}")
    return [state[singular]]


def load_model_state(model: nn.Module, state: dict[str, Any]) -> None:
    """Load the weights of one model, whether it or the saved one was wrapped by DDP or not."""
    own = bare(model)
    try:
        own.load_state_dict(state)
    except RuntimeError as error:
        prefix = "module."
        if all(name.startswith(prefix) for name in state):
            other = {name[len(prefix) :]: value for name, value in state.items()}
        else:
            other = {prefix + name: value for name, value in state.items()}
        try:
            own.load_state_dict(other)
        except RuntimeError:
            raise error from None


def load_state(context: PyTorchTrialContext, state: dict[str, Any]) -> None:
    """Put models, optimizers, schedulers and scaler into the state of a checkpoint.

    Raises: RuntimeError, if the checkpoint has states for another number of objects, or they don't fit.
    """
    for kind, objects, load in (
        ("models_state_dict", context.models, load_model_state),
        ("optimizers_state_dict", context.optimizers, _load_one),
        ("lr_schedulers_state_dict", context.lr_schedulers, _load_one),
    ):
        found = states_of(state, kind, len(objects))
        if len(found) != len(objects):
            what = kind.replace("_state_dict", "").replace("_", " ")
            raise RuntimeError(f"the checkpoint has {len(found)} {what}, but the trial has wrapped {len(objects)}")
        for one, its_state in zip(cast("Sequence[Any]", objects), found):
            load(one, its_state)
    scaler: Any = context._scaler  # pyright: ignore[reportPrivateUsage]
    if scaler is not None:
        if "scaler_state_dict" in state:
            scaler.load_state_dict(state["scaler_state_dict"])
        else:
            logger.warning("the checkpoint has no state of a gradient scaler: it starts anew")
    elif "scaler_state_dict" in state:
        logger.warning("the checkpoint has the state of a gradient scaler, and the trial uses none")
    if context._is_apex:  # pyright: ignore[reportPrivateUsage]
        if "amp_state" in state:
            amp: Any = importlib.import_module("apex.amp")
            amp.load_state_dict(state["amp_state"])  # pyright: ignore
        else:
            logger.warning("the checkpoint has no state of apex: it starts anew")
    elif "amp_state" in state:
        logger.warning("the checkpoint has a state of apex, and the trial does not use it")


def load_rank_state(context: PyTorchTrialContext, state: dict[str, Any]) -> None:
    """Take back what `rank_state` returned, but for the random states, which come last."""
    for model, gradients in zip(context.models, state.get("gradients") or ()):
        for name, parameter in bare(model).named_parameters():
            if name in gradients:
                parameter.grad = gradients[name].to(parameter.device)


def load_callbacks(callbacks: dict[str, PyTorchCallback], states: dict[str, Any]) -> None:
    """Put callbacks into their states, by name."""
    from determined.pytorch._callback import PyTorchCallback

    for name, callback in callbacks.items():
        if name in states:
            callback.load_state_dict(states[name])
        elif type(callback).load_state_dict is not PyTorchCallback.load_state_dict:
            logger.warning(f"the checkpoint has no state of the callback {name!r}: it starts anew")


def _load_one(one: Any, state: Any) -> None:
    one.load_state_dict(state)
