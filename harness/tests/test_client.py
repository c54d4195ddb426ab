"""The Python SDK."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import xxhash

from determined import errors
from determined.common.api import Session
from determined.experimental import client

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import Call, Master

UUID = "11111111-2222-4333-8444-555555555555"


@pytest.fixture
def det(master: Master, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[client.Determined]:
    for name in ("DET_MASTER", "DET_USER", "DET_PASS", "DET_USER_TOKEN", "DET_SESSION_TOKEN", "DET_SHARED_FS_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(client, "_determined", None)
    session = Session(master.url, token="tok", username="ann")
    yield client.Determined.from_session(session)
    session.close()


def experiment(**changes: Any) -> dict[str, Any]:
    return {
        "id": 3,
        "name": "digits",
        "state": "STATE_RUNNING",
        "progress": 0.5,
        "labels": ["a"],
        "config": {},
        "archived": False,
        "projectId": 1,
        "numTrials": 2,
        "username": "ann",
        "startTime": "2026-01-01T00:00:00Z",
        **changes,
    }


def trial(trial_id: int = 7, **changes: Any) -> dict[str, Any]:
    return {
        "id": trial_id,
        "experimentId": 3,
        "state": "STATE_COMPLETED",
        "hparams": {"lr": 0.1},
        "restarts": 0,
        "startTime": "2026-01-01T00:00:00Z",
        "totalBatchesProcessed": 16,
        "summaryMetrics": {"validation_metrics": {}},
        **changes,
    }


def checkpoint(uuid: str = UUID, trial_id: int = 7, accuracy: Any = 0.5, **changes: Any) -> dict[str, Any]:
    return {
        "uuid": uuid,
        "taskId": "1.task",
        "allocationId": "a.1",
        "reportTime": "2026-01-01T00:00:00Z",
        "resources": {"model": "5", "sub/": "0", "metadata.json": "99"},
        "metadata": {"steps_completed": 4},
        "state": "STATE_COMPLETED",
        "training": {
            "trialId": trial_id,
            "experimentId": 3,
            "experimentConfig": {"searcher": {"metric": "accuracy", "smaller_is_better": False}},
            "hparams": {"lr": 0.1},
            "validationMetrics": {"avgMetrics": {} if accuracy is None else {"accuracy": accuracy, "loss": accuracy}},
            "searcherMetric": None,
        },
        **changes,
    }


def page(key: str, items: list[Any]) -> Any:
    def answer(call: Call) -> Any:
        offset, limit = int(call.query["offset"][0]), int(call.query["limit"][0])
        part = items[offset : offset + limit]
        pagination = {"offset": offset, "limit": limit, "startIndex": offset, "endIndex": offset + len(part)}
        return {key: part, "pagination": {**pagination, "total": len(items)}}

    return answer


def test_an_experiment_is_created_from_a_file_or_a_dictionary(
    det: client.Determined, master: Master, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "train.py").write_text("print()")
    config = tmp_path / "c.yaml"
    config.write_text("name: digits\n")
    extra = tmp_path / "extra.txt"
    extra.write_text("e")
    master.answer(
        "POST /api/v1/experiments", {"experiment": experiment(), "config": {"name": "digits"}, "warnings": []}
    )
    exp = det.create_experiment(config, model, [extra], project_id=5, template="t")
    assert (exp.id, exp.name, exp.state, exp.progress) == (3, "digits", client.ExperimentState.RUNNING, 0.5)
    assert exp.config == {"name": "digits"}
    call = master.calls[0]
    assert call.headers["Idempotency-Key"]
    assert call.body["config"] == "name: digits\n"
    assert [f["path"] for f in call.body["modelDefinition"]] == ["train.py", "extra.txt"]
    assert base64.b64decode(call.body["modelDefinition"][0]["content"]) == b"print()"
    assert (call.body["activate"], call.body["projectId"], call.body["template"]) == (True, 5, "t")
    det.create_experiment({"name": "digits", "searcher": {"name": "single"}}, str(model))
    assert master.calls[1].body["config"] == "name: digits\nsearcher:\n  name: single\n"
    for wrong, message in (
        (tmp_path / "none.yaml", "can't read the experiment's configuration"),
        ({"x": object()}, "a value that YAML can't say"),
    ):
        with pytest.raises(errors.InvalidExperimentException, match=message):
            det.create_experiment(wrong, model)
    with pytest.raises(errors.InvalidContextException, match="need a model_dir"):
        det.create_experiment({}, None, [extra])


def test_experiments_are_created_in_one_request(det: client.Determined, master: Master, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print()")
    made = [
        {"id": 3, "name": "a", "warnings": [], "notices": []},
        {"id": 4, "name": "b", "warnings": [], "notices": []},
    ]
    master.answer("POST /api/v1/undeterred/experiments", {"experiments": made})
    master.lose = lambda call: len(master.calls) == 1
    found = det.create_experiments(({"name": name} for name in "ab"), tmp_path, project_id=5)
    assert [each.id for each in found] == [3, 4]
    assert len({call.headers["Idempotency-Key"] for call in master.calls}) == 1
    assert [each["config"] for each in master.calls[1].body["experiments"]] == ["name: a\n", "name: b\n"]
    assert {(each["activate"], each["projectId"]) for each in master.calls[1].body["experiments"]} == {(True, 5)}
    assert [each["path"] for each in master.calls[1].body["modelDefinition"]] == ["train.py"]


def test_creating_is_safe_to_repeat_when_the_answer_is_lost(det: client.Determined, master: Master) -> None:
    master.answer("POST /api/v1/experiments", {"experiment": experiment(), "config": {}})
    master.lose = lambda call: len(master.calls) == 1
    det.create_experiment({})
    assert len({c.headers["Idempotency-Key"] for c in master.calls}) == 1
    assert len(master.calls) == 2


@pytest.mark.parametrize(
    ("create", "route", "answer"),
    [
        (lambda det: det.create_model("m"), "POST /api/v1/models", {"model": {"id": 1, "name": "m"}}),
        (lambda det: det.create_user("ann", False, "pw"), "POST /api/v1/users", {"user": {"id": 2, "username": "ann"}}),
        (lambda det: det.create_workspace("w"), "POST /api/v1/workspaces", {"workspace": {"id": 3, "name": "w"}}),
        (
            lambda det: det.get_model("m").register_version(UUID),
            "POST /api/v1/models/1/versions",
            {"modelVersion": {"id": 5, "version": 1, "model": {"id": 1, "name": "m"}, "checkpoint": {"uuid": UUID}}},
        ),
        (
            lambda det: det.get_workspace("w").create_project("p"),
            "POST /api/v1/workspaces/3/projects",
            {"project": {"id": 4, "name": "p", "workspaceId": 3}},
        ),
    ],
    ids=["model", "user", "workspace", "version", "project"],
)
def test_whatever_is_created_is_asked_for_again_when_the_answer_is_lost(
    det: client.Determined, master: Master, create: Callable[[client.Determined], object], route: str, answer: Any
) -> None:
    master.answer("GET /api/v1/models/m", {"model": {"id": 1, "name": "m"}})
    master.answer("GET /api/v1/workspaces", {"workspaces": [{"id": 3, "name": "w"}], "pagination": {"total": 1}})
    master.answer(route, answer)
    master.lose = lambda call: call.method == "POST" and len(master.of(route)) == 1
    create(det)
    first, second = master.of(route)
    assert first.headers["Idempotency-Key"] == second.headers["Idempotency-Key"]
    assert first.body == second.body


def test_an_experiment_can_be_steered(det: client.Determined, master: Master) -> None:
    master.answer("GET /api/v1/experiments/3", lambda call: {"experiment": experiment(), "config": {"a": 1}})
    exp = det.get_experiment(3)
    verbs = ["activate", "pause", "cancel", "kill", "archive", "unarchive"]
    for verb in verbs:
        master.answer(f"POST /api/v1/experiments/3/{verb}", {})
        getattr(exp, verb)()
    master.answer("DELETE /api/v1/experiments/3", {})
    exp.delete()
    assert [c.path.rpartition("/")[2] for c in master.calls[1:]] == [*verbs, "3"]
    assert exp.get_config() == {"a": 1}
    patched: list[Any] = []
    master.answer(
        "PATCH /api/v1/experiments/3",
        lambda call: patched.append(call.body) or {"experiment": experiment(labels=call.body.get("labels", ["a"]))},
    )
    exp.set_name("n")
    exp.set_description("d")
    exp.set_notes("t")
    exp.add_label("b")
    exp.remove_label("a")
    assert patched == [
        {"id": 3, "name": "n"},
        {"id": 3, "description": "d"},
        {"id": 3, "notes": "t"},
        {"id": 3, "labels": ["a", "b"]},
        {"id": 3, "labels": []},
    ]
    assert exp.labels == set()
    with pytest.raises(errors.NotFoundException):
        det.get_experiment(4)


def test_waiting_ends_with_the_experiment_and_bears_a_restart(det: client.Determined, master: Master) -> None:
    states = iter(["STATE_RUNNING", "STATE_NEW_IN_LATER_RELEASE", "STATE_COMPLETED"])
    master.answer("GET /api/v1/experiments/3", lambda call: {"experiment": experiment(state=next(states))})
    master.fault = lambda call: (503, {"message": "later"}) if len(master.calls) == 1 and next_fault() else None
    faults = iter([True, False])

    def next_fault() -> bool:
        return next(faults, False)

    exp = client.Experiment(3, det._session)
    assert exp.wait(0.01) == client.ExperimentState.COMPLETED
    master.answer("GET /api/v1/experiments/3", {"experiment": experiment(state="STATE_PAUSED")})
    with pytest.raises(ValueError, match="is paused"):
        exp.wait(0.01)


def test_lists_go_through_all_pages_and_end(det: client.Determined, master: Master) -> None:
    trials = [trial(i) for i in range(450)]
    master.answer("GET /api/v1/experiments/3/trials", page("trials", trials))
    exp = client.ExperimentReference(3, det._session)
    listed = exp.get_trials(client.TrialSortBy.ID, client.TrialOrderBy.DESC)
    assert [t.id for t in listed] == list(range(450))
    assert len(master.calls) == 3
    assert master.calls[0].query["orderBy"] == ["ORDER_BY_DESC"]
    assert [t.id for t in exp.iter_trials(limit=5)] == list(range(5))
    # A master whose total is never reached.
    lie = {"trials": [], "pagination": {"total": 10**6, "endIndex": 0}}
    master.answer("GET /api/v1/experiments/3/trials", lie)
    assert exp.list_trials() == []
    master.answer("GET /api/v1/experiments", page("experiments", [experiment(id=i) for i in range(3)]))
    found = det.list_experiments(
        client.ExperimentSortBy.NAME, client.OrderBy.ASC, [1, 2], ["l"], ["u"], [client.ExperimentState.ACTIVE], "n", 1
    )
    assert [e.id for e in found] == [0, 1, 2]
    assert master.calls[-1].query == {
        "sortBy": ["SORT_BY_NAME"],
        "orderBy": ["ORDER_BY_ASC"],
        "experimentIdFilter.incl": ["1", "2"],
        "labels": ["l"],
        "users": ["u"],
        "states": ["STATE_ACTIVE"],
        "name": ["n"],
        "projectId": ["1"],
        "offset": ["0"],
        "limit": ["200"],
    }


def test_the_first_trial_is_waited_for(det: client.Determined, master: Master) -> None:
    master.answer("GET /api/v1/experiments/3", {"experiment": experiment()})
    answers = iter([[], [], [trial(8, rung=2, state="STATE_RUNNING")]])
    master.answer(
        "GET /api/v1/experiments/3/trials", lambda call: {"trials": next(answers), "pagination": {"total": 1}}
    )
    first = client.Experiment(3, det._session).await_first_trial(0.01)
    assert (first.trial_id, first.rung, first.state) == (8, 2, client.TrialState.RUNNING)
    assert (first.hparams, first.summary_metrics) == ({"lr": 0.1}, {"validation_metrics": {}})
    master.answer("GET /api/v1/experiments/3/trials", {"trials": [], "pagination": {"total": 0}})
    master.answer("GET /api/v1/experiments/3", {"experiment": experiment(state="STATE_ERROR")})
    with pytest.raises(RuntimeError, match="is ERROR and has no trial"):
        client.Experiment(3, det._session).await_first_trial(0.01)


def test_the_best_checkpoints_are_one_a_trial_and_never_nan(det: client.Determined, master: Master) -> None:
    checkpoints = [
        checkpoint("a", 1, 0.9),
        checkpoint("b", 1, 0.95),
        checkpoint("c", 2, 0.99),
        checkpoint("d", 3, "NaN"),
        checkpoint("e", 4, None),
        checkpoint("f", 5, 0.8),
        checkpoint("g", 6, 1.0, state="STATE_DELETED"),
    ]
    master.answer("GET /api/v1/experiments/3/checkpoints", page("checkpoints", checkpoints))
    exp = client.Experiment(3, det._session)
    assert [c.uuid for c in exp.top_n_checkpoints(3)] == ["c", "b", "f"]
    assert exp.top_checkpoint().uuid == "c"
    assert exp.top_checkpoint("loss", smaller_is_better=True).uuid == "f"
    assert exp.top_checkpoint().training.trial_id == 2  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="smaller_is_better must be given"):
        exp.top_checkpoint("loss")
    with pytest.raises(ValueError, match="no checkpoint with a validation of the metric 'f1'"):
        exp.top_checkpoint("f1", smaller_is_better=True)
    exp.list_checkpoints("accuracy", client.CheckpointOrderBy.DESC, max_results=1)
    assert master.calls[-1].query["sortByMetric"] == ["accuracy"]
    exp.list_checkpoints(client.CheckpointSortBy.SEARCHER_METRIC, client.OrderBy.ASC)
    assert master.calls[-1].query["sortByAttr"] == ["SORT_BY_SEARCHER_METRIC"]
    with pytest.raises(ValueError, match="given together"):
        exp.list_checkpoints("accuracy")
    master.answer("GET /api/v1/experiments/3/checkpoints", page("checkpoints", []))
    for kind in (ValueError, AssertionError):  # Determined's experiments raise the one, its trials the other
        with pytest.raises(kind, match="no completed checkpoint"):
            exp.top_checkpoint()


def test_a_trial_selects_its_checkpoints(det: client.Determined, master: Master) -> None:
    master.answer("GET /api/v1/trials/7", {"trial": trial()})
    items = [checkpoint("a", 7, 0.9), checkpoint("b", 7, 0.8, metadata={"steps_completed": 8})]
    master.answer("GET /api/v1/trials/7/checkpoints", page("checkpoints", items))
    master.answer("POST /api/v1/trials/7/kill", {})
    t = det.get_trial(7)
    assert t.select_checkpoint(latest=True).uuid == "b"
    assert t.select_checkpoint(best=True).uuid == t.top_checkpoint().uuid == "a"
    assert t.select_checkpoint(uuid="b").uuid == "b"
    assert [c.uuid for c in t.get_checkpoints()] == ["a", "b"]
    for wrong in ({}, {"latest": True, "best": True}, {"latest": True, "sort_by": "x"}, {"best": True, "sort_by": "x"}):
        for kind in (AssertionError, ValueError):
            with pytest.raises(kind, match=r"exactly one|go with best|smaller_is_better must be given"):
                t.select_checkpoint(**wrong)  # type: ignore[arg-type]
    with pytest.raises(errors.NotFoundException, match="has no checkpoint none"):
        t.select_checkpoint(uuid="none")
    master.answer("GET /api/v1/trials/7/checkpoints", page("checkpoints", []))
    with pytest.raises(ValueError, match="trial 7 has no checkpoint yet"):
        t.select_checkpoint(latest=True)
    t.kill()
    master.answer("GET /api/v1/experiments/3", {"experiment": experiment()})
    assert t.get_experiment().id == 3


def _line(i: int) -> bytes:
    line = {
        "id": str(i),
        "message": f"line {i}\n",
        "timestamp": f"2026-01-01T00:00:{i:02d}.5Z",
        "level": "LOG_LEVEL_INFO",
    }
    return json.dumps({"result": line}).encode() + b"\n"


def test_logs_are_read_filtered_and_followed(det: client.Determined, master: Master) -> None:
    t = client.TrialReference(7, det._session)
    route = "GET /api/v1/trials/7/logs"
    master.answer(route, lambda call: iter([_line(1), _line(2)]))
    assert list(t.logs(head=2, min_level=client.LogLevel.ERROR, rank_ids=[0], stdtypes=["stdout"])) == [
        "line 1\n",
        "line 2\n",
    ]
    assert master.calls[-1].query == {
        "limit": ["2"],
        "levels": ["LOG_LEVEL_ERROR", "LOG_LEVEL_CRITICAL"],
        "rankIds": ["0"],
        "stdtypes": ["stdout"],
    }
    master.answer(route, lambda call: iter([_line(2), _line(1)]))
    assert list(t.logs(tail=2)) == ["line 1\n", "line 2\n"]
    assert master.calls[-1].query["orderBy"] == ["ORDER_BY_DESC"]
    list(t.iter_logs(timestamp_after=0, search_text="x"))
    assert master.calls[-1].query["timestampAfter"] == ["1970-01-01T00:00:00Z"]
    with pytest.raises(ValueError, match="only one of follow, head and tail"):
        t.logs(follow=True, tail=1)


def test_following_goes_on_where_a_restart_of_the_master_broke_it(det: client.Determined, master: Master) -> None:
    def logs(call: Call) -> Any:
        if len(master.calls) == 1:
            head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
            return master.Raw(head + b"".join(b"%x\r\n%s\r\n" % (len(_line(i)), _line(i)) for i in (1, 2, 3)))
        return iter([_line(4)])

    master.answer("GET /api/v1/trials/7/logs", logs)
    lines = list(client.Trial(7, det._session).logs(follow=True))
    assert lines == [f"line {i}\n" for i in (1, 2, 3, 4)]
    assert [call.query.get("afterId") for call in master.calls] == [None, ["3"]], "hosts' clocks differ"


def _store(tmp_path: Path, master: Master, **changes: Any) -> dict[str, Any]:
    folder = tmp_path / "storage" / UUID
    (folder / "sub").mkdir(parents=True)
    (folder / "model").write_bytes(b"12345")
    (folder / "metadata.json").write_text("{}")
    body = checkpoint(**changes)
    body["training"]["experimentConfig"]["checkpoint_storage"] = {
        "type": "directory",
        "container_path": str(tmp_path / "storage"),
    }
    master.answer(f"GET /api/v1/checkpoints/{UUID}", {"checkpoint": body})
    return body


def _serve(master: Master, files: dict[str, bytes]) -> None:
    entries = {name: {"size": len(data), "xxh3": xxhash.xxh3_128_hexdigest(data)} for name, data in files.items()}
    path = f"GET /api/v1/undeterred/checkpoints/{UUID}"
    master.answer(f"{path}/files", {"files": entries | {"sub/": {"size": 0, "xxh3": ""}}})
    master.answer(f"{path}/file", lambda call: (200, files[call.query["path"][0]][int(call.query["offset"][0]) :]))


def test_a_checkpoint_is_copied_from_its_storage(det: client.Determined, master: Master, tmp_path: Path) -> None:
    _store(tmp_path, master)
    ckpt = det.get_checkpoint(UUID)
    assert (ckpt.state, ckpt.resources["model"], ckpt.metadata) == (
        client.CheckpointState.COMPLETED,
        5,
        {"steps_completed": 4},
    )
    target = tmp_path / "down" / "load"
    assert ckpt.download(str(target), client.DownloadMode.DIRECT) == str(target)
    assert sorted(os.listdir(target)) == ["metadata.json", "model", "sub"]
    assert json.loads((target / "metadata.json").read_text()) == {"steps_completed": 4}
    assert os.listdir(tmp_path / "down") == ["load"]
    (target / "model").write_text("kept")
    ckpt.download(str(target))
    assert (target / "model").read_text() == "kept"


def test_the_default_folder_is_named_after_the_checkpoint(
    det: client.Determined, master: Master, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _store(tmp_path, master)
    monkeypatch.chdir(tmp_path)
    assert det.get_checkpoint(UUID).download() == f"checkpoints/{UUID}"
    assert (tmp_path / "checkpoints" / UUID / "model").exists()


def test_a_checkpoint_comes_through_the_master_when_the_storage_is_out_of_reach(
    det: client.Determined, master: Master, tmp_path: Path
) -> None:
    body = checkpoint()
    master.answer(f"GET /api/v1/checkpoints/{UUID}", {"checkpoint": body})
    _serve(master, {"model": b"12345", "metadata.json": b"{}"})
    ckpt = det.get_checkpoint(UUID)
    target = ckpt.download(tmp_path / "a")
    assert sorted(os.listdir(target)) == ["metadata.json", "model", "sub"]
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine").write_text("m")
    ckpt.download(tmp_path / "b", client.DownloadMode.MASTER)
    assert sorted(os.listdir(tmp_path / "b")) == ["metadata.json", "mine", "model", "sub"]
    with pytest.raises(errors.NoDirectStorageAccess, match="does not say which storage"):
        ckpt.download(tmp_path / "c", client.DownloadMode.DIRECT)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"model": b"1234"}, "model has 4 bytes instead of 5"),
        ({}, "model is missing"),
        ({"../evil": b"x", "model": b"12345"}, r"'\.\./evil' is refused"),
        (None, "gone"),
    ],
)
def test_a_bad_download_leaves_nothing(
    det: client.Determined, master: Master, tmp_path: Path, files: dict[str, bytes] | None, message: str
) -> None:
    master.answer(f"GET /api/v1/checkpoints/{UUID}", {"checkpoint": checkpoint()})
    _serve(master, files or {})
    if files is None:
        master.answer(f"GET /api/v1/undeterred/checkpoints/{UUID}/files", (404, {"message": "gone"}))
    ckpt = det.get_checkpoint(UUID)
    with pytest.raises(errors.CheckpointException, match=message):
        ckpt.download(tmp_path / "x" / "y", client.DownloadMode.MASTER)
    with pytest.raises(errors.MultipleDownloadsFailed, match=message):
        ckpt.download(tmp_path / "x" / "y")
    assert os.listdir(tmp_path / "x") == []
    assert not (tmp_path / "evil").exists()


def test_only_finished_checkpoints_are_downloaded(det: client.Determined, master: Master, tmp_path: Path) -> None:
    _store(tmp_path, master, state="STATE_DELETED")
    with pytest.raises(errors.CheckpointStateException, match="is DELETED"):
        det.get_checkpoint(UUID).download(tmp_path / "x")


def test_metadata_is_merged_here_and_sent_whole(det: client.Determined, master: Master) -> None:
    master.answer(f"GET /api/v1/checkpoints/{UUID}", {"checkpoint": checkpoint()})
    master.answer(f"POST /api/v1/checkpoints/{UUID}/metadata", {})
    master.answer("DELETE /api/v1/checkpoints", {})
    master.answer("POST /api/v1/checkpoints/rm", {})
    ckpt = det.get_checkpoint(UUID)
    ckpt.add_metadata({"a": 1})
    assert master.calls[-1].body["checkpoint"]["metadata"] == {"steps_completed": 4, "a": 1}
    ckpt.remove_metadata(["steps_completed"])
    assert ckpt.metadata == {"a": 1}
    with pytest.raises(ValueError, match="must be a list"):
        ckpt.remove_metadata("a")  # type: ignore[arg-type]
    ckpt.delete()
    assert master.calls[-1].body == {"checkpointUuids": [UUID]}
    ckpt.remove_files(["*.bin"])
    assert master.calls[-1].body == {"checkpointUuids": [UUID], "checkpointGlobs": ["*.bin"]}


def test_users(det: client.Determined, master: Master) -> None:
    ann = {"id": 2, "username": "ann", "admin": True, "active": True, "agentUserGroup": {"agentUid": 1000}}
    master.answer("GET /api/v1/me", {"user": ann})
    master.answer("GET /api/v1/users", page("users", [ann]))
    master.answer("GET /api/v1/users/2", {"user": ann})
    master.answer("GET /api/v1/users/ann/by-username", {"user": ann})
    master.answer("POST /api/v1/users", {"user": ann})
    master.answer("PATCH /api/v1/users/2", lambda call: {"user": {**ann, **call.body}})
    me = det.whoami()
    assert (me.username, me.admin, me.agent_uid) == ("ann", True, 1000)
    assert det.get_session_username() == "ann"
    assert [u.user_id for u in det.list_users(active=True)] == [2]
    assert det.get_user_by_id(2).username == det.get_user_by_name("ann").username == "ann"
    det.create_user("bob", admin=False, password="pw")
    sent = master.calls[-1].body
    assert (sent["user"]["username"], sent["isHashed"], len(sent["password"])) == ("bob", True, 128)
    me.rename("anna")
    assert me.username == "anna"
    me.deactivate()
    assert me.active is False
    me.change_password("new")
    assert len(master.calls[-1].body["password"]) == 128
    me.link_with_agent(1, 2, "u", "g")
    assert me.agent_group == "g"


def test_the_module_uses_one_session(
    det: client.Determined, master: Master, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    user = {"id": 1, "username": "determined", "admin": False, "active": True}
    master.answer("POST /api/v1/auth/login", {"token": "t", "user": user})
    master.answer("POST /api/v1/auth/logout", {})
    master.answer("GET /api/v1/me", {"user": user})
    master.answer("GET /api/v1/trials/7", {"trial": trial()})
    client.login(master=master.url, user="determined", password="")
    assert client.whoami().username == client.get_session_username() == "determined"
    assert client.get_trial(7).id == 7
    with pytest.raises(RuntimeError, match="before any other function"):
        client.login(master=master.url)
    client._determined._session.close()  # type: ignore[union-attr]
    monkeypatch.setattr(client, "_determined", None)
    monkeypatch.setenv("DET_MASTER", master.url)
    assert client.get_trial(7).id == 7
    assert len(master.of("POST /api/v1/auth/login")) == 1
    client.logout()
    assert client._determined is None
