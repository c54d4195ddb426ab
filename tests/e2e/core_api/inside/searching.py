"""The searcher's operations."""

from __future__ import annotations

import time
from typing import Any

from determined import core

from .worker import Worker, check, equal, expect, refused


@check("SearcherContext.get_configured_units")
def _(w: Worker) -> Any:
    units = w.context.searcher.get_configured_units()
    expect(isinstance(units, core.Unit))
    return units and units.name


@check("SearcherContext.operations(searcher_mode=ChiefOnly)")
def _(w: Worker) -> Any:
    mode = core.SearcherMode.ChiefOnly
    if not w.is_chief:
        with refused(RuntimeError, "chief"):
            w.context.searcher.operations(mode)
        return None
    operations = w.context.searcher.operations(mode)
    op = next(operations)
    with refused(RuntimeError, "not completed"):
        next(operations)
    return op.length


@check("SearcherContext.operations", "resumed")
def _(w: Worker) -> Any:
    w.begin()
    w.kept["operations"] = w.context.searcher.operations(auto_ack=False)
    w.kept["op"] = next(w.kept["operations"])
    equal(type(w.kept["op"]), core.SearcherOperation)


@check("SearcherOperation.length", "resumed")
def _(w: Worker) -> Any:
    equal(w.distributed.allgather(w.kept["op"].length), [w.kept["op"].length] * w.size)
    return w.kept["op"].length


@check("SearcherOperation.report_completed", "resumed")
def _(w: Worker) -> Any:
    op: core.SearcherOperation = w.kept["op"]
    if w.is_chief:
        w.context.train.report_validation_metrics(op.length, {"accuracy": 0.875})
        op.report_completed(0.875)
    with refused(RuntimeError, "twice" if w.is_chief else "chief"):
        op.report_completed(0.875)
    equal(next(w.kept["operations"], None), None)


@check("SearcherContext.acknowledge_out_of_ops", "resumed")
def _(w: Worker) -> Any:
    w.distributed.broadcast(None)
    not_before = time.time()
    if w.is_chief:
        w.context.searcher.acknowledge_out_of_ops()
    return not_before
