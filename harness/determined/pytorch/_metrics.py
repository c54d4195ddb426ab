"""From what `train_batch` and `evaluate_batch` return to metrics that can be reduced and reported."""

from __future__ import annotations

from typing import Any, cast

import torch

from determined.pytorch._reducer import mean
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


def mean_of(outputs: list[dict[str, Any]], method: Callable[..., Any]) -> dict[str, Any]:
    """The metrics of a batch that was trained in parts, from those of each part.

    Raises: ValueError, if parts have different metrics.
    """
    if len(outputs) == 1:
        return outputs[0]
    for output in outputs:
        if output.keys() != outputs[0].keys():
            raise ValueError(
                f"{where(method)}: {method.__name__} returned the metrics {sorted(output)}, and for another "
                f"part of the same batch {sorted(outputs[0])}: return the same for all"
            )
    return {name: mean([to_numpy(output[name]) for output in outputs]) for name in outputs[0]}


def to_numpy(value: Any) -> Any:
    """A tensor as an array of NumPy; anything else as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach()
    return (value.float() if value.dtype is torch.bfloat16 else value).cpu().numpy()


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
