"""Which checkpoints outlive their experiment. Source: spec experiment-config.md §11, without the peer's faults."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field


class RetentionPolicy(BaseModel):
    """How many checkpoints are kept, as `checkpoint_storage.save_*` says."""

    model_config = ConfigDict(frozen=True)

    save_experiment_best: int = Field(default=0, ge=0)
    save_trial_best: int = Field(default=1, ge=0)
    save_trial_latest: int = Field(default=1, ge=0)


#: Nothing is kept: the experiment is deleted.
KEEP_NOTHING = RetentionPolicy(save_experiment_best=0, save_trial_best=0, save_trial_latest=0)


class Candidate(NamedTuple):
    """A checkpoint that has files.

    Attributes:
        uuid: Of the checkpoint.
        trial_id: Whose it is.
        steps: Steps that were completed when it was saved.
        age: Rises from checkpoint to checkpoint in the order of their reports.
        metric: The searcher's metric of its trial's validation at the same step; None if there was none.
        validation: Rises from validation to validation in the order of their reports; None if there was none.
    """

    uuid: str
    trial_id: int
    steps: int
    age: int
    metric: float | None = None
    validation: int | None = None


def kept(candidates: Iterable[Candidate], policy: RetentionPolicy, *, smaller_is_better: bool) -> set[str]:
    """The checkpoints that stay, by uuid: the best of the experiment and of each trial, and the newest of each trial.

    Checkpoints of one step share their validation and so their rank: all of them stay, or none.
    """
    by_trial: dict[int, list[Candidate]] = defaultdict(list)
    everything = list(candidates)
    for candidate in everything:
        by_trial[candidate.trial_id].append(candidate)
    stay = _best(everything, policy.save_experiment_best, smaller_is_better)
    for own in by_trial.values():
        stay |= _best(own, policy.save_trial_best, smaller_is_better)
        newest = sorted(own, key=lambda candidate: (candidate.steps, candidate.age), reverse=True)
        stay |= {candidate.uuid for candidate in newest[: policy.save_trial_latest]}
    return stay


def _best(candidates: list[Candidate], count: int, smaller_is_better: bool) -> set[str]:
    validated: dict[int, list[Candidate]] = defaultdict(list)
    for candidate in candidates:
        if candidate.metric is not None and candidate.validation is not None:
            validated[candidate.validation].append(candidate)
    ranked = sorted(validated.items(), key=lambda entry: _rank(entry[1][0].metric or 0.0, entry[0], smaller_is_better))
    return {candidate.uuid for _, group in ranked[:count] for candidate in group}


def _rank(metric: float, validation: int, smaller_is_better: bool) -> tuple[bool, float, int]:
    if math.isnan(metric):
        return (True, 0.0, validation)
    return (False, metric if smaller_is_better else -metric, validation)
