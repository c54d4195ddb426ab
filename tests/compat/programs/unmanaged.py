"""A trial that the cluster does not run: `python unmanaged.py <checkpoint folder>`; prints its experiment's id."""

import sys

from determined.experimental import client, core_v2

core_v2.init(
    defaults=core_v2.DefaultConfig(name="unmanaged", checkpoint_storage=sys.argv[1]),
    unmanaged=core_v2.UnmanagedConfig(external_experiment_id="my-experiment", external_trial_id="my-trial"),
    tensorboard_mode=core_v2.TensorboardMode.MANUAL,
)
for step in range(1, 4):
    core_v2.train.report_training_metrics(steps_completed=step, metrics={"loss": 1 / step})
    core_v2.train.report_validation_metrics(steps_completed=step, metrics={"accuracy": step / 4})
with core_v2.checkpoint.store_path({"steps_completed": 3}) as (path, _):
    (path / "state").write_text("")
core_v2.close()
(experiment,) = client.list_experiments(name="unmanaged")
print(experiment.id)
