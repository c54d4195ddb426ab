"""Runs that the cluster did not start: what the master is told of them, and what becomes of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import determined._info
from determined import core, errors
from determined.common.api._session import Session
from determined.experimental import Determined, _heartbeat, _output, core_v2

if TYPE_CHECKING:
    from conftest import Call, Master


class Cluster:
    """A master on which one user is logged in; experiment 3 and trial 7 are the ones that are made."""

    def __init__(self, master: Master, storage: Path) -> None:
        self.master = master
        self.storage = storage
        self.runs = 0
        self.latest: str | None = None
        self.default_storage: dict[str, Any] = {"type": "directory", "container_path": str(storage)}
        for route in ("POST /api/v1/experiments", "PUT /api/v1/experiments/by-external-id/.*"):
            master.answer(route, self._experiment)
        for route in ("POST /api/v1/trials", "PUT /api/v1/trials"):
            master.answer(route, {"trial": {"id": 7, "taskId": "3.task", "hparams": {"lr": 0.1}}})
        master.answer("POST /api/v1/trials/7/start", self._start)
        master.answer("GET /api/v1/master", {"clusterId": "c1"})
        for route in ("PATCH /api/v1/trials/7", "POST /api/v1/trials/7/metrics/batch", "POST /api/v1/checkpoints"):
            master.answer(route, {})
        master.answer("POST /task-logs", "")

    @property
    def client(self) -> Determined:
        return Determined.from_session(Session(self.master.url, token="user-token"))

    def _experiment(self, call: Call) -> Any:
        assert call.headers["Authorization"] == "Bearer user-token"
        return {"experiment": {"id": 3}, "config": {"checkpoint_storage": self.default_storage}}

    def _start(self, call: Call) -> Any:
        self.runs += 1
        return {"trialRunId": self.runs, "latestCheckpoint": self.latest, "stepsCompleted": 4 if self.latest else 0}

    def states(self) -> list[str | None]:
        """What the beats said."""
        return [call.body.get("state") for call in self.master.of("PATCH /api/v1/trials/7")]

    def lines(self) -> list[tuple[str, str]]:
        """Stream and text of the output that was shipped."""
        return [(e["stdtype"], e["log"]) for call in self.master.of("POST /task-logs") for e in call.body]


@pytest.fixture
def cluster(master: Master, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setenv("DET_RUN_DIR", str(tmp_path / "none"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("DET_SPOOL_DIR", raising=False)
    monkeypatch.setattr(determined._info, "_cached", None)
    yield Cluster(master, tmp_path / "storage")
    core_v2.close()


def test_run_is_an_unmanaged_experiment_with_a_trial(cluster: Cluster) -> None:
    config = core_v2.Config(
        name="mine", hparams={"lr": 0.1}, labels=["a"], workspace="w", project="p", description="d",
        searcher={"name": "single", "metric": "loss", "max_length": {"batches": 1}},
    )  # fmt: skip
    core_v2.init(config=config, client=cluster.client)
    assert core_v2.info is not None
    assert core_v2.info.trial.hparams == {"lr": 0.1}
    assert core_v2.url_reverse_webui_exp_view() == f"{cluster.master.url}/det/experiments/3"
    core_v2.train.report_training_metrics(1, {"loss": 0.5})
    with core_v2.checkpoint.store_path({"steps_completed": 1}) as (path, storage_id):
        (path / "model").write_text("m")
    assert not core_v2.preempt.should_preempt()
    core_v2.close()
    (created,) = cluster.master.of("POST /api/v1/experiments")
    assert created.body["unmanaged"] is True
    assert json.loads(created.body["config"]) == {
        "name": "mine", "labels": ["a"], "workspace": "w", "project": "p", "description": "d",
        "hyperparameters": {"lr": 0.1},
        "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 1}},
    }  # fmt: skip
    assert cluster.master.of("POST /api/v1/trials")[0].body == {
        "experimentId": 3,
        "hparams": {"lr": 0.1},
        "unmanaged": True,
    }
    assert cluster.master.of("POST /api/v1/trials/7/start")[0].body == {"resume": False}
    assert [report["stepsCompleted"] for report in cluster.master.reports()] == [1]
    (reported,) = cluster.master.of("POST /api/v1/checkpoints")
    assert (reported.body["uuid"], reported.body["taskId"]) == (storage_id, "3.task")
    assert (cluster.storage / storage_id / "model").exists()
    assert cluster.states() == ["STATE_COMPLETED"]


def test_external_ids_resume(cluster: Cluster) -> None:
    config = core_v2.Config(name="mine", external_experiment_id="exp 1/2", external_trial_id="t1")
    with (
        core_v2.init_context(config=config, client=cluster.client) as context,
        context.checkpoint.store_path({"steps_completed": 4}) as (path, cluster.latest),
    ):
        (path / "model").write_text("m")
    (put,) = cluster.master.of("PUT /api/v1/experiments/by-external-id/.*")
    assert put.path.endswith("/exp 1/2")
    assert cluster.master.of("PUT /api/v1/trials")[0].body["externalTrialId"] == "t1"
    with core_v2.init_context(config=config, client=cluster.client) as context:
        assert context.info is not None
        assert context.info.latest_checkpoint == cluster.latest
        assert context.info.trial.hparams == {"lr": 0.1}, "as the trial was made"
        with context.checkpoint.restore_path(str(cluster.latest)) as path:
            assert (path / "model").read_text() == "m"
    assert [call.body for call in cluster.master.of("POST /api/v1/trials/7/start")] == [{"resume": True}] * 2
    assert cluster.runs == 2


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (KeyError("user"), "STATE_ERROR"),
        (KeyboardInterrupt(), "STATE_CANCELED"),
        (SystemExit(3), "STATE_ERROR"),
        (SystemExit(0), "STATE_COMPLETED"),
    ],
)
def test_end_of_the_block_is_the_end_of_the_trial(cluster: Cluster, error: BaseException, state: str) -> None:
    with (
        pytest.raises(type(error)),
        core_v2.init_context(config=core_v2.Config(name="mine"), client=cluster.client),
    ):
        raise error
    assert cluster.states() == [state]


def test_output_and_traceback_are_the_log_of_the_trial(cluster: Cluster) -> None:
    config = core_v2.Config(name="mine")
    stdout = sys.stdout
    with pytest.raises(KeyError), core_v2.init_context(config=config, client=cluster.client):
        print("one\ntwo")
        print("10%\r100%\r", end="")
        print("done", end="", file=sys.stderr)
        raise KeyError("user")
    assert sys.stdout is stdout
    lines = cluster.lines()
    assert lines[:2] == [("stdout", "one\n"), ("stdout", "two\n")]
    assert ("stderr", "done\n") in lines
    assert ("stderr", "KeyError: 'user'\n") in lines
    print("not shipped")
    assert len(cluster.lines()) == len(lines)


def test_run_goes_on_when_output_and_heartbeat_fail(
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A broken side channel warns once and never ends training."""
    monkeypatch.setattr(_heartbeat, "EVERY_S", 0.01)
    monkeypatch.setattr(_output, "_LINGER_S", 0.01)
    refused = (403, {"message": "no"})
    cluster.master.fault = lambda call: (
        refused if call.path == "/task-logs" or (call.method == "PATCH" and "state" not in call.body) else None
    )
    seen: list[int] = []
    real = cluster.master.handle

    def handle(call: Call) -> Any:
        seen.append(1)
        return real(call)

    monkeypatch.setattr(cluster.master, "handle", handle)
    with core_v2.init_context(config=core_v2.Config(name="mine"), client=cluster.client) as context:
        for step in range(3):
            print("a line")
            context.train.report_training_metrics(step + 1, {"loss": 1.0})
            before = len(seen)
            cluster.master.wait_for(lambda before=before: len(seen) > before + 5)
    assert len(cluster.master.reports()) == 3
    assert cluster.states() == ["STATE_COMPLETED"]
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len([warning for warning in warnings if "sign of life" in warning]) == 1
    assert capsys.readouterr().err.count("output of this run does not reach the master") == 1


def test_heart_beats(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_heartbeat, "EVERY_S", 0.01)
    with core_v2.init_context(config=core_v2.Config(name="mine"), client=cluster.client):
        cluster.master.wait_for(lambda: len(cluster.states()) >= 3)
    assert set(cluster.states()[:-1]) == {None}
    assert cluster.states()[-1] == "STATE_COMPLETED"


def test_older_form_of_the_configuration(cluster: Cluster) -> None:
    defaults = core_v2.DefaultConfig(name="default", hparams={"lr": 0.3}, labels=["x"])
    unmanaged = core_v2.UnmanagedConfig(name="elsewhere")
    core_v2.init(defaults=defaults, unmanaged=unmanaged, client=cluster.client)
    core_v2.close()
    sent = json.loads(cluster.master.of("POST /api/v1/experiments")[0].body["config"])
    assert sent == {"name": "elsewhere", "labels": ["x"], "hyperparameters": {"lr": 0.3}}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"config": core_v2.Config()}, "needs a name"),
        ({"config": core_v2.Config(name="a"), "unmanaged": core_v2.UnmanagedConfig()}, "but not both"),
        ({"config": core_v2.Config(name="a", external_trial_id="t")}, "external_trial_id is 't'"),
    ],
)
def test_wrong_configuration_is_refused_before_anything_is_sent(
    cluster: Cluster, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        core_v2.init(client=cluster.client, **arguments)
    assert cluster.master.calls == []


def test_wrong_storage_is_refused_before_anything_is_made(cluster: Cluster) -> None:
    config = core_v2.Config(name="a", checkpoint_storage={"type": "ftp"})
    with pytest.raises(errors.InvalidConfigurationException, match="ftp"):
        core_v2.init(config=config, client=cluster.client)
    assert cluster.master.calls == []


def test_parts_are_there_during_a_run_only(cluster: Cluster) -> None:
    with pytest.raises(RuntimeError, match=r"core_v2.train is there between"):
        _ = core_v2.train
    with pytest.raises(RuntimeError, match="no run on a master"):
        core_v2.url_reverse_webui_exp_view()
    core_v2.init(config=core_v2.Config(name="a"), client=cluster.client)
    with pytest.raises(RuntimeError, match="was called before"):
        core_v2.init(config=core_v2.Config(name="a"), client=cluster.client)


def test_without_a_configuration_nothing_is_sent(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    core_v2.init(client=cluster.client)
    assert core_v2.info is None
    core_v2.train.report_training_metrics(1, {"loss": 0.5})
    core_v2.close()
    assert cluster.master.calls == []


@pytest.mark.parametrize(("end", "state"), [("", "STATE_COMPLETED"), ("1 / 0", "STATE_ERROR")])
def test_end_of_the_interpreter_ends_the_run(cluster: Cluster, end: str, state: str, tmp_path: Path) -> None:
    script = f"""
from determined.common.api._session import Session
from determined.experimental import Determined, core_v2
client = Determined.from_session(Session({cluster.master.url!r}, token="user-token"))
core_v2.init(config=core_v2.Config(name="mine"), client=client)
core_v2.train.report_training_metrics(1, {{"loss": 0.5}})
print("trained")
{end}
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == (1 if end else 0), done.stderr
    assert cluster.states() == [state]
    assert len(cluster.master.reports()) == 1
    assert ("stdout", "trained\n") in cluster.lines()
    assert (("stderr", "ZeroDivisionError: division by zero\n") in cluster.lines()) == bool(end)


def test_on_a_cluster_it_is_the_core_api(trial: Any) -> None:
    trial.write_info()
    determined._info._cached = None
    with core_v2.init_context(config=core_v2.Config(name="mine")) as context:
        context.train.report_training_metrics(1, {"loss": 0.5})
        assert type(context) is core.Context
    assert len(trial.master.reports()) == 1
    assert trial.master.of("POST /api/v1/experiments") == []
