"""Fails in its first run, after a checkpoint; resumes and finishes in the second."""

import sys

import determined as det
from determined import core

info = det.get_cluster_info()
with core.init(tensorboard_mode=core.TensorboardMode.MANUAL) as context:
    steps = 0
    if info.latest_checkpoint:
        steps = context.checkpoint.get_metadata(info.latest_checkpoint)["steps_completed"]
        print(f"resumed at {steps}", flush=True)
    for op in context.searcher.operations():
        while steps < op.length:
            steps += 1
            context.train.report_validation_metrics(steps, {"accuracy": float(steps)})
            with context.checkpoint.store_path({"steps_completed": steps}) as (path, _):
                (path / "state.json").write_text("{}")
            if steps == 2 and not info.latest_checkpoint:
                sys.exit("the first run fails")
        op.report_completed(float(steps))
