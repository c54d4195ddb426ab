"""Trials that the writer of reports knows: only so many, and only as they are in the database."""

from __future__ import annotations

from typing import Any

import pytest

from api.ingest import metric_store
from api.ingest.metric_store import TrialRow, _Known


def trial(trial_id: int, *, names: int = 1) -> TrialRow:
    summary: dict[str, Any] = {"training": {f"m{number}": {} for number in range(names)}}
    return TrialRow(
        id=trial_id, experiment_id=1, request_id="r", run_id=1, metrics_run_id=1, total_batches=0,
        best_validation_id=None, latest_validation_id=None, searcher_metric=None, latest_metric=None,
        metric_name="loss", smaller_is_better=True, wants_validations=False, time_metric=None, open_length=None,
        allocation_id=None, version="1", summary=summary, sealed={}, is_changed=True,
    )  # fmt: skip


def test_trials_are_had_once_and_only_together() -> None:
    known = _Known()
    known.keep([trial(1), trial(2)])
    assert known.take([1, 3]) is None
    taken = known.take([1, 2])
    assert taken is not None
    assert sorted(taken) == [1, 2]
    assert not any(each.is_changed for each in taken.values())
    assert known.take([1]) is None, "whatever is done with it may fail"


def test_those_of_the_latest_reports_are_kept_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metric_store, "_MOST_KNOWN", 3)
    monkeypatch.setattr(metric_store, "_MOST_NAMES", 100)
    known = _Known()
    known.keep(map(trial, (1, 2, 3)))
    known.keep([trial(1)])
    known.keep([trial(4)])
    assert [number for number in (1, 2, 3, 4) if number in known._trials] == [1, 3, 4]
    known.keep([trial(5, names=99)])
    assert list(known._trials) == [4, 5]
    known.keep([trial(6, names=101)])
    assert list(known._trials) == []
    for number in (7, 8):
        known.keep([trial(number, names=100)])
    assert list(known._trials) == [8], "what was dropped counts no more"
    known.forget(8)
    known.keep([trial(9, names=100)])
    known.clear()
    known.keep([trial(10, names=100)])
    assert list(known._trials) == [10]
