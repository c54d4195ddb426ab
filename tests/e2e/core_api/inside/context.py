"""The context: its beginning and its end."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

from determined import core
from determined.experimental import client

from .worker import Worker, check, equal, expect, preempt_threads, refused, until


@check("init")
def _(w: Worker) -> Any:
    if w.size > 1:
        with refused(ValueError, "distributed"):
            core.init()
    w.begin(tensorboard_mode=core.TensorboardMode.MANUAL)
    equal(type(w.context), core.Context)
    expect(w.context.distributed is w.distributed)
    expect(w.context.info is w.info)
    kinds: dict[str, type] = {
        "checkpoint": core.CheckpointContext,
        "preempt": core.PreemptContext,
        "train": core.TrainContext,
        "searcher": core.SearcherContext,
        "profiler": core.ProfilerContext,
        "experimental": core.ExperimentalCoreContext,
    }
    for name, kind in kinds.items():
        part: object = getattr(w.context, name)
        expect(type(part) is kind, f"{name} is {part!r}")


@check("init(checkpoint_storage)")
def _(w: Worker) -> Any:
    elsewhere = w.folder / "elsewhere"
    with w.made(checkpoint_storage=str(elsewhere)) as made:
        if w.is_chief:
            with made.checkpoint.store_path({"steps_completed": 0}) as (path, storage_id):
                (path / "model.txt").write_text("stored elsewhere")
            equal((elsewhere / storage_id / "model.txt").read_text(), "stored elsewhere")
            made.checkpoint.delete(storage_id)


@check("Context.start")
def _(w: Worker) -> Any:
    with contextlib.closing(w.made()) as made:
        before = preempt_threads()
        made.start()
        equal(preempt_threads() - before, 1 if w.is_chief else 0)


@check("Context.close")
def _(w: Worker) -> Any:
    made = w.made()
    made.start()
    before = preempt_threads()
    if w.is_chief:
        made.train.report_metrics("closed", 1, {"reports": 1})
    made.close()
    equal(before - preempt_threads(), 1 if w.is_chief else 0)
    if w.size > 1:
        with refused(RuntimeError, "closed"):
            made.distributed.allgather(0)


@check("Context.alert")
def _(w: Worker) -> Any:
    if w.is_chief:
        w.context.alert("half way", "loss 0.1", "warn")
    with refused(ValueError, "loud"):
        w.context.alert("half way", level="loud")  # type: ignore[arg-type]


@check("ProfilerContext.on")
def _(w: Worker) -> Any:
    with refused(ValueError, "sampling_interval"):
        w.context.profiler.on(sampling_interval=0)
    w.context.profiler.on(sampling_interval=0.1, samples_per_report=2)
    equal(_profiles(), w.is_chief)
    trial = client.get_trial(w.info.trial.trial_id)
    until(lambda: trial.list_metrics("cpu"), "the profiler has reported")


@check("ProfilerContext.off")
def _(w: Worker) -> Any:
    w.distributed.allgather("seen")
    w.context.profiler.off()
    equal(_profiles(), False)
    w.context.profiler.off()
    w.context.profiler.on()
    equal(_profiles(), w.is_chief)
    w.context.profiler.off()


def _profiles() -> bool:
    return any(thread.name == "determined-profiler" for thread in threading.enumerate())
