"""The Core API: report metrics, save checkpoints, follow the searcher, and make room, from any training code.

Example::

    from determined import core

    with core.init() as core_context:
        for op in core_context.searcher.operations():
            ...
"""

from __future__ import annotations

from determined.core._checkpoint import CheckpointContext, DownloadMode
from determined.core._context import Context, init
from determined.core._distributed import DistributedContext
from determined.core._experimental import ExperimentalCoreContext
from determined.core._preempt import PreemptContext, PreemptMode
from determined.core._profiler import ProfilerContext
from determined.core._searcher import SearcherContext, SearcherMode, SearcherOperation, Unit
from determined.core._tensorboard import TensorboardMode
from determined.core._train import EarlyExitReason, TrainContext

__all__ = [
    "CheckpointContext",
    "Context",
    "DistributedContext",
    "DownloadMode",
    "EarlyExitReason",
    "ExperimentalCoreContext",
    "PreemptContext",
    "PreemptMode",
    "ProfilerContext",
    "SearcherContext",
    "SearcherMode",
    "SearcherOperation",
    "TensorboardMode",
    "TrainContext",
    "Unit",
    "init",
]
