"""Schemathesis makes requests of all kinds from the OpenAPI page: no route answers with an error of its own making.

Requests are the same in every run. Half of them name things that there are, since others end at "not found".
"""

from __future__ import annotations

import asyncio
import functools
import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import jsonschema
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from hypothesis.internal.conjecture import engine
from hypothesis.strategies import SearchStrategy
from schemathesis import Case, GenerationMode

from api.routes import metric_streams
from tests.integration.api.served import Caller, Run, Served, a_file
from workflows.lifecycle.experiment import ExperimentState

#: Requests of each kind for each route.
_RIGHT, _WRONG = 4, 2
#: One would end what the others are sent with, and one waits for minutes (test_allocations).
_LEFT_OUT = {"POST /api/v1/auth/logout", "GET /api/v1/allocations/{allocation_id}/signals/preemption"}
#: With Temporal away, some can't be done now.
_MAY_BE_AWAY = re.compile("[Tt]emporal does not answer|has not started yet")


@functools.cache
def cases(page: str) -> list[tuple[str, int, Case]]:
    """Requests for every route of the page: its name, the number of the request, and the request."""
    described = json.loads(page)
    for path in described["paths"].values():
        for operation in path.values():
            operation.pop("security", None)  # callers are real ones
    found: list[tuple[str, int, Case]] = []
    for result in schemathesis.openapi.from_dict(described).get_all_operations():
        operation = result.ok()
        if operation.label in _LEFT_OUT:
            continue
        for mode, count in ((GenerationMode.POSITIVE, _RIGHT), (GenerationMode.NEGATIVE, _WRONG)):
            try:
                made = _made(operation.as_strategy(generation_mode=mode), count)
            except Unsatisfiable:  # nothing can be wrong where there is nothing, or any text
                assert mode is GenerationMode.NEGATIVE
                continue
            found += [(operation.label, number, case) for number, case in enumerate(made)]
    # what deletes comes last, so that there is something to be found until then
    return sorted(found, key=lambda each: each[0].startswith("DELETE"))


def _made(strategy: SearchStrategy[Case], count: int) -> list[Case]:
    made: list[Case] = []

    @given(case=strategy)
    @settings(
        max_examples=count, derandomize=True, database=None, phases=[Phase.generate], deadline=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    def collect(case: Case) -> None:
        made.append(case)

    with pytest.MonkeyPatch.context() as patch:
        # What can be wrong is so within ten attempts; where nothing can, hypothesis would make 459.
        patch.setattr(engine, "INVALID_THRESHOLD_BASE", 50)
        collect()
    return made


@dataclass
class Attempt:
    """All requests of one caller, and what was wrong with the answers."""

    api: Served
    page: dict[str, Any]
    known: dict[str, Any]
    new_caller: Callable[[], Caller]
    problems: list[str] = field(default_factory=list[str])
    statuses: Counter[int] = field(default_factory=Counter[int])

    def __post_init__(self) -> None:
        self.caller = self.new_caller()
        self.session = requests.Session()

    def run(self, wanted: list[tuple[str, int, Case]]) -> None:
        """Send them all."""
        for label, number, case in wanted:
            parameters = case.path_parameters
            if number % 2:
                parameters |= {name: self.known[name] for name in parameters.keys() & self.known.keys()}
            if isinstance(case.query, dict):
                case.query.pop("follow", None)  # some stay open for ever
                case.query.pop("topic", None)
            response = case.call(
                base_url=str(self.api.http.base_url), headers=self.caller.headers, session=self.session, timeout=20
            )
            problem = self._problem(label, response)
            if problem:
                sent = json.dumps(case.body, default=str)[:300] if case.body is not None else ""
                self.problems.append(f"{label}: {problem}\n    {response.request.url} {sent}")
            self.statuses[response.status_code] += 1
            if response.status_code == 401:  # it has taken its own rights away
                self.caller = self.new_caller()

    def _problem(self, label: str, response: schemathesis.Response) -> str:
        status = response.status_code
        kind = response.headers.get("content-type", [""])[0]
        if status == 200:
            return self._flaw(label, response, kind)
        if kind != "application/json":
            return f"{status} has the content type {kind!r}"
        body = response.json()
        if body.get("message") != body.get("error", {}).get("error") or not body["message"]:
            return f"{status} is no error that clients can read: {response.text[:300]}"
        is_away = status == 503 and _MAY_BE_AWAY.search(body["message"])
        if not 400 <= status < 500 and status != 501 and not is_away:
            return f"{status} {body['message'][:300]}"
        return ""

    def _flaw(self, label: str, response: schemathesis.Response, kind: str) -> str:
        """How a 200 differs from what the page says of it."""
        method, path = label.split(" ", 1)
        content = self.page["paths"][path][method.lower()]["responses"]["200"]["content"]
        if kind.partition(";")[0] not in content:
            return f"the content type {kind!r} is not among {list(content)}"
        if "schema" not in content.get("application/json", {}):  # a file, or lines
            return ""
        schema = content["application/json"]["schema"] | {"components": self.page["components"]}
        error = jsonschema.exceptions.best_match(  # pyright: ignore[reportAttributeAccessIssue]
            jsonschema.Draft202012Validator(schema).iter_errors(response.json())
        )
        return f"the answer is not as described: {error.json_path}: {error.message[:300]}" if error else ""


@pytest.mark.parametrize("who", ["administrator", "user", "container"])
async def test_no_route_fails_by_itself_when_asked_anything(
    api_of_its_own: Served, who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metric_streams, "_OVER", tuple(ExperimentState))  # or they follow it for as long as it lives
    api = api_of_its_own
    page = await api.nobody.get("/api/v1/openapi.json")
    owner = api.user(is_admin=True)
    run = await api.trial(owner)
    known = await things(api, owner, run)
    if who == "container":
        new_caller = lambda: run.container  # noqa: E731
    else:
        await api.end(run)
        new_caller = functools.partial(api.user, is_admin=who == "administrator")
    attempt = Attempt(api, page, known, new_caller)
    await asyncio.to_thread(lambda: attempt.run(cases(json.dumps(page))))
    assert not attempt.problems, "\n".join(attempt.problems)
    assert attempt.statuses[200] > 50, "most were refused: it tells little"
    assert attempt.statuses.keys() >= {400, 404}


async def things(api: Served, owner: Caller, run: Run) -> dict[str, Any]:
    """One of everything, for parameters of paths by their names."""
    await run.report("validation", 10, {"loss": 0.5})
    await run.report("training", 10, {"loss": 0.5, "odd": "NaN"})
    uuid = str(uuid4())
    name = f"fuzzed-{uuid[:8]}"
    sent = {"uuid": uuid, "resources": {"a": 1}, "metadata": {"steps_completed": 10}}
    await run.container.post("/api/v1/checkpoints", sent)
    (api.folder / uuid).mkdir()
    (api.folder / uuid / "a").write_bytes(b"1")
    (api.folder / uuid / "metadata.json").write_bytes(b"{}")
    await run.container.post("/api/v1/task/logs", {"logs": [{"log": "hello"}]})
    workspace = (await owner.post("/api/v1/workspaces", {"name": name, "everyone": "editor"}))["workspace"]
    project = (await owner.post(f"/api/v1/workspaces/{workspace['id']}/projects", {"name": name}))["project"]
    await owner.post("/api/v1/models", {"name": name, "workspaceId": workspace["id"]})
    await owner.post(f"/api/v1/models/{name}/versions", {"checkpointUuid": uuid})
    group = (await owner.post("/api/v1/groups", {"name": name}))["group"]
    webhook = {"url": "https://hooks.example.com", "name": "x", "webhookType": "WEBHOOK_TYPE_DEFAULT",
               "triggers": [{"triggerType": "TRIGGER_TYPE_EXPERIMENT_STATE_CHANGE", "condition": {"state": "COMPLETED"}}]}  # fmt: skip
    return {
        "experiment_id": await api.experiment(owner, labels=["a"]), "trial_id": run.trial_id, "run_id": run.trial_id,
        "task_id": run.task_id, "allocation_id": run.allocation_id, "uuid": uuid, "workspace_id": workspace["id"],
        "project_id": project["id"], "name": name, "number": 1, "group_id": group["groupId"], "kind": "training",
        "user_id": api.user().user_id, "username": api.user().username, "pool": "default", "label": "a",
        "webhook_id": (await owner.post("/api/v1/webhooks", webhook))["webhook"]["id"], "command": "archive",
        "key": project["key"], "agent_id": "agent-a", "slot_id": "0", "external_id": "x", "workload_type": "NTSC",
        "token_id": (await owner.post("/api/v1/tokens", {}))["tokenId"], "file": a_file("a"),
    }  # fmt: skip
