"""Records the folders in `data` by the trackers' own packages, which an environment of its own has:

    python -m venv /tmp/trackers && /tmp/trackers/bin/pip install mlflow wandb
    .venv/bin/python -m tests.integration.trackers.record /tmp/trackers/bin/python

`server.json` has the answers of a real tracking server to the very requests that `det import mlflow` sends.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from cli.trackers import mlflow
from cli.trackers.export import to_folder, to_server
from cli.trackers.runs import Point, Run, Source, moment
from tests.kit.servers import free_port

DATA = Path(__file__).parent / "data"

#: Two runs of one experiment: one that ends well, and one that breaks.
MLFLOW = """
import contextlib, mlflow
mlflow.set_experiment("digits")
with mlflow.start_run(run_name="first", tags={"team": "vision"}):
    mlflow.log_params({"lr": 0.1, "depth": 3, "optimizer": "sgd", "nested": True})
    for step in range(5):
        mlflow.log_metrics({"loss": 1 / (step + 1), "val_loss": 2 / (step + 1)}, step=step)
    for value in (0.5, 0.9):
        mlflow.log_metric("score/last", value)
with contextlib.suppress(RuntimeError), mlflow.start_run(run_name="broken"):
    mlflow.log_metric("loss", float("nan"), step=1)
    raise RuntimeError("as code does")
"""
#: What MLflow's own client finds of what was exported.
CHECK = """
import mlflow, math
client = mlflow.MlflowClient()
[about] = [each for each in client.search_experiments() if each.name == "digits (experiment 7)"]
runs = {run.info.run_name: run for run in client.search_runs([about.experiment_id])}
first, second = runs["trial 1"], runs["trial 2"]
assert (first.info.status, second.info.status) == ("FINISHED", "FAILED")
assert first.data.params == {"lr": "0.1", "model.depth": "3"}
assert [metric.value for metric in client.get_metric_history(first.info.run_id, "val/loss")] == [1.0, 0.5, 1 / 3]
assert first.info.start_time == 1_700_000_000_000 and first.info.end_time == 1_700_000_009_000
assert "vision" in first.data.tags
[metric] = client.get_metric_history(second.info.run_id, "__/loss")
assert math.isnan(metric.value)
"""
WANDB = """
import wandb
settings = wandb.Settings(x_disable_stats=True, x_disable_meta=True, console="off", disable_git=True, host="host")
given = {"project": "digits", "mode": "offline", "settings": settings}
run = wandb.init(name="first", config={"lr": 0.1, "model": {"depth": 3}}, tags=["vision"], **given)
for step in range(5):
    run.log({"loss": 1 / (step + 1), "val/loss": 2 / (step + 1), "note": "x" * 7_000})
run.finish()
run = wandb.init(name="broken", config={"lr": 1}, **given)
run.log({"loss": float("nan")}, step=7)
run.finish(exit_code=1)
"""


@contextlib.contextmanager
def server(python: Path, folder: Path) -> Iterator[str]:
    """A tracking server."""
    port = free_port()
    line = [str(python.with_name("mlflow")), "server", "--backend-store-uri", f"sqlite:///{folder}/db",
            "--port", str(port), "--workers", "1"]  # fmt: skip
    process = subprocess.Popen(line, cwd=folder, start_new_session=True)
    try:
        while True:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200:
                    break
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def exported() -> Source:
    """An experiment to export, which is the same each time."""
    points = [Point(name, step, 1.7e9 + step, 1 / (step + 1)) for step in range(3) for name in ("loss", "val/loss")]
    first = Run("c/1", "trial 1", params={"lr": 0.1, "model.depth": 3}, tags={"vision": "", "undeterred.trial": "c/1"},
                started=moment(1.7e9), ended=moment(1.7e9 + 9), points=points)  # fmt: skip
    more = Run("c/2", "trial 2", state="ERROR", tags={"undeterred.trial": "c/2"}, started=moment(1.7e9),
               points=[Point("../loss", 1, 1.7e9, float("nan"))])  # fmt: skip
    return Source("c/7", "digits (experiment 7)", iter([first, more]), {"undeterred.experiment": "c/7"})


def asked(request: httpx.Request) -> str:
    """What a request asks for, as a key of `server.json`."""
    return f"{request.method} {request.url.raw_path.decode()} {request.content.decode()}".strip()


def main(python: Path) -> None:
    """Everything anew."""
    shutil.rmtree(DATA, ignore_errors=True)
    DATA.mkdir()
    answers: dict[str, Any] = {}

    def keep(response: httpx.Response) -> None:
        answers[asked(response.request)] = json.loads(response.read())

    conversation: list[list[Any]] = []

    def keep_more(response: httpx.Response) -> None:
        conversation.append([asked(response.request), response.status_code, json.loads(response.read())])

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = {**os.environ, "MLFLOW_ALLOW_FILE_STORE": "true", "GIT_PYTHON_REFRESH": "quiet"}
        for uri in ((DATA / "mlruns").as_uri(), ""):
            with server(python, folder) if not uri else contextlib.nullcontext(uri) as place:
                more = environment | {"MLFLOW_TRACKING_URI": place}
                subprocess.run([python, "-c", MLFLOW], cwd=folder, env=more, check=True)
                if not uri:
                    client = mlflow.Server(place)
                    client.http.event_hooks = {"response": [keep]}
                    for source in mlflow.of_server(client):
                        list(source.runs)
                    client.http.event_hooks = {"response": [keep_more]}
                    assert [to_server(exported(), client) for _ in range(2)] == [(2, 0), (0, 2)]
                    checked = environment | {"MLFLOW_TRACKING_URI": place}
                    subprocess.run([python, "-c", CHECK], cwd=folder, env=checked, check=True)
        to_folder(exported(), folder / "exported")
        checked = environment | {"MLFLOW_TRACKING_URI": (folder / "exported").as_uri()}
        subprocess.run([python, "-c", CHECK], cwd=folder, env=checked, check=True)
        subprocess.run([python, "-c", WANDB], cwd=folder, check=True)
        for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
            target = DATA / "wandb" / path.parent.name
            target.mkdir(parents=True)
            shutil.copy(path, target)
    for path in DATA.glob("mlruns/**/meta.yaml"):  # it says where it was made
        path.write_text(path.read_text().replace(DATA.as_uri(), "file:///tracked"))
    (DATA / "export.json").write_text("[\n" + ",\n".join(map(json.dumps, conversation)) + "\n]\n")
    lines = [f"{json.dumps(asked)}: {json.dumps(answer)}" for asked, answer in answers.items()]
    (DATA / "server.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
