"""The live picture of an experiment. Loaded only when a person watches: rich takes longer to import than the rest."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from cli import render
from cli.snapshot import Snapshot

_COLORS = {"RUNNING": "green", "COMPLETED": "blue", "ERROR": "red", "CANCELED": "yellow", "PAUSED": "yellow"}
_ORDER = {"RUNNING": 0, "STARTING": 1, "PULLING": 1, "QUEUED": 2}
_BARS = "▁▂▃▄▅▆▇█"
_FEWEST_TRIALS = 3
_CURVE_WIDTH = 16


@dataclass(frozen=True)
class View:
    """What a person has chosen to see besides the trials.

    Attributes:
        curves: Values of the searcher's metric by trial, as it trains.
        log: The last lines of `log_of`'s log; None if it is not shown.
        log_of: The trial whose log it is.
        is_away: Whether the cluster does not answer at the moment.
    """

    curves: Mapping[int, Sequence[float]] = field(default_factory=dict[int, Sequence[float]])
    log: Sequence[str] | None = None
    log_of: int | None = None
    is_away: bool = False


def picture(now: Snapshot, height: int, view: View | None = None) -> RenderableType:
    """Header, rungs, trials (the running ones first, then the best), the best so far, perhaps a log, and the keys.

    It is less than `height` lines high, if that is 16 or more.
    """
    view = view or View()
    experiment = now.experiment
    head = Table.grid(padding=(0, 2))
    head.add_row(
        Text(f"experiment {experiment['id']}", style="bold"),
        Text(experiment.get("name") or ""),
        _state(now.state),
        ProgressBar(total=1.0, completed=float(experiment.get("progress") or 0), width=30),
        Text(render.percent(experiment.get("progress")) or ""),
    )
    above: list[RenderableType] = [head]
    if rungs := rung_line(now):
        above.append(_line(rungs))
    below = _best(now)
    if view.is_away:
        below.append(_line("the cluster does not answer; trying again …", "yellow"))
    elif not now.is_over:
        below.append(_line(_keys(view), "dim"))
    # a blank line, the table's header, "… and n more", and one line is kept for the cursor
    free = height - len(above) - len(below) - 4
    log: list[RenderableType] = []
    if view.log is not None:
        room = max(_FEWEST_TRIALS, free - min(len(now.trials), max(_FEWEST_TRIALS, free // 3)) - 1)
        lines = view.log[-room:] or ["(no line yet)"]
        log = [_line(f"log of trial {view.log_of}:", "bold"), *(_line(line.rstrip("\n")) for line in lines)]
    return Group(*above, Text(), *_trials(now, max(_FEWEST_TRIALS, free - len(log)), view), *below, *log)


def rung_line(now: Snapshot) -> str:
    """How many trials are, or ended, at each rung: `rungs: 0: 12, 1: 4`; empty if the search has none."""
    counts: dict[int, int] = {}
    for trial in now.trials:
        if trial.get("rung") is not None:
            counts[int(trial["rung"])] = counts.get(int(trial["rung"]), 0) + 1
    return "trials by rung: " + ", ".join(f"{rung}: {counts[rung]}" for rung in sorted(counts)) if counts else ""


def sparkline(values: Sequence[float], width: int = _CURVE_WIDTH) -> str:
    """A curve as a row of bars: from the lowest value to the highest. NaN and infinities are left out as a dot."""
    if len(values) > width:  # the last value of each piece: it is a curve over time
        values = [values[(at + 1) * len(values) // width - 1] for at in range(width)]
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return "·" * len(values)
    low, high = min(finite), max(finite)
    span = high - low

    def bar(value: float) -> str:
        if not math.isfinite(value):
            return "·"
        return _BARS[round((value - low) / span * (len(_BARS) - 1))] if span > 0 else _BARS[len(_BARS) // 2 - 1]

    return "".join(map(bar, values))


def _best(now: Snapshot) -> list[RenderableType]:
    best = now.experiment.get("bestTrialSearcherMetric")
    if best is None:
        return []
    text = f"best so far: {now.metric} {render.cell(best)} in trial {now.experiment.get('bestTrialId')}"
    hparams = _hparams(now.best) if now.best is not None else ""
    return [_line(f"{text}: {hparams}" if hparams else text)]


def _trials(now: Snapshot, room: int, view: View) -> list[RenderableType]:
    table = Table(box=None, pad_edge=False, header_style="bold", expand=True)
    for name in ("trial", "state", "rung", "steps", now.metric, "curve", "restarts"):
        table.add_column(name, justify="left" if name in ("state", "curve") else "right", no_wrap=True)
    table.add_column("hyperparameters", ratio=1, no_wrap=True)  # what is left of the width, and no more
    shown = by_interest(now)[:room]
    for trial in shown:
        is_best = trial["id"] == now.experiment.get("bestTrialId")
        table.add_row(
            Text(str(trial["id"]), style="reverse" if trial["id"] == view.log_of else ""),
            _state(render.state(trial["state"])),
            _text(trial.get("rung")),
            _text(trial.get("totalBatchesProcessed")),
            Text(_text(trial.get("searcherMetricValue")), style="bold green" if is_best else ""),
            sparkline(view.curves.get(trial["id"], ())),
            _text(trial.get("restarts")),
            Text(_hparams(trial), style="dim"),
        )
    hidden = len(now.trials) - len(shown)
    return [table, _line(f"… and {hidden} more", "dim")] if hidden else [table]


def by_interest(now: Snapshot) -> list[dict[str, Any]]:
    """The trials, those that run first, then the better ones."""
    searcher = render.part(now.experiment, "config", "searcher")
    sign = 1 if searcher.get("smaller_is_better", True) else -1

    def key(trial: dict[str, Any]) -> tuple[int, float, int]:
        value = trial.get("searcherMetricValue")
        order = _ORDER.get(render.state(trial["state"]), 3)
        is_number = isinstance(value, (int, float))
        return order, sign * float(value) if is_number else float("inf"), int(trial["id"])

    return sorted(now.trials, key=key)


def _keys(view: View) -> str:
    log = "l hides the log, n and p show the next and the previous trial's" if view.log is not None else "l shows a log"
    return f"{log}; q or Ctrl-C stops watching, the experiment goes on"


def _line(text: str, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _state(state: str) -> Text:
    return Text(state, style=_COLORS.get(state, ""))


def _text(value: Any) -> str:
    return "" if value is None else render.cell(value)


def _hparams(trial: dict[str, Any]) -> str:
    return ", ".join(f"{name}={render.cell(value)}" for name, value in render.part(trial, "hparams").items())
