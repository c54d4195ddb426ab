"""A `TFKerasTrial` that a configuration names: trained as the configuration says."""

from __future__ import annotations

from typing import Any

import keras

from determined import core, errors
from determined._goals import Master
from determined._plan import configured, planned
from determined._units import Batch
from determined.keras._context import TFKerasTrialContext
from determined.keras._loop import TrialLoop
from determined.keras._trial import TFKerasTrial
from determined.pytorch import _user_code

TYPE_CHECKING = False
if TYPE_CHECKING:
    from determined._info import ClusterInfo


def run(cls: Any, info: ClusterInfo) -> None:
    """Make the trial and train it; `det experiment create --local` trains one batch and validates one.

    Raises:
        InvalidExperimentException: The class or the configuration is not as it must be, or there are several slots.
        InvalidDataTypeException: A loader returned what is no data.
    """
    _user_code.check_class(cls, TFKerasTrial)
    _check_slots(info)
    options = configured(info)
    seed = info.trial.trial_seed
    keras.utils.set_random_seed(seed % 2**32)  # pyright: ignore[reportUnknownMemberType]
    is_local = info.task_type == "LOCAL"
    with core.init(tensorboard_mode=core.TensorboardMode.AUTO) as core_context:
        context = TFKerasTrialContext(
            core_context,
            trial_seed=seed,
            hparams=info.trial.hparams,
            slots_per_trial=1,
            num_gpus=len(info.gpu_uuids),
            exp_conf=info.trial._config,  # pyright: ignore[reportPrivateUsage]
            steps_completed=info.trial._steps_completed,  # pyright: ignore[reportPrivateUsage]
            managed_training=is_local,
        )
        master = Master(context, is_trainer=False)
        plan = planned(context, master, **options)
        TrialLoop(cls(context), context, plan, master).run(master.goals(Batch(1) if is_local else None))


def _check_slots(info: ClusterInfo) -> None:
    slots = sum(info.container_slot_counts)
    if slots > 1:
        raise errors.InvalidExperimentException(
            f"resources.slots_per_trial is {slots}, but a TFKerasTrial trains on one slot here, as Keras 3 knows no "
            "horovod: set it to 1, or train on several with determined.pytorch.PyTorchTrial"
        )
