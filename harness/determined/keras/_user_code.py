"""Errors about a `TFKerasTrial` of the user: what is wrong, and where it is written."""

from __future__ import annotations

from typing import Any, cast

import keras

from determined import errors
from determined.keras import _inputs
from determined.pytorch._user_code import where

TYPE_CHECKING = False
if TYPE_CHECKING:
    from determined.keras._context import TFKerasTrialContext
    from determined.keras._trial import TFKerasTrial


def built_model(trial: TFKerasTrial, context: TFKerasTrialContext) -> Any:
    """The model that the trial builds. Raises: InvalidExperimentException, if it is not wrapped or not compiled."""
    place = where(trial.build_model)
    model = trial.build_model()
    if not isinstance(model, keras.Model):
        raise errors.InvalidExperimentException(
            f"{place}: build_model returned a {type(model).__module__}.{type(model).__name__}, but must return a "
            f"keras.Model of Keras {keras.__version__}"
        )
    if context._model is not model:  # pyright: ignore[reportPrivateUsage]
        raise errors.InvalidExperimentException(
            f"{place}: build_model returned a model that is not wrapped: use model = self.context.wrap_model(model)"
        )
    if not model.compiled:  # pyright: ignore[reportUnknownMemberType]
        raise errors.InvalidExperimentException(
            f"{place}: build_model returned a model that is not compiled: call model.compile(optimizer, loss)"
        )
    return cast("Any", model)


def loaded_data(trial: TFKerasTrial, context: TFKerasTrialContext, name: str) -> Any:
    """What one of the trial's loaders returns.

    Raises:
        InvalidDataTypeException: It is none of the kinds that are known.
        InvalidExperimentException: It is empty, of different lengths, or a dataset that is not wrapped.
    """
    method = getattr(trial, name)
    place, before = where(method), context._wrapped_datasets  # pyright: ignore[reportPrivateUsage]
    data = method()
    _inputs.check(data, name, place, context.get_per_slot_batch_size)
    is_wrapped = context._wrapped_datasets > before  # pyright: ignore[reportPrivateUsage]
    if _inputs.is_dataset(data) and not is_wrapped:
        raise errors.InvalidExperimentException(
            f"{place}: {name} returned a tf.data.Dataset that is not wrapped: use "
            "dataset = self.context.wrap_dataset(dataset) before it is batched"
        )
    return data


def callbacks_of(trial: TFKerasTrial) -> list[Any]:
    """The trial's callbacks. Raises: InvalidExperimentException, if they are no list of callbacks of Keras."""
    made: Any = trial.keras_callbacks()
    place = where(trial.keras_callbacks)
    if not isinstance(made, (list, tuple)):
        raise errors.InvalidExperimentException(
            f"{place}: keras_callbacks returned a {type(made).__name__}, but must return a list of callbacks"
        )
    for callback in cast("list[Any]", made):
        if not isinstance(callback, keras.callbacks.Callback):
            raise errors.InvalidExperimentException(
                f"{place}: keras_callbacks returned a {type(callback).__name__}, but must return callbacks of Keras"
            )
    return list(cast("list[Any]", made))
