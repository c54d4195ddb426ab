"""The picture of a search: learning curves by rung, hyperparameters against the metric."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cli import history, render, session
from cli.flat import flat

_TRIALS_A_REQUEST = 100

Curves = Mapping[int, Sequence[tuple[int, float]]]
"""For each trial its validations: steps and metric."""


def draw(experiment_id: int, output: Path) -> None:
    """Write the picture.

    Raises: ValueError if there is nothing to draw, matplotlib is missing or the file can't be written.
    """
    try:
        from matplotlib import colormaps
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError("plots need matplotlib: pip install 'undeterred[plot]'") from None
    experiment = session.fetch(f"experiments/{experiment_id}")["experiment"]
    searcher = render.part(experiment, "config", "searcher")
    metric = str(searcher.get("metric"))
    trials = session.fetch_all(f"experiments/{experiment_id}/trials", "trials")
    curves = _curves([trial["id"] for trial in trials], metric)
    if not curves:
        raise ValueError(
            f"no trial of experiment {experiment_id} has reported a finite {metric!r} yet: there is nothing to draw."
        )
    rung_of = _rungs(experiment_id)
    parameters = _parameters({trial["id"]: flat(trial.get("hparams") or {}) for trial in trials})
    top = max([*rung_of.values(), 1])

    def colour(trial_id: int) -> Any:
        return colormaps["viridis"](rung_of.get(trial_id, 0) / top)

    columns = 2 if len(parameters) > 1 else 1
    rows = 1 + math.ceil(len(parameters) / columns)
    figure: Any = Figure(figsize=(4 + 4 * columns, 4 * rows), layout="constrained")
    grid: Any = figure.add_gridspec(rows, columns)
    above: Any = figure.add_subplot(grid[0, :])
    _draw_curves(above, curves, rung_of, colour)
    above.set_ylabel(metric)
    above.set_title(f"experiment {experiment_id}: {experiment['name']}")
    pick = min if searcher.get("smaller_is_better", True) else max
    best = {trial_id: pick(value for _, value in points) for trial_id, points in curves.items()}
    for place, (name, values) in enumerate(parameters.items()):
        below: Any = figure.add_subplot(grid[1 + place // columns, place % columns])
        _draw_parameter(below, values, best, colour)
        below.set_xlabel(name)
        below.set_ylabel(f"best {metric}")
    try:
        figure.savefig(output, dpi=120)
    except OSError as error:
        raise ValueError(f"{output} can't be written: {error.strerror}") from None
    except ValueError as error:  # a suffix that names no format
        raise ValueError(f"{output} can't be written: {error}") from None


def _draw_curves(axes: Any, curves: Curves, rung_of: Mapping[int, int], colour: Any) -> None:
    labelled: set[int] = set()
    for trial_id in sorted(curves, key=lambda trial_id: (rung_of.get(trial_id, -1), trial_id)):
        points, rung = curves[trial_id], rung_of.get(trial_id)
        label = None if rung is None or rung in labelled else f"rung {rung}"
        labelled |= set() if rung is None else {rung}
        steps, values = zip(*points, strict=True)
        axes.plot(steps, values, marker="." if len(points) < 2 else "", color=colour(trial_id), label=label)
    axes.set_xlabel("steps completed")
    if labelled:
        axes.legend(title="furthest rung")


def _draw_parameter(axes: Any, values: Mapping[int, Any], best: Mapping[int, float], colour: Any) -> None:
    shown = [trial_id for trial_id in best if trial_id in values]
    xs = [values[trial_id] for trial_id in shown]
    axes.scatter(xs, [best[trial_id] for trial_id in shown], c=[colour(trial_id) for trial_id in shown])
    numbers = [x for x in xs if isinstance(x, float)]
    if numbers and min(numbers) > 0 and max(numbers) / min(numbers) > 100:
        axes.set_xscale("log")


def _curves(trial_ids: Sequence[int], metric: str) -> dict[int, list[tuple[int, float]]]:
    """The curves that have a point, each in order of steps."""
    curves: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for first in range(0, len(trial_ids), _TRIALS_A_REQUEST):
        asked = {"trialIds": trial_ids[first : first + _TRIALS_A_REQUEST]}
        for message in session.get().stream("/api/v1/trials/metrics/validation_metrics", asked):
            reports: list[dict[str, Any]] = message.get("metrics") or []
            for report in reports:
                value = render.part(report, "metrics", "avg_metrics").get(metric)
                if isinstance(value, int | float) and math.isfinite(value):
                    curves[report["trialId"]].append((report.get("totalBatches") or 0, float(value)))
    return {trial_id: sorted(points) for trial_id, points in curves.items()}


def _rungs(experiment_id: int) -> dict[int, int]:
    """The furthest rung that each trial has a result in; empty for searches without rungs."""
    export = history.load(str(experiment_id))
    found: dict[int, int] = {}
    for decision in export.decisions:
        for verdict in decision.verdicts:
            trial_id = export.header.trials.get(verdict.request_id)
            if trial_id is not None and verdict.rung is not None:
                found[trial_id] = max(found.get(trial_id, 0), verdict.rung)
    return found


def _parameters(points: Mapping[int, Mapping[str, Any]]) -> dict[str, dict[int, Any]]:
    """For each hyperparameter that is not the same everywhere, its value in each trial: a number, else its text."""
    names = dict.fromkeys(name for point in points.values() for name in point)
    found: dict[str, dict[int, Any]] = {}
    for name in names:
        values = {trial_id: point[name] for trial_id, point in points.items() if name in point}
        if len({repr(value) for value in values.values()}) < 2:
            continue
        is_number = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values.values())
        found[name] = {t: float(v) if is_number else str(v) for t, v in values.items()}
    return found
