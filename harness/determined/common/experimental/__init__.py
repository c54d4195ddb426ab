"""What `determined.experimental` consists of, and under Determined's older name for it: import it from there."""

from __future__ import annotations

import importlib

_NAMES = {
    "Checkpoint",
    "Determined",
    "Experiment",
    "ExperimentReference",
    "Model",
    "ModelOrderBy",
    "ModelSortBy",
    "ModelVersion",
    "OrderBy",
    "Project",
    "TrainingMetrics",
    "Trial",
    "TrialMetrics",
    "TrialOrderBy",
    "TrialReference",
    "TrialSortBy",
    "ValidationMetrics",
}


def __getattr__(name: str) -> object:
    if name not in _NAMES:
        raise AttributeError(f"module 'determined.common.experimental' has no attribute {name!r}")
    # looked up when asked: determined.experimental is made of what is here
    return getattr(importlib.import_module("determined.experimental"), name)
