"""`det experiment`, `trial`, `checkpoint`, `user` and lists, against canned answers of the API."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from tests.unit.cli.conftest import Cluster, Det


def experiment(state: str = "COMPLETED", **more: Any) -> dict[str, Any]:
    return {
        "id": 7,
        "name": "mnist",
        "username": "ada",
        "state": f"STATE_{state}",
        "progress": 0.5,
        "startTime": "2026-01-02T03:04:05.678901Z",
        "endTime": None,
        "resourcePool": "default",
        "archived": False,
        "labels": [],
        "config": {"name": "mnist", "searcher": {"metric": "loss"}},
        "searcherMetric": "loss",
        "duration": 3723,
        **more,
    }


def trial(trial_id: int = 3, state: str = "RUNNING", **more: Any) -> dict[str, Any]:
    return {
        "id": trial_id,
        "experimentId": 7,
        "state": f"STATE_{state}",
        "hparams": {"lr": 0.1},
        "startTime": "2026-01-02T03:04:05Z",
        "restarts": 0,
        "totalBatchesProcessed": 10,
        "taskId": "7.x",
        **more,
    }


def page(key: str, *items: Any) -> dict[str, Any]:
    return {key: list(items), "pagination": {"total": len(items), "endIndex": len(items)}}


class TestList:
    def test_table(self, cluster: Cluster, det: Det) -> None:
        cluster.routes["GET /api/v1/experiments"] = page("experiments", experiment())
        for words in (["e"], ["e", "ls"], ["experiment", "list"], ["exp", "ls"]):
            result = det(*words)
            assert result.code == 0
            header, line, row = result.out.splitlines()
            assert [cell.strip() for cell in header.split("|")][:5] == ["ID", "Owner", "Name", "Parent ID", "State"]
            assert set(line) == {"-", "+"}
            cells = [cell.strip() for cell in row.split("|")]
            assert cells == [
                "7",
                "ada",
                "mnist",
                "N/A",
                "COMPLETED",
                "50.0%",
                "2026-01-02 03:04:05+0000",
                "N/A",
                "default",
            ]
        query = cluster.query_of("GET /api/v1/experiments")
        assert query["users"] == ["ada"]
        assert query["archived"] == ["false"]

    def test_all_limit_and_forms(self, cluster: Cluster, det: Det) -> None:
        cluster.routes["GET /api/v1/experiments"] = page("experiments", experiment(id=8), experiment())
        result = det("e", "ls", "-a", "--limit", "5", "--csv")
        rows = list(csv.DictReader(io.StringIO(result.out)))
        assert [row["ID"] for row in rows] == ["7", "8"]  # the newest last
        assert rows[0]["Archived"] == "False"
        query = cluster.query_of("GET /api/v1/experiments")
        assert query["limit"] == ["5"]
        assert "users" not in query
        assert [e["id"] for e in json.loads(det("e", "ls", "--json").out)] == [7, 8]
        assert "Workspace" in det("e", "ls", "--show_project").out


class TestCreate:
    @pytest.fixture
    def files(self, tmp_path: Path) -> Path:
        (tmp_path / "config.yaml").write_text("# why\nname: a\nhyperparameters: {lr: 1e-4}\nsearcher: {metric: loss}\n")
        (tmp_path / "model").mkdir()
        (tmp_path / "model" / "train.py").write_text("print()")
        (tmp_path / "extra.txt").write_text("x")
        return tmp_path

    @pytest.fixture(autouse=True)
    def route(self, cluster: Cluster) -> None:
        cluster.routes["POST /api/v1/experiments"] = {"experiment": experiment("ACTIVE"), "warnings": ["beware"]}
        # another version than ours, so that it decides what a valid configuration is
        cluster.routes["GET /api/v1/master"] = {"undeterredVersion": "0.0.9"}

    def test_sends_the_file_as_it_is(self, cluster: Cluster, det: Det, files: Path) -> None:
        result = det("e", "create", files / "config.yaml", files / "model", "-i", files / "extra.txt", "--paused")
        assert result.code == 0
        assert result.out == "Created experiment 7\n"
        assert "2 file(s), 8 B" in result.err
        assert "warning: beware" in result.err
        body = cluster.body_of("POST /api/v1/experiments")
        assert body["config"] == (files / "config.yaml").read_text()
        assert body["activate"] is False
        sent = {file["path"]: base64.b64decode(file["content"]) for file in body["modelDefinition"]}
        assert sent == {"train.py": b"print()", "extra.txt": b"x"}

    def test_overrides(self, cluster: Cluster, det: Det, files: Path) -> None:
        words = [
            "--config",
            "searcher.max_trials=4",
            "--config",
            "a.b.c=[1, x]",
            "--config",
            "name=no",
            "--config",
            "d=",
        ]
        cluster.routes["GET /api/v1/templates/t"] = {"template": {"name": "t", "config": {"max_restarts": 2}}}
        assert det("e", "create", files / "config.yaml", *words, "--template", "t", "--project_id", "3").code == 0
        body = cluster.body_of("POST /api/v1/experiments")
        text = body["config"]
        assert "# why" in text
        assert "lr: 1e-4" in text  # as it was written, not as YAML 1.1 reads it
        config = yaml.safe_load(text)
        assert config["searcher"] == {"metric": "loss", "max_trials": 4}
        assert config["a"] == {"b": {"c": [1, "x"]}}
        assert config["d"] is None
        assert "name: no" in text
        assert (body["template"], body["projectId"]) == ("t", 3)

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["none.yaml"], "can't be read"),
            (["config.yaml", "none"], "not a directory"),
            (["config.yaml", "--config", "x"], "expected key.sub=value"),
            (["config.yaml", "--config", "name.x=1"], "has no part 'x'"),
            (["config.yaml", "-i", "extra.txt"], "needs a model directory"),
            (["config.yaml", "--paused", "--follow"], "only one of"),
            (["config.yaml", "--local", "-f"], "--local needs no cluster"),
        ],
    )
    def test_refused(self, det: Det, files: Path, words: list[str], message: str, cluster: Cluster) -> None:
        result = det("e", "create", files / words[0], *(files / w if (files / w).exists() else w for w in words[1:]))
        assert result.code == 1
        assert message in result.err
        assert result.out == ""
        assert not any(name == "POST /api/v1/experiments" for name, _, _ in cluster.requests)

    def test_test_mode_checks_and_runs_one_step(self, cluster: Cluster, det: Det, files: Path) -> None:
        cluster.routes["GET /api/v1/experiments/7/trials"] = page("trials", trial(state="COMPLETED"))
        cluster.routes["GET /api/v1/trials/3/logs"] = b'{"result": {"id": "1", "message": "hello\\n"}}\n'
        cluster.routes["GET /api/v1/experiments/7"] = {"experiment": experiment()}
        result = det("e", "create", files / "config.yaml", files / "model", "-t")
        assert result.code == 0
        assert result.out == "Created experiment 7\nhello\n"
        bodies = [body for name, _, body in cluster.requests if name == "POST /api/v1/experiments"]
        assert [body.get("validateOnly") for body in bodies] == [True, None]
        config = yaml.safe_load(bodies[1]["config"])
        assert config["searcher"] == {"name": "random", "max_trials": 1, "metric": "loss"}
        assert config["max_restarts"] == 0

    def test_follow_first_trial_prints_its_log(self, cluster: Cluster, det: Det, files: Path) -> None:
        cluster.routes["GET /api/v1/experiments/7/trials"] = page("trials", trial())
        cluster.routes["GET /api/v1/trials/3/logs"] = b'{"result": {"id": "1", "message": "hello\\n"}}\n'
        cluster.routes["GET /api/v1/experiments/7"] = {"experiment": experiment("ERROR")}
        result = det("e", "create", files / "config.yaml", "-f")
        assert (result.code, result.out) == (1, "Created experiment 7\nhello\n")


class TestFollow:
    def test_lines_on_changes(self, cluster: Cluster, det: Det, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("cli.snapshot.INTERVAL_S", 0.01)
        best: dict[str, Any] = {"bestTrialId": 3, "bestTrialSearcherMetric": 0.25}
        moments: list[tuple[Any, list[Any]]] = [
            (experiment("ACTIVE", progress=0), []),
            (experiment("RUNNING", progress=0.01), [trial(rung=0)]),
            (experiment("RUNNING", progress=0.02), [trial(rung=0)]),
            ((503, {"message": "away"}), [trial(rung=0)]),
            (
                experiment("RUNNING", **best),
                [trial(rung=1, searcherMetricValue=0.25), trial(4, "ERROR", message="boom")],
            ),
            (experiment(progress=1.0, **best), [trial(state="COMPLETED", rung=1, searcherMetricValue=0.25)]),
        ]
        now = iter(moments)
        shown: list[Any] = []

        def trials(query: Any, body: Any) -> Any:
            if not shown or not _is_terminal(shown[-1][0]):
                shown.append(next(now))
            return page("trials", *shown[-1][1])

        def one(query: Any, body: Any) -> Any:
            found: Any = shown[-1][0]
            if isinstance(found, tuple):
                return cast("tuple[int, Any]", found)
            return {"experiment": found}

        cluster.routes["GET /api/v1/experiments/7/trials"] = trials
        cluster.routes["GET /api/v1/experiments/7"] = one
        result = det("e", "follow", "7")
        assert result.code == 0
        assert result.out.splitlines() == [
            "experiment 7: ACTIVE 0.0%",
            "experiment 7: RUNNING 1.0%",
            "trial 3: RUNNING, rung 0, 10 steps",
            "experiment 7: 50.0%",
            "trial 3: RUNNING, rung 1, 10 steps, loss 0.25",
            "trial 4: ERROR, 10 steps, boom",
            "best: loss 0.25 in trial 3",
            "experiment 7: COMPLETED 100.0%",
            "trial 3: COMPLETED, rung 1, 10 steps, loss 0.25",
            "experiment 7: COMPLETED after 1h02m03s, 1 trial(s); best: loss 0.25 in trial 3",
            "get the best checkpoint with `det experiment download 7`",
        ]

    @pytest.mark.parametrize("state", ["ERROR", "CANCELED"])
    def test_exit_code(self, cluster: Cluster, det: Det, state: str) -> None:
        cluster.routes["GET /api/v1/experiments/7/trials"] = page("trials", trial(state="ERROR"))
        cluster.routes["GET /api/v1/experiments/7"] = {"experiment": experiment(state, error="no more")}
        result = det("e", "follow", "7")
        assert result.code == 1
        assert f"experiment 7: {state} after" in result.out
        assert "no more" in result.out
        assert det("e", "wait", "7").code == 1

    def test_interrupt_detaches(self, cluster: Cluster) -> None:
        cluster.routes["GET /api/v1/experiments/7/trials"] = page("trials", trial())
        cluster.routes["GET /api/v1/experiments/7"] = {"experiment": experiment("RUNNING")}
        words = [sys.executable, "-m", "cli.main", "e", "follow", "7"]
        # A background job of a shell ignores SIGINT; a person's does not.
        code = f"import signal, os; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv({words[0]!r}, {words!r})"
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline().startswith("experiment 7: RUNNING")
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=10)
        assert process.returncode == 130
        assert "the experiment goes on; follow it again with `det experiment follow 7`" in err
        assert "Traceback" not in err
        assert not any("kill" in name or "cancel" in name for name, _, _ in cluster.requests)


def _is_terminal(found: Any) -> bool:
    return not isinstance(found, tuple) and found["state"] == "STATE_COMPLETED"


class TestCommands:
    @pytest.mark.parametrize(
        ("verb", "done"),
        [
            ("pause", "Paused"),
            ("activate", "Activated"),
            ("unpause", "Activated"),
            ("cancel", "Canceled"),
            ("kill", "Killed"),
            ("archive", "Archived"),
            ("unarchive", "Unarchived"),
        ],
    )
    def test_verbs(self, cluster: Cluster, det: Det, verb: str, done: str) -> None:
        route = "activate" if verb == "unpause" else verb
        cluster.routes[f"POST /api/v1/experiments/7/{route}"] = {}
        result = det("e", verb, "7")
        assert (result.code, result.out) == (0, f"{done} experiment 7\n")

    def test_delete_asks(self, cluster: Cluster, det: Det, monkeypatch: pytest.MonkeyPatch) -> None:
        cluster.routes["DELETE /api/v1/experiments/7"] = {}
        monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
        assert det("e", "delete", "7").code == 1
        assert not any(name.startswith("DELETE") for name, _, _ in cluster.requests)
        assert det("e", "delete", "7", "--yes").code == 0
        assert any(name.startswith("DELETE") for name, _, _ in cluster.requests)

    def test_labels_and_names(self, cluster: Cluster, det: Det) -> None:
        cluster.routes["GET /api/v1/experiments/7"] = {"experiment": experiment(labels=["a", "b"])}
        cluster.routes["PATCH /api/v1/experiments/7"] = {"experiment": experiment()}
        assert det("e", "label", "add", "7", "c").code == 0
        assert cluster.body_of("PATCH /api/v1/experiments/7")["labels"] == ["a", "b", "c"]
        assert det("e", "label", "remove", "7", "a").code == 0
        assert cluster.body_of("PATCH /api/v1/experiments/7")["labels"] == ["b"]
        assert det("e", "set", "name", "7", "new").code == 0
        assert cluster.body_of("PATCH /api/v1/experiments/7")["name"] == "new"
        assert det("e", "set", "description", "7", "text").code == 0
        assert cluster.body_of("PATCH /api/v1/experiments/7")["description"] == "text"

    def test_config(self, cluster: Cluster, det: Det) -> None:
        cluster.routes["GET /api/v1/experiments/7"] = {"experiment": experiment(), "config": {"name": "é", "a": [1]}}
        assert det("e", "config", "7").out == "name: é\na:\n- 1\n"
        assert json.loads(det("e", "config", "7", "--json").out) == {"name": "é", "a": [1]}
        cluster.routes["GET /api/v1/undeterred/config-schema"] = {"type": "object"}
        assert json.loads(det("e", "config-schema").out) == {"type": "object"}


class TestDescribe:
    @pytest.fixture(autouse=True)
    def routes(self, cluster: Cluster) -> None:
        metrics = {"avgMetrics": {"loss": 0.25}}
        cluster.routes |= {
            "GET /api/v1/experiments/7": {"experiment": experiment()},
            "GET /api/v1/experiments/7/trials": page("trials", trial()),
            "GET /api/v1/trials/3": {"trial": trial()},
            "GET /api/v1/trials/3/workloads": page(
                "workloads",
                {"training": {"totalBatches": 5, "metrics": metrics, "endTime": "2026-01-02T03:04:05Z"}},
                {"validation": {"totalBatches": 10, "metrics": metrics, "endTime": "2026-01-02T03:04:06Z"}},
                {"checkpoint": {"totalBatches": 10, "uuid": "u-1", "state": "STATE_COMPLETED"}},
            ),
        }

    def test_experiment(self, det: Det, tmp_path: Path) -> None:
        result = det("e", "describe", "7")
        assert result.code == 0
        assert [line for line in result.out.splitlines() if line.endswith(":")] == [
            "Experiments:",
            "Trials:",
            "Workloads:",
        ]
        assert "u-1 " in result.out
        assert "loss=0.25" in result.out
        assert json.loads(det("e", "describe", "7,7", "--json").out)[1]["experiment"]["id"] == 7
        assert det("e", "describe", "7", "--outdir", tmp_path / "out", "--metrics").code == 0
        rows = list(csv.DictReader((tmp_path / "out" / "workloads.csv").read_text().splitlines()))
        assert [row["# of Batches"] for row in rows] == ["5", "10"]
        assert rows[0]["Training Metrics"] == "loss=0.25"
        assert det("e", "describe", "7,x").code == 1

    def test_trial(self, det: Det) -> None:
        result = det("t", "describe", "3")
        assert result.code == 0
        assert '{"lr": 0.1}' in result.out
        assert json.loads(det("trial", "describe", "3", "--json").out)["workloads"][0]["training"]["totalBatches"] == 5

    def test_trials_of_an_experiment(self, det: Det) -> None:
        for name in ("list-trials", "lt"):
            result = det("e", name, "7", "--csv")
            assert next(csv.DictReader(io.StringIO(result.out)))["H-Params"] == '{"lr": 0.1}'

    def test_trials_that_failed_say_why(self, cluster: Cluster, det: Det) -> None:
        failed = trial() | {"message": "exited with code 1: MemoryError"}
        cluster.routes["GET /api/v1/experiments/7/trials"] = page("trials", trial() | {"message": ""}, failed)
        rows = list(csv.DictReader(io.StringIO(det("e", "list-trials", "7", "--csv").out)))
        assert [row["Message"] for row in rows] == ["", "exited with code 1: MemoryError"]
        cluster.routes["GET /api/v1/experiments/7/trials"] = page("trials", trial() | {"message": ""})
        assert "Message" not in det("e", "list-trials", "7").out


class TestLogs:
    @pytest.fixture(autouse=True)
    def routes(self, cluster: Cluster) -> None:
        lines = [json.dumps({"result": {"id": str(i), "message": f"line {i}\n"}}) for i in range(3)]
        cluster.routes |= {
            "GET /api/v1/trials/3/logs": "\n".join(lines).encode(),
            "GET /api/v1/experiments/7/trials": page("trials", trial()),
        }

    def test_trial(self, cluster: Cluster, det: Det) -> None:
        result = det("t", "logs", "3", "--head", "3", "--rank-id", "1", "--level", "warning")
        assert (result.code, result.out) == (0, "line 0\nline 1\nline 2\n")
        query = cluster.query_of("GET /api/v1/trials/3/logs")
        assert query["limit"] == ["3"]
        assert query["rankIds"] == ["1"]
        assert query["levels"] == ["LOG_LEVEL_WARNING", "LOG_LEVEL_ERROR", "LOG_LEVEL_CRITICAL"]
        assert det("t", "logs", "3", "-f").out == "line 0\nline 1\nline 2\n"
        assert det("t", "logs", "3", "--tail", "3").out == "line 2\nline 1\nline 0\n"  # the API sends the newest first
        assert json.loads(det("t", "logs", "3", "--json").out.splitlines()[0])["id"] == "0"
        assert "expected one of TRACE" in det("t", "logs", "3", "--level", "loud").err
        assert det("t", "logs", "3", "--head", "1", "--tail", "1").code == 2

    def test_experiment(self, cluster: Cluster, det: Det) -> None:
        assert det("e", "logs", "7").out.startswith("line 0")
        cluster.routes["GET /api/v1/experiments/7/trials"] = page("trials")
        result = det("e", "logs", "7")
        assert (result.code, result.out) == (1, "")
        assert "has no trial yet" in result.err


class TestCheckpoints:
    @pytest.fixture(autouse=True)
    def routes(self, cluster: Cluster, tmp_path: Path) -> None:
        storage = tmp_path / "storage" / "u-1"
        storage.mkdir(parents=True)
        (storage / "weights").write_text("abc")
        found = {
            "uuid": "u-1",
            "state": "STATE_COMPLETED",
            "resources": {"weights": "3"},
            "metadata": {"steps_completed": 10},
            "training": {
                "trialId": 3,
                "experimentId": 7,
                "searcherMetric": 0.25,
                "validationMetrics": {"avgMetrics": {"loss": 0.25}},
                "experimentConfig": {
                    "searcher": {"metric": "loss", "smaller_is_better": True},
                    "checkpoint_storage": {"type": "shared_fs", "host_path": str(tmp_path / "storage")},
                },
            },
        }
        cluster.routes |= {
            "GET /api/v1/checkpoints/u-1": {"checkpoint": found},
            "GET /api/v1/experiments/7/checkpoints": page("checkpoints", found),
            "GET /api/v1/trials/3/checkpoints": page("checkpoints", found),
            "DELETE /api/v1/checkpoints": {},
        }

    def test_list_and_describe(self, det: Det) -> None:
        row = next(csv.DictReader(io.StringIO(det("e", "lc", "7", "--csv").out)))
        assert (row["UUID"], row["Size"], row["# of Batches"]) == ("u-1", "3 B", "10")
        text = det("c", "describe", "u-1").out
        assert re.search(r"^ Validation loss\s+\| 0.25$", text, re.MULTILINE)
        assert json.loads(det("c", "describe", "u-1", "--json").out)["uuid"] == "u-1"

    def test_download(self, det: Det, tmp_path: Path) -> None:
        for number, words in enumerate((["c", "download", "u-1"], ["t", "download", "3", "--best"])):
            target = tmp_path / str(number)
            result = det(*words, "-o", target, "-q")
            assert (result.code, result.out) == (0, f"{target}\n")
            assert (target / "weights").read_text() == "abc"
        result = det("e", "download", "7", "-o", tmp_path / "all")
        assert result.code == 0
        assert (tmp_path / "all" / "u-1" / "metadata.json").exists()
        assert det("t", "download", "3").code == 1
        assert "expected one of direct, master, auto" in det("c", "download", "u-1", "--mode", "x").err

    def test_delete(self, cluster: Cluster, det: Det) -> None:
        assert det("c", "delete", "u-1, u-2", "--yes").code == 0
        assert cluster.body_of("DELETE /api/v1/checkpoints") == {"checkpointUuids": ["u-1", "u-2"]}


class TestUsers:
    def test_login_and_out(self, cluster: Cluster, det: Det, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("DET_USER_TOKEN")
        cluster.routes["POST /api/v1/auth/logout"] = {}
        monkeypatch.setattr("sys.stdin", io.StringIO("secret\n"))
        result = det("u", "login", "ada")
        assert (result.code, result.out) == (0, f"Logged in as user 'ada' at {cluster.url}\n")
        body = cluster.body_of("POST /api/v1/auth/login")
        assert body["isHashed"] is True
        assert "secret" not in str(body)
        assert det("u", "whoami").out == "You are logged in as user 'ada'\n"
        assert det("user", "logout").out == "Logged out user 'ada'\n"
        assert det("user", "logout").out == "Nobody is logged in\n"
        cluster.routes["POST /api/v1/auth/login"] = 403, {"message": "invalid credentials"}
        monkeypatch.setattr("sys.stdin", io.StringIO("wrong\n"))
        assert det("u", "login", "ada").code == 3

    def test_users(self, cluster: Cluster, det: Det, monkeypatch: pytest.MonkeyPatch) -> None:
        ada = {"id": 2, "username": "ada", "admin": True, "active": True}
        cluster.routes |= {
            "GET /api/v1/users": page("users", ada, {"id": 3, "username": "bob", "active": False}),
            "POST /api/v1/users": {"user": {"id": 4, "username": "eve"}},
            "GET /api/v1/users/ada/by-username": {"user": ada},
            "PATCH /api/v1/users/2": {"user": ada},
        }
        assert det("u").code == 0
        assert cluster.query_of("GET /api/v1/users")["active"] == ["true"]
        assert "bob" in det("u", "ls", "-a").out
        assert "active" not in cluster.query_of("GET /api/v1/users")
        monkeypatch.setattr("sys.stdin", io.StringIO("secret\n"))
        assert det("u", "create", "eve", "--admin").out == "Created user 'eve'\n"
        assert cluster.body_of("POST /api/v1/users")["user"]["admin"] is True
        assert det("u", "deactivate", "ada").code == 0
        assert cluster.body_of("PATCH /api/v1/users/2") == {"active": False}
        monkeypatch.setattr("sys.stdin", io.StringIO("new\n"))
        assert det("u", "change-password").out == "Changed the password of user 'ada'\n"
        assert cluster.body_of("PATCH /api/v1/users/2")["isHashed"] is True
        monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
        assert det("u", "change-password").code == 1


def test_agents_slots_and_pools(cluster: Cluster, det: Det) -> None:
    slot = {
        "id": "0",
        "enabled": True,
        "device": {"type": "TYPE_CUDA", "brand": "H200"},
        "container": {"parent": "a.1"},
    }
    agent = {"id": "host", "slots": {"0": slot}, "containers": {}, "resourcePools": ["gpu"], "enabled": True}
    cluster.routes["GET /api/v1/agents"] = page("agents", agent)
    cluster.routes["GET /api/v1/resource-pools"] = page("resourcePools", {"name": "gpu", "slotsUsed": 1})
    cluster.routes["GET /api/v1/tasks"] = {"allocationIdToSummary": {"a.1": {"name": "Trial 3"}}}
    assert json.loads(det("a", "ls", "--json").out)[0]["num_slots"] == 1
    row = next(csv.DictReader(io.StringIO(det("s", "ls", "--csv").out)))
    assert (row["Allocation ID"], row["Task Name"]) == ("a.1", "Trial 3")
    assert "gpu" in det("rp").out
    cluster.routes["GET /api/v1/master"] = {"clusterName": "c"}
    assert det("master", "info").out == "clusterName: c\n"
    assert json.loads(det("master", "info", "--json").out) == {"clusterName": "c"}
