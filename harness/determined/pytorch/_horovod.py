"""Horovod, where it is installed."""

from __future__ import annotations

import importlib
from typing import Any

from determined import core, errors


def module() -> Any:
    """`horovod.torch`. Raises: InvalidExperimentException, if it is not installed."""
    try:
        return importlib.import_module("horovod.torch")
    except ImportError:
        raise errors.InvalidExperimentException(
            "this trial was started with horovod, which is not installed in its environment; "
            "determined.launch.torch_distributed needs nothing but PyTorch"
        ) from None


def ranks() -> core.DistributedContext:
    """The ranks that `horovodrun` started. Raises: as `module`."""
    horovod = module()
    horovod.init()
    return core.DistributedContext.from_horovod(horovod)
