"""One trial, not replaced whatever happens to it. Source: spec searchers.md §2."""

from typing import Literal

from workflows.searchers.base import Frame
from workflows.searchers.messages import Amended
from workflows.searchers.random import IndependentTrials
from workflows.searchers.values import SearchError


class SingleSearch(IndependentTrials):
    """One trial; its hyperparameters are usually constants, others are drawn."""

    kind: Literal["single"] = "single"

    def amend(self, frame: Frame, event: Amended) -> None:
        """Only its length can change."""
        for field, value in (
            ("max_trials", event.max_trials),
            ("max_concurrent_trials", event.max_concurrent_trials),
            ("hyperparameters", event.hyperparameters),
        ):
            if value is not None:
                raise SearchError(f"{field} cannot change: a single search is one trial, which has its values already")
        super().amend(frame, event)
