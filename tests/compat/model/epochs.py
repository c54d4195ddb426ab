"""Reports a validation each epoch and leaves when told: what a search steers by its reports (`max_time`)."""

import determined as det
from determined import core

hparams = det.get_cluster_info().trial.hparams
with core.init(tensorboard_mode=core.TensorboardMode.MANUAL) as context:
    for epoch in range(1, 9):
        context.train.report_validation_metrics(epoch, {"accuracy": hparams["quality"] * epoch, "epoch": epoch})
        print(f"epoch {epoch}", flush=True)
        if context.preempt.should_preempt():
            print(f"stopped at {epoch}", flush=True)
            break
