"""`DeepSpeedTrialContext`: wrapping engines, and which part of the data and of the models a rank has."""

from __future__ import annotations

import importlib
import logging
from typing import Any

from determined import errors
from determined.pytorch import _user_code
from determined.pytorch._torch_context import TorchTrialContext
from determined.pytorch.deepspeed import _runtime
from determined.pytorch.deepspeed._mpu import ModelParallelUnit, make_data_parallel_mpu, make_deepspeed_mpu

TYPE_CHECKING = False
if TYPE_CHECKING:
    import torch

    from determined.core import Context

logger = logging.getLogger("determined.pytorch")


class DeepSpeedTrialContext(TorchTrialContext):
    """What a `DeepSpeedTrial` is made with. Get it from `deepspeed.init()`.

    Attributes:
        device: Where this rank trains.
        models: The wrapped engines, in their order.
        distributed: Which rank this is.
    """

    def __init__(
        self,
        core_context: Context,
        trial_seed: int | None,
        hparams: dict[str, Any] | None,
        slots_per_trial: int,
        num_gpus: int,
        exp_conf: dict[str, Any] | None,
        steps_completed: int = 0,
        enable_tensorboard_logging: bool = True,
        managed_training: bool = False,
    ) -> None:
        super().__init__(
            core_context,
            trial_seed,
            hparams,
            slots_per_trial,
            num_gpus,
            exp_conf,
            steps_completed,
            managed_training,
            enable_tensorboard_logging=enable_tensorboard_logging,
        )
        self._mpu = make_data_parallel_mpu(self.distributed)
        self._has_own_mpu = False
        self._is_pipeline = False
        self._accumulates = True
        #: Where in a pipeline this rank is.
        self._stage = 0

    def wrap_model_engine(self, model: Any) -> Any:
        """Have an engine trained, saved and loaded by the Trainer. Returns it.

        The first one says how many records a micro batch has and how many micro batches make a batch. A
        `PipelineEngine` also says which part of the data this rank gets.

        Args:
            model: What `deepspeed.initialize` returned first.

        Raises:
            InvalidExperimentException: It is no engine, or training has begun.
        """
        self._before_training("wrap_model_engine")
        deepspeed = _runtime.module()
        if not isinstance(model, deepspeed.DeepSpeedEngine):
            raise errors.InvalidExperimentException(
                f"{_user_code.caller()}: wrap_model_engine got a {type(model).__name__}, but must get a "
                "DeepSpeedEngine, the first of what deepspeed.initialize returns"
            )
        self._compare_batches(model)
        if isinstance(model, importlib.import_module("deepspeed.runtime.pipe.engine").PipelineEngine):
            self._is_pipeline = True
            self._stage = int(model.grid.get_stage_id())
            if not self._has_own_mpu:
                self._mpu = make_deepspeed_mpu(model.grid)
        self.models.append(model)
        return model

    def _compare_batches(self, engine: Any) -> None:
        """A batch is that of the first engine."""
        if not self.models:
            return
        for name in ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps"):
            first, its = getattr(self.models[0], name)(), getattr(engine, name)()
            if first != its:
                logger.warning(
                    f"{_user_code.caller()}: {name} of this engine is {its}, and that of the first one, {first}, counts"
                )

    def set_mpu(self, mpu: ModelParallelUnit) -> None:
        """Say which part of the data this rank gets; once, and after `wrap_model_engine`.

        Raises:
            InvalidExperimentException: It is no `ModelParallelUnit`, its ranks don't exist, no engine is wrapped yet,
                it was called before, or training has begun.
        """
        self._before_training("set_mpu")
        problem = self._problem_of(mpu)
        if problem is not None:
            raise errors.InvalidExperimentException(f"{_user_code.caller()}: set_mpu {problem}")
        self._mpu, self._has_own_mpu = mpu, True

    def _problem_of(self, mpu: Any) -> str | None:
        if not isinstance(mpu, ModelParallelUnit):
            return f"got a {type(mpu).__name__}, but must get a ModelParallelUnit"
        if not self.models:
            return "was called before wrap_model_engine, but must come after it"
        if self._has_own_mpu:
            return "was called twice, but may be called once"
        if not 0 <= mpu.data_parallel_rank < mpu.data_parallel_world_size <= self.distributed.size:
            return (
                f"got data_parallel_rank {mpu.data_parallel_rank} of data_parallel_world_size "
                f"{mpu.data_parallel_world_size}, but must get a rank below a size of at most {self.distributed.size}"
            )
        return None

    def disable_auto_grad_accumulation(self) -> None:
        """Have `train_batch` called once for each batch: it trains all of its micro batches."""
        self._accumulates = False

    def disable_dataset_reproducibility_checks(self) -> None:
        """Allow any data loader. Shuffling, sharding among ranks and skipping are yours then."""
        self._any_loader = True

    @property
    def use_pipeline_parallel(self) -> bool:
        """Whether an engine is a `PipelineEngine`."""
        return self._is_pipeline

    @property
    def train_micro_batch_size_per_gpu(self) -> int:
        """As `get_train_micro_batch_size_per_gpu()`."""
        return self.get_train_micro_batch_size_per_gpu()

    @property
    def num_micro_batches_per_slot(self) -> int:
        """As `get_num_micro_batches_per_slot()`."""
        return self.get_num_micro_batches_per_slot()

    def get_train_micro_batch_size_per_gpu(self) -> int:
        """How many records a micro batch has. Raises: InvalidExperimentException, before `wrap_model_engine`."""
        return int(self._first("get_train_micro_batch_size_per_gpu").train_micro_batch_size_per_gpu())

    def get_num_micro_batches_per_slot(self) -> int:
        """How many micro batches make a batch of one slot. Raises: InvalidExperimentException, as the above."""
        return int(self._first("get_num_micro_batches_per_slot").gradient_accumulation_steps())

    def _first(self, asked: str) -> Any:
        if not self.models:
            raise errors.InvalidExperimentException(
                f"{_user_code.caller()}: {asked} was called before wrap_model_engine, whose engine knows it"
            )
        return self.models[0]

    def _calls(self) -> int:
        """How often `train_batch` is called for a batch."""
        return self.get_num_micro_batches_per_slot() if self._accumulates and not self._is_pipeline else 1

    def _device(self) -> torch.device:
        return _runtime.device(self._num_gpus, self.distributed.local_rank)
