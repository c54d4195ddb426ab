"""Templates: both generations of routes, and experiments that are filled up from them."""

from __future__ import annotations

import base64
import uuid
from typing import Any

import orjson
import yaml

from tests.integration.api.served import Caller, Served
from tests.integration.api.test_workspaces import give_role, unique, workspace

TEMPLATES = "/api/v1/templates"
CONFIG = {"max_restarts": 2, "environment": {"environment_variables": ["A=template"]}}


async def template(user: Caller, config: dict[str, Any] = CONFIG, **fields: Any) -> str:
    name = unique("template")
    made = await user.post(f"{TEMPLATES}/{name}", {"name": name, "config": config, **fields})
    assert made["template"]["config"] == config
    return name


async def test_newer_routes_work_together_when_a_template_lives(api: Served) -> None:
    user = api.user()
    name = await template(user)
    path = f"{TEMPLATES}/{name}"
    me = (await user.get("/api/v1/me"))["user"]["id"]
    assert await user.get(path) == {"template": {"name": name, "config": CONFIG, "workspaceId": 1, "userId": me}}
    assert "already exists" in await user.refused(409, "POST", path, {"config": CONFIG})
    assert (await user.patch(path, {"max_restarts": 3}))["template"]["config"] == {"max_restarts": 3}
    put = await user.ask("PUT", path, {"name": name, "config": CONFIG})
    assert put.json()["template"]["config"] == CONFIG
    renamed = await user.patch("/api/v1/template/rename", {"oldName": name, "newName": f"{name}!"})
    assert renamed["template"]["name"] == f"{name}!"
    await user.refused(404, "GET", path)
    assert (await user.ask("DELETE", f"{path}!")).json() == {}
    await user.refused(404, "DELETE", f"{path}!")
    await user.refused(404, "PATCH", f"{path}!", {"max_restarts": 3})


async def test_older_routes_show_configs_as_base64_when_asked(api: Served) -> None:
    user = api.user()
    name = unique("template")
    assert (await user.ask("PUT", f"/templates/{name}", CONFIG)).status_code == 200
    found = await user.get(f"/templates/{name}")
    assert found.keys() == {"name", "config"}
    assert yaml.safe_load(base64.b64decode(found["config"])) == CONFIG
    assert name in [row["name"] for row in await user.get("/templates")]
    assert (await user.ask("PUT", f"/templates/{name}", {"max_restarts": 9})).status_code == 200
    assert orjson.loads(base64.b64decode((await user.get(f"/templates/{name}"))["config"])) == {"max_restarts": 9}
    assert (await user.get(f"{TEMPLATES}/{name}"))["template"]["config"] == {"max_restarts": 9}
    assert (await user.ask("DELETE", f"/templates/{name}")).status_code == 200
    await user.refused(404, "GET", f"/templates/{name}")


async def test_list_is_filtered_sorted_and_paged_when_asked(api: Served) -> None:
    user = api.user()
    place = await workspace(user)
    mark = uuid.uuid4().hex[:8]
    for letter, where in (("c", 1), ("A", place["id"]), ("b", 1)):
        await user.post(f"{TEMPLATES}/{letter}-{mark}", {"config": CONFIG, "workspaceId": where})

    async def shown(**query: Any) -> str:
        return "".join(row["name"][0] for row in (await user.get(TEMPLATES, name=mark, **query))["templates"])

    assert await shown() == await shown(sortBy="SORT_BY_NAME", orderBy="ORDER_BY_ASC") == "Abc"
    assert await shown(orderBy="ORDER_BY_DESC", limit=2) == "cb"
    assert await shown(workspaceIds=place["id"]) == "A"
    assert "SORT_BY_NAME" in await user.refused(400, "GET", TEMPLATES, params={"sortBy": "SORT_BY_SIZE"})


async def test_template_is_refused_when_name_or_config_is_wrong(api: Served) -> None:
    user = api.user()
    for name in ("x" * 81, "12", "%20", "a%00b"):
        await user.refused(400, "POST", f"{TEMPLATES}/{name}", {"config": CONFIG})
    for config in ({}, {"template": "other", "max_restarts": 1}, {"name": "a\x00b"}):
        assert "config" in await user.refused(400, "POST", f"{TEMPLATES}/{unique()}", {"config": config})
    await user.refused(400, "PUT", f"/templates/{unique()}", [1])
    await user.refused(404, "POST", f"{TEMPLATES}/{unique()}", {"config": CONFIG, "workspaceId": 999_999})


async def test_template_is_not_there_for_others_when_they_have_no_role(api: Served) -> None:
    owner, other = api.user(), api.user()
    place = await workspace(owner)
    name = await template(owner, workspaceId=place["id"])
    path = f"{TEMPLATES}/{name}"
    for method, where in (("GET", path), ("PATCH", path), ("DELETE", path), ("GET", f"/templates/{name}")):
        await other.refused(404, method, where, CONFIG if method == "PATCH" else None)
    assert name not in [row["name"] for row in (await other.get(TEMPLATES))["templates"]]
    await other.refused(409, "PUT", path, {"config": CONFIG})
    body = {"config": yaml.safe_dump(api.config()), "template": name}
    assert "not found" in await other.refused(404, "POST", "/api/v1/experiments", body)
    give_role(api, other, place["id"], "viewer")
    assert "editor" in await other.refused(403, "PATCH", path, CONFIG)
    assert (await other.post("/api/v1/experiments", body))["config"]["max_restarts"] == 2


# -- experiments that use one --------------------------------------------------------------------------------------


async def made_with(api: Served, user: Caller, name: str, **config: Any) -> dict[str, Any]:
    body = {"config": yaml.safe_dump(api.config(**config)), "template": name, "activate": True}
    return await user.post("/api/v1/experiments", body)


async def test_config_is_filled_up_from_the_template_when_one_is_named(api: Served) -> None:
    user = api.user()
    name = await template(user, CONFIG | {"description": "of the template", "labels": ["t"], "name": "t",
                                          "hyperparameters": {"lr": 0.1, "depth": 3}})  # fmt: skip
    made = await made_with(api, user, name, max_restarts=7, labels=["mine"], hyperparameters={"lr": 0.2},
                           environment={"environment_variables": ["B=mine"]})  # fmt: skip
    config = made["config"]
    assert (config["max_restarts"], config["description"]) == (7, "of the template")
    assert config["labels"] == ["mine"], "lists are replaced"
    assert config["hyperparameters"]["lr"]["val"] == 0.2
    assert config["hyperparameters"]["depth"]["val"] == 3
    assert config["environment"]["environment_variables"]["cpu"] == ["A=template", "B=mine"], "lower ones first"
    assert "of the template" not in made["experiment"]["originalConfig"], "that is what was sent"
    await user.patch(f"{TEMPLATES}/{name}", {"max_restarts": 0})
    shown = await user.get(f"/api/v1/experiments/{made['experiment']['id']}")
    assert shown["config"]["max_restarts"] == 7, "later changes of the template change nothing"


async def test_place_is_that_of_the_template_when_the_config_names_none(api: Served) -> None:
    user = api.user()
    place = await workspace(user)
    inside = (await user.post(f"/api/v1/workspaces/{place['id']}/projects", {"name": "p"}))["project"]
    name = await template(user, {"workspace": place["name"], "project": "p"})
    assert (await made_with(api, user, name))["experiment"]["projectId"] == inside["id"]
    told = await made_with(api, user, name, workspace="Uncategorized", project="Uncategorized")
    assert told["experiment"]["projectId"] == 1


async def test_template_is_refused_when_it_is_none_of_an_experiment(api: Served) -> None:
    user = api.user()
    name = await template(user, {"idle_timeout": "10m", "max_restarts": -1})
    body = {"config": yaml.safe_dump(api.config()), "template": name}
    told = await user.refused(400, "POST", "/api/v1/experiments", body)
    assert f"template {name!r}" in told
    assert "idle_timeout" in told
    assert "max_restarts" in told
    await user.refused(404, "POST", "/api/v1/experiments", body | {"template": "nothing"})


async def test_problem_has_its_line_when_the_config_uses_a_template(api: Served) -> None:
    user = api.user()
    name = await template(user)
    text = yaml.safe_dump(api.config(), sort_keys=False) + "max_restarts: many\n"
    told = await user.refused(400, "POST", "/api/v1/experiments", {"config": text, "template": name})
    assert f"(line {len(text.splitlines())})" in told
