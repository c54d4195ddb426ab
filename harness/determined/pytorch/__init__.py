"""Training with PyTorch: write a `PyTorchTrial`, and a `Trainer` trains, validates, saves and resumes it.

A run that was killed and resumed ends with the weights of one that was not disturbed, to the bit.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from determined.pytorch import experimental, samplers
    from determined.pytorch._callback import PyTorchCallback
    from determined.pytorch._context import PyTorchExperimentalContext, PyTorchTrialContext
    from determined.pytorch._data import DataLoader, TorchData, adapt_batch_sampler, data_length, to_device
    from determined.pytorch._load import CheckpointLoadContext, load_trial_from_checkpoint_path
    from determined.pytorch._lr_scheduler import LRScheduler
    from determined.pytorch._reducer import MetricReducer, Reducer, default_allgather_fn
    from determined.pytorch._trainer import Trainer, init
    from determined.pytorch._trial import PyTorchTrial
    from determined.pytorch._units import Batch, Epoch, TrainUnit

__all__ = [
    "Batch",
    "CheckpointLoadContext",
    "DataLoader",
    "Epoch",
    "LRScheduler",
    "MetricReducer",
    "PyTorchCallback",
    "PyTorchExperimentalContext",
    "PyTorchTrial",
    "PyTorchTrialContext",
    "Reducer",
    "TorchData",
    "TrainUnit",
    "Trainer",
    "adapt_batch_sampler",
    "data_length",
    "default_allgather_fn",
    "experimental",
    "init",
    "load_trial_from_checkpoint_path",
    "samplers",
    "to_device",
]

_HOME = {
    **dict.fromkeys(("Batch", "Epoch", "TrainUnit"), "_units"),
    **dict.fromkeys(("CheckpointLoadContext", "load_trial_from_checkpoint_path"), "_load"),
    **dict.fromkeys(("DataLoader", "TorchData", "adapt_batch_sampler", "data_length", "to_device"), "_data"),
    "LRScheduler": "_lr_scheduler",
    **dict.fromkeys(("MetricReducer", "Reducer", "default_allgather_fn"), "_reducer"),
    "PyTorchCallback": "_callback",
    "PyTorchTrial": "_trial",
    **dict.fromkeys(("PyTorchExperimentalContext", "PyTorchTrialContext"), "_context"),
    **dict.fromkeys(("Trainer", "init"), "_trainer"),
}


def __getattr__(name: str) -> object:
    if name in ("experimental", "samplers"):
        value: object = importlib.import_module(f"determined.pytorch.{name}")
    elif name in _HOME:
        try:
            value = getattr(importlib.import_module(f"determined.pytorch.{_HOME[name]}"), name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "torch":
                raise
            from determined._extras import missing

            raise missing("determined.pytorch", "torch", "pytorch") from None
    else:
        raise AttributeError(f"module 'determined.pytorch' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
