"""Gradient descent with momentum down a narrow valley: training that takes no time and needs no library."""

from __future__ import annotations

import json
from typing import Any

import determined as det
from determined import core

# Used outside of a cluster: `python train.py`.
DEFAULT_HPARAMS = {"learning_rate": 0.01, "momentum": 0.9}
STEPS_PER_EPOCH = 10
SLOPES = (1.0, 50.0)


def train_one_epoch(state: dict[str, Any], hparams: dict[str, Any]) -> float:
    """Move the point of `state`; returns the loss there."""
    for _ in range(STEPS_PER_EPOCH):
        for i, slope in enumerate(SLOPES):
            state["speed"][i] = (
                hparams["momentum"] * state["speed"][i] - hparams["learning_rate"] * slope * state["at"][i]
            )
            state["at"][i] += state["speed"][i]
    state["epochs"] += 1
    return sum(slope * state["at"][i] ** 2 / 2 for i, slope in enumerate(SLOPES))


def main(core_context: core.Context) -> None:
    """Train as far as the search wants."""
    info = det.get_cluster_info()
    hparams = info.trial.hparams if info else DEFAULT_HPARAMS
    state: dict[str, Any] = {"epochs": 0, "at": [1.0, 1.0], "speed": [0.0, 0.0], "loss": None}
    if info is not None and info.latest_checkpoint is not None:
        with core_context.checkpoint.restore_path(info.latest_checkpoint) as path:
            state = json.loads((path / "state.json").read_text())
    for op in core_context.searcher.operations():
        while state["epochs"] < op.length:
            state["loss"] = train_one_epoch(state, hparams)
            if state["loss"] > 1e6:
                raise det.InvalidHP(f"diverged with {hparams}")
            core_context.train.report_validation_metrics(state["epochs"], {"loss": state["loss"]})
            op.report_progress(state["epochs"])
        with core_context.checkpoint.store_path({"steps_completed": state["epochs"]}) as (path, _):
            (path / "state.json").write_text(json.dumps(state))
        op.report_completed(state["loss"])
        if core_context.preempt.should_preempt():
            return


if __name__ == "__main__":
    with core.init() as context:
        main(context)
