"""`deepspeed.init()` and its `Trainer`."""

from __future__ import annotations

import contextlib
from typing import Any

from determined.pytorch import _trainer, _user_code
from determined.pytorch._place import Place
from determined.pytorch.deepspeed import _runtime
from determined.pytorch.deepspeed._context import DeepSpeedTrialContext
from determined.pytorch.deepspeed._loop import EngineLoop
from determined.pytorch.deepspeed._trial import DeepSpeedTrial

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator

    from determined._goals import Master
    from determined.core import DistributedContext
    from determined.pytorch._loop import Plan


@contextlib.contextmanager
def init(
    *,
    hparams: dict[str, Any] | None = None,
    exp_conf: dict[str, Any] | None = None,
    distributed: DistributedContext | None = None,
    enable_tensorboard_logging: bool = True,
) -> Generator[DeepSpeedTrialContext]:
    """The context of a `DeepSpeedTrial`, on a cluster and outside of one::

        with deepspeed.init(hparams=hparams) as context:
            trainer = deepspeed.Trainer(MyTrial(context), context)
            trainer.fit(max_length=pytorch.Epoch(2))

    It calls `deepspeed.init_distributed`, unless the environment variable `DET_MANUAL_INIT_DISTRIBUTED` is set.

    Args:
        hparams: The hyperparameters; on a cluster pass `det.get_cluster_info().trial.hparams`.
        exp_conf: What `context.get_experiment_config()` returns outside of a cluster.
        distributed: Which rank this is, outside of a cluster.
        enable_tensorboard_logging: Whether metrics are written for TensorBoard.

    Raises:
        ImportError: DeepSpeed is not installed.
        InvalidExperimentException: DeepSpeed would compute where this trial has nothing, or the batch size does not
            fit the slots.
        ValueError: The trial has several slots, and was not started by a launcher.
    """
    _runtime.module()
    place = Place.found(exp_conf, distributed)
    if place.info is not None:
        distributed = _runtime.launched(place.info)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_runtime.meeting(1 if distributed is None else distributed.size))
        context = place.enter(stack, distributed, enable_tensorboard_logging)
        yield DeepSpeedTrialContext(
            context, hparams=hparams, enable_tensorboard_logging=enable_tensorboard_logging, **place.arguments()
        )


class Trainer(_trainer.AnyTrainer):
    """Trains a trial; `fit` is that of `determined.pytorch.Trainer`.

    Args:
        trial: Made with `context`.
        context: From `deepspeed.init()`.
    """

    def __init__(self, trial: DeepSpeedTrial, context: DeepSpeedTrialContext) -> None:
        super().__init__(trial, context)

    def _loop(self, plan: Plan, master: Master) -> EngineLoop:
        _user_code.check_class(type(self._trial), DeepSpeedTrial)
        return EngineLoop(self._trial, self._context, plan, master)
