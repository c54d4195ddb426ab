"""An experiment and its trials at one moment, for those who watch it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from cli import render, session
from determined import errors

INTERVAL_S = 1.0
_TERMINAL = ("COMPLETED", "CANCELED", "ERROR", "DELETED")


@dataclass(frozen=True)
class Snapshot:
    """An experiment and its trials at one moment."""

    experiment: dict[str, Any]
    trials: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    @property
    def state(self) -> str:
        """The experiment's state, without its prefix."""
        return render.state(self.experiment.get("state"))

    @property
    def metric(self) -> str:
        """The name of the searcher's metric."""
        return self.experiment.get("searcherMetric") or "metric"

    @property
    def best(self) -> dict[str, Any] | None:
        """The best trial so far."""
        best_id = self.experiment.get("bestTrialId")
        return next((trial for trial in self.trials if trial["id"] == best_id), None)

    @property
    def is_over(self) -> bool:
        """Whether nothing will change any more."""
        return self.state in _TERMINAL


def snapshot(experiment_id: int) -> Snapshot | None:
    """What there is now; None if the cluster does not answer."""
    try:
        # The trials first: when the experiment says that it ended, they are read once more below.
        trials = session.fetch_all(f"experiments/{experiment_id}/trials", "trials")
        experiment = session.fetch(f"experiments/{experiment_id}")["experiment"]
        if Snapshot(experiment).is_over:
            trials = session.fetch_all(f"experiments/{experiment_id}/trials", "trials")
    except (errors.MasterNotFoundException, errors.ServerException):
        return None
    return Snapshot(experiment, trials)


def snapshots(experiment_id: int) -> Iterator[Snapshot | None]:
    """What there is, about once a second, the last when it has ended; None while the cluster does not answer."""
    while True:
        began = time.monotonic()
        now = snapshot(experiment_id)
        yield now
        if now is not None and now.is_over:
            return
        time.sleep(max(0.05, INTERVAL_S - (time.monotonic() - began)))
