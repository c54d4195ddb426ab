"""Errors about the user's own code: what is wrong, and where it is written."""

from __future__ import annotations

import inspect
import os
from typing import Any

from determined import errors
from determined.pytorch._callback import PyTorchCallback
from determined.pytorch._trial import PyTorchTrial

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from determined.pytorch._context import PyTorchTrialContext


def where(thing: Any) -> str:
    """ "file:line" of a class, function or method; its name, if that is unknown."""
    thing = inspect.unwrap(getattr(thing, "__func__", thing))
    try:
        path, (_, line) = inspect.getsourcefile(thing), inspect.getsourcelines(thing)
    except (TypeError, OSError):
        return getattr(thing, "__qualname__", repr(thing))
    return f"{os.path.relpath(path) if path else '?'}:{line}"


def caller() -> str:
    """ "file:line" in the user's code from which this package was called."""
    frame = inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] == "determined":
        frame = frame.f_back
    return "?" if frame is None else f"{os.path.relpath(frame.f_code.co_filename)}:{frame.f_lineno}"


def overrides(thing: Any, base: type, name: str) -> bool:
    """Whether an object's class has a method of its own in place of that of `base`."""
    kind: Any = thing.__class__
    return getattr(kind, name) is not getattr(base, name)


def check_class(cls: Any, base: type) -> None:
    """Refuse a class that can't be a trial.

    Raises: InvalidExperimentException.
    """
    if not (inspect.isclass(cls) and issubclass(cls, base)):
        package = base.__module__.rpartition(".")[0]
        raise errors.InvalidExperimentException(f"{cls!r} is no subclass of {package}.{base.__name__}")
    missing: list[str] = sorted(getattr(cls, "__abstractmethods__", ()))
    if missing:
        raise errors.InvalidExperimentException(
            f"{where(cls)}: the trial class {cls.__name__} lacks {', '.join(f'{name}()' for name in missing)}"
        )


def check_trial(trial: PyTorchTrial, context: PyTorchTrialContext) -> None:
    """Refuse a trial whose parts don't go together, before anything is loaded.

    Raises: InvalidExperimentException.
    """
    name, place = type(trial).__name__, where(type(trial))
    if not context.models:
        raise errors.InvalidExperimentException(
            f"{place}: {name} has wrapped no model: use self.model = context.wrap_model(…) in __init__"
        )
    if not context.optimizers:
        raise errors.InvalidExperimentException(
            f"{place}: {name} has wrapped no optimizer: use self.optimizer = context.wrap_optimizer(…) in __init__"
        )
    own = check_evaluates(trial, PyTorchTrial)
    check_takes(trial.train_batch, ("batch", "epoch_idx", "batch_idx"))
    check_takes(getattr(trial, own), ("batch",) if own == "evaluate_batch" else ("data_loader",))


def check_evaluates(trial: Any, base: type) -> str:
    """Which of the two methods a trial evaluates by. Raises: InvalidExperimentException, if it is both or none."""
    own = [m for m in ("evaluate_batch", "evaluate_full_dataset") if overrides(trial, base, m)]
    if len(own) != 1:
        has = "both evaluate_batch and evaluate_full_dataset" if own else "neither of them"
        raise errors.InvalidExperimentException(
            f"{where(type(trial))}: {type(trial).__name__} must override evaluate_batch or evaluate_full_dataset, but "
            f"has {has}"
        )
    return own[0]


def check_takes(method: Callable[..., Any], names: tuple[str, ...]) -> None:
    """Refuse a method that can't be called with these arguments by name, or wants others.

    Raises: InvalidExperimentException.
    """
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):
        return
    extra = {"batch_idx": None} if "batch_idx" in signature.parameters and "batch_idx" not in names else {}
    own = f"{method.__name__}({', '.join(signature.parameters)})"
    try:
        signature.bind(**dict.fromkeys(names), **extra)
    except TypeError as error:
        raise errors.InvalidExperimentException(
            f"{where(method)}: {own} must take {', '.join(names)}: {error}"
        ) from None


def takes(method: Callable[..., Any], name: str) -> bool:
    """Whether a method has a parameter of that name, or any."""
    parameters = inspect.signature(method).parameters.values()
    return any(p.name == name or p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)


def check_callbacks(trial: Any) -> dict[str, PyTorchCallback]:
    """The trial's callbacks. Raises: InvalidExperimentException, if they are no `PyTorchCallback` by name."""
    made: Any = trial.build_callbacks()
    place = where(trial.build_callbacks)
    if not isinstance(made, dict):
        raise errors.InvalidExperimentException(
            f"{place}: build_callbacks returned a {type(made).__name__}, but must return a dict of name -> callback"
        )
    for name, callback in made.items():  # pyright: ignore[reportUnknownVariableType]
        if not isinstance(callback, PyTorchCallback):
            raise errors.InvalidExperimentException(
                f"{place}: the callback {name!r} is a {type(callback).__name__}, but must be a PyTorchCallback"  # pyright: ignore
            )
    return made  # pyright: ignore[reportUnknownVariableType]
