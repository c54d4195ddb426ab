"""Objects and lists of them as tables."""

from __future__ import annotations

import datetime
import sys
from typing import Any

import pytest

from determined.common.api import Session
from determined.common.experimental._rows import Rows, moment
from determined.experimental import client


def trial(trial_id: int, **changes: Any) -> client.Trial:
    body = {"id": trial_id, "experimentId": 3, "state": "STATE_COMPLETED", "hparams": {"lr": 0.1}, **changes}
    return client.Trial.from_wire(Session("http://127.0.0.1:1"), body)


def test_a_list_is_a_table_of_its_items() -> None:
    rows = Rows([trial(1), trial(2, hparams={"depth": 3})])
    frame = rows.to_dataframe()
    assert list(frame["trial_id"]) == [1, 2]
    assert frame["hparams.lr"].isna().tolist() == [False, True]
    assert frame["hparams.depth"].tolist()[1] == 3
    assert Rows[client.Trial]().to_dataframe().empty
    assert isinstance(rows, list)


def test_to_dataframe_says_what_to_install_when_pandas_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"pip install 'undeterred-harness\[dataframe\]'"):
        Rows([trial(1)]).to_dataframe()


def test_notebooks_show_tables_in_which_nothing_is_markup() -> None:
    evil = trial(1, hparams={"<b>": "<script>alert(1)</script>"}, startTime="2026-01-01T00:00:00.123456789Z")
    for shown in (evil._repr_html_(), Rows([evil])._repr_html_()):
        assert "<script>" not in shown
        assert "&lt;script&gt;" in shown
        assert "2026-01-01 00:00:00+00:00" in shown
    assert "<caption>Trial</caption>" in evil._repr_html_()
    many = Rows([trial(n) for n in range(130)])._repr_html_()
    assert many.count("<tr>") == 101
    assert "… and 30 more" in many


@pytest.mark.parametrize(
    ("text", "microsecond"),
    [
        ("2026-01-01T00:00:00Z", 0),
        ("2026-01-01T00:00:00.5Z", 500_000),
        ("2026-01-01T00:00:00.123456789Z", 123_456),
        ("2026-01-01T01:00:00+01:00", 0),
    ],
)
def test_times_of_the_wire_are_read(text: str, microsecond: int) -> None:
    expected = datetime.datetime(2026, 1, 1, 0, 0, 0, microsecond, datetime.timezone.utc)
    assert moment(text) == expected
    assert moment(None) is moment("") is None


def test_metrics_know_their_kind() -> None:
    report = client.ValidationMetrics(
        total_batches=3, trial_id=1, trial_run_id=1, end_time=None, metrics={"accuracy": 0.5}
    )
    assert (report.steps_completed, report.total_batches, report.group) == (3, 3, "validation")
    assert report.row()["accuracy"] == 0.5
    assert client.TrainingMetrics(1, trial_id=1, trial_run_id=1, end_time=None, metrics={}).group == "training"
