"""Orders of lists: which keys sort a page."""

from __future__ import annotations

from typing import Any

import pytest

from api.queries.filters import Column, read_order
from api.queries.paging import in_order
from api.queries.table_columns import of_best_trial
from database.models import Experiment, Trial


@pytest.mark.parametrize(
    ("value", "keys"), [(Trial.id, 1), (Experiment.name, 1), (Trial.searcher_metric, 2), (of_best_trial(Trial.id), 2)]
)
@pytest.mark.parametrize("descending", [True, False])
def test_what_no_row_lacks_is_sorted_by_one_key(value: Any, keys: int, descending: bool) -> None:
    """An index has its rows in that order: a page of a million is read without the others."""
    found = in_order(value, descending=descending)
    assert len(found) == keys
    assert str(found[-1]).endswith("DESC" if descending else "ASC")


def test_nothing_is_sorted_by_behind_what_is_unique() -> None:
    keys = read_order("id=desc,id=asc", lambda _: Column("number", Trial.id), Trial.id)
    assert [str(key) for key in keys] == ["trials.id DESC"]
