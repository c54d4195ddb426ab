"""Each GET route is asked among many trials, and the rows that its statements read are counted by PostgreSQL.

A route whose statements read more rows the more a cluster has is slow in a large one, whatever it takes in a small one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from sqlalchemy import Engine, select

from bench.endpoints import fill_pages
from database.models import Allocation, Checkpoint, User
from tests.integration.api.conftest import a_database, serving
from tests.integration.api.served import Caller, Served
from tests.kit.statements import asked_of, counted

#: 2,000 experiments in one project; 2,000 of the trials are of one experiment, and each trial had one run.
_TRIALS = 20_000
#: Rows that one statement may read. A page shows 100.
_MOST = 1100
#: These read more, by what they are: the engine counts, or the whole of a search is shown.
_READ_MORE = {
    "/api/v1/experiment/labels": "counts the labels of all experiments",
    "/api/v1/experiments": "names the first trials of each of the 100 that it shows",
    "/api/v1/experiments/{experiment_id}/checkpoints": "the 20 reports of each trial, which are as soon read as looked up",
    "/api/v1/experiments/{experiment_id}/search/history": "is the record of the whole search",
    "/api/v1/experiments/{experiment_id}/validation-history": "goes through all validations of the search",
    "/api/v1/projects/{project_id}": "counts its experiments",
    "/api/v1/projects/{project_id}/experiments/metric-ranges": "tries the newest experiments",
    "/api/v1/undeterred/cluster/slots-over-time": "sums over all of the time that is asked for",
    "/api/v1/undeterred/experiments/{experiment_id}/hyperparameters": "is about all trials",
    "/api/v1/undeterred/experiments/{experiment_id}/importance": "is about all trials",
    "/api/v1/workspaces": "counts their experiments",
    "/api/v1/workspaces/{workspace_id}": "counts its experiments",
    "/api/v1/workspaces/{workspace_id}/projects": "counts their experiments",
    "/debug/prom/metrics": "counts experiments by state",
}
_SKIPPED = ("/undeterred/live", "/signals/", "/rendezvous")


@pytest.fixture(scope="module", params=["postgres"])
async def crowd(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Served, dict[str, int]]]:
    """A served API on a database of many trials, and the ids of some of them."""
    url = a_database(request, tmp_path_factory, "crowd")
    ids = await asyncio.to_thread(fill_pages, url, _TRIALS)
    async with serving(url, tmp_path_factory.mktemp("crowd")) as served:
        yield served, ids


def _paths(served: Served, ids: dict[str, int]) -> Iterator[tuple[str, str]]:
    """Each GET route, and a path of it with all that it requires."""
    with served.database.read() as session:
        checkpoint = session.scalars(
            select(Checkpoint.uuid).where(Checkpoint.experiment_id == ids["experiment"])
        ).first()
        trial = Allocation.trial_id == ids["trial"]
        allocation_id, task_id = session.execute(select(Allocation.id, Allocation.task_id).where(trial)).one().tuple()
        admin = session.scalars(select(User.id).where(User.is_admin).order_by(User.id)).first()
    known: dict[str, Any] = {
        "experiment_id": ids["experiment"], "trial_id": ids["trial"], "run_id": ids["trial"], "task_id": task_id,
        "allocation_id": allocation_id, "uuid": checkpoint, "user_id": admin, "username": "admin", "pool": "default",
        "name": "model 0", "workload_type": "EXPERIMENT", "kind": "validation_metrics", "agent_id": "a", "key": "X",
        "timestampAfter": "2026-01-01T00:00:00Z", "timestampBefore": "2026-01-01T00:01:00Z",
        "timestamp_after": "2026-01-01T00:00:00Z", "timestamp_before": "2026-01-01T00:01:00Z",
        "startDate": "2025-12-31", "endDate": "2025-12-31", "start_date": "2025-12-31", "end_date": "2025-12-31",
        "metric": "validation.loss", "metricName": "loss", "batchesProcessed": 100, "path": "metadata.json",
    }  # fmt: skip
    wanted = {"limit": 100, "trialIds": ids["trial"], "most": 100, "metricType": "METRIC_TYPE_VALIDATION"}
    for route, operations in served.app.openapi()["paths"].items():
        if "get" not in operations or any(each in route for each in _SKIPPED):
            continue
        path, query = route, dict[str, Any]()
        if "metrics-stream" in route:  # of one that has ended: it would go on
            path = path.replace("{experiment_id}", str(ids["search"]))
        for parameter in operations["get"].get("parameters", ()):
            name, place = parameter["name"], parameter["in"]
            if place == "path":
                path = path.replace(f"{{{name}}}", quote(str(known.get(name, 1))))
            elif place == "query" and (parameter.get("required") or name in wanted):
                query[name] = known.get(name, wanted.get(name))
        yield route, f"{path}?{urlencode(query)}" if query else path


async def test_no_route_reads_more_of_a_larger_cluster(crowd: tuple[Served, dict[str, int]]) -> None:
    served, ids = crowd
    admin: Caller = served.user(is_admin=True)
    answered, read = 0, dict[str, tuple[int, str, str]]()
    for route, path in _paths(served, ids):
        with asked_of(Engine) as asked:
            response = await admin.ask("GET", path)
        assert response.status_code < 500 or response.status_code in (501, 503), f"{path}: {response.text[:300]}"
        answered += response.status_code == 200
        for statement, parameters in asked:
            if not statement.startswith(("SELECT", "WITH")):
                continue
            rows, plan = await asyncio.to_thread(
                counted, served.database, statement.partition(" FOR UPDATE")[0], parameters, as_if_large=True
            )
            read[route] = max(read.get(route, (0, "", "")), (rows, statement, plan))
    assert answered > 90, "most of them find something"
    too_many = {route: most for route, most in read.items() if most[0] > _MOST and route not in _READ_MORE}
    assert not too_many, "\n\n".join(f"{route}: {rows} rows\n{text}" for route, (rows, text, _) in too_many.items())
    assert [route for route in _READ_MORE if read.get(route, (0,))[0] <= _MOST] == [], (
        "these are no exceptions any more"
    )
