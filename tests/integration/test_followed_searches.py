"""A process follows the searches that are looked at: what it shows is what the whole record says, and it reads little."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from api.queries import followed_searches, search
from api.queries.followed_searches import FollowedSearches
from api.schemas.search_views import SearchView
from database.models import Experiment, Trial, User
from database.session import Database
from database.trials import record_decisions
from tests.integration.test_sorted_trials import asked_of
from tests.kit.records import seeded
from tests.unit.searchers.search_bench import config
from workflows.searchers import (
    Close,
    Create,
    Decision,
    Event,
    OperationCompleted,
    Search,
    Started,
    Stop,
    TrainTo,
    TrialClosed,
)
from workflows.searchers.explain import explain_trial

SEARCHERS: dict[str, dict[str, Any]] = {
    "async_halving": {"name": "async_halving", "max_trials": 30, "num_rungs": 3, "divisor": 3, "max_length": 27,
                      "max_concurrent_trials": 8},
    "adaptive_asha": {"name": "adaptive_asha", "max_trials": 40, "max_length": 27, "divisor": 3, "max_rungs": 3,
                      "max_concurrent_trials": 8},
    "pbt": {"name": "pbt", "population_size": 6, "num_rounds": 8, "length_per_round": 1},
}  # fmt: skip


def decisions_of(searcher: dict[str, Any]) -> list[Decision]:
    """Those of a search whose trials answer in an order of chance."""
    draw, running = random.Random(1), Search.new(config(searcher))
    waiting: list[Event] = [Started()]
    made: list[Decision] = []
    while waiting:
        made.append(running.decide(waiting.pop(draw.randrange(len(waiting)))))
        for action in made[-1].actions:
            if isinstance(action, TrainTo):
                done = OperationCompleted(request_id=action.request_id, length=action.length, metric=draw.random())
                waiting.append(done)
            elif isinstance(action, Close | Stop):
                waiting.append(TrialClosed(request_id=action.request_id))
    return made


class Recorded:
    """An experiment whose decisions are recorded as they are asked for."""

    def __init__(self, database: Database, searcher: dict[str, Any]) -> None:
        self.database, self.decisions, self.count = database, decisions_of(searcher), 0
        with database.write() as session:
            owner = session.scalars(select(User.id).where(User.is_admin)).one()
            session.add(Experiment(
                id=1, job_id="job", name="e", state="ACTIVE", config=config(searcher).model_dump(mode="json"),
                original_config="", searcher_name=searcher["name"], searcher_metric="loss", resource_pool="default",
                owner_id=owner, project_id=1,
            ))  # fmt: skip

    def until(self, count: int) -> None:
        """So many are recorded, and their trials."""
        some, self.count = self.decisions[self.count : count], count
        created = [action.request_id for each in some for action in each.actions if isinstance(action, Create)]
        with self.database.write() as session:
            record_decisions(session, {1: some})
            session.add_all(
                Trial(experiment_id=1, request_id=each, task_id=f"1.{each}", seed=0, hparams={}, state="ACTIVE")
                for each in created
            )


def seen(session: Session, followed: FollowedSearches, at: int = 0, trials: int = 100) -> SearchView:
    return search.view(session, followed, session.get_one(Experiment, 1), at, 10, trials)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with seeded(f"sqlite:///{tmp_path / 'undeterred.db'}") as found:
        yield found


@pytest.mark.parametrize("name", SEARCHERS)
def test_whoever_looks_sees_what_the_whole_record_says(
    database: Database, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(followed_searches, "_FIRST_KEPT", 4)
    recorded, followed, draw = Recorded(database, SEARCHERS[name]), FollowedSearches(), random.Random(2)
    while recorded.count < len(recorded.decisions):
        recorded.until(min(recorded.count + draw.randrange(1, 20), len(recorded.decisions)))
        with database.read() as session:
            for at in (0, draw.randrange(1, recorded.count + 1), draw.randrange(1, recorded.count + 1)):
                assert seen(session, followed, at) == seen(session, FollowedSearches(), at)
    with database.read() as session:
        last = seen(session, followed)
    assert last.sentences[0].startswith("the search is over since decision ")
    assert (last.at, last.count) == (recorded.count, recorded.count)
    assert "request" not in str(last.sentences)
    assert last.rungs
    assert all(entry["trialId"] for rung in last.rungs for entry in rung["entries"])


@pytest.mark.parametrize("name", SEARCHERS)
def test_page_has_the_best_trials_of_each_rung(database: Database, name: str) -> None:
    recorded = Recorded(database, SEARCHERS[name])
    recorded.until(len(recorded.decisions))
    with database.read() as session:
        whole = seen(session, FollowedSearches()).rungs
        some = seen(session, FollowedSearches(), trials=3)
        none = seen(session, FollowedSearches(), trials=0)
    assert max(rung["results"] for rung in whole) > 3
    assert all(len(rung["entries"]) == rung["results"] for rung in whole)
    assert some.rungs == [rung | {"entries": rung["entries"][:3]} for rung in whole]
    assert none.rungs == [rung | {"entries": []} for rung in whole]


def test_ids_of_those_who_are_not_shown_are_not_read(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followed_searches, "_FEW", 10**6)  # each is asked for by its name
    recorded = Recorded(database, SEARCHERS["async_halving"])
    recorded.until(len(recorded.decisions))
    with database.read() as session, asked_of(session) as asked:
        seen(session, FollowedSearches(), trials=1)
    named = [parameters for statement, parameters in asked if "trials.request_id IN" in statement]
    assert named
    # the best of each rung, and those that the last ten decisions are about
    assert sum(map(len, named)) < 20


def cannot(*_: Any) -> Decision:
    raise ZeroDivisionError


def read_of(asked: list[tuple[str, Any]]) -> list[tuple[int, int]]:
    """Between which decisions a search was read on, without those that a page lists."""
    return [parameters[1:3] for statement, parameters in asked if "search_decisions.number > " in statement]


def test_only_what_is_new_is_read(database: Database) -> None:
    recorded, followed = Recorded(database, SEARCHERS["adaptive_asha"]), FollowedSearches()
    recorded.until(100)
    with database.read() as session, asked_of(session) as asked:
        seen(session, followed)
    assert read_of(asked) == [(0, 100)]
    with database.read() as session, asked_of(session) as asked:
        seen(session, followed)
        seen(session, followed, 100)
    assert read_of(asked) == []
    recorded.until(103)
    with database.read() as session, asked_of(session) as asked:
        assert seen(session, followed).at == 103
    assert read_of(asked) == [(100, 103)]


def test_a_look_at_the_past_begins_at_what_was_kept(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followed_searches, "_FIRST_KEPT", 10)
    recorded, followed = Recorded(database, SEARCHERS["adaptive_asha"]), FollowedSearches()
    recorded.until(79)
    with database.read() as session, asked_of(session) as asked:
        seen(session, followed)
        before = len(read_of(asked))
        for at in (57, 58, 43):
            assert seen(session, followed, at).at == at
    assert before == 8
    assert read_of(asked)[before:] == [(50, 57), (57, 58), (40, 43)]
    recorded.until(100)
    with database.read() as session, asked_of(session) as asked:
        seen(session, followed)
        seen(session, followed, 39)
    assert read_of(asked)[-1] == (20, 39), "of more than eight each second one is kept"


def test_what_fails_is_begun_anew(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded, followed = Recorded(database, SEARCHERS["adaptive_asha"]), FollowedSearches()
    recorded.until(20)
    with database.read() as session:
        seen(session, followed)
    recorded.until(30)
    with monkeypatch.context() as patch, database.read() as session:
        patch.setattr(Search, "decide", cannot)
        with pytest.raises(ZeroDivisionError):
            seen(session, followed)
    with database.read() as session:
        assert seen(session, followed) == seen(session, FollowedSearches())


@pytest.mark.parametrize("bound", [{"_MOST": 1}, {"_MOST_DECISIONS": 20}])
def test_few_searches_are_followed_at_once(
    database: Database, monkeypatch: pytest.MonkeyPatch, bound: dict[str, int]
) -> None:
    for name, value in bound.items():
        monkeypatch.setattr(followed_searches, name, value)
    recorded, followed = Recorded(database, SEARCHERS["adaptive_asha"]), FollowedSearches()
    recorded.until(21)
    with database.read() as session, asked_of(session) as asked:
        seen(session, followed)
        seen(session, followed)
        with followed.after(session, 2, 1, lambda: Search.new(config(SEARCHERS["pbt"]))) as (other, _):
            assert other.count == 0
        seen(session, followed)
    assert read_of(asked) == [(0, 21), (0, 1), (0, 21)]


@pytest.mark.parametrize("name", SEARCHERS)
def test_what_is_told_of_a_trial_is_what_the_whole_record_says_of_it(database: Database, name: str) -> None:
    recorded = Recorded(database, SEARCHERS[name])
    recorded.until(len(recorded.decisions))
    with database.read() as session:
        found = {trial.request_id: trial for trial in session.scalars(select(Trial))}
        called = {request_id: f"trial {trial.id}" for request_id, trial in found.items()}
        for request_id, trial in found.items():
            told = search.about_trial(session, session.get_one(Experiment, 1), trial)
            assert told == explain_trial(recorded.decisions, request_id, called.__getitem__, metric="loss")
            assert told
