"""Preemption, and giving up."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from determined import core

from .worker import LIMIT_S, STATUS, Worker, check, equal, expect, preempt_threads, refused, until


@check("PreemptContext.start")
def _(w: Worker) -> Any:
    with contextlib.closing(w.made()) as made:
        before = preempt_threads()
        expect(made.preempt.start() is made.preempt)
        equal(preempt_threads() - before, 1 if w.is_chief else 0)


@check("PreemptContext.close")
def _(w: Worker) -> Any:
    with w.made() as context:
        before = preempt_threads()
        context.preempt.close()
        equal(before - preempt_threads(), 1 if w.is_chief else 0)
        context.preempt.close()


@check("TrainContext.set_status")
def _(w: Worker) -> Any:
    equal(w.context.preempt.should_preempt(), False)
    if w.is_chief:
        w.context.train.set_status(STATUS)


@check("PreemptContext.should_preempt(auto_ack=False)")
def _(w: Worker) -> Any:
    asked = 0
    deadline = time.monotonic() + LIMIT_S
    # All workers ask as often as the chief does, and get the same answer.
    while not w.context.preempt.should_preempt(auto_ack=False):
        asked += 1
        expect(w.distributed.broadcast(time.monotonic() < deadline), "nobody paused this experiment")
        time.sleep(0.02)
    equal(w.distributed.allgather(asked), [asked] * w.size)


@check("PreemptContext.acknowledge_preemption_signal")
def _(w: Worker) -> Any:
    if w.is_chief:
        w.context.train.get_experiment_best_validation()  # what was to be sent until now is sent
    not_before = time.time()
    if w.is_chief:
        w.context.preempt.acknowledge_preemption_signal()
    return not_before


@check("SearcherOperation.report_progress", "leaving")
def _(w: Worker) -> Any:
    w.begin()
    op = next(w.context.searcher.operations())
    if w.is_chief:
        op.report_progress(3)
        w.context.train.set_status(STATUS)
    else:
        with refused(RuntimeError, "chief"):
            op.report_progress(3)


@check("PreemptMode.ChiefOnly", "leaving")
def _(w: Worker) -> Any:
    with w.made(preempt_mode=core.PreemptMode.ChiefOnly) as context:
        if w.is_chief:
            until(lambda: context.preempt.should_preempt(auto_ack=False), "the experiment is paused")
        else:
            with refused(RuntimeError, "ChiefOnly"):
                context.preempt.should_preempt()
        context.distributed.allgather("all have looked")


@check("PreemptMode.WorkersAskMaster", "leaving")
def _(w: Worker) -> Any:
    with w.made(preempt_mode=core.PreemptMode.WorkersAskMaster) as context:
        for turn in reversed(range(w.size)):  # each without the chief
            if w.rank == turn:
                until(lambda: context.preempt.should_preempt(auto_ack=False), "the experiment is paused")
            context.distributed.allgather(turn)


@check("PreemptContext.should_preempt", "leaving")
def _(w: Worker) -> Any:
    w.distributed.broadcast(None)
    not_before = time.time()
    until(w.context.preempt.should_preempt, "the experiment is paused")
    return not_before


@check("TrainContext.report_early_exit", "leaving")
def _(w: Worker) -> Any:
    if w.is_chief:
        w.context.train.report_early_exit(core.EarlyExitReason.INVALID_HP)
