"""Narrowing a search space: what is a part of it, and what is said of the rest."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from search_bench import config

from workflows.config import Hyperparameters
from workflows.searchers import MT19937, SearchError
from workflows.searchers.narrowing import contains, narrowed
from workflows.searchers.space import sample

WRITTEN: dict[str, Any] = {
    "n": {"type": "int", "minval": 1, "maxval": 10, "count": 3},
    "x": {"type": "double", "minval": 0.1, "maxval": 0.5},
    "lr": {"type": "log", "base": 10, "minval": -4, "maxval": -1},
    "opt": {"type": "categorical", "vals": ["sgd", "adam", 1, None, [2]]},
    "k": 7,
    "net": {"depth": {"type": "int", "minval": 1, "maxval": 4}, "empty": {}},
}


def space(written: dict[str, Any]) -> Hyperparameters:
    return config({"name": "random", "max_trials": 1}, written).hyperparameters


def narrow(**changes: Any) -> Hyperparameters:
    return narrowed(space(WRITTEN), {**WRITTEN, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"n": {"type": "int", "minval": 2, "maxval": 9}},
        {"n": 10},
        {"n": {"type": "const", "val": 1}},
        {"x": {"type": "double", "minval": 0.1, "maxval": 0.2}},
        {"x": 0.5},
        {"lr": {"type": "log", "base": 10, "minval": -3, "maxval": -2}},
        {"lr": 0.0001},
        {"lr": 0.1},
        {"opt": {"type": "categorical", "vals": ["adam", [2]]}},
        {"opt": "sgd"},
        {"opt": None},
        {"k": 7},
        {"net": {"depth": 3, "empty": {}}},
    ],
)
def test_a_part_of_the_space_is_taken(changes: dict[str, Any]) -> None:
    inner = narrow(**changes)
    expected = {**WRITTEN, **changes}
    if isinstance(expected["n"], dict) and expected["n"]["type"] == "int":
        expected["n"] = {**expected["n"], "count": 3}  # what is not said again stays
    assert inner == space(expected)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"n": {"type": "int", "minval": 0, "maxval": 9}}, "<config>.hyperparameters.n.minval: must be >= 1 but found 0"),
        ({"n": {"type": "int", "minval": 2, "maxval": 11}}, "<config>.hyperparameters.n.maxval: must be <= 10 but found 11"),
        ({"n": {"type": "int", "minval": 2, "maxval": 9, "count": 4}}, "<config>.hyperparameters.n.count: must stay 3"),
        ({"n": 11}, "<config>.hyperparameters.n: 11 is not a whole number from 1 to 10"),
        ({"n": 1.5}, "<config>.hyperparameters.n: 1.5 is not a whole number"),
        ({"n": True}, "<config>.hyperparameters.n: true is not a whole number"),
        ({"n": {"type": "double", "minval": 2, "maxval": 3}}, "must stay of type int or become one value, but is of type double"),
        ({"x": {"type": "double", "minval": 0, "maxval": 0.2}}, "<config>.hyperparameters.x.minval: must be >= 0.1 but found 0"),
        ({"x": "a"}, '<config>.hyperparameters.x: "a" is not a number from 0.1 to 0.5'),
        ({"lr": {"type": "log", "base": 2, "minval": -3, "maxval": -2}}, "<config>.hyperparameters.lr.base: must stay 10"),
        ({"lr": {"type": "log", "base": 10, "minval": -5, "maxval": -2}}, "<config>.hyperparameters.lr.minval: must be >= -4"),
        ({"lr": 0.2}, "<config>.hyperparameters.lr: 0.2 is not 10 to a power from -4 to -1"),
        ({"opt": {"type": "categorical", "vals": ["adam", "lamb"]}}, '<config>.hyperparameters.opt.vals[1]: "lamb" is not one of'),
        ({"opt": True}, "<config>.hyperparameters.opt: true is not one of"),
        ({"k": 8}, "<config>.hyperparameters.k: 8 is not the constant 7"),
        ({"k": {"type": "int", "minval": 6, "maxval": 8}}, "must stay of type const or become one value, but is of type int"),
        ({"net": {"depth": 5, "empty": {}}}, "<config>.hyperparameters.net.depth: 5 is not"),
        ({"net": {"depth": 3}}, '<config>.hyperparameters.net: "empty" is missing'),
        ({"net": 3}, "<config>.hyperparameters.net: must stay a map"),
        ({"k": {"a": 1}}, "<config>.hyperparameters.k: must stay a const"),
        ({"new": 3}, "<config>.hyperparameters.new: is not one of the hyperparameters there are"),
        ({"n": {"type": "int", "minval": 9, "maxval": 2}}, "<config>.hyperparameters.n: minval must be less than maxval"),
        ({"n": {"type": "int", "minval": 2}}, '<config>.hyperparameters.n: missing properties: "maxval"'),
        ({"n": {"type": "whole", "val": 2}}, "<config>.hyperparameters.n: if a hyperparameter object"),
    ],
)  # fmt: skip
def test_anything_else_is_refused_by_place(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SearchError) as refusal:
        narrow(**changes)
    assert sentence in str(refusal.value)


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(SearchError) as refusal:
        narrow(n=11, x=7)
    assert len(str(refusal.value).splitlines()) == 2
    with pytest.raises(SearchError, match='"n" is missing'):
        narrowed(space(WRITTEN), {name: value for name, value in WRITTEN.items() if name != "n"})


@given(seed=st.integers(0, 2**32 - 1))
def test_a_space_contains_what_is_drawn_from_it(seed: int) -> None:
    point = sample(space(WRITTEN), MT19937.seeded(seed))
    assert contains(space(WRITTEN), point)
    assert not contains(space({**WRITTEN, "k": 8}), point)


@pytest.mark.parametrize(
    "changes",
    [
        {"n": 0},
        {"n": "1"},
        {"x": float("nan")},
        {"lr": 1.0},
        {"opt": "lamb"},
        {"k": 8},
        {"net": 1},
        {"net": {}},
        {"more": 1},
    ],
)
def test_a_space_does_not_contain_what_is_outside(changes: dict[str, Any]) -> None:
    point = sample(space(WRITTEN), MT19937.seeded(3))
    assert not contains(space(WRITTEN), {**point, **changes})
