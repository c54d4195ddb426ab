"""Each call of the published Core API that a script of one process can make; prints a line for each."""

import pathlib
import sys
import time

import determined as det
from determined import core
from determined.experimental import client

info = det.get_cluster_info()
assert (info.trial.hparams["sleep"], info.task_type) == (0, "TRIAL"), info
with core.init(tensorboard_mode=core.TensorboardMode.MANUAL) as context:
    train, checkpoint = context.train, context.checkpoint

    def step(name, value):
        print(f"STEP {name}: {value}", flush=True)

    step("best validation before", train.get_experiment_best_validation())
    step("units", context.searcher.get_configured_units())
    train.set_status("trying everything")
    train.report_training_metrics(1, {"loss": 0.5, "nan": float("nan")}, batch_metrics=[{"loss": 0.6}, {"loss": 0.4}])
    train.report_validation_metrics(1, {"accuracy": 0.5, "infinite": float("inf"), "nested": {"a": [1, 2]}})
    deadline = time.monotonic() + 30  # 0.38 reports in the background
    while (best := train.get_experiment_best_validation()) is None and time.monotonic() < deadline:
        time.sleep(0.1)
    step("best validation after", best)
    if hasattr(train, "report_metrics"):
        train.report_metrics("inference", 1, {"score": 1.5})
        train.report_progress(0.5)
        context.alert("a title", "a description", "info")
        train.set_metadata({"seen": {"by": "everything"}})
        step("metadata of the run", train.get_metadata())
        context.profiler.on(sampling_interval=0.1, samples_per_report=2)
        time.sleep(0.8)
        context.profiler.off()
    folder = pathlib.Path("saved")
    (folder / "deep").mkdir(parents=True)
    (folder / "one.txt").write_text("1")
    (folder / "deep" / "two.txt").write_text("22")
    uploaded = checkpoint.upload(folder, {"steps_completed": 1, "kind": "uploaded"})
    step("metadata of the checkpoint", checkpoint.get_metadata(uploaded)["kind"])
    checkpoint.download(uploaded, "back")
    step("downloaded", sorted(str(path.relative_to("back")) for path in pathlib.Path("back").rglob("*.txt")))
    with checkpoint.store_path({"steps_completed": 1}) as (path, stored):
        (path / "state").write_text("x")
    checkpoint.delete(stored)
    tensorboard = train.get_tensorboard_path()
    tensorboard.mkdir(parents=True, exist_ok=True)
    (tensorboard / "events.out.tfevents.0.host").write_bytes(b"\0")
    train.upload_tensorboard_files()
    step("preempted", context.preempt.should_preempt())
    # the SDK in a container acts for the owner of the experiment, without a login
    step("experiment", client.get_experiment(info.trial.experiment_id).id)
    if hasattr(train, "report_metrics"):
        context.experimental.report_task_using_checkpoint(client.get_checkpoint(uploaded))
    for op in context.searcher.operations():
        step("operation", op.length)
        op.report_completed(0.5)
    step("end", info.trial.trial_id)
sys.exit(0)
