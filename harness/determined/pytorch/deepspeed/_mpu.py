"""Which part of the data a rank trains, where models are spread over ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from determined.core import DistributedContext


@dataclass
class ModelParallelUnit:
    """The place of a rank among the copies of the model, for `context.set_mpu`.

    Attributes:
        data_parallel_rank: Which copy of the model this rank belongs to: it gets that share of the data.
        data_parallel_world_size: How many copies there are.
        should_report_metrics: Whether metrics of this rank count. Of the ranks of one copy the first that reports does.
        should_build_data_loader: Whether this rank has data loaders; others get None in place of their iterators.
    """

    data_parallel_rank: int
    data_parallel_world_size: int
    should_report_metrics: bool
    should_build_data_loader: bool


def make_data_parallel_mpu(dist_context: DistributedContext) -> ModelParallelUnit:
    """Each rank has a copy of the model."""
    return ModelParallelUnit(dist_context.rank, dist_context.size, True, True)


def make_deepspeed_mpu(topology: Any) -> ModelParallelUnit:
    """That of a grid of DeepSpeed's, such as the `grid` of a `PipelineEngine`.

    Data are loaded for the first stage, which trains them, and for the last one, which compares with their labels.
    """
    is_end = topology.is_first_stage or topology.is_last_stage
    return ModelParallelUnit(
        data_parallel_rank=topology.get_data_parallel_rank(),
        data_parallel_world_size=topology.get_data_parallel_world_size(),
        should_report_metrics=True,
        should_build_data_loader=bool(is_end and topology.get_slice_parallel_rank() == 0),
    )
