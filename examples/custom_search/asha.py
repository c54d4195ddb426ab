"""Asynchronous successive halving as a custom search: many trials start, and only the best of each rung train on."""

from __future__ import annotations

import json
import math
import random
import uuid
from pathlib import Path
from typing import Any

from determined import searcher


class Asha(searcher.SearchMethod):
    """A trial trains to the next length if its loss is among the best 1/divisor that were seen at this one."""

    def __init__(self, max_trials: int = 16, concurrent: int = 4, divisor: int = 4, seed: int = 0) -> None:
        self.max_trials = max_trials
        self.concurrent = concurrent
        self.divisor = divisor
        self.lengths = [1, divisor, divisor**2]
        # What decides from here on, and so what save_method_state has to keep.
        self.rng = random.Random(seed)
        self.created = 0
        self.losses: list[list[float]] = [[] for _ in self.lengths]

    def _new_trial(self) -> list[searcher.Operation]:
        self.created += 1
        request_id = uuid.UUID(int=self.rng.getrandbits(128), version=4)
        hparams = {"learning_rate": 10 ** self.rng.uniform(-4, -1), "momentum": self.rng.uniform(0, 0.99)}
        return [searcher.Create(request_id, hparams, None), searcher.ValidateAfter(request_id, self.lengths[0])]

    def initial_operations(self, searcher_state: searcher.SearcherState) -> list[searcher.Operation]:
        return [op for _ in range(min(self.concurrent, self.max_trials)) for op in self._new_trial()]

    def on_trial_created(
        self, searcher_state: searcher.SearcherState, request_id: uuid.UUID
    ) -> list[searcher.Operation]:
        return []

    def on_validation_completed(
        self, searcher_state: searcher.SearcherState, request_id: uuid.UUID, metric: Any, train_length: int
    ) -> list[searcher.Operation]:
        rung = self.lengths.index(train_length)
        loss = float(metric) if math.isfinite(metric) else math.inf
        seen = self.losses[rung]
        seen.append(loss)
        best = sorted(seen)[: max(1, len(seen) // self.divisor)]
        if rung + 1 < len(self.lengths) and loss <= best[-1] < math.inf:
            return [searcher.ValidateAfter(request_id, self.lengths[rung + 1])]
        return [searcher.Close(request_id)]

    def on_trial_exited_early(
        self, searcher_state: searcher.SearcherState, request_id: uuid.UUID, exited_reason: searcher.ExitedReason
    ) -> list[searcher.Operation]:
        return []  # on_trial_closed follows, and puts another one in its place

    def on_trial_closed(
        self, searcher_state: searcher.SearcherState, request_id: uuid.UUID
    ) -> list[searcher.Operation]:
        if self.created < self.max_trials:
            return self._new_trial()
        if len(searcher_state.trials_closed) == self.max_trials:
            return [searcher.Shutdown(failure=len(searcher_state.failures) == self.max_trials)]
        return []

    def progress(self, searcher_state: searcher.SearcherState) -> float:
        return len(searcher_state.trials_closed) / self.max_trials

    def save_method_state(self, path: Path) -> None:
        state = {"rng": self.rng.getstate(), "created": self.created, "losses": self.losses}
        (path / "asha.json").write_text(json.dumps(state))

    def load_method_state(self, path: Path) -> None:
        state = json.loads((path / "asha.json").read_text())
        version, words, gauss = state["rng"]
        self.rng.setstate((version, tuple(words), gauss))
        self.created, self.losses = state["created"], state["losses"]
