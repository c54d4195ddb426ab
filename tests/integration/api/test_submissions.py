"""Submission protocol 1: a request sent many times makes one job, and its outcome can be read afterwards."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
import yaml
from sqlalchemy import func, select, update

from database.models import Agent, Experiment, Submission, Task
from tests.integration.api.served import Caller, Served, a_file

SUBMISSIONS = "/api/v1/submissions"
KINDS = ("commands", "shells", "generic-tasks", "experiments")


def key() -> str:
    return f"client:{uuid.uuid4()}"


def request_of(api: Served, kind: str, **submit: Any) -> tuple[str, dict[str, Any]]:
    """Path and body, as clients of the protocol spell them."""
    config: Any = {"entrypoint": ["a"], "resources": {"slots": 0}}
    body: dict[str, Any] = {"config": config, "workspace_id": 1, "files": [a_file("a.py", b"1")]}
    if kind == "shells":
        body["config"] = {"resources": {"slots": 0}}
    if kind == "generic-tasks":
        body = {"config": yaml.safe_dump(config), "context_directory": [a_file("a.py", b"1")]}
    if kind == "experiments":
        config = api.config() | {"name": "of a plan"}
        body = {"config": yaml.safe_dump(config), "model_definition": [a_file("a.py", b"1")], "activate": True}
    return f"/api/v1/{kind}", body | {"submit": submit}


def jobs(api: Served, user: Caller) -> int:
    """Jobs of a user: tasks and experiments."""
    with api.database.read() as session:
        counts = [
            session.scalar(select(func.count()).select_from(table).where(table.owner_id == user.user_id))
            for table in (Task, Experiment)
        ]
        ours = select(Task.id).where(Task.owner_id == user.user_id, Task.trial_id.is_not(None))
        return sum(count or 0 for count in counts) - len(session.scalars(ours).all())


async def test_master_says_which_protocol_it_speaks(api: Served) -> None:
    assert (await api.nobody.get("/api/v1/master"))["submissionProtocol"] == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_request_makes_one_job_when_it_is_sent_again(api: Served, kind: str) -> None:
    user, other = api.user(), api.user()
    path, body = request_of(api, kind, idempotency_key=key(), admission="ADMISSION_QUEUE")
    first = (await user.post(path, body))["submission"]
    assert first["jobId"]
    assert (first["replayed"], first["outcome"], len(first["requestDigest"])) == (False, "ADMISSION_OUTCOME_QUEUED", 64)
    again = await user.post(path, body)
    assert again["submission"] == first | {"replayed": True}
    assert again["warnings"] == []
    assert jobs(api, user) == 1
    changed = (await user.ask("POST", path, body | {"submit": body["submit"] | {"admission": ""}})).json()
    assert changed["submission"]["jobId"] == first["jobId"], "unspecified is the queue"
    theirs = (await other.post(path, body))["submission"]
    assert theirs["jobId"] != first["jobId"], "keys of different users are different"
    assert theirs["requestDigest"] == first["requestDigest"]
    found = (await user.get(f"{SUBMISSIONS}/{first['jobId']}"))["submission"]
    assert (found["kind"], found["state"], found["ownerId"], found["owner"]) == (
        {"commands": "SUBMISSION_KIND_COMMAND", "shells": "SUBMISSION_KIND_SHELL",
         "generic-tasks": "SUBMISSION_KIND_GENERIC", "experiments": "SUBMISSION_KIND_EXPERIMENT"}[kind],
        "SUBMISSION_STATE_QUEUED", user.user_id, user.username)  # fmt: skip
    assert (found["idempotencyKey"], found["requestDigest"]) == (
        body["submit"]["idempotency_key"],
        first["requestDigest"],
    )
    assert (found["workspaceId"], found["endedAt"], found["exitClass"]) == (1, None, "EXIT_CLASS_UNSPECIFIED")
    assert len(found["tasks"]) == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_requests_at_once_make_one_job(api: Served, kind: str) -> None:
    user = api.user()
    path, body = request_of(api, kind, idempotency_key=key())
    answers = await asyncio.gather(*(user.post(path, body) for _ in range(12)))
    assert len({answer["submission"]["jobId"] for answer in answers}) == 1
    assert sum(not answer["submission"]["replayed"] for answer in answers) == 1
    assert jobs(api, user) == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_dry_run_makes_nothing_and_says_what_would_be(api: Served, kind: str) -> None:
    user = api.user()
    with api.database.write() as session:  # those of other tests
        session.execute(update(Agent).where(Agent.pool == "default").values(is_connected=False))
    path, body = request_of(api, kind, idempotency_key=key())
    name = body["submit"]["idempotency_key"]
    dry = (await user.post(path, body | {"submit": {"idempotency_key": name, "dry_run": True}}))["submission"]
    assert (dry["jobId"], dry["replayed"], dry["outcome"]) == ("", False, "ADMISSION_OUTCOME_UNSPECIFIED")
    assert dry["effectiveConfig"]["resources"]["resource_pool"] == ("" if kind == "experiments" else "default")
    outlook = dry["evaluation"]
    assert (outlook["resourcePool"], outlook["slots"], outlook["fits"]) == (
        "default",
        1 if kind == "experiments" else 0,
        False,
    ), "no agent is there"
    assert (len(outlook["codeDigest"]), outlook["pricePerHour"]) == (64, 0)
    assert jobs(api, user) == 0
    wrong = body | {"submit": {"idempotency_key": name, "expected_digest": "0" * 64}}
    message = await user.refused(400, "POST", path, wrong)
    assert message == (
        f"plan_changed: the request digest {dry['requestDigest']} differs from the expected digest {'0' * 64}"
    )
    assert jobs(api, user) == 0
    right = body | {"submit": {"idempotency_key": name, "expected_digest": dry["requestDigest"]}}
    made = (await user.post(path, right))["submission"]
    assert (made["requestDigest"], made["replayed"]) == (dry["requestDigest"], False)
    assert jobs(api, user) == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_key_is_bound_to_its_request(api: Served, kind: str) -> None:
    user = api.user()
    path, body = request_of(api, kind, idempotency_key=key())
    files = "model_definition" if kind == "experiments" else "context_directory" if kind == "generic-tasks" else "files"
    made = (await user.post(path, body))["submission"]
    job = made["jobId"]
    for change in ({files: [a_file("a.py", b"2")]}, {files: [a_file("b.py", b"1")]}):
        message = await user.refused(409, "POST", path, body | change)
        name = body["submit"]["idempotency_key"]
        assert message == f'idempotency key "{name}" is already used by job {job} for a different request'
    same = a_file("a.py", b"1") | {"mtime": "77", "uid": 5, "gid": 6}
    assert (await user.post(path, body | {files: [same]}))["submission"]["jobId"] == job
    expected = {"submit": body["submit"] | {"expected_digest": made["requestDigest"]}, files: [a_file("a.py", b"2")]}
    again = (await user.post(path, body | expected))["submission"]
    assert again == made | {"replayed": True}, "what is expected is what was recorded, whatever it comes to now"
    assert jobs(api, user) == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_refused_request_leaves_its_key_free(api: Served, kind: str) -> None:
    user = api.user()
    path, body = request_of(api, kind, idempotency_key=key())
    bad: Any = {"resources": {"slots": -1}} | ({} if kind == "shells" else {"entrypoint": ["a"]})
    config = yaml.safe_dump(bad) if kind in ("generic-tasks", "experiments") else bad
    await user.refused(400, "POST", path, body | {"config": config})
    assert jobs(api, user) == 0
    assert (await user.post(path, body))["submission"]["replayed"] is False
    with api.database.read() as session:
        rows = session.scalars(select(Submission).where(Submission.owner_id == user.user_id)).all()
    assert [row.idempotency_key for row in rows] == [body["submit"]["idempotency_key"]]


@pytest.mark.parametrize(
    ("kind", "submit", "status", "told"),
    [
        ("commands", {"idempotency_key": "x" * 129}, 400, "idempotency_key"),
        ("commands", {"idempotency_key": "a b"}, 400, "expected 1 to 128 of letters, digits and . _ : -"),
        ("commands", {"admission": "ADMISSION_SOON"}, 400, "submit.admission: 'ADMISSION_SOON': expected one of"),
        ("shells", {"admission": "ADMISSION_IMMEDIATE"}, 501, "immediate admission is not supported yet"),
        ("experiments", {"admission": "ADMISSION_IMMEDIATE"}, 400, "experiments do not support immediate admission"),
        ("generic-tasks", {"dry_run": "perhaps"}, 400, "submit.dry_run"),
    ],
)  # fmt: skip
async def test_submission_is_refused_with_what_was_expected(
    api: Served, kind: str, submit: dict[str, Any], status: int, told: str
) -> None:
    user = api.user()
    path, body = request_of(api, kind, **submit)
    message = await user.refused(status, "POST", path, body)
    assert told in message
    assert jobs(api, user) == 0


async def test_submissions_are_listed_in_pages_the_newest_first(api: Served) -> None:
    user, other = api.user(), api.user()
    made: list[str] = []
    for kind in ("commands", "experiments", "generic-tasks", "shells", "commands"):
        path, body = request_of(api, kind)
        made.append((await user.post(path, body))["submission"]["jobId"])
    seen: list[str] = []
    token = ""
    while True:
        page = await user.get(SUBMISSIONS, limit=2, pageToken=token)
        seen += [each["jobId"] for each in page["submissions"]]
        token = page["nextPageToken"]
        if not token:
            break
    assert seen == made[::-1]
    only = await user.get(SUBMISSIONS, kind="SUBMISSION_KIND_COMMAND")
    assert [each["jobId"] for each in only["submissions"]] == [made[4], made[0]]
    assert (await user.get(SUBMISSIONS, state="SUBMISSION_STATE_COMPLETED"))["submissions"] == []
    assert (await user.get(SUBMISSIONS, submittedAfter="2999-01-01T00:00:00Z"))["submissions"] == []
    assert (await other.get(SUBMISSIONS))["submissions"] == []
    for query, told in (({"kind": "X"}, "kind"), ({"state": "X"}, "state"), ({"limit": 1001}, "limit"),
                        ({"pageToken": "nonsense"}, "pageToken"), ({"submittedAfter": "soon"}, "submittedAfter")):  # fmt: skip
        assert told in await user.refused(400, "GET", SUBMISSIONS, params=query)


async def test_submission_is_canceled_and_stays_when_its_work_is_gone(api: Served) -> None:
    user = api.user()
    path, body = request_of(api, "commands", idempotency_key=key())
    job = (await user.post(path, body))["submission"]["jobId"]
    canceled = (await user.post(f"{SUBMISSIONS}/{job}/cancel", {}))["submission"]
    assert canceled["jobId"] == job
    with api.database.write() as session:
        session.execute(update(Task).where(Task.job_id == job).values(state="CANCELED"))
    found = (await user.post(f"{SUBMISSIONS}/{job}/cancel", {}))["submission"]
    assert (found["state"], found["exitClass"]) == ("SUBMISSION_STATE_CANCELED", "EXIT_CLASS_NONE")
    assert "submission 'none' not found" in await user.refused(404, "GET", f"{SUBMISSIONS}/none")
    path, body = request_of(api, "experiments", idempotency_key=key())
    of_experiment = (await user.post(path, body))["submission"]
    await user.refused(503, "POST", f"{SUBMISSIONS}/{of_experiment['jobId']}/cancel", {})  # Temporal is away
    with api.database.write() as session:
        session.execute(update(Experiment).where(Experiment.job_id == of_experiment["jobId"]).values(state="DELETING"))
    found = (await user.get(f"{SUBMISSIONS}/{of_experiment['jobId']}"))["submission"]
    assert found["state"] == "SUBMISSION_STATE_DELETED"
    replayed = await user.post(path, body)
    assert replayed["submission"] == of_experiment | {"replayed": True}, "keys never expire"
    assert jobs(api, user) == 2


async def test_key_and_digest_are_for_the_owner_and_administrators(api: Served) -> None:
    user, admin = api.user(), api.user(is_admin=True)
    path, body = request_of(api, "experiments", idempotency_key=key())
    job = (await user.post(path, body))["submission"]["jobId"]
    shown = (await admin.get(f"{SUBMISSIONS}/{job}"))["submission"]
    assert shown["idempotencyKey"] == body["submit"]["idempotency_key"]
    seen = (await api.user().get(f"{SUBMISSIONS}/{job}"))["submission"]
    assert (seen["idempotencyKey"], seen["requestDigest"]) == (None, None)
