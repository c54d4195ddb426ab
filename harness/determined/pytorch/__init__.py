"""Training with PyTorch: write a `PyTorchTrial`, and a `Trainer` trains, validates, saves and resumes it.

A run that was killed and resumed ends with the weights of one that was not disturbed, to the bit.
"""

from __future__ import annotations

from determined.pytorch import _lazy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from determined._units import Batch, Epoch, TrainUnit
    from determined.pytorch import deepspeed, experimental, samplers
    from determined.pytorch._callback import PyTorchCallback
    from determined.pytorch._context import PyTorchExperimentalContext, PyTorchTrialContext
    from determined.pytorch._data import DataLoader, TorchData, adapt_batch_sampler, data_length, to_device
    from determined.pytorch._load import CheckpointLoadContext, load_trial_from_checkpoint_path
    from determined.pytorch._lr_scheduler import LRScheduler
    from determined.pytorch._reducer import MetricReducer, Reducer, default_allgather_fn
    from determined.pytorch._trainer import Trainer, init
    from determined.pytorch._trial import PyTorchTrial

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
    "deepspeed",
    "default_allgather_fn",
    "experimental",
    "init",
    "load_trial_from_checkpoint_path",
    "samplers",
    "to_device",
]

_HOME = {
    **dict.fromkeys(("Batch", "Epoch", "TrainUnit"), "._units"),
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
    value = _lazy.attribute("determined.pytorch", name, _HOME, ("deepspeed", "experimental", "samplers"))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
