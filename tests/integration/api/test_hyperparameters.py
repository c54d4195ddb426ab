"""Hyperparameters of trials against a metric: as columns, and how much each of them explains."""

from __future__ import annotations

import asyncio
import math
import random
import subprocess
import sys
import threading
import uuid
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import insert, update

from api.services import importance, importance_model
from database.models import Trial
from database.trials import count_trials
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
        count_trials(session, number, len(trials))
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


async def test_columns_of_named_trials_have_also_those_without_the_metric(api: Served) -> None:
    user = api.user()
    number = await searched(api, user, [({"x": n}, None if n == 1 else float(n)) for n in range(4)])
    other = await searched(api, user, [({"x": 9}, 9.0)])
    ids = [each["id"] for each in (await user.get(f"/api/v1/experiments/{number}/trials"))["trials"]]
    foreign = [each["id"] for each in (await user.get(f"/api/v1/experiments/{other}/trials"))["trials"]]
    found = await user.get(PATH.format(number), trialIds=[ids[1], ids[0], *foreign])
    assert (found["trialIds"], found["total"]) == (ids[:2], 4)
    assert (found["values"], found["hyperparameters"]) == ([0.0, "NaN"], {"x": [0, 1]})
    too_many = list(range(1, 202))
    assert "trialIds: 201" in await user.refused(400, "GET", PATH.format(number), params={"trialIds": too_many})


@pytest.mark.parametrize("metric", ["loss", "validation.", 'a."b', '".b', "a." + "x" * 501, "a.\n", ".x"])
async def test_wrong_name_of_a_metric_is_refused(api: Served, metric: str) -> None:
    user = api.user()
    number = await searched(api, user, [({"x": 1}, 1.0)])
    assert "metric" in await user.refused(400, "GET", PATH.format(number), params={"metric": metric})
    for most in (0, 10_001):
        assert "most" in await user.refused(400, "GET", PATH.format(number), params={"most": most})


# -- how much each of them explains --------------------------------------------------------------------------------

IMPORTANCE = "/api/v1/undeterred/experiments/{}/importance"
SPACE = {
    "lr": {"type": "log", "base": 10, "minval": -5, "maxval": -1},
    "net": {"kind": {"type": "categorical", "vals": ["a", "b", "c"]}},
    "idle": {"type": "double", "minval": 0, "maxval": 1},
}


def random_rows(count: int, noise: float) -> list[tuple[dict[str, Any], float | None]]:
    """Trials of which the learning rate decides most, the kind some, and `idle` nothing; one of them diverged."""
    draw = random.Random(1)
    rows: list[tuple[dict[str, Any], float | None]] = []
    for _ in range(count):
        lr, kind = 10 ** draw.uniform(-5, -1), draw.choice("abc")
        value = (math.log10(lr) + 4) ** 2 + (kind == "b") + noise * draw.gauss(0, 1)
        rows.append(({"lr": lr, "net": {"kind": kind}, "idle": draw.random()}, value))
    rows[3] = (rows[3][0], 1e30)
    return rows


async def test_hyperparameters_are_ordered_by_what_they_explain(api: Served) -> None:
    user = api.user()
    number = await searched(api, user, random_rows(200, 0.1), hyperparameters=SPACE)
    found = await user.get(IMPORTANCE.format(number))
    assert (found["metric"], found["trials"], found["total"], found["reason"]) == ("validation.loss", 200, 200, "")
    assert 0.8 < found["r2"] <= 1
    assert [each["name"] for each in found["hyperparameters"]] == ["lr", "net.kind", "idle"]
    shares = [each["importance"] for each in found["hyperparameters"]]
    assert shares[0] > 0.6
    assert 0.01 < shares[1] < 0.4
    assert abs(shares[2]) < 0.01
    assert all(0 <= each["spread"] < 0.1 for each in found["hyperparameters"])
    same = await searched(api, user, random_rows(200, 0.1), hyperparameters=SPACE)
    assert (await user.get(IMPORTANCE.format(same)))["hyperparameters"] == found["hyperparameters"], (
        "as numbers are seeded"
    )


async def test_noise_is_said_to_be_explained_by_nothing(api: Served) -> None:
    user = api.user()
    draw = random.Random(2)
    rows = [({"x": draw.random(), "y": draw.random()}, draw.random()) for _ in range(100)]
    found = await user.get(IMPORTANCE.format(await searched(api, user, rows)))
    assert found["r2"] < 0.1
    assert found["trials"] == 100


async def test_there_is_a_reason_when_there_is_no_importance(api: Served) -> None:
    user = api.user()
    few = await searched(api, user, [({"x": n}, float(n)) for n in range(7)])
    same = await searched(api, user, [({"x": 1}, float(n)) for n in range(8)])
    flat = await searched(api, user, [({"x": n}, 1.0) for n in range(8)])
    for number, reason in (
        (few, "7 trials have the metric: at least 8"),
        (same, "the same hyperparameters"),
        (flat, "same value"),
    ):
        found = await user.get(IMPORTANCE.format(number))
        assert reason in found["reason"]
        assert (found["r2"], found["hyperparameters"]) == (None, [])


async def test_of_many_trials_2000_are_looked_at(api: Served) -> None:
    user = api.user()
    rows = [({"x": n % 7, "some": None if n % 3 else n % 5}, float(n % 7)) for n in range(2500)]
    found = await user.get(IMPORTANCE.format(await searched(api, user, rows)))
    assert (found["trials"], found["total"]) == (2000, 2500)
    assert found["hyperparameters"][0]["name"] == "x"
    assert found["r2"] > 0.9


async def test_importance_is_computed_again_when_the_experiment_has_changed(
    api: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = api.user()
    number = await searched(api, user, random_rows(20, 0.1))
    calls = 0
    real = importance_model.explained

    def counted(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        return real(*arguments)

    monkeypatch.setattr(importance_model, "explained", counted)
    both = await asyncio.gather(*(user.get(IMPORTANCE.format(number)) for _ in range(4)))
    assert calls == 1, "who asks meanwhile waits for the same result"
    assert both[0] == both[3]
    with api.database.write() as session:
        session.execute(update(Trial).where(Trial.experiment_id == number).values(total_batches=5))
    await user.get(IMPORTANCE.format(number))
    assert calls == 1, "it is young enough"
    monkeypatch.setattr(importance, "_FRESH_S", 0.0)
    await user.get(IMPORTANCE.format(number))
    await user.get(IMPORTANCE.format(number))
    assert calls == 2


async def test_importance_that_takes_too_long_is_refused_and_kept(api: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    user = api.user()
    number = await searched(api, user, random_rows(20, 0.1))
    gate = threading.Event()
    real = importance_model.explained

    def held(*arguments: Any) -> Any:
        gate.wait(20)
        return real(*arguments)

    monkeypatch.setattr(importance_model, "explained", held)
    monkeypatch.setattr(importance, "_WAIT_S", 0.1)
    monkeypatch.setattr(importance, "_MOST_WAITING", 0)
    assert "ask again" in await user.refused(503, "GET", IMPORTANCE.format(number))
    other = await searched(api, user, random_rows(20, 0.1))
    assert "1 experiments" in await user.refused(503, "GET", IMPORTANCE.format(other))
    gate.set()
    monkeypatch.setattr(importance, "_WAIT_S", 30.0)
    assert (await user.get(IMPORTANCE.format(number)))["trials"] == 20


async def test_importance_that_fails_is_not_kept(api: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    user = api.user()
    number = await searched(api, user, random_rows(20, 0.1))

    def broken_model(*arguments: Any) -> Any:
        raise ZeroDivisionError(len(arguments))

    with monkeypatch.context() as broken:
        broken.setattr(importance_model, "explained", broken_model)
        with pytest.raises(AssertionError, match="500"):
            await user.get(IMPORTANCE.format(number))
    assert (await user.get(IMPORTANCE.format(number)))["trials"] == 20


async def test_importance_is_refused_when_the_question_is_wrong(api: Served) -> None:
    user = api.user()
    assert "metric" in await user.refused(
        400, "GET", IMPORTANCE.format(await searched(api, user, random_rows(8, 0))), params={"metric": "loss"}
    )
    await user.refused(404, "GET", IMPORTANCE.format(10**8))


def test_api_does_not_load_what_only_importance_needs() -> None:
    script = "import sys, workers.api; print([name for name in ('scipy', 'sklearn') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
