"""`pytorch.init()` and `Trainer`: what a script calls, and what runs a trial class for it."""

from __future__ import annotations

import abc
import contextlib
import logging
import os
from typing import Any

import torch

from determined import core
from determined._goals import Master
from determined._plan import planned
from determined._units import Batch, TrainUnit
from determined.pytorch import _horovod, _user_code
from determined.pytorch._context import PyTorchTrialContext
from determined.pytorch._loop import Loop
from determined.pytorch._place import Place
from determined.pytorch._training import TrainingLoop
from determined.pytorch._trial import PyTorchTrial

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator

    from determined._info import ClusterInfo
    from determined._sequencer import Plan

logger = logging.getLogger("determined.pytorch")


@contextlib.contextmanager
def init(
    *,
    hparams: dict[str, Any] | None = None,
    exp_conf: dict[str, Any] | None = None,
    distributed: core.DistributedContext | None = None,
    aggregation_frequency: int = 1,
    enable_tensorboard_logging: bool = True,
) -> Generator[PyTorchTrialContext]:
    """The context of a `PyTorchTrial`, on a cluster and outside of one::

        with pytorch.init(hparams=hparams) as context:
            trainer = pytorch.Trainer(MyTrial(context), context)
            trainer.fit(max_length=pytorch.Epoch(2))

    Args:
        hparams: The hyperparameters; on a cluster pass `det.get_cluster_info().trial.hparams`.
        exp_conf: What `context.get_experiment_config()` returns outside of a cluster.
        distributed: Which rank this is, outside of a cluster.
        aggregation_frequency: After how many batches optimizers step.
        enable_tensorboard_logging: Whether metrics are written for TensorBoard, and what is in
            `context.get_tensorboard_path()` is copied to the checkpoint storage: of ranks other than the chief all but
            event files, with `#<rank>` after the host in a profiler's names.

    Raises:
        InvalidExperimentException: The batch size does not fit the slots.
        ValueError: The trial has several slots, and was not started by a launcher.
    """
    place = Place.found(exp_conf, distributed)
    with contextlib.ExitStack() as stack:
        if place.info is not None:
            backend = _backend(place.info)
            distributed = stack.enter_context(_ranks(backend, place.gpus)) if backend else None
        context = place.enter(stack, distributed, enable_tensorboard_logging)
        yield PyTorchTrialContext(
            context,
            hparams=hparams,
            aggregation_frequency=aggregation_frequency,
            enable_tensorboard_logging=enable_tensorboard_logging,
            **place.arguments(),
        )


def _backend(info: ClusterInfo) -> str:
    """horovod, torch, or nothing for a single slot. Raises: ValueError."""
    if os.environ.get("USE_HOROVOD"):
        return "horovod"
    if os.environ.get("USE_TORCH_DISTRIBUTED"):
        return "torch"
    slots, containers = sum(info.container_slot_counts), len(info.container_addrs)
    if slots > 1 or containers > 1:
        raise ValueError(
            f"this trial has {slots} slots in {containers} containers: start it with a launcher, for example "
            "entrypoint: python3 -m determined.launch.torch_distributed python3 train.py"
        )
    return ""


@contextlib.contextmanager
def _ranks(backend: str, gpus: int) -> Generator[core.DistributedContext]:
    """The ranks of a job, as its launcher has started them."""
    if backend == "horovod":
        yield _horovod.ranks()
        return
    import torch.distributed as dist

    dist.init_process_group(backend="nccl" if gpus and torch.cuda.is_available() else "gloo")
    try:
        yield core.DistributedContext.from_torch_distributed()
    finally:
        dist.destroy_process_group()


class AnyTrainer(abc.ABC):
    """Trains a trial of either family.

    Args:
        trial: Made with `context`.
        context: Of the trial's family.
    """

    def __init__(self, trial: Any, context: Any) -> None:
        self._trial = trial
        self._context = context
        self._is_trainer = True

    @abc.abstractmethod
    def _loop(self, plan: Plan, master: Master) -> Loop:
        """What trains this family. Raises: InvalidExperimentException, if the trial is of another one."""

    def fit(
        self,
        checkpoint_period: TrainUnit | None = None,
        validation_period: TrainUnit | None = None,
        max_length: TrainUnit | None = None,
        reporting_period: TrainUnit = Batch(100),
        checkpoint_policy: str = "best",
        latest_checkpoint: str | None = None,
        step_zero_validation: bool = False,
        test_mode: bool = False,
        profiling_enabled: bool = False,
        reproducible: bool = False,
    ) -> None:
        """Train until `max_length`, or as the experiment's searcher says; validate and save at the end.

        Args:
            checkpoint_period: How often to save; None: at the end.
            validation_period: How often to validate; None: at the end.
            max_length: How far to train in all. With `searcher.max_length` in the configuration the searcher says so.
            reporting_period: After how much training its metrics are reported.
            checkpoint_policy: What else is saved: after a validation that is the `best` of the experiment, after `all`,
                or after `none`.
            latest_checkpoint: Where to resume: on a cluster `det.get_cluster_info().latest_checkpoint`.
            step_zero_validation: Validate before training, unless the trial was validated before.
            test_mode: One batch of training, one of validation, one checkpoint; outside of a cluster only.
            profiling_enabled: Measure the machine during training.
            reproducible: Refuse to train where a resumed run might differ from one that was not disturbed.

        Raises:
            TypeError: A period or length is no `Batch` or `Epoch`, or `max_length` is a schedule.
            ValueError: Nothing says how far to train, or a value is none of those that are possible.
            InvalidExperimentException: The trial is not as it must be; the message has file and line.
            InvalidCheckpointException: The checkpoint can't be read.
        """
        master = Master(self._context, self._is_trainer)
        plan = planned(
            self._context,
            master,
            checkpoint_period=checkpoint_period,
            validation_period=validation_period,
            max_length=max_length,
            reporting_period=reporting_period,
            checkpoint_policy=checkpoint_policy,
            latest_checkpoint=latest_checkpoint,
            step_zero_validation=step_zero_validation,
            test_mode=test_mode,
            profiling_enabled=profiling_enabled,
            reproducible=reproducible,
        )
        self._loop(plan, master).run(master.goals(Batch(1) if test_mode else max_length))


class Trainer(AnyTrainer):
    """Trains a trial.

    Args:
        trial: Made with `context`.
        context: From `pytorch.init()`.
    """

    def __init__(self, trial: PyTorchTrial, context: PyTorchTrialContext) -> None:
        super().__init__(trial, context)

    def configure_profiler(
        self,
        sync_timings: bool = True,
        enabled: bool = False,
        begin_on_batch: int = 0,
        end_after_batch: int | None = None,
    ) -> None:
        """Does nothing any more: use `fit(profiling_enabled=True)`, or `profiling.enabled` in the configuration."""
        logger.warning("Trainer.configure_profiler does nothing: use Trainer.fit(profiling_enabled=True)")

    def _loop(self, plan: Plan, master: Master) -> Loop:
        _user_code.check_class(type(self._trial), PyTorchTrial)
        return TrainingLoop(self._trial, self._context, plan, master)
