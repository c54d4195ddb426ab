"""Grid search: a trial for each point, taken from the end of the list of points. Source: spec searchers.md §4."""

from typing import Literal

from workflows.searchers.base import Frame
from workflows.searchers.messages import Amended
from workflows.searchers.random import IndependentTrials
from workflows.searchers.space import grid_axes, grid_point
from workflows.searchers.values import SearchError


class GridSearch(IndependentTrials):
    """Every point once; invalid ones are not replaced. Only the number of points left is kept, not the points."""

    kind: Literal["grid"] = "grid"

    def create(self, frame: Frame) -> str:
        """Ask for the trial of the next point; only its id and its seed are drawn."""
        return frame.create(grid_point(grid_axes(frame.space), self.total - self.made - 1))

    def amend(self, frame: Frame, event: Amended) -> None:
        """The points are fixed; everything else as in a random search."""
        if event.max_trials is not None:
            raise SearchError(
                f"max_trials cannot become {event.max_trials}: a grid search runs all {self.total} points of its grid"
            )
        if event.hyperparameters is not None:
            raise SearchError("hyperparameters cannot change while a grid search runs: they are its list of points")
        super().amend(frame, event)
