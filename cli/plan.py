"""`det preview-search` and `det experiment plan`: what a search will do and cost, before anything runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli import render
from cli.group import command_of, new_app
from cli.options import Json

if TYPE_CHECKING:
    from workflows.config import ExperimentConfig
    from workflows.config.budget import Budget
    from workflows.searchers import Search, TrialGroup

_SINGULAR = {"batches": "batch", "records": "record", "epochs": "epoch", "units": "unit"}

app = new_app("The trials and the cost of a search, before it runs.")


def command() -> Any:
    """The group as a command."""
    return command_of(app)


@app.command("plan")
def plan(
    config_file: Annotated[Path, typer.Argument(help="The configuration, a YAML file.", show_default=False)],
    config: Annotated[list[str] | None, typer.Option("--config", help="Override: key.sub=value.")] = None,
    compare: Annotated[
        list[str] | None,
        typer.Option(
            "--compare",
            help="Show also what it were with this in the searcher: mode=aggressive, or several: "
            "mode=aggressive,max_trials=32. May be given more than once.",
        ),
    ] = None,
    unit_seconds: Annotated[
        float | None, typer.Option("--unit-seconds", min=0, help="How long one unit of the length takes to train.")
    ] = None,
    cost: Annotated[float | None, typer.Option("--cost", min=0, help="Price of an hour of a slot.")] = None,
    as_json: Json = False,
) -> None:
    """Show the trials of a search, how far each trains, and all of it together. Nothing is sent anywhere."""
    for option, value in (("--unit-seconds", unit_seconds), ("--cost", cost)):
        if value is not None and not math.isfinite(value):
            raise ValueError(f"{option}: {value}: expected a finite number")
    if cost is not None and unit_seconds is None:
        raise ValueError("--cost needs --unit-seconds: how long one unit of the searcher's length takes to train.")
    plans = [_plan(config_file, config or [], "", "as it is")]
    plans += [_plan(config_file, config or [], change, change) for change in compare or []]
    if as_json:
        render.json_out([_as_json(one, unit_seconds, cost) for one in plans])
        return
    for one in plans:
        if len(plans) > 1:
            render.say(f"{one.name}:")
        _show(one)
        render.say()
    _show_totals(plans, unit_seconds, cost)
    for one in plans:
        for line in _budget_lines(one, unit_seconds, cost):
            render.say(f"{one.name}: {line}" if len(plans) > 1 else line)


@dataclass(frozen=True)
class _Bracket:
    trials: int
    concurrency: int
    rungs: list[int]


@dataclass(frozen=True)
class _Plan:
    """One search that could be run."""

    name: str
    groups: Sequence[TrialGroup]
    brackets: Sequence[_Bracket]
    unit: str
    slots: int
    lends: bool
    budget: Budget | None

    @property
    def trials(self) -> int:
        return sum(group.count for group in self.groups)

    @property
    def total(self) -> int | None:
        from workflows.searchers import total_length

        return total_length(self.groups)

    def slot_hours(self, unit_seconds: float | None) -> float | None:
        if unit_seconds is None or self.total is None:
            return None
        return self.total * unit_seconds * self.slots / 3600


def _plan(path: Path, overrides: Sequence[str], change: str, name: str) -> _Plan:
    from cli.create import read_config
    from determined.errors import DeterminedException
    from workflows.config import ClusterDefaults, ConfigError, parse_experiment_config
    from workflows.searchers import Search, SearchError, preview_search

    # The cluster fills in where checkpoints go; a plan needs to know neither that nor what the trials run.
    defaults = ClusterDefaults(checkpoint_storage={"type": "directory", "container_path": "/checkpoints"})
    origin = f"--compare {change!r}: " if change else ""
    text = read_config(path, overrides)
    try:
        if change:
            text = read_config(path, [*overrides, *_changes(change)])
        parsed = parse_experiment_config(text, cluster=defaults, seed=0, managed=False)
        groups = preview_search(parsed)
    except (ConfigError, DeterminedException) as error:
        raise ValueError(f"{origin}{error}") from None
    except SearchError as error:
        raise ValueError(f"{origin}searcher: {error}") from None
    slots = parsed.resources.slots_per_trial
    lends = getattr(parsed.searcher, "lend_places", False)
    return _Plan(name, groups, _brackets(Search.new(parsed)), _unit(parsed), slots, lends, parsed.budget)


def _changes(change: str) -> list[str]:
    """`mode=aggressive,max_trials=32` as overrides. A comma within a list or map is part of the value."""
    parts: list[str] = []
    depth = 0
    for piece in change.split(","):
        if depth > 0:
            parts[-1] += f",{piece}"
        else:
            parts.append(piece.strip())
        depth += sum(piece.count(c) for c in "[{") - sum(piece.count(c) for c in "]}")
    for part in parts:
        if not all(part.partition("=")[:2]):
            raise ValueError(
                f"--compare {change!r}: expected key=value of the searcher, such as mode=aggressive, but found {part!r}"
            )
    return [f"searcher.{part.removeprefix('searcher.')}" for part in parts]


def _brackets(search: Search) -> list[_Bracket]:
    brackets: Sequence[Any] = getattr(search.method, "brackets", ())
    return [_Bracket(b.max_trials, b.concurrency, [rung.length for rung in b.rungs]) for b in brackets]


def _unit(config: ExperimentConfig) -> str:
    for name in ("max_length", "length_per_round"):
        length = getattr(config.searcher, name, None)
        if length is not None:
            return str(length.unit or "units")
    return str(getattr(config.searcher, "time_metric", None) or "units")


def _amount(length: int, unit: str) -> str:
    return f"{length} {_SINGULAR.get(unit, unit) if length == 1 else unit}"


def _show(one: _Plan) -> None:
    rows = [
        [group.count, "as long as its code trains" if group.length is None else _amount(group.length, one.unit)]
        for group in one.groups
    ]
    render.table(["Trials", "Training"], rows)
    for number, bracket in enumerate(one.brackets):
        steps = " -> ".join(str(length) for length in bracket.rungs)
        trials = f"{bracket.trials} trial{'s' * (bracket.trials != 1)}"
        places = min(bracket.concurrency, bracket.trials)
        render.say(f"bracket {number}: {trials}, {places} at a time, rungs {steps}")
    if len(one.brackets) > 1:
        render.say(
            "a bracket lends the places that it has no trial for to the others (lend_places: false leaves them empty,"
            " as Determined does: the same trials, fewer of them at a time)"
            if one.lends
            else "a place that a bracket has no trial for stays empty (lend_places: false), as in Determined"
        )


def _show_totals(plans: Sequence[_Plan], unit_seconds: float | None, cost: float | None) -> None:
    headers = ["Search", "Trials", "Total Work"]
    headers += ["Relative"] if len(plans) > 1 else []
    headers += ["Slot Hours"] if unit_seconds is not None else []
    headers += ["Cost"] if cost is not None else []
    first = plans[0].total
    rows: list[list[Any]] = []
    for one in plans:
        total, hours = one.total, one.slot_hours(unit_seconds)
        row: list[Any] = [one.name, one.trials, None if total is None else _amount(total, one.unit)]
        if len(plans) > 1:
            has_same_unit = one.unit == plans[0].unit
            row.append(f"{total / first:.0%}" if total is not None and first and has_same_unit else None)
        row += [hours] if unit_seconds is not None else []
        row += [None if hours is None else f"{hours * cost:.2f}"] if cost is not None else []
        rows.append(row)
    render.table(headers, rows)


def _budget_lines(one: _Plan, unit_seconds: float | None, cost: float | None) -> list[str]:
    """Whether the search fits into its budget, as far as that is known before it runs."""
    if one.budget is None:
        return []
    limits, lines = one.budget, list[str]()
    paused = ", so it is paused"
    if limits.trials is not None:
        fits = f"the search starts {one.trials}" + paused * (one.trials > limits.trials)
        lines.append(f"its budget has {limits.trials} trials: {fits}")
    hours = one.slot_hours(unit_seconds)
    if limits.slot_hours is not None:
        fits = "--unit-seconds shows how far it goes" if hours is None else f"the search takes {hours:.4g}"
        is_short = hours is not None and hours > limits.slot_hours
        lines.append(f"its budget has {limits.slot_hours:g} slot-hours: {fits}{paused * is_short}")
    if limits.price is not None:
        price = None if hours is None or cost is None else hours * cost
        fits = "--unit-seconds and --cost show how far it goes" if price is None else f"the search costs {price:.4g}"
        is_short = price is not None and price > limits.price
        lines.append(f"its budget has {limits.price:g} at the prices of its pools: {fits}{paused * is_short}")
    if limits.wall_time is not None:
        lines.append(f"its budget has {limits.wall_time} of wall time, which depends on the slots that it gets")
    return lines


def _as_json(one: _Plan, unit_seconds: float | None, cost: float | None) -> dict[str, Any]:
    hours = one.slot_hours(unit_seconds)
    return {
        "name": one.name,
        "trials": [{"count": group.count, "length": group.length} for group in one.groups],
        "brackets": [{"rungs": b.rungs, "trials": b.trials, "concurrency": b.concurrency} for b in one.brackets],
        "unit": one.unit,
        "lendsPlaces": one.lends,
        "total": one.total,
        "slotHours": hours,
        "cost": None if hours is None or cost is None else hours * cost,
        "budget": None if one.budget is None else one.budget.model_dump(mode="json"),
    }
