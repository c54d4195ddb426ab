"""What belongs to an owner stays with him: an experiment's rights when others continue it, and its secrets."""

from __future__ import annotations

import json
from typing import Any

import pytest

from database.models import Experiment
from tests.integration.api.served import Served
from tests.integration.api.test_models import checkpoint, model, version
from tests.integration.api.test_workspaces import end, experiment_in, give_role, project, workspace

CONTINUE = "/api/v1/experiments/continue"
SAS = "https://account.blob.core.windows.net/?sv=2020&sig=secret-of-azure"
S3 = {"type": "s3", "bucket": "b", "access_key": "key-of-s3", "secret_key": "secret-of-s3"}
AZURE = {"type": "azure", "container": "c", "account_url": SAS}


@pytest.mark.parametrize(
    "change",
    [
        {"entrypoint": "python3 theirs.py"},
        {"environment": {"environment_variables": ["A=1"]}},
        {"environment": {"image": "theirs"}},
        {"bind_mounts": [{"host_path": "/etc", "container_path": "etc"}]},
        {"hyperparameters": {"a": 1}},
        {"data": {"path": "theirs"}},
        {"resources": {"devices": [{"host_path": "/dev/null", "container_path": "/dev/x"}]}},
        {"integrations": {"webhooks": {"exclude": True}}},
    ],
)
async def test_experiment_is_continued_by_others_with_harmless_changes_only(
    api: Served, change: dict[str, Any]
) -> None:
    owner, editor = api.user(), api.user()
    place = await workspace(owner)
    give_role(api, editor, place["id"], "editor")
    experiment_id = await experiment_in(api, owner, (await project(owner, place["id"]))["id"])
    end(api, experiment_id)
    body = {"id": experiment_id, "overrideConfig": json.dumps(change)}
    told = await editor.refused(403, "POST", CONTINUE, body)
    assert "only its owner may continue an experiment with another" in told
    assert next(iter(change)) in told
    harmless = {"name": "theirs", "resources": {"priority": 3}, "max_restarts": 1}
    await editor.post(CONTINUE, {"id": experiment_id, "overrideConfig": json.dumps(harmless)})
    with api.database.read() as session:
        row = session.get_one(Experiment, experiment_id)
        assert (row.owner_id, row.config["max_restarts"]) == (owner.user_id, 1), "it goes on as its owner"
    end(api, experiment_id)
    answer = await owner.ask("POST", CONTINUE, body)
    assert "only its owner" not in answer.text


@pytest.mark.parametrize("storage", [S3, AZURE], ids=["s3", "azure"])
async def test_secrets_of_a_configuration_are_in_no_answer(api: Served, storage: dict[str, Any]) -> None:
    user = api.user()
    login = {"username": "ada", "password": "secret-of-registry", "serveraddress": "registry.example.com"}
    run = await api.trial(user, checkpoint_storage=storage, environment={"registry_auth": login})
    uuid = await checkpoint(run)
    name = (await model(user))["name"]
    number = (await version(user, name, uuid))["version"]
    for method, path, body in (
        ("GET", f"/api/v1/experiments/{run.experiment_id}", None), ("GET", "/api/v1/experiments?limit=-1", None),
        ("GET", f"/api/v1/checkpoints/{uuid}", None),
        ("GET", f"/api/v1/experiments/{run.experiment_id}/checkpoints", None),
        ("GET", f"/api/v1/trials/{run.trial_id}/checkpoints", None), ("GET", f"/api/v1/trials/{run.trial_id}", None),
        ("GET", f"/api/v1/models/{name}/versions", None), ("GET", f"/api/v1/models/{name}/versions/{number}", None),
        ("GET", f"/api/v1/models/{name}", None), ("GET", f"/api/v1/tasks/{run.task_id}", None),
        ("GET", f"/api/v1/experiments/{run.experiment_id}/search/history", None),
        ("GET", f"/api/v1/models/{name}/versions/{number}/metrics", None),
        ("PATCH", f"/api/v1/models/{name}/versions/{number}", {"comment": "x"}),
        ("PATCH", f"/api/v1/experiments/{run.experiment_id}", {"notes": "x"}),
    ):  # fmt: skip
        answer = await user.ask(method, path, body)
        assert answer.status_code in (200, 404), f"{path}: {answer.text}"
        for secret in ("secret-of", "key-of-s3"):
            assert secret not in answer.text, path
    assert "secret-of-registry" not in str(run.__dict__), "and a container does not get the registry's"
