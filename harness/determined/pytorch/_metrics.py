"""From what `train_batch` and `evaluate_batch` return to metrics that can be reduced and reported."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch

from determined.pytorch._user_code import where

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

#: A tensor of at most so many elements stays on its device until the batches of a report are done: taking it off a GPU
#: waits for what the GPU still computes.
_KEPT = 1024


def training_output(output: Any, method: Callable[..., Any]) -> dict[str, Any]:
    """The metrics of one batch; tensors are copies without a graph. A tensor alone is the loss.

    Raises: TypeError, if it is neither a tensor nor a dictionary.
    """
    if isinstance(output, torch.Tensor):
        output = {"loss": output}
    return {name: _held(value) for name, value in _as_metrics(output, method).items()}


def evaluation_output(output: Any, method: Callable[..., Any]) -> dict[str, Any]:
    """The metrics of one batch or of a whole validation, tensors as NumPy's arrays.

    Raises: TypeError, if it is no dictionary.
    """
    return {name: to_numpy(value) for name, value in _as_metrics(output, method).items()}


def to_numpy(value: Any) -> Any:
    """A tensor as an array of NumPy; anything else as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach()
    return (value.float() if value.dtype is torch.bfloat16 else value).cpu().numpy()


def searcher_metric(metrics: dict[str, Any], name: str) -> float:
    """The value that the search decides by.

    Raises: RuntimeError, if it is missing, or no number.
    """
    if name not in metrics:
        raise RuntimeError(
            f"searcher.metric is {name!r}, but the validation returned "
            f"{', '.join(map(repr, sorted(metrics))) or 'nothing'}"
        )
    value = metrics[name]
    array = np.asarray(value)
    if array.ndim or array.dtype.kind not in "fiub":
        raise RuntimeError(f"searcher.metric {name!r} is {value!r}, but must be a single number")
    return float(array)


def _held(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().clone() if value.numel() <= _KEPT else to_numpy(value)


def _as_metrics(output: Any, method: Callable[..., Any]) -> dict[str, Any]:
    if not isinstance(output, dict):
        wanted = "a dictionary of metrics" + (" or the loss as a tensor" if method.__name__ == "train_batch" else "")
        raise TypeError(
            f"{where(method)}: {method.__name__} returned a {type(output).__name__}, but must return {wanted}"
        )
    return cast("dict[str, Any]", output)
