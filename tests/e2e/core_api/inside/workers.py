"""Which worker this is, and what the workers exchange."""

from __future__ import annotations

import contextlib
import importlib
import os
import types
from collections.abc import Generator
from typing import Any

from determined import core

from .worker import Worker, check, equal, refused


@contextlib.contextmanager
def _as_launched(w: Worker, port: int, **variables: int) -> Generator[None]:
    """The environment of a worker whose launcher said this; the workers meet at a port of their own."""
    before = dict(os.environ)
    ports = {f"INTER_TRAIN_PROCESS_COMM_PORT_{n}": str(port + n) for n in (1, 2)}
    os.environ.update({**ports, **{name: str(value) for name, value in variables.items()}})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _works(w: Worker, made: core.DistributedContext) -> Any:
    equal(made.allgather(made.rank), list(range(w.size)))
    numbers = [made.rank, made.size, made.local_rank, made.local_size, made.cross_rank, made.cross_size]
    made.close()
    return numbers


@check("DistributedContext.from_horovod")
def _(w: Worker) -> Any:
    own, size = (lambda: w.rank), (lambda: w.size)
    hvd = types.SimpleNamespace(
        rank=own, size=size, local_rank=own, local_size=size, cross_rank=lambda: 0, cross_size=lambda: 1
    )
    with _as_launched(w, 17100):
        return _works(w, core.DistributedContext.from_horovod(hvd))


@check("DistributedContext.from_deepspeed")
def _(w: Worker) -> Any:
    of_job = {"RANK": w.rank, "WORLD_SIZE": w.size, "LOCAL_RANK": w.rank, "LOCAL_SIZE": w.size}
    with _as_launched(w, 17200, **of_job, CROSS_RANK=0, CROSS_SIZE=1):
        return _works(w, core.DistributedContext.from_deepspeed())


@check("DistributedContext.from_torch_distributed")
def _(w: Worker) -> Any:
    if w.size == 1:
        with refused(RuntimeError, "torchrun"):
            core.DistributedContext.from_torch_distributed()
        names = ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE")
        with _as_launched(w, 17300, **dict(zip(names, (0, 0, 0, 1, 1, 1), strict=True))):
            return _works(w, core.DistributedContext.from_torch_distributed())
    torch = importlib.import_module("torch")  # which only an environment of trials has
    dist = importlib.import_module("torch.distributed")
    equal((w.distributed.rank, w.distributed.size), (dist.get_rank(), dist.get_world_size()))
    total = torch.tensor([float(w.rank + 1)])
    dist.all_reduce(total)
    equal(total.item(), 3.0)
    with _as_launched(w, 17300):
        return _works(w, core.DistributedContext.from_torch_distributed())


@check("DistributedContext.get_rank")
def _(w: Worker) -> Any:
    equal(w.distributed.get_rank(), int(os.environ.get("RANK", "0")))
    return w.distributed.get_rank()


@check("DistributedContext.get_local_rank")
def _(w: Worker) -> Any:
    equal(w.distributed.get_local_rank(), int(os.environ.get("LOCAL_RANK", "0")))
    return w.distributed.get_local_rank()


@check("DistributedContext.get_size")
def _(w: Worker) -> Any:
    return w.distributed.get_size()


@check("DistributedContext.get_num_agents")
def _(w: Worker) -> Any:
    return w.distributed.get_num_agents()


def _stuff(rank: int) -> dict[str, Any]:
    return {"rank": rank, "bytes": bytes([rank]) * 100_000, "none": None}


@check("DistributedContext.gather")
def _(w: Worker) -> Any:
    found = w.distributed.gather(_stuff(w.rank))
    equal(found, [_stuff(rank) for rank in range(w.size)] if w.is_chief else None)


@check("DistributedContext.gather_local")
def _(w: Worker) -> Any:
    found = w.distributed.gather_local(_stuff(w.rank))
    equal(found, [_stuff(rank) for rank in range(w.size)] if w.is_chief else None)


@check("DistributedContext.allgather")
def _(w: Worker) -> Any:
    equal(w.distributed.allgather(_stuff(w.rank)), [_stuff(rank) for rank in range(w.size)])


@check("DistributedContext.allgather_local")
def _(w: Worker) -> Any:
    equal(w.distributed.allgather_local(_stuff(w.rank)), [_stuff(rank) for rank in range(w.size)])


@check("DistributedContext.broadcast")
def _(w: Worker) -> Any:
    equal(w.distributed.broadcast(_stuff(w.rank + 5)), _stuff(5))


@check("DistributedContext.broadcast_local")
def _(w: Worker) -> Any:
    if w.is_chief:
        equal(w.distributed.broadcast_local(_stuff(7)), _stuff(7))
    else:
        equal(w.distributed.broadcast_local(), _stuff(7))


@check("DistributedContext.close")
def _(w: Worker) -> Any:
    made = w.meet()
    equal(made.broadcast("here" if w.is_chief else ""), "here")
    made.close()
    made.close()
    if w.size > 1:
        with refused(RuntimeError, "closed"):
            made.allgather(0)
    equal(w.distributed.broadcast(w.rank), 0)
