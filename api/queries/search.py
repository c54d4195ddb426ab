"""The record of a search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial

from sqlalchemy import Select, and_, func, select
from sqlalchemy.orm import Session

from api.auth import config_secrets
from api.errors import BadRequest
from api.queries.followed_searches import FollowedSearches, Numbers
from api.schemas.search_views import DecisionRow, SearchView
from database.models import DecidedTrial, Experiment, SearchDecision, Trial
from workflows import names
from workflows.searchers import Decision, Inherited, Search
from workflows.searchers.explain import TrialName, explain_trial
from workflows.searchers.replay import Header
from workflows.searchers.standings import Standing, about, action_words, event_words, reported, word

#: A decision shows how at most so many trials compared.
_MOST_COMPARED = 10


def history(session: Session, experiment: Experiment) -> list[str]:
    """The lines of the file that replays without a cluster."""
    trials = select(Trial.request_id, Trial.id).where(Trial.experiment_id == experiment.id)
    header = _header(experiment, dict(session.execute(trials).tuples().all()))
    return [header.model_dump_json(), *session.scalars(_decisions(experiment.id))]


def view(
    session: Session, followed: FollowedSearches, experiment: Experiment, at: int, most: int, trials: int
) -> SearchView:
    """A search as it was after a decision.

    Args:
        session: To read with.
        followed: What this process follows.
        experiment: Whose search.
        at: The decision; 0: the last one.
        most: Decisions to tell of.
        trials: Of each rung, the best ones: how many to tell of.

    Raises: BadRequest, if there is no such decision.
    """
    count = _count(session, experiment)
    if at > count:
        raise BadRequest(f"at: {at}: the search of experiment {experiment.id} has {count} decisions")
    metric = experiment.searcher_metric or "metric"
    begin = partial(_begun, experiment)
    with followed.after(session, experiment.id, at or count, begin, is_last=not at) as (search, numbers):
        latest = (
            select(SearchDecision.decision, SearchDecision.decided_at)
            .where(SearchDecision.experiment_id == experiment.id, SearchDecision.number <= search.count)
            .order_by(SearchDecision.number.desc())
            .limit(most)
        )
        rows = [(Decision.model_validate_json(text), time) for text, time in session.execute(latest).tuples()]
        rungs = search.search.rungs(trials)
        compared = {entry[0] for rung in rungs for entry in rung.entries}
        numbers.read(session, compared.union(*(decision.trials for decision, _ in rows)))
        name = numbers.names(session)
        return SearchView(
            count=max(count, search.count),
            at=search.count,
            metric=metric,
            workflow_id=names.experiment_workflow(experiment.id),
            sentences=search.summary.sentences(name, metric),
            rungs=[Standing(rung, search.comparisons).as_json(numbers) for rung in rungs],
            decisions=[_row(decision, time, metric, numbers, name) for decision, time in rows],
        )


def as_it_stands(session: Session, followed: FollowedSearches, experiment: Experiment) -> Search:
    """The search by its record: a copy, with which others need not wait for what is done with it."""
    count, begin = _count(session, experiment), partial(_begun, experiment)
    with followed.after(session, experiment.id, count, begin, is_last=True) as (search, _):
        return search.search.model_copy(deep=True)


def _count(session: Session, experiment: Experiment) -> int:
    """How many decisions there are: they are numbered from 1."""
    of_search = SearchDecision.experiment_id == experiment.id
    return session.scalar(select(func.max(SearchDecision.number)).where(of_search)) or 0


def _begun(experiment: Experiment) -> Search:
    return _header(experiment, {}).new_search()


def about_trial(session: Session, experiment: Experiment, trial: Trial) -> list[str]:
    """What the search decided about a trial and why, in order."""
    is_same = and_(
        SearchDecision.experiment_id == DecidedTrial.experiment_id, SearchDecision.number == DecidedTrial.number
    )
    statement = (
        select(func.coalesce(DecidedTrial.decision, SearchDecision.decision))
        .join(SearchDecision, is_same)
        .where(DecidedTrial.experiment_id == experiment.id, DecidedTrial.request_id == trial.request_id)
        .order_by(DecidedTrial.number)
    )
    whole = [Decision.model_validate_json(text) for text in session.scalars(statement)]
    decisions = [decision.parted()[trial.request_id] for decision in whole]
    numbers = Numbers(experiment.id)
    numbers.read(session, set[str]().union(*(decision.trials for decision in decisions)))
    metric = experiment.searcher_metric or "metric"
    return explain_trial(decisions, trial.request_id, numbers.names(session), metric=metric)


def _row(decision: Decision, time: datetime, metric: str, numbers: Mapping[str, int], name: TrialName) -> DecisionRow:
    trial = about(decision.event)
    return DecisionRow(
        number=decision.number,
        time=time,
        event=event_words(decision.event),
        trial_id=numbers.get(trial or ""),
        value=word(reported(decision.event, metric)),
        actions=action_words(decision, name),
        error=decision.error,
        sentences=_why(decision, name, metric),
    )


def _why(decision: Decision, name: TrialName, metric: str) -> list[str]:
    """Why, for each trial that was compared."""
    compared: Sequence[str] = list(dict.fromkeys(verdict.request_id for verdict in decision.verdicts))
    return [
        f"{name(each)}: {sentence.partition(': ')[2]}"
        for each in compared[:_MOST_COMPARED]
        for sentence in explain_trial([decision], each, name, metric=metric)
    ]


def _header(experiment: Experiment, trials: dict[str, int]) -> Header:
    return Header(
        experiment_id=experiment.id,
        name=experiment.name,
        config=config_secrets.shown(experiment.config),
        inherited=[Inherited(request_id=t["request_id"], hparams=t["hparams"]) for t in experiment.inherited],
        state=experiment.state,
        parent_id=experiment.parent_id,
        forked_at=experiment.forked_at,
        trials=trials,
    )


def _decisions(experiment_id: int) -> Select[str]:
    statement = select(SearchDecision.decision).where(SearchDecision.experiment_id == experiment_id)
    return statement.order_by(SearchDecision.number)
