"""A search again from its record, and the file in which it travels."""

import json
from typing import Any

import pytest
from search_bench import config

from workflows.searchers import (
    Create,
    Decision,
    Inherited,
    OperationCompleted,
    Search,
    SearchError,
    Started,
    TrainTo,
    TrialClosed,
)
from workflows.searchers.replay import ExportError, Header, dump_lines, parse_lines, replay

ASHA = {"name": "async_halving", "num_rungs": 2, "divisor": 2, "max_trials": 4, "max_length": 10}


def header(searcher: dict[str, Any], **more: Any) -> Header:
    fields = config(searcher).model_dump(mode="json")
    return Header(experiment_id=3, name="try", config=fields, **more)


def record(head: Header) -> tuple[Search, list[Decision]]:
    """A whole search, with an event that it refuses and one that it fails at."""
    search = head.new_search()
    decisions = [search.decide(Started())]
    for place in range(1, 100):
        actions = [action for decision in decisions for action in decision.actions]
        if place > len(actions) or search.shutdown is not None:
            break
        action = actions[place - 1]
        if isinstance(action, TrainTo):
            metric = float("nan") if place == 4 else 1 / place
            decisions.append(
                search.decide(OperationCompleted(request_id=action.request_id, length=action.length, metric=metric))
            )
        elif not isinstance(action, Create):
            decisions.append(search.decide(TrialClosed(request_id=getattr(action, "request_id", ""))))
    return search, decisions


def test_replay_derives_the_same_bytes_and_ends_where_the_search_was() -> None:
    head = header(ASHA)
    search, decisions = record(head)
    assert search.shutdown is not None
    again = head.new_search()
    assert replay(again, decisions) is None
    assert again.model_dump_json() == search.model_dump_json()


def test_replay_names_the_first_difference_with_both_sides() -> None:
    head = header(ASHA)
    _, decisions = record(head)
    changed = [
        *decisions[:2],
        decisions[2].model_copy(update={"actions": []}),
        decisions[3].model_copy(update={"error": "x"}),
    ]
    difference = replay(head.new_search(), changed)
    assert difference is not None
    assert (difference.number, difference.recorded, difference.derived) == (3, changed[2], decisions[2])
    lines = str(difference).splitlines()
    assert lines[0] == "decision 3 differs:"
    assert json.loads(lines[1].removeprefix("recorded: ")) == json.loads(changed[2].canonical())
    assert json.loads(lines[2].removeprefix("derived:  ")) == json.loads(decisions[2].canonical())


def test_an_error_is_derived_as_it_was_recorded() -> None:
    head = header(ASHA)
    search = head.new_search()
    decisions = [search.decide(Started())]
    event = TrialClosed(request_id="nobody")
    with pytest.raises(SearchError) as refusal:
        search.decide(event)
    decisions.append(search.fail(event, str(refusal.value)))
    assert replay(head.new_search(), decisions) is None
    decisions[1] = decisions[1].model_copy(update={"error": "something else"})
    difference = replay(head.new_search(), decisions)
    assert difference is not None
    assert "nobody" in difference.derived.error


def test_a_missing_decision_is_a_difference() -> None:
    head = header(ASHA)
    _, decisions = record(head)
    assert replay(head.new_search(), [decisions[0], *decisions[2:]]) is not None


def test_an_export_makes_a_round_trip() -> None:
    head = header(ASHA, inherited=[Inherited(request_id="a", hparams={"lr": 0.5})], lends=False)
    _, decisions = record(head)
    lines = list(dump_lines(head, decisions))
    assert all("\n" not in line for line in lines)
    export = parse_lines(f"{line}\n" for line in [*lines, ""])
    assert export.header == head
    assert [decision.canonical() for decision in export.decisions] == [decision.canonical() for decision in decisions]
    assert list(dump_lines(export.header, export.decisions)) == lines
    assert replay(export.header.new_search(), export.decisions) is None
    first = export.decisions[0].actions[0]
    assert isinstance(first, Create)
    assert (first.inherits, first.hparams) == ("a", {"lr": 0.5})


HEADER = header({"name": "single"}).model_dump_json()
DECISION = '{"number":1,"event":{"kind":"started"},"actions":[],"verdicts":[],"error":""}'


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ([], "line 1: expected the header of an exported search"),
        (["so what"], "line 1: expected the header of an exported search"),
        (["[]"], "line 1: expected the header of an exported search"),
        (['{"format": "else"}'], 'line 1: expected the header of an exported search, a JSON object with "format"'),
        (['{"format": "undeterred-search", "version": 2}'], "line 1: expected version 1 of the format, but it is version 2"),
        (['{"format": "undeterred-search", "version": 1}'], "line 1: expected the header of an exported search, but experiment_id: Field required"),
        ([HEADER, "{"], "line 2: expected a decision, but Invalid JSON"),
        ([HEADER, DECISION, "", DECISION], "line 4: expected decision 2, but it is decision 1"),
        ([HEADER, DECISION.replace("started", "begun")], "line 2: expected a decision, but event: Input tag 'begun'"),
    ],
)  # fmt: skip
def test_what_is_no_export_is_named_by_line(lines: list[str], sentence: str) -> None:
    with pytest.raises(ExportError) as refusal:
        parse_lines(lines)
    assert str(refusal.value).startswith(sentence)
    assert str(refusal.value).startswith(f"line {refusal.value.line}:")


def test_a_config_that_is_none_is_named() -> None:
    head = header(ASHA).model_copy(update={"config": {"name": "x"}})
    with pytest.raises(ExportError, match="line 1: expected the config of an experiment, but"):
        head.new_search()
