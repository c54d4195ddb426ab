"""The record of a search."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.auth import config_secrets
from database.models import Experiment, SearchDecision, Trial
from workflows.searchers import Inherited
from workflows.searchers.replay import Header


def history(session: Session, experiment: Experiment) -> list[str]:
    """The lines of the file that replays without a cluster."""
    header = Header(
        experiment_id=experiment.id,
        name=experiment.name,
        config=config_secrets.shown(experiment.config),
        inherited=[Inherited(request_id=t["request_id"], hparams=t["hparams"]) for t in experiment.inherited],
        state=experiment.state,
        parent_id=experiment.parent_id,
        forked_at=experiment.forked_at,
        trials=_trials(session, experiment.id),
    )
    return [header.model_dump_json(), *_texts(session, experiment.id)]


def _trials(session: Session, experiment_id: int) -> dict[str, int]:
    found = session.execute(select(Trial.request_id, Trial.id).where(Trial.experiment_id == experiment_id))
    return dict(found.tuples().all())


def _texts(session: Session, experiment_id: int) -> list[str]:
    statement = select(SearchDecision.decision).where(SearchDecision.experiment_id == experiment_id)
    return list(session.scalars(statement.order_by(SearchDecision.number)))
