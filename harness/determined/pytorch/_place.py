"""Where a trial runs: on a cluster, whose files say how, or outside of one, where its caller does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

import determined
from determined import core
from determined.core._tensorboard import copied
from determined.pytorch import _random

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextlib import ExitStack

    from determined._info import ClusterInfo


@dataclass
class Place:
    """What `init()` finds.

    Attributes:
        info: Of the cluster; None outside of one.
        config: The experiment's.
        seed: The trial's; None outside of a cluster.
        steps: How many batches were trained before.
        slots: Of the trial, on all hosts.
        gpus: Of this container.
    """

    info: ClusterInfo | None
    config: dict[str, Any] | None
    seed: int | None
    steps: int
    slots: int
    gpus: int

    @classmethod
    def found(cls, exp_conf: dict[str, Any] | None, distributed: core.DistributedContext | None) -> Place:
        """On a cluster what it says counts, and elsewhere what the caller has given."""
        info = determined.get_cluster_info()
        if info is not None and info.task_type == "TRIAL":
            trial = info.trial
            slots = max(1, sum(info.container_slot_counts))
            steps: int = trial._steps_completed  # pyright: ignore[reportPrivateUsage]
            return cls(info, trial._config, trial.trial_seed, steps, slots, len(info.gpu_uuids))  # pyright: ignore
        slots = distributed.size if distributed is not None else 1
        return cls(None, exp_conf, None, 0, slots, torch.cuda.device_count())

    def enter(self, stack: ExitStack, distributed: core.DistributedContext | None, is_logging: bool) -> core.Context:
        """The Core API's context, until the stack ends; random states are seeded by the trial's seed.

        Args:
            stack: What is left when the trial ends.
            distributed: Which rank this is; None for the only one.
            is_logging: Files of ranks other than the chief are copied for TensorBoard, too.
        """
        mode = core.TensorboardMode.AUTO if is_logging else core.TensorboardMode.MANUAL
        context = stack.enter_context(core.init(distributed=distributed, tensorboard_mode=mode))
        rank = context.distributed.rank
        if self.info is not None and is_logging and rank > 0:
            stack.enter_context(copied(context.train._tensorboard, rank))  # pyright: ignore[reportPrivateUsage]
        if self.seed is not None:
            _random.seed_rank(self.seed)
        return context

    def arguments(self) -> dict[str, Any]:
        """Those of a trial's context that follow from the place."""
        return {
            "trial_seed": self.seed,
            "slots_per_trial": self.slots,
            "num_gpus": self.gpus,
            "exp_conf": self.config,
            "steps_completed": self.steps,
            "managed_training": self.info is None,
        }
