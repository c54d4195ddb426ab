"""The columns of tables of experiments and of runs: what filters and orders name, as SQL.

An experiment's hyperparameters and metrics are those of its best trial, which is shown beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from typing import cast as typed

from sqlalchemy import ColumnElement, String, and_, case, cast, func, select
from sqlalchemy.orm import Session, aliased

from api.errors import BadRequest
from api.queries import experiments, trials
from api.queries.filters import Column, Table
from api.queries.labels import has_label
from api.queries.metric_values import number_in
from api.queries.paging import chosen
from api.queries.spans import elapsed_s
from database.models import Experiment, Project, Trial, User, Workspace

_PARTS = ("last", "mean", "min", "max", "sum", "count")
_LONGEST_NAME, _DEEPEST = 1000, 20


def of_experiments(session: Session) -> Table:
    """The columns of a statement on `Experiment` that joins `User` and `Project`."""
    elapsed = elapsed_s(session, Experiment.started_at, Experiment.ended_at)
    columns = _shared(session) | {
        "id": Column("number", Experiment.id),
        "numTrials": Column("number", experiments.SORT["SORT_BY_NUM_TRIALS"]),
        "startTime": Column("date", Experiment.started_at),
        "endTime": Column("date", Experiment.ended_at),
        "duration": Column("number", elapsed),
        "state": Column("choice", Experiment.state, is_one=_in_experiment_state),
        "checkpointSize": Column("number", experiments.SORT["SORT_BY_CHECKPOINT_SIZE"]),
        "checkpointCount": Column("number", experiments.SORT["SORT_BY_CHECKPOINT_COUNT"]),
        "searcherMetricsVal": Column("number", experiments.SORT["SORT_BY_SEARCHER_METRIC_VAL"]),
    }
    plain = {name: columns[f"experiment{name.capitalize()}"] for name in ("name", "description", "progress")}
    return lambda name: (columns | plain).get(name) or _member(name, of_best_trial)


def of_runs(session: Session) -> Table:
    """The columns of a statement on `Trial` that joins `Experiment`, `User` and `Project`."""
    columns = _shared(session) | {
        "id": Column("number", Trial.id),
        "experimentId": Column("number", Experiment.id),
        "startTime": Column("date", Trial.started_at),
        "endTime": Column("date", Trial.ended_at),
        "duration": Column("number", elapsed_s(session, Trial.started_at, Trial.ended_at)),
        "state": Column("choice", Trial.state, is_one=lambda value: trials.in_states([_state(value)])),
        "restarts": Column("number", Trial.restarts),
        "checkpointSize": Column("number", trials.SORT["SORT_BY_CHECKPOINT_SIZE"]),
        "checkpointCount": Column("number", trials.CHECKPOINTS),
        "searcherMetricsVal": Column("number", Trial.searcher_metric),
        "externalRunId": Column("text", Trial.external_id),
        "isExpMultitrial": Column("choice", is_multitrial(), is_one=lambda value: is_multitrial().is_(_yes(value))),
    }
    return lambda name: columns.get(name) or _member(name, _itself)


def _itself(value: Any) -> Any:
    return value


def _shared(session: Session) -> dict[str, Column]:
    """What is said of the experiment, in either table."""
    return {
        "experimentName": Column("text", Experiment.name),
        "experimentDescription": Column("text", Experiment.description),
        "experimentProgress": Column("number", Experiment.progress),
        "tags": Column(
            "choice", Experiment.labels, is_one=lambda value: has_label(session, Experiment.labels, str(value))
        ),
        "forkedFrom": Column("number", Experiment.parent_id),
        "searcherType": Column("text", Experiment.searcher_name),
        "searcherMetric": Column("text", Experiment.searcher_metric),
        "resourcePool": Column("text", Experiment.resource_pool),
        "externalExperimentId": Column("text", Experiment.external_id),
        "projectId": Column("number", Experiment.project_id),
        "user": Column("choice", User.username, is_one=_by),
        "archived": Column(
            "choice", Experiment.is_archived, is_one=lambda value: Experiment.is_archived.is_(_yes(value))
        ),
    }


def not_archived() -> ColumnElement[bool]:
    """Whether neither the experiment is archived nor what it is in."""
    put_away = select(Workspace.id).where(Workspace.is_archived)
    return and_(~Experiment.is_archived, ~Project.is_archived, Project.workspace_id.not_in(put_away))


def is_multitrial() -> ColumnElement[bool]:
    """Whether an experiment may have more than one trial."""
    return Experiment.searcher_name != "single"


def of_best_trial(value: Any) -> ColumnElement[Any]:
    """A value of the trial with the best searcher metric; of equals, and without metrics, of the first one."""
    of_it = aliased(Trial)
    mine = select(of_it.id).where(of_it.experiment_id == Experiment.id)
    # each reads one entry of an index, however many trials an experiment has
    known = mine.where(of_it.searcher_metric.is_not(None)).limit(1)
    least, most = (
        known.order_by(key, of_it.id).correlate(Experiment).scalar_subquery()
        for key in (of_it.searcher_metric.asc(), of_it.searcher_metric.desc())
    )
    first = mine.order_by(of_it.id).limit(1).correlate(Experiment).scalar_subquery()
    best = func.coalesce(case((Experiment.smaller_is_better, least), else_=most), first)
    return select(value).where(Trial.id == best).correlate(Experiment).scalar_subquery()


def _in_experiment_state(value: Any) -> ColumnElement[bool]:
    return Experiment.state == chosen("filter.state", _state(value), experiments.STATES)


def _state(value: Any) -> str:
    return f"STATE_{str(value).removeprefix('STATE_')}"


def _by(value: Any) -> ColumnElement[bool]:
    """Web pages name users by their numbers, people by their names."""
    is_id = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**31
    return Experiment.owner_id == value if is_id else User.username == str(value)


def _yes(value: Any) -> bool:
    return chosen("filter.value", str(value).lower(), {"true": True, "false": False})


def _member(name: str, placed: Any) -> Column:
    """A member of the documents of a trial: hyperparameters, metadata, or a part of a metric's summary.

    Raises: BadRequest.
    """
    place, _, rest = name.partition(".")
    if place in ("hp", "metadata") and rest:
        document, path = (Trial.hparams if place == "hp" else Trial.metadata_), rest.split(".")
    else:
        metric, _, part = rest.rpartition(".")
        if not metric or part not in _PARTS:
            raise BadRequest(f"column {name[:80]!r}: there is none of this name: see the columns of the project")
        document, path = Trial.summary, [place, metric, part]
    if len(name) > _LONGEST_NAME or len(path) > _DEEPEST or '"' in name or not name.isprintable():
        raise BadRequest(f"column {name[:80]!r}: this name can't be looked for")
    member: Any = document
    for key in path:
        member = member[key]
    text = placed(cast(member.as_string(), String))
    return Column("json", text, as_number=placed(number_in(member)))


def shown_value(trial: Any, name: str) -> Any:
    """What a row of a trial has in a column of its documents, named as filters name it; None without it."""
    place, _, rest = name.partition(".")
    if trial is None or not rest:
        return None
    if place in ("hp", "metadata"):
        document, path = trial.hparams if place == "hp" else trial.metadata_, rest.split(".")
    else:
        metric, _, part = rest.rpartition(".")
        document, path = trial.summary, [place, metric, part]
    for key in path:
        document = typed("dict[str, Any]", document).get(key) if isinstance(document, dict) else None
    return document


#: Of the columns that pages list, what people read above them and what they hold.
RUN_LABELS: Mapping[str, tuple[str, str]] = {
    "id": ("ID", "NUMBER"), "experimentId": ("Experiment ID", "NUMBER"), "experimentName": ("Experiment", "TEXT"),
    "experimentDescription": ("Experiment description", "TEXT"), "experimentProgress": ("Progress", "NUMBER"),
    "tags": ("Tags", "TEXT"), "forkedFrom": ("Forked from", "NUMBER"), "startTime": ("Start time", "DATE"),
    "endTime": ("End time", "DATE"), "duration": ("Duration", "NUMBER"), "state": ("State", "TEXT"),
    "searcherType": ("Searcher", "TEXT"), "searcherMetric": ("Searcher metric", "TEXT"),
    "searcherMetricsVal": ("Searcher metric value", "NUMBER"), "resourcePool": ("Resource pool", "TEXT"),
    "checkpointSize": ("Checkpoint size", "NUMBER"), "checkpointCount": ("Checkpoints", "NUMBER"),
    "restarts": ("Restarts", "NUMBER"), "externalExperimentId": ("External experiment ID", "TEXT"),
    "externalRunId": ("External run ID", "TEXT"), "isExpMultitrial": ("Part of a search", "TEXT"),
    "user": ("User", "TEXT"), "archived": ("Archived", "TEXT"),
}  # fmt: skip
