"""Training scripts of the tests: small, and real users of the Core API."""

from pathlib import Path

TRAIN = '''
"""Trains as long as the search asks, or until a file is there; reports each step, checkpoints, resumes, leaves when told."""
import json, os, sys, time
import determined as det
from determined import core

info = det.get_cluster_info()
hparams = info.trial.hparams
enough = hparams.get("until", "")
steps = 0
with core.init() as context:
    if info.latest_checkpoint:
        with context.checkpoint.restore_path(info.latest_checkpoint) as path:
            steps = json.loads((path / "state.json").read_text())["steps"]
        print(f"resumed at {steps}", flush=True)
    def save():
        with context.checkpoint.store_path({"steps_completed": steps}) as (path, _):
            (path / "state.json").write_text(json.dumps({"steps": steps}))
    for op in context.searcher.operations():
        while steps < op.length and not os.path.exists(enough):
            time.sleep(hparams.get("sleep", 0))
            steps += 1
            context.train.report_training_metrics(steps, {"loss": 1 / steps})
            context.train.report_validation_metrics(steps, {"accuracy": hparams.get("quality", 0.5) * steps})
            print(f"step {steps}", flush=True)
            if context.preempt.should_preempt():
                save()
                print(f"preempted at {steps}", flush=True)
                sys.exit(0)
        save()
        op.report_completed(hparams.get("quality", 0.5) * steps)
'''

HOLDS = '''
"""Before another script: holds what a host has once, such as a port, and fails if it is held; only a kill ends its first run."""
import fcntl, os, signal, time
import determined as det

hparams = det.get_cluster_info().trial.hparams
signal.signal(signal.SIGTERM, signal.SIG_IGN)
held = open(f"{hparams['folder']}/{os.environ['DET_AGENT_ID']}.held", "w")
fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
if hparams["stays"] and os.environ["DET_TRIAL_RUN_ID"] == "1":
    print("holds", flush=True)
    time.sleep(300)
'''

EPOCHS = '''
"""Reports a validation each epoch, as code does that the search steers by its reports; leaves when told."""
import time
import determined as det
from determined import core

hparams = det.get_cluster_info().trial.hparams
with core.init() as context:
    for epoch in range(1, hparams.get("epochs", 9) + 1):
        time.sleep(hparams.get("sleep", 0))
        context.train.report_validation_metrics(epoch, {"accuracy": hparams["quality"] * epoch, "epoch": epoch})
        print(f"epoch {epoch}", flush=True)
        if context.preempt.should_preempt():
            print(f"stopped at {epoch}", flush=True)
            break
'''

ONCE = '''
"""Fails in its first run, after a checkpoint; resumes and finishes in the second."""
import json, sys
import determined as det
from determined import core

info = det.get_cluster_info()
with core.init() as context:
    steps = 0
    if info.latest_checkpoint:
        steps = context.checkpoint.get_metadata(info.latest_checkpoint)["steps_completed"]
    for op in context.searcher.operations():
        while steps < op.length:
            steps += 1
            context.train.report_validation_metrics(steps, {"accuracy": float(steps)})
            with context.checkpoint.store_path({"steps_completed": steps}) as (path, _):
                (path / "state.json").write_text("{}")
            if info.trial._trial_run_id == 1 and steps == 2:
                sys.exit("the first run fails")
        op.report_completed(float(steps))
'''


def config(searcher: dict | None = None, **more: object) -> dict:
    """A configuration for TRAIN."""
    return {
        "entrypoint": "python3 train.py",
        "hyperparameters": {"quality": {"type": "double", "minval": 0, "maxval": 1}},
        "searcher": {"name": "single", "metric": "accuracy", "smaller_is_better": False, "max_length": 4}
        | (searcher or {}),
        "max_restarts": 0,
        **more,
    }


def holding(folder: Path, *, stays: bool, **resources: object) -> dict:
    """Of `HOLDS` and another script: it fails if it gets a slot before who had it has ended.

    Args:
        folder: Where it says what it holds.
        stays: Its first run does nothing but that.
        resources: Of the trial; one slot, if they do not say otherwise.
    """
    hparams = {"folder": str(folder), "stays": stays}
    return config({"max_length": 2}, hyperparameters=hparams, resources={"slots_per_trial": 1, **resources})
