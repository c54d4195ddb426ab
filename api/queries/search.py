"""The record of a search."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from api.auth import config_secrets
from api.errors import BadRequest
from api.schemas.search_views import DecisionRow, SearchView
from database.engines import in_parts
from database.models import Experiment, SearchDecision, Trial
from workflows import names
from workflows.searchers import Decision, Inherited, Search
from workflows.searchers.explain import explain_search, explain_trial
from workflows.searchers.replay import Header, carried_on
from workflows.searchers.standings import Standing, about, action_words, event_words, reported, word

#: A decision shows how at most so many trials compared.
_MOST_COMPARED = 10


def history(session: Session, experiment: Experiment) -> list[str]:
    """The lines of the file that replays without a cluster."""
    return [_header(session, experiment).model_dump_json(), *_texts(session, experiment.id)]


def view(session: Session, experiment: Experiment, at: int, most: int) -> SearchView:
    """A search as it was after a decision.

    Args:
        session: To read with.
        experiment: Whose search.
        at: The decision; 0: the last one.
        most: Decisions to tell of.

    Raises: BadRequest, if there is no such decision.
    """
    rows = session.execute(
        select(SearchDecision.decision, SearchDecision.decided_at)
        .where(SearchDecision.experiment_id == experiment.id)
        .order_by(SearchDecision.number)
    ).all()
    if at > len(rows):
        raise BadRequest(f"at: {at}: the search of experiment {experiment.id} has {len(rows)} decisions")
    at = at or len(rows)
    header = _header(session, experiment)
    decisions = [Decision.model_validate_json(text) for text, _ in rows[:at]]
    search = carried_on(header.new_search(), decisions)
    called = {request_id: f"trial {trial_id}" for request_id, trial_id in header.trials.items()}
    metric = experiment.searcher_metric or "metric"
    latest = list(zip(decisions, (time for _, time in rows), strict=False))[-most:]
    return SearchView(
        count=len(rows),
        at=at,
        metric=metric,
        workflow_id=names.experiment_workflow(experiment.id),
        sentences=explain_search(decisions, lambda other: called.get(other, other), metric=metric),
        rungs=[Standing(rung, decisions).as_json(header.trials) for rung in search.rungs()],
        decisions=[_row(decision, time, metric, header.trials, called) for decision, time in reversed(latest)],
    )


def rebuilt(session: Session, experiment: Experiment) -> Search:
    """The search as it stands by its record."""
    decisions = map(Decision.model_validate_json, _texts(session, experiment.id))
    return carried_on(_header(session, experiment).new_search(), decisions)


def about_trial(session: Session, experiment: Experiment, trial: Trial) -> list[str]:
    """What the search decided about a trial and why, in order."""
    # the database looks into each decision: those of a long search, and the names of its trials, would be megabytes
    statement = _decisions(experiment.id).where(SearchDecision.decision.contains(trial.request_id, autoescape=True))
    decisions = [Decision.model_validate_json(text) for text in session.scalars(statement)]
    named = set[str]().union(*(decision.trials for decision in decisions))
    called = {request_id: f"trial {trial_id}" for request_id, trial_id in _trials(session, experiment.id, named)}
    metric = experiment.searcher_metric or "metric"
    return explain_trial(decisions, trial.request_id, lambda other: called.get(other, other), metric=metric)


def _row(
    decision: Decision, time: datetime, metric: str, numbers: Mapping[str, int], called: Mapping[str, str]
) -> DecisionRow:
    trial = about(decision.event)
    return DecisionRow(
        number=decision.number,
        time=time,
        event=event_words(decision.event),
        trial_id=numbers.get(trial or ""),
        value=word(reported(decision.event, metric)),
        actions=action_words(decision, called),
        error=decision.error,
        sentences=_why(decision, called, metric),
    )


def _why(decision: Decision, called: Mapping[str, str], metric: str) -> list[str]:
    """Why, for each trial that was compared."""
    compared: Sequence[str] = list(dict.fromkeys(verdict.request_id for verdict in decision.verdicts))
    return [
        f"{called.get(each, each)}: {sentence.partition(': ')[2]}"
        for each in compared[:_MOST_COMPARED]
        for sentence in explain_trial([decision], each, lambda other: called.get(other, other), metric=metric)
    ]


def _header(session: Session, experiment: Experiment) -> Header:
    return Header(
        experiment_id=experiment.id,
        name=experiment.name,
        config=config_secrets.shown(experiment.config),
        inherited=[Inherited(request_id=t["request_id"], hparams=t["hparams"]) for t in experiment.inherited],
        state=experiment.state,
        parent_id=experiment.parent_id,
        forked_at=experiment.forked_at,
        trials=dict(_trials(session, experiment.id)),
    )


def _trials(session: Session, experiment_id: int, named: Collection[str] | None = None) -> Iterator[tuple[str, int]]:
    """The request ids and ids of an experiment's trials: of all, or of those that are named."""
    statement = select(Trial.request_id, Trial.id).where(Trial.experiment_id == experiment_id)
    if named is None:
        yield from session.execute(statement).tuples()
        return
    for some in in_parts(named):
        yield from session.execute(statement.where(Trial.request_id.in_(some))).tuples()


def _texts(session: Session, experiment_id: int) -> list[str]:
    return list(session.scalars(_decisions(experiment_id)))


def _decisions(experiment_id: int) -> Select[str]:
    statement = select(SearchDecision.decision).where(SearchDecision.experiment_id == experiment_id)
    return statement.order_by(SearchDecision.number)
