"""Flat tables: runs and experiments that are filtered and sorted by any column, and commands for many runs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sqlalchemy import update

from database.models import Experiment, Trial
from tests.integration.api.served import ASHA, Caller, Run, Served


def filter_of(*fields: tuple[str, str, Any], by: str = "and", **more: Any) -> str:
    children = [{"kind": "field", "columnName": name, "operator": op, "value": value} for name, op, value in fields]
    return json.dumps({"filterGroup": {"kind": "group", "conjunction": by, "children": children}} | more)


class Table:
    """A project with three runs of two experiments."""

    def __init__(self, api: Served, user: Caller) -> None:
        self.api, self.user = api, user

    async def build(self) -> Table:
        api, user = self.api, self.user
        workspace = (await user.post("/api/v1/workspaces", {"name": f"r {user.username}"}))["workspace"]["id"]
        projects = f"/api/v1/workspaces/{workspace}/projects"
        self.project_id: int = (await user.post(projects, {"name": "p"}))["project"]["id"]
        single = await api.trial(user, name="alone", labels=["x", 'odd "label"'])
        search = await api.trial(user, name="a search", searcher=ASHA, description="of 10% more")
        self.runs: list[Run] = [single, search, await api.another_trial(search.experiment_id)]
        self.ids = [run.trial_id for run in self.runs]
        with api.database.write() as session:
            hparams = ({"lr": 0.5, "net": {"name": "mlp"}, "amp": True}, {"lr": 2, "amp": False}, {"lr": "auto"})
            for id_, values in zip(self.ids, hparams, strict=True):
                session.execute(update(Trial).where(Trial.id == id_).values(hparams=values))
            ids = [single.experiment_id, search.experiment_id]
            session.execute(update(Experiment).where(Experiment.id.in_(ids)).values(project_id=self.project_id))
        for run, loss in zip(self.runs, (0.3, 0.1, 0.2), strict=True):
            await run.report("validation", 5, {"loss": loss, "a.b": loss * 10})
        await single.container.post(f"/api/v1/runs/{single.trial_id}/metadata", {"metadata": {"data": {"set": "v2"}}})
        return self

    async def found(self, filter_: str = "", sort: str = "", **more: Any) -> list[int]:
        body = {"projectId": self.project_id, "filter": filter_, "sort": sort} | more
        return [self.ids.index(run["id"]) for run in (await self.user.post("/api/v1/runs", body))["runs"]]

    async def experiments(self, filter_: str = "", sort: str = "") -> list[str]:
        body = {"projectId": self.project_id, "filter": filter_, "sort": sort}
        found = await self.user.post("/api/v1/experiments-search", body)
        return [each["experiment"]["name"] for each in found["experiments"]]

    async def command(self, name: str, *places: int, user: Caller | None = None, **more: Any) -> dict[int, str]:
        body = {"runIds": [self.ids[place] for place in places], "projectId": self.project_id} | more
        results = (await (user or self.user).post(f"/api/v1/runs/{name}", body))["results"]
        return {self.ids.index(result["id"]): result["error"] for result in results}


@pytest.fixture(scope="module")
async def table(api: Served) -> Table:
    """For tests that change nothing."""
    return await Table(api, api.user()).build()


@pytest.fixture
async def own_table(api: Served) -> Table:
    return await Table(api, api.user()).build()


@pytest.mark.parametrize(
    ("column", "operator", "value", "places"),
    [
        ("id", ">", 0, [0, 1, 2]),
        ("id", "=", 0.5, []),
        ("experimentName", "=", "alone", [0]),
        ("experimentName", "contains", "SEARCH", [1, 2]),
        ("experimentDescription", "contains", "10%", [1, 2]),
        ("experimentDescription", "contains", "1_%", []),
        ("experimentDescription", "isEmpty", None, [0]),
        ("tags", "contains", 'odd "label"', [0]),
        ("tags", "notContains", "x", [1, 2]),
        ("tags", "isEmpty", None, [1, 2]),
        ("hp.lr", ">=", 0.5, [0, 1]),
        ("hp.lr", "=", "auto", [2]),
        ("hp.lr", "!=", 2, [0, 2]),
        ("hp.net.name", "=", "mlp", [0]),
        ("hp.net.name", "isEmpty", None, [1, 2]),
        ("hp.amp", "=", True, [0]),
        ("hp.amp", "=", False, [1]),
        ("hp.amp", "!=", True, [1, 2]),
        ("metadata.data.set", "contains", "v", [0]),
        ("validation.loss.last", "<", 0.25, [1, 2]),
        ("validation.a.b.max", ">", 2.5, [0]),
        ("searcherMetricsVal", "<=", 0.1, [1]),
        ("isExpMultitrial", "=", True, [1, 2]),
        ("state", "=", "STATE_STARTING", [0, 1, 2]),
        ("state", "!=", "ACTIVE", []),
        ("startTime", ">", "2020-01-01T00:00:00Z", [0, 1, 2]),
        ("endTime", "isEmpty", None, [0, 1, 2]),
        ("duration", "<", 3600, [0, 1, 2]),
        ("archived", "=", False, [0, 1, 2]),
        ("checkpointCount", "=", "0", [0, 1, 2]),
    ],
)  # fmt: skip
async def test_runs_are_found_by_any_column(
    table: Table, column: str, operator: str, value: Any, places: list[int]
) -> None:
    assert await table.found(filter_of((column, operator, value))) == places


async def test_runs_are_sorted_and_paged(table: Table) -> None:
    assert await table.found(sort="validation.loss.last=asc") == [1, 2, 0]
    assert await table.found(sort="experimentName=desc,searcherMetricsVal=desc") == [0, 2, 1]
    assert await table.found(sort="hp.lr=desc") == [1, 0, 2], "what is no number comes last"
    assert await table.found(sort="endTime=desc,id=desc") == [2, 1, 0]
    body = {"projectId": table.project_id, "sort": "id=asc", "limit": 2, "offset": 1}
    found = await table.user.post("/api/v1/runs", body)
    assert [run["id"] for run in found["runs"]] == table.ids[1:]
    assert found["pagination"] == {"offset": 1, "limit": 2, "startIndex": 1, "endIndex": 3, "total": 3}
    assert await table.found(limit=-1) == [0, 1, 2]


async def test_total_without_a_filter_is_that_of_the_runs_which_it_would_count(table: Table) -> None:
    """It is summed over their experiments; the newest runs are looked for among the newest of all."""
    body: dict[str, Any] = {"projectId": table.project_id, "sort": "id=desc"}

    async def page(user: Caller, **more: Any) -> tuple[list[int], int]:
        found = await user.post("/api/v1/runs", body | more)
        return [run["id"] for run in found["runs"]], found["pagination"]["total"]

    newest = table.ids[::-1]
    assert await page(table.user, limit=2) == (newest[:2], 3)
    assert await page(table.user, limit=2, offset=2) == (newest[2:], 3)
    assert await page(table.user, limit=2, offset=-1) == (newest[2:], 3)
    assert await page(table.user, limit=5) == (newest, 3)
    assert await page(table.user, limit=2, projectId=10**6) == ([], 0)
    everything = {"filterGroup": {"kind": "group", "conjunction": "and", "children": []}, "showArchived": False}
    assert await page(table.user, filter=json.dumps(everything)) == (newest, 3)
    with table.api.database.write() as session:
        first = Experiment.id == table.runs[0].experiment_id
        session.execute(update(Experiment).where(first).values(is_archived=True))
    assert await page(table.user, filter=json.dumps(everything)) == ([id_ for id_ in newest if id_ != table.ids[0]], 2)
    assert await page(table.user) == (newest, 3)
    with table.api.database.write() as session:
        session.execute(update(Experiment).where(first).values(is_archived=False))


async def test_groups_of_a_filter_are_joined(table: Table) -> None:
    either = filter_of(("hp.lr", "=", 0.5), ("hp.lr", "=", "auto"), by="or")
    assert await table.found(either) == [0, 2]
    nested = {"kind": "group", "conjunction": "and", "children": [json.loads(either)["filterGroup"], {
        "kind": "field", "columnName": "isExpMultitrial", "operator": "=", "value": True}]}  # fmt: skip
    assert await table.found(json.dumps({"filterGroup": nested})) == [2]


async def test_run_is_shown_with_its_experiment(table: Table) -> None:
    body = {"projectId": table.project_id, "filter": filter_of(("experimentName", "=", "alone"))}
    [run] = (await table.user.post("/api/v1/runs", body))["runs"]
    assert (run["id"], run["state"], run["searcherMetricValue"]) == (table.ids[0], "STATE_STARTING", 0.3)
    assert (run["projectId"], run["projectName"], run["userId"]) == (table.project_id, "p", table.user.user_id)
    assert (run["labels"], run["hyperparameters"]["lr"]) == (["x", 'odd "label"'], 0.5)
    assert (run["metadata"], run["checkpointSize"], run["archived"]) == ({"data": {"set": "v2"}}, "0", False)
    assert run["summaryMetrics"]["validation_metrics"]["loss"]["last"] == 0.3
    assert run["experiment"] == {
        "id": table.runs[0].experiment_id, "name": "alone", "description": "", "progress": 0.0,
        "searcherType": "single", "searcherMetric": "loss", "resourcePool": "default", "forkedFrom": None,
        "unmanaged": False, "externalExperimentId": None, "isMultitrial": False}  # fmt: skip
    [column] = [each for each in (await table.user.get(
        f"/api/v1/projects/{table.project_id}/columns", tableType="TABLE_TYPE_RUN"))["columns"]
        if each["column"] == "hp.net.name"]  # fmt: skip
    assert column["location"] == "LOCATION_TYPE_RUN_HYPERPARAMETERS"


async def test_all_columns_that_are_listed_can_be_filtered_and_sorted_by(table: Table) -> None:
    path = f"/api/v1/projects/{table.project_id}/columns"
    for kind, ask in (("TABLE_TYPE_RUN", table.found), ("TABLE_TYPE_EXPERIMENT", table.experiments)):
        columns = (await table.user.get(path, tableType=kind))["columns"]
        assert len(columns) > 15
        for column in columns:
            await ask(filter_of((column["column"], "isEmpty", None)), f"{column['column']}=desc")


async def test_experiments_are_found_by_what_their_best_trial_has(table: Table) -> None:
    assert await table.experiments() == ["alone", "a search"]
    assert await table.experiments(filter_of(("validation.loss.last", "<", 0.2))) == ["a search"]
    assert await table.experiments(filter_of(("hp.lr", "=", "auto"))) == [], "its best trial has another one"
    assert await table.experiments(filter_of(("numTrials", ">", 1))) == ["a search"]
    assert await table.experiments(filter_of(("state", "=", "ACTIVE"), ("user", "=", table.user.user_id))) != []
    assert await table.experiments(filter_of(("user", "!=", table.user.username))) == []
    assert await table.experiments(sort="validation.loss.last=asc") == ["a search", "alone"]
    found = await table.user.post("/api/v1/experiments-search", {"projectId": table.project_id, "sort": "id=desc"})
    assert found["experiments"][0]["bestTrial"]["id"] == table.ids[1]


async def test_grid_has_the_columns_that_are_asked_for_and_no_configuration(table: Table) -> None:
    columns = [
        "hp.net.name",
        "hp.lr",
        "validation.loss.last",
        "validation.a.b.max",
        "metadata.data.set",
        "nothing",
        "hp.x.y",
    ]
    body = {"projectId": table.project_id, "sort": "id=asc", "columns": columns}
    found = await table.user.post("/api/v1/undeterred/experiments-grid", body)
    alone, search = found["experiments"]
    assert alone["values"] == ["mlp", 0.5, 0.3, 3.0, "v2", None, None]
    assert search["values"] == [None, 2, 0.1, 1.0, None, None, None]
    assert (search["bestTrialId"], search["bestTrialSearcherMetric"], search["numTrials"]) == (table.ids[1], 0.1, 2)
    assert (alone["state"], alone["searcherType"], alone["labels"]) == (
        "STATE_STARTING",
        "single",
        ["x", 'odd "label"'],
    )
    assert found["pagination"]["total"] == 2
    whole = await table.user.post("/api/v1/experiments-search", {"projectId": table.project_id, "sort": "id=asc"})
    for row, shown in zip((each["experiment"] for each in whole["experiments"]), found["experiments"], strict=True):
        assert shown == {key: row[key] for key in shown if key != "values"} | {"values": shown["values"]}
    assert len(json.dumps(found["experiments"])) <= 2 * 30_000 / 50, "50 rows have at most 30 KB"


async def test_grid_of_runs_says_of_each_what_the_list_of_trials_says(table: Table) -> None:
    columns = ["hp.lr", "validation.loss.last", "metadata.data.set", "nothing"]
    body = {"projectId": table.project_id, "sort": "id=asc", "columns": columns}
    found = await table.user.post("/api/v1/undeterred/runs-grid", body)
    assert [row["id"] for row in found["runs"]] == table.ids
    assert [row["values"] for row in found["runs"]] == [
        [0.5, 0.3, "v2", None],
        [2, 0.1, None, None],
        ["auto", 0.2, None, None],
    ]
    whole = (await table.user.post("/api/v1/runs", {"projectId": table.project_id, "sort": "id=asc"}))["runs"]
    for row, shown in zip(whole, found["runs"], strict=True):
        same = ("id", "state", "labels", "archived", "startTime", "searcherMetricValue", "checkpointCount", "userId")
        assert {key: shown[key] for key in same} == {key: row.get(key) for key in same}
        assert (shown["experimentId"], shown["experimentName"]) == (row["experiment"]["id"], row["experiment"]["name"])
    narrowed = {**body, "filter": filter_of(("experimentName", "=", "a search"), ("restarts", "=", 0))}
    assert (await table.user.post("/api/v1/undeterred/runs-grid", narrowed))["pagination"]["total"] == 2
    assert (await table.api.user().post("/api/v1/undeterred/runs-grid", {"projectId": 10**6}))["runs"] == []


@pytest.mark.parametrize(
    ("columns", "told"), [(["x"] * 31, "columns"), (["x" * 1001], "columns.0"), ("hp.lr", "columns")]
)
async def test_grid_refuses_more_columns_than_a_page_shows(api: Served, columns: Any, told: str) -> None:
    for path in ("/api/v1/undeterred/experiments-grid", "/api/v1/undeterred/runs-grid"):
        assert told in await api.user().refused(400, "POST", path, {"columns": columns})


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"filter": "x"}, "filter: 'x': expected JSON"),
        ({"filter": "[]"}, "expected an object with filterGroup"),
        ({"filter": '{"filterGroup": 3}'}, "filter.filterGroup: '3': expected a group"),
        ({"filter": '{"filterGroup": {"children": [{}]}}'}, "filter.filterGroup.children[0]: '{}': expected"),
        ({"filter": '{"filterGroup": {"children": [], "conjunction": "xor"}}'}, "conjunction: 'xor': expected one of"),
        ({"filter": '{"showArchived": "no"}'}, "showArchived: 'no': expected true or false"),
        ({"filter": filter_of(("luck", "=", 1))}, "column 'luck': there is none of this name"),
        ({"filter": filter_of(("validation.loss", "=", 1))}, "column 'validation.loss'"),
        ({"filter": filter_of(('hp."x', "=", 1))}, "can't be looked for"),
        ({"filter": filter_of(("id", "~", 1))}, "operator: '~': expected one of =, !="),
        ({"filter": filter_of(("id", "contains", 1))}, "operator: 'contains': expected one of"),
        ({"filter": filter_of(("id", "=", "x"))}, "value: 'x': expected a number"),
        ({"filter": filter_of(("id", "=", "inf"))}, "value: 'inf': expected a number"),
        ({"filter": filter_of(("startTime", "<", "soon"))}, "value: 'soon': expected a time"),
        ({"filter": filter_of(("experimentName", "=", {"a": 1}))}, "expected a text"),
        ({"filter": filter_of(("state", "=", "HAPPY"))}, "STATE_HAPPY"),
        ({"filter": filter_of(("archived", "=", "perhaps"))}, "perhaps"),
        ({"filter": filter_of(*[("id", "=", 1)] * 201)}, "more than 200 fields"),
        ({"filter": "{" + " " * 100_001}, "at most 100000"),
        ({"filter": '{"filterGroup": ' + '{"children": [' * 12 + "]}" * 12 + "}"}, "more than 10 levels"),
        ({"sort": "id"}, "sort: 'id': expected column=asc or column=desc"),
        ({"sort": "luck=asc"}, "column 'luck'"),
        ({"sort": ",".join(["id=asc"] * 11)}, "expected at most 10"),
        ({"offset": 10**6}, "offset 1000000 is beyond"),
    ],
)  # fmt: skip
async def test_search_is_refused_with_what_was_expected(api: Served, body: dict[str, Any], told: str) -> None:
    user = api.user()
    ours = ("/api/v1/undeterred/experiments-grid", "/api/v1/undeterred/runs-grid")
    for path in ("/api/v1/runs", "/api/v1/experiments-search", *ours):
        assert told in await user.refused(400, "POST", path, body)


async def test_runs_are_commanded_with_their_experiments(own_table: Table) -> None:
    table = own_table
    api, ids = table.api, table.ids
    alone, search = table.runs[0].experiment_id, table.runs[1].experiment_id
    with api.database.write() as session:
        session.execute(update(Experiment).where(Experiment.id.in_([alone, search])).values(state="COMPLETED"))
    told = await table.command("archive", 0, 1)
    assert told[0] == ""
    assert told[1] == (
        f"run {ids[1]} is one of the 2 runs of experiment {search}, which are archived together: "
        "name all of them, or the experiment"
    )
    assert await table.command("archive", 1, 2) == {1: "", 2: ""}
    assert await table.found() == [0, 1, 2]
    assert await table.found(json.dumps({"showArchived": False})) == []
    archived = filter_of(("archived", "=", True), ("isExpMultitrial", "=", True))
    assert await table.command("unarchive", filter=archived) == {1: "", 2: ""}
    assert await table.command("unarchive", 1, 0, filter=filter_of(("id", "=", ids[0]))) == {0: ""}
    other = api.user()
    assert await table.command("delete", 0, user=other) == {0: f"run {ids[0]} not found"}
    elsewhere = (await other.post("/api/v1/runs", {"projectId": table.project_id}))["runs"]
    assert elsewhere == []
    target = (await table.user.post("/api/v1/workspaces", {"name": f"t {table.user.username}"}))["workspace"]["id"]
    project = (await table.user.post(f"/api/v1/workspaces/{target}/projects", {"name": "q"}))["project"]["id"]
    to: dict[str, Any] = {"destinationProjectId": project, "sourceProjectId": table.project_id}
    assert await table.command("move", 0, 1, 2, skipMultitrial=True, **to) == {0: ""}
    assert await table.found() == [1, 2]
    await other.refused(404, "POST", "/api/v1/runs/move", {"runIds": [ids[1]], **to})
    assert await table.command("delete", 1, 2) == {1: "", 2: ""}
    with api.database.read() as session:
        assert session.get_one(Experiment, search).state == "DELETING"
    assert "no command 'dance'" in await table.user.refused(404, "POST", "/api/v1/runs/dance", {})
    too_many = {"runIds": list(range(1, 1002))}
    assert "at most 1000" in await table.user.refused(400, "POST", "/api/v1/runs/kill", too_many)


async def test_runs_are_paused_resumed_and_killed(own_table: Table) -> None:
    table = own_table
    api, ids = table.api, table.ids
    api.commands.knows_nothing = True
    # Temporal is away: what would reach it is refused with 503, what needs it not says so of each run
    for command in ("pause", "resume"):
        body = {"runIds": [ids[1]], "projectId": table.project_id}
        [result] = (await table.user.post(f"/api/v1/runs/{command}", body))["results"]
        assert "one of the 2 runs" in result["error"]
    await table.user.refused(503, "POST", "/api/v1/runs/pause", {"runIds": [ids[0]], "projectId": 0})
    await table.user.refused(503, "POST", "/api/v1/runs/kill", {"runIds": [ids[1]]})
    for run in table.runs:
        await api.end(run)
    assert await table.command("kill", 0, 1) == {0: "", 1: ""}, "those are over"
    stranger = api.user()
    assert await table.command("kill", 2, user=stranger) == {2: f"trial {ids[2]} not found"}
