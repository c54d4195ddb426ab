"""DeepSpeed itself: whether it is installed, where it computes, and how its ranks meet."""

from __future__ import annotations

import contextlib
import importlib
import os
from typing import Any

import torch
from torch import distributed as dist

from determined import core, errors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator

    from determined._info import ClusterInfo

#: Sums of one machine's ranks in shared memory, which DeepSpeed would compile at the start, for minutes. It uses them
#: in inference only, and PyTorch's where they are not there.
_SHARED_MEMORY = "deepspeed_shm_comm"
_ONE_RANK = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}


def module() -> Any:
    """`deepspeed`. Raises: ImportError, if it is not installed."""
    try:
        return importlib.import_module("deepspeed")
    except ModuleNotFoundError as error:
        if error.name != "deepspeed":
            raise
        from determined._extras import missing

        raise missing("determined.pytorch.deepspeed", "deepspeed", "deepspeed") from None


def device(gpus: int, local_rank: int) -> torch.device:
    """Where DeepSpeed computes on this rank.

    Raises:
        InvalidExperimentException: On what this release does not know, or on a GPU that is not there.
    """
    module()
    kind: str = importlib.import_module("deepspeed.accelerator").get_accelerator().device_name()
    if kind == "cpu":
        return torch.device("cpu")
    if kind != "cuda":
        raise errors.InvalidExperimentException(
            f"DeepSpeed would train on {kind!r}, but a DeepSpeedTrial trains on cuda or cpu: set the environment "
            "variable DS_ACCELERATOR to one of them"
        )
    if gpus <= 0 or not torch.cuda.is_available():
        raise errors.InvalidExperimentException(
            "DeepSpeed would train on a GPU, and this trial has none: give it slots of GPUs, or train on CPUs with the "
            "environment variable DS_ACCELERATOR=cpu"
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def launched(info: ClusterInfo) -> core.DistributedContext | None:
    """The ranks that a launcher started; None for a single slot. Raises: ValueError, if there are more without one."""
    if os.environ.get("USE_DEEPSPEED"):
        return core.DistributedContext.from_deepspeed()
    if os.environ.get("USE_TORCH_DISTRIBUTED"):
        return core.DistributedContext.from_torch_distributed()
    slots, containers = sum(info.container_slot_counts), len(info.container_addrs)
    if slots > 1 or containers > 1:
        raise ValueError(
            f"this trial has {slots} slots in {containers} containers: start it with a launcher, for example "
            "entrypoint: python3 -m determined.launch.deepspeed python3 train.py"
        )
    return None


@contextlib.contextmanager
def meeting(size: int) -> Generator[None]:
    """Have the ranks meet, by DeepSpeed, unless `DET_MANUAL_INIT_DISTRIBUTED` leaves that to the trial."""
    deepspeed = module()
    if os.environ.get("DET_MANUAL_INIT_DISTRIBUTED"):
        yield
        return
    if size == 1 and not dist.is_initialized():
        # Alone it needs no port. DeepSpeed reads its place from the environment all the same.
        os.environ.update(_ONE_RANK)
        dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)  # pyright: ignore[reportPrivateImportUsage]
    compatible: dict[str, bool] = deepspeed.ops.__compatible_ops__
    before = compatible.get(_SHARED_MEMORY, False)
    compatible[_SHARED_MEMORY] = False
    try:
        deepspeed.init_distributed(auto_mpi_discovery=False, verbose=False)
    finally:
        compatible[_SHARED_MEMORY] = before
    try:
        yield
    finally:
        # Alone the group stays: DeepSpeed keeps what it made of it for as long as the process lives.
        if size > 1:
            deepspeed.comm.destroy_process_group()
