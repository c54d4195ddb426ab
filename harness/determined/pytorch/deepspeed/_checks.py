"""Errors about the user's own trial: what is wrong, and where it is written."""

from __future__ import annotations

import inspect
from typing import Any

from determined import errors
from determined.pytorch import _user_code
from determined.pytorch._data import DataLoader
from determined.pytorch.deepspeed._trial import DeepSpeedTrial

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from determined.pytorch.deepspeed._context import DeepSpeedTrialContext

_ZERO_WEIGHTS = 3


def check_trial(trial: DeepSpeedTrial, context: DeepSpeedTrialContext) -> None:
    """Refuse a trial whose parts don't go together, before anything is loaded.

    Raises: InvalidExperimentException.
    """
    name, place = type(trial).__name__, _user_code.where(type(trial))
    if not context.models:
        raise errors.InvalidExperimentException(
            f"{place}: {name} has wrapped no engine: use self.engine = context.wrap_model_engine(engine) in __init__"
        )
    is_whole = _user_code.check_evaluates(trial, DeepSpeedTrial) == "evaluate_full_dataset"
    _check_takes(trial.train_batch, "dataloader_iter", "epoch_idx", "batch_idx")
    if not is_whole:
        _check_takes(trial.evaluate_batch, "dataloader_iter", "batch_idx")
        return
    _user_code.check_takes(trial.evaluate_full_dataset, ("data_loader",))
    if context.distributed.size > 1 and _is_spread(context):
        raise errors.InvalidExperimentException(
            f"{_user_code.where(trial.evaluate_full_dataset)}: evaluate_full_dataset runs on rank 0 alone, which has a "
            "part of the model only with a pipeline, model parallelism or ZeRO stage 3: override evaluate_batch"
        )


def _is_spread(context: DeepSpeedTrialContext) -> bool:
    """Whether no rank has a whole model."""
    mpu = context._mpu  # pyright: ignore[reportPrivateUsage]
    if mpu.data_parallel_world_size < context.distributed.size:
        return True
    return any(engine.zero_optimization_stage() >= _ZERO_WEIGHTS for engine in context.models)


def _check_takes(method: Callable[..., Any], *names: str) -> None:
    """Refuse a method that can't be called with this many arguments: users name them as they like."""
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*names)
    except TypeError as error:
        own = f"{method.__name__}({', '.join(signature.parameters)})"
        raise errors.InvalidExperimentException(
            f"{_user_code.where(method)}: {own} must take {', '.join(names)}: {error}"
        ) from None


def check_loader(build: Callable[..., Any], loader: Any, is_any_allowed: bool) -> None:
    """Refuse what is no loader that is sharded and resumed.

    Raises: RuntimeError.
    """
    if isinstance(loader, DataLoader) or (is_any_allowed and loader is not None):
        return
    kind: Any = loader.__class__
    raise RuntimeError(
        f"{_user_code.where(build)}: {build.__name__} returned a {kind.__module__}.{kind.__qualname__}, but must "
        "return a determined.pytorch.DataLoader; call context.disable_dataset_reproducibility_checks() to shard and "
        "resume another one yourself"
    )


def check_micro_steps(trial: DeepSpeedTrial, engines: list[Any], batch_idx: int) -> None:
    """Refuse a batch in the middle of which an engine is.

    Raises: ArgumentsError, which is an AssertionError too.
    """
    for number, engine in enumerate(engines):
        done, every = engine.micro_steps, engine.gradient_accumulation_steps()
        if done % every:
            raise errors.ArgumentsError(
                f"{_user_code.where(trial.train_batch)}: after batch {batch_idx} engine {number} has made {done} micro "
                f"steps, but must have made a multiple of its gradient_accumulation_steps, {every}: train_batch is "
                "called for each micro batch, and calls engine.step() once; if it does all of them in one call, use "
                "context.disable_auto_grad_accumulation() in __init__"
            )
