"""Answers from recorded decisions, in sentences."""

from typing import Any

from search_bench import config

from workflows.searchers import (
    Amended,
    Ask,
    Create,
    Decision,
    Event,
    ExitReason,
    OperationCompleted,
    OperationsPosted,
    Outcome,
    Search,
    Started,
    Suggested,
    TrainTo,
    TrialClosed,
    TrialExitedEarly,
    ValidationReported,
    Verdict,
    explain_search,
    explain_trial,
)


class Story:
    """A search, its record, and what is said about it; trials are numbered from 1."""

    def __init__(self, **searcher: Any) -> None:
        self.search = Search.new(config(searcher))
        self.ids: list[str] = []
        self.decisions: list[Decision] = []
        self.send(Started())

    def send(self, event: Event) -> None:
        self.decisions.append(self.search.decide(event))
        self.ids += [action.request_id for action in self.decisions[-1].actions if isinstance(action, Create)]

    def complete(self, number: int, metric: Any) -> None:
        request_id = self.ids[number - 1]
        length = self.search.trial(request_id).length
        assert length is not None
        self.send(OperationCompleted(request_id=request_id, length=length, metric=metric))

    def report(self, number: int, metric: Any, time: int) -> None:
        self.send(ValidationReported(request_id=self.ids[number - 1], metrics={"loss": metric, "t": time}))

    def exit(self, number: int, reason: str | None = None) -> None:
        if reason is not None:
            self.send(TrialExitedEarly(request_id=self.ids[number - 1], reason=ExitReason(reason)))
        self.send(TrialClosed(request_id=self.ids[number - 1]))

    def name(self, request_id: str) -> str:
        return f"trial {self.ids.index(request_id) + 1}"

    def of(self, number: int) -> list[str]:
        id_ = self.ids[number - 1]
        said = explain_trial(self.decisions, id_, self.name, metric="loss")
        parts = [decision.parted()[id_] for decision in self.decisions if id_ in decision.trials]
        assert explain_trial(parts, id_, self.name, metric="loss") == said, "of long decisions, parts are kept"
        return said

    def whole(self) -> list[str]:
        return explain_search(self.decisions, self.name, metric="loss")


ASHA = {"name": "async_halving", "num_rungs": 2, "divisor": 2, "max_trials": 4, "max_concurrent_trials": 2}


def test_stopping_tells_place_threshold_and_outcome() -> None:
    story = Story(**ASHA, max_time=62, time_metric="t")
    story.report(1, 0.95123456, 31)
    story.report(2, 0.97, 40)
    story.exit(2)
    story.report(1, 0.5, 62)
    assert story.of(1) == [
        "decision 1: created: the search began",
        "decision 2: reached rung 0 of bracket 0 (length 31) with loss 0.9512: place 1 of 1, only the best goes on "
        "(threshold 0.9512): goes on",
        "decision 5: reached rung 1 of bracket 0 (length 62) with loss 0.5: place 1 of 1: finished: this is the top",
    ]
    assert story.of(2) == [
        "decision 1: created: the search began",
        "decision 3: reached rung 0 of bracket 0 (length 31) with loss 0.97: place 2 of 2, only the best goes on "
        "(threshold 0.9512): stopped",
        "decision 4: ended",
    ]
    assert story.of(3) == ["decision 3: created: trial 2 was stopped, which freed a place"]


def test_promotion_tells_who_waits_who_is_promoted_and_why_a_loser_is_closed() -> None:
    story = Story(**ASHA, max_length=40)
    for number, metric in ((1, 0.1), (2, 0.2), (3, 0.3), (1, 0.1), (4, "NaN")):
        story.complete(number, metric)
    assert story.of(1)[1:3] == [
        "decision 2: reached rung 0 of bracket 0 (length 20) with loss 0.1: place 1 of 1, none of so few goes on yet: "
        "waits for further results",
        "decision 3: stands in rung 0 of bracket 0 (length 20) with loss 0.1: place 1 of 2, only the best goes on "
        "(threshold 0.1): promoted because of the result of trial 2, trains to 40",
    ]
    assert story.of(3)[0] == "decision 2: created: trial 1 trained to 20, which freed a place, trains to 20"
    assert story.of(3)[-1] == (
        "decision 6: stands in rung 0 of bracket 0 (length 20) with loss 0.3: place 3 of 4, the best 2 go on "
        "(threshold 0.2): stopped, as no result after that of trial 4 can change this"
    )
    assert story.of(4)[-1] == (
        "decision 6: reached rung 0 of bracket 0 (length 20) with loss NaN: place 4 of 4, the best 2 go on "
        "(threshold 0.2): stopped"
    )
    assert story.whole() == [
        "waits for the result of trial 2 at 40, the end of trial 1, the end of trial 3, the end of trial 4",
        "decided last (decision 6): trial 4 trained to 20 (loss NaN): trial 2 trains to 40, trial 3 closed, "
        "trial 4 closed",
        "bracket 0, rung 0 (length 20): 4 results, 2 promoted, 2 stopped, the best 2 go on (threshold 0.2)",
        "bracket 0, rung 1 (length 40): 1 result, 1 finished",
    ]


def test_failures_are_told_apart() -> None:
    story = Story(**ASHA, max_length=40)
    story.complete(1, 0.1)
    story.exit(1, "errored")
    story.exit(2, "invalid_hp")
    story.complete(3, 0.3)
    story.exit(4)
    assert story.of(1)[2:] == [
        "decision 3: ended early (errored)",
        "decision 4: ended",
        "decision 7: stands in rung 0 of bracket 0 (length 20) with loss 0.1: place 1 of 2, only the best goes on "
        "(threshold 0.1): promoted because of the result of trial 3",
        "decision 7: was to go on, but had failed before: counts as the worst of 1 result in rung 1 of bracket 0 "
        "(length 40)",
    ]
    assert story.of(2)[1] == (
        "decision 5: its hyperparameters turned out to be invalid on the way to rung 0 of bracket 0 (length 20): "
        "it does not count"
    )
    assert story.of(4)[0] == (
        "decision 5: created: in place of trial 2, whose hyperparameters are invalid, trains to 20"
    )
    assert "ended by itself: counts as the worst of 3 results" in story.of(4)[-1]


def test_trials_of_other_methods() -> None:
    story = Story(name="random", max_trials=2, max_concurrent_trials=1, max_length=5)
    story.send(Amended(max_concurrent_trials=2, max_length=9, hyperparameters={"lr": 0.5}))
    story.complete(1, 0.123456)
    story.exit(2, "errored")
    assert story.of(1) == [
        "decision 1: created: the search began, trains to 5",
        "decision 3: trained to 5 with loss 0.1235, trains to 9",
    ]
    assert story.of(2) == [
        "decision 2: created: the search was edited (max_concurrent_trials 2, max_length 9, a narrower space), "
        "trains to 9",
        "decision 4: ended early (errored)",
        "decision 5: ended",
    ]
    assert story.whole()[0] == "waits for the result of trial 1 at 9"
    story.complete(1, 0.1)
    assert story.of(1)[-1] == "decision 6: trained to 9 with loss 0.1"
    story.exit(1)
    assert story.whole() == [
        "the search is over since decision 7: completed",
        "decided last (decision 7): trial 1 ended: the search is over",
    ]


def test_long_lists_are_cut_and_errors_are_told() -> None:
    story = Story(name="random", max_trials=12, max_concurrent_trials=0)
    event = TrialClosed(request_id="nobody")
    story.decisions.append(story.search.fail(event, "nobody is no trial"))
    first, last, error = story.whole()
    assert first.endswith("the result of trial 10 and 2 more")
    assert last.endswith("trial 10 created and 2 more")
    assert error == "decision 2 could not be made: nobody is no trial"
    assert explain_search([], story.name) == ["nothing has been decided yet"]


def test_points_of_samplers_programs_and_copies() -> None:
    create = Create(request_id="b", trial_seed=1, hparams={})
    copy = create.model_copy(update={"parent": "a"})
    forked = create.model_copy(update={"inherits": "x"})
    warm = create.model_copy(update={"checkpoint": "c"})
    replaced = Verdict(
        request_id="a", outcome=Outcome.REPLACED, bracket=0, rung=1, length=20, metric=0.3, place=4, results=4, keep=3,
        threshold=0.2, because_of="b",
    )  # fmt: skip
    done = OperationCompleted(request_id="a", length=20, metric=0.3)
    decisions = [
        Decision(number=1, event=Started(), actions=[Ask(number=1)]),
        Decision(number=2, event=Suggested(number=1, hparams={}), actions=[create]),
        Decision(number=3, event=done, actions=[copy], verdicts=[replaced]),
        Decision(number=4, event=OperationsPosted(triggered_by=1, operations=[]), actions=[warm]),
        Decision(number=5, event=Started(), actions=[forked, TrainTo(request_id="b", length=5)]),
    ]
    assert explain_trial(decisions, "b", str.upper) == [
        "decision 2: created: the sampler chose its point (question 1)",
        "decision 3: created: a copy of A with changed hyperparameters",
        "decision 4: created: the program of the custom search asked for it, from the checkpoint c",
        "decision 5: created: the search began, with the results of a trial of the forked experiment, trains to 5",
    ]
    assert explain_trial(decisions, "a", str.upper) == [
        "decision 3: reached rung 1 of bracket 0 (length 20) with metric 0.3: place 4 of 4, the best 3 go on "
        "(threshold 0.2): replaced by a copy of B"
    ]
    assert explain_search(decisions[:1], str.upper) == [
        "waits for the sampler's answer",
        "decided last (decision 1): the search began: question 1 to the sampler",
    ]
