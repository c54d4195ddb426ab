"""Hyperparameters of trials against a metric: as columns, and how much each of them explains."""

from __future__ import annotations

import math
import uuid
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import insert

from database.models import Trial
from tests.integration.api.served import Caller, Served

PATH = "/api/v1/undeterred/experiments/{}/hyperparameters"


async def searched(
    api: Served, user: Caller, rows: Sequence[tuple[dict[str, Any], float | None]], *, other: Any = None, **config: Any
) -> int:
    """An experiment whose trials have these hyperparameters and these values of the searcher's metric."""
    number = await api.experiment(user, **config)
    summary = {} if other is None else {"training": {"speed": {"type": "number", "last": other}}}
    trials = [
        {"experiment_id": number, "request_id": str(uuid.uuid4()), "task_id": f"{number}.{i}", "seed": 1, "hparams": hparams,
         "state": "COMPLETED", "searcher_metric": value, "summary": summary}
        for i, (hparams, value) in enumerate(rows)
    ]  # fmt: skip
    with api.database.write() as session:
        session.execute(insert(Trial), trials)
    return number


async def test_columns_have_what_differs_of_trials_with_the_metric(api: Served) -> None:
    user = api.user()
    rows = [
        ({"lr": 0.1, "same": 1, "net": {"depth": 2, "kind": "a"}, "sizes": [1, 2]}, 0.5),
        ({"lr": 0.2, "same": 1, "net": {"depth": 2, "kind": "b"}, "sizes": [1]}, 0.25),
        ({"lr": 0.3, "same": 1}, None),
        ({"lr": 0.4, "same": 1}, math.inf),
    ]
    found = await user.get(PATH.format(await searched(api, user, rows)))
    assert (found["metric"], found["total"], found["values"]) == ("validation.loss", 4, [0.5, 0.25])
    assert found["hyperparameters"] == {"lr": [0.1, 0.2], "net.kind": ["a", "b"], "sizes": [[1, 2], [1]]}
    assert found["trialIds"] == sorted(found["trialIds"])


async def test_columns_of_another_metric_have_its_last_value(api: Served) -> None:
    user = api.user()
    rows = [({"x": n}, None) for n in range(3)]
    for last, values in ((2.5, [2.5] * 3), ("NaN", []), ("Infinity", [])):
        number = await searched(api, user, rows, other=last)
        assert (await user.get(PATH.format(number), metric="training.speed"))["values"] == values
        assert (await user.get(PATH.format(number), metric="training.nothing"))["values"] == []
        assert (await user.get(PATH.format(number)))["values"] == []


async def test_columns_of_many_trials_are_spread_over_all_of_them(api: Served) -> None:
    user = api.user()
    number = await searched(api, user, [({"x": n}, float(n)) for n in range(1000)])
    found = await user.get(PATH.format(number), most=10)
    assert found["hyperparameters"]["x"] == [0, 111, 222, 333, 444, 555, 666, 777, 888, 999]
    assert found["total"] == 1000
    assert len((await user.get(PATH.format(number)))["values"]) == 1000


@pytest.mark.parametrize("metric", ["loss", "validation.", 'a."b', '".b', "a." + "x" * 501, "a.\n", ".x"])
async def test_wrong_name_of_a_metric_is_refused(api: Served, metric: str) -> None:
    user = api.user()
    number = await searched(api, user, [({"x": 1}, 1.0)])
    assert "metric" in await user.refused(400, "GET", PATH.format(number), params={"metric": metric})
    for most in (0, 10_001):
        assert "most" in await user.refused(400, "GET", PATH.format(number), params={"most": most})
