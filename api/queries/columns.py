"""Columns, ranges of metrics and values of metadata, for a web page's table of a project's experiments.

They come from the newest trials: a table without what only older trials had is better than one that waits for all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, cast

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.queries.ids import among
from api.queries.table_columns import RUN_LABELS
from api.schemas.base import number
from database.models import Experiment, Trial

_TRIALS, _TRIALS_OF_COLUMNS = 1000, 150
_TYPES = {"number": "COLUMN_TYPE_NUMBER", "string": "COLUMN_TYPE_TEXT", "date": "COLUMN_TYPE_DATE"}
_OF_EXPERIMENTS = [
    ("id", "ID", "NUMBER"), ("name", "Name", "TEXT"), ("description", "Description", "TEXT"), ("tags", "Tags", "TEXT"),
    ("forkedFrom", "Forked from", "NUMBER"), ("startTime", "Start time", "DATE"), ("duration", "Duration", "NUMBER"),
    ("numTrials", "Trials", "NUMBER"), ("state", "State", "TEXT"), ("searcherType", "Searcher", "TEXT"),
    ("searcherMetric", "Searcher metric", "TEXT"), ("resourcePool", "Resource pool", "TEXT"),
    ("progress", "Progress", "NUMBER"), ("checkpointSize", "Checkpoint size", "NUMBER"),
    ("checkpointCount", "Checkpoints", "NUMBER"), ("user", "User", "TEXT"), ("archived", "Archived", "TEXT"),
]  # fmt: skip


def columns(session: Session, project_id: int, *, of_runs: bool = False) -> list[dict[str, str]]:
    """What experiments or runs have in general, the hyperparameters of this project's, and their metrics."""
    general = [(name, *said) for name, said in RUN_LABELS.items()] if of_runs else _OF_EXPERIMENTS
    place = "RUN" if of_runs else "EXPERIMENT"
    found = [_column(name, place, f"COLUMN_TYPE_{kind}", label) for name, label, kind in general]
    hparams: dict[str, str] = {}
    metrics: dict[str, str] = {}
    for values, summary in _newest(session, project_id, _TRIALS_OF_COLUMNS):
        for name, value in _leaves(values):
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            hparams.setdefault(f"hp.{name}", _TYPES["number" if is_number else "string"])
        for group, name, entry in _entries(summary):
            kind = _TYPES.get(entry.get("type", ""), "COLUMN_TYPE_UNSPECIFIED")
            for part in ("last", "mean", "min", "max") if entry.get("type") == "number" else ("last",):
                metrics.setdefault(f"{group}.{name}.{part}", kind)
    place = "RUN_HYPERPARAMETERS" if of_runs else "HYPERPARAMETERS"
    found += [_column(name, place, kind, "") for name, kind in sorted(hparams.items())]
    places = {"validation": "VALIDATIONS", "training": "TRAINING"}
    for name, kind in sorted(metrics.items()):
        found.append(_column(name, places.get(name.partition(".")[0], "CUSTOM_METRIC"), kind, ""))
    return found


def _leaves(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Hyperparameters by their names in full; dots lead into nested ones."""
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from _leaves(cast("dict[str, Any]", value), f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _column(name: str, place: str, kind: str, label: str) -> dict[str, str]:
    return {"column": name, "location": f"LOCATION_TYPE_{place}", "type": kind, "displayName": label}


def metric_ranges(session: Session, project_id: int) -> list[dict[str, Any]]:
    """Least and greatest value of each metric; NaN and infinities are passed over."""
    ranges: dict[str, tuple[float, float]] = {}
    for _, summary in _newest(session, project_id, _TRIALS):
        for group, name, entry in _entries(summary):
            for part in ("last", "mean", "min", "max"):
                value = number(entry.get(part))
                if value is not None and math.isfinite(value):
                    low, high = ranges.get(f"{group}.{name}.{part}", (value, value))
                    ranges[f"{group}.{name}.{part}"] = (min(low, value), max(high, value))
    return [{"metricsName": name, "min": low, "max": high} for name, (low, high) in sorted(ranges.items())]


def metadata_values(session: Session, project_id: int, key: str) -> list[str]:
    """The texts that runs have under a key of their metadata; dots lead into maps."""
    statement = (
        select(Trial.metadata_)
        .join(Experiment, Experiment.id == Trial.experiment_id)
        .where(Experiment.project_id == project_id, Trial.metadata_.is_not(None))
        .order_by(Trial.id.desc())
        .limit(_TRIALS)
    )
    found: set[str] = set()
    for metadata in session.scalars(statement):
        value: Any = metadata
        for part in key.split("."):
            value = cast("dict[str, Any]", value).get(part) if isinstance(value, dict) else None
        if isinstance(value, str):
            found.add(value)
    return sorted(found)


def _newest(session: Session, project_id: int, most: int) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Hyperparameters and summaries of the newest trials of the newest experiments; of these all trials are counted."""
    statement = (
        select(Experiment.id, Experiment.trial_count)
        .where(Experiment.project_id == project_id, Experiment.trial_count > 0)
        .order_by(Experiment.id.desc())
        .limit(most)
    )
    wanted: list[int] = []
    found = 0
    for experiment_id, count in session.execute(statement).tuples():
        wanted.append(experiment_id)
        found += count
        if found >= most:
            break
    newest = (
        select(Trial.id)
        .where(among(session, Trial.experiment_id, wanted))
        .order_by(Trial.experiment_id.desc(), Trial.id.desc())
        .limit(most)
    )
    ids = session.scalars(newest).all()
    rows = select(Trial.hparams, Trial.summary).where(among(session, Trial.id, ids)).order_by(Trial.id.desc())
    return [row.tuple() for row in session.execute(rows)]


def _entries(summary: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [(group, name, entry) for group, entries in summary.items() for name, entry in entries.items()]
