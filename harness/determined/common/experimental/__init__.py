"""What `determined.experimental` consists of, and under Determined's older name for it: import it from there."""

from __future__ import annotations

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
    from determined import experimental

    return getattr(experimental, name)
