"""A user's Core API script, run with the published harness: searcher operations, checkpoints, preemption, resuming."""

import json
import os
import sys
import time

import determined as det
from determined import core

info = det.get_cluster_info()
hparams = info.trial.hparams
steps = 0
# AUTO would want torch or TensorFlow, to write event files with
with core.init(tensorboard_mode=core.TensorboardMode.MANUAL) as context:
    if info.latest_checkpoint:
        with context.checkpoint.restore_path(info.latest_checkpoint) as path:
            steps = json.loads((path / "state.json").read_text())["steps"]
        print(f"resumed at {steps}", flush=True)
    print(os.environ["FROM_HOOK"], flush=True)
    context.train.set_status("training")

    def save():
        with context.checkpoint.store_path({"steps_completed": steps, "note": "from train.py"}) as (path, uuid):
            (path / "state.json").write_text(json.dumps({"steps": steps}))
        print(f"saved {steps} as {uuid}", flush=True)

    for op in context.searcher.operations():
        while steps < op.length:
            time.sleep(hparams["sleep"])
            steps += 1
            context.train.report_training_metrics(steps, {"loss": 1 / steps})
            context.train.report_validation_metrics(steps, {"accuracy": 0.125 * steps})
            op.report_progress(steps)
            print(f"step {steps}", flush=True)
            if steps % 4 == 0 and steps < op.length:
                save()
            if context.preempt.should_preempt():
                save()
                print(f"preempted at {steps}", flush=True)
                sys.exit(0)
        save()
        op.report_completed(0.125 * steps)
