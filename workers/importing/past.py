"""Rebuilds and records the searches of imported experiments."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from database.models import Experiment, Import, ImportTable, Metric, Trial
from database.trials import forget_decisions, record_dated
from workers.importing.rows import digest
from workers.importing.searches import NotTheSame, PastTrial, PastValidation, rebuilt
from workers.importing.source import Source
from workers.importing.target import GOES_ON, Came, mark, marks, note_skipped
from workflows.config import ExperimentConfig
from workflows.lifecycle.imports import Kind

COUNT = "SELECT count(*) AS n FROM experiments WHERE NOT unmanaged"
_LOOKED_AT = 20
_NOT_THE_SAME = (
    "their searches decided otherwise than this cluster's would: they can be looked at, not continued or forked"
)


def page(session: Session, source: Source, row: Import, progress: ImportTable, came: Came) -> None:
    """Rebuild the searches of the next experiments, of what has come of them."""
    found = source.all(
        "SELECT id FROM experiments WHERE id > %s AND NOT unmanaged ORDER BY id LIMIT %s",
        [int(progress.cursor or 0), _LOOKED_AT],
    )
    keys = [str(each["id"]) for each in found]
    came.look_up(session, [{"key": key} for key in keys], {"key": Kind.EXPERIMENTS})
    known = marks(session, row.cluster_id, Kind.SEARCHES, keys)
    for key in keys:
        progress.read += 1
        progress.cursor = key
        ours = came(Kind.EXPERIMENTS, key)
        if ours is None:
            note_skipped(progress, key, "their experiments did not come")
            continue
        experiment = session.get_one(Experiment, int(ours))
        trials = session.scalars(select(Trial).where(Trial.experiment_id == experiment.id).order_by(Trial.id)).all()
        was = digest(
            [experiment.config, [(each.id, each.state, each.ended_at, each.latest_validation_id is None,
                                  each.total_batches, each.searcher_metric) for each in trials]]
        )  # fmt: skip
        if key in known and known[key][1] == was:
            progress.unchanged += 1
            continue
        if experiment.commanded:
            note_skipped(progress, key, GOES_ON)
            continue
        try:
            _rebuild(session, experiment, trials)
        except NotTheSame as error:
            note_skipped(progress, key, _NOT_THE_SAME)
            experiment.error = experiment.error or f"It can be looked at, not continued or forked: {error}"[:1000]
            continue
        except ValueError as error:  # pydantic's among them
            note_skipped(progress, key, "their configurations can't be read by this release")
            experiment.error = experiment.error or str(error).splitlines()[0][:500]
            continue
        mark(session, row.cluster_id, Kind.SEARCHES, [(key, ours, was)])
        progress.written += 1
    progress.is_done = len(found) < _LOOKED_AT


def _rebuild(session: Session, experiment: Experiment, trials: Sequence[Trial]) -> None:
    config = ExperimentConfig.model_validate(experiment.config)
    past = [
        PastTrial(each.request_id, each.state, each.hparams, each.ended_at or experiment.started_at) for each in trials
    ]
    rows = session.execute(
        select(Trial.request_id, Metric.reported_at, Metric.total_batches, Metric.metrics)
        .join(Metric, Metric.trial_id == Trial.id)
        .where(Trial.experiment_id == experiment.id, Metric.group_name == "validation", ~Metric.archived)
        .order_by(Metric.reported_at, Metric.id)
    )
    validations = [PastValidation(name, at, steps or 0, metrics) for name, at, steps, metrics in rows.tuples()]
    decisions = rebuilt(config, experiment.started_at, past, validations)
    forget_decisions(session, experiment.id)
    record_dated(session, {experiment.id: decisions})
