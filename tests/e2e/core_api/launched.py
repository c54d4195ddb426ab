"""The trials that run the checks, from their start to their end."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from determined.common.api._session import Session
from determined.common.experimental.experiment import Experiment
from determined.common.experimental.trial import Trial
from determined.experimental import client
from tests.e2e.core_api.inside import CHECKS
from tests.e2e.core_api.inside.worker import MARK, STATUS
from tests.kit.embedded import TORCH_PYTHON, Embedded
from tests.kit.patience import PATIENCE

INSIDE = Path(__file__).parent / "inside"
WAIT_S = 240.0
LOGS_WITHIN_S = 30.0


class Launched:
    """The two experiments of a launcher and a number of workers, from their start to their end.

    `main` is preempted once, goes on and completes; `leaving` is preempted too, and gives up.
    """

    def __init__(self, cluster: Embedded, session: Session, workers: int) -> None:
        self.cluster = cluster
        self.master = client.Determined.from_session(session)
        self._session = session
        self.workers = workers
        # Nobody listens there; what waits to be told is on record.
        webhook: dict[str, Any] = {
            "url": "https://alerts.invalid/",
            "webhookType": "WEBHOOK_TYPE_DEFAULT",
            "name": f"alerts {workers}",
            "mode": "WEBHOOK_MODE_SPECIFIC",
        }
        webhook["triggers"] = [{"triggerType": "TRIGGER_TYPE_CUSTOM"}]
        self.webhook: int = session.post("/api/v1/webhooks", webhook).json()["webhook"]["id"]
        self.main, self.leaving = (self._create(phase) for phase in ("main", "leaving"))
        self.failure: str | None = None
        """Why they could not be driven to their ends."""
        self.told: list[dict[str, Any]] = []
        """What the workers told of their checks, in the order of the logs."""
        self.waiting: dict[int, dict[str, Any]] = {}
        """Trial -> what the API showed of it when it waited to be preempted, its experiment's progress included."""

    def _create(self, phase: str) -> Experiment:
        model = self.folder()
        shutil.copytree(INSIDE, model / INSIDE.name, ignore=shutil.ignore_patterns("__pycache__"))
        command = f"python3 -m {INSIDE.name} {phase}"
        if self.workers > 1:
            command = f"python3 -m determined.launch.torch_distributed {command}"
        variables = ["DET_COLLECTIVE_TIMEOUT_S=120", "DET_GANG_TIMEOUT_S=120"]
        mounts: list[dict[str, Any]] = []
        if self.cluster.launcher == "docker":
            # The image's own Python and harness, with PyTorch and TensorBoard beside them.
            (packages,) = (TORCH_PYTHON.parent.parent / "lib").glob("python*/site-packages")
            mounts = [{"host_path": str(packages), "container_path": "/opt/torch", "read_only": True}]
            variables.append("PYTHONPATH=/opt/torch")
            # PyTorch asks for the names of its peers' addresses: a name server out of reach would cost 20 s a start.
            variables.append("RES_OPTIONS=timeout:1 attempts:1")
        config: dict[str, Any] = {
            "name": f"core api {phase}",
            "entrypoint": command,
            "data": {"phase": phase},
            "integrations": {"webhooks": {"webhook_id": [self.webhook]}},
            "hyperparameters": {"phase": phase, "width": 8},
            "searcher": {
                "name": "single",
                "metric": "accuracy",
                "smaller_is_better": False,
                "max_length": {"batches": 4},
            },
            "checkpoint_storage": {"type": "shared_fs", "host_path": str(self.storage), "save_trial_latest": 10},
            "resources": {"slots_per_trial": self.workers},
            "environment": {"environment_variables": variables},
            "bind_mounts": mounts,
            "max_restarts": 0,
        }
        return self.master.create_experiment(config, model)

    def run(self) -> None:
        """Drive both to their ends; the tests tell what went wrong."""
        self._deadline = time.monotonic() + WAIT_S * PATIENCE
        try:
            self._run()
            # Logs may come a little later than the end.
            self._deadline = time.monotonic() + LOGS_WITHIN_S * PATIENCE
            self.until(lambda: len(self._ends()) >= 3 * self.workers, "each worker has told that it is done")
        except Exception:  # noqa: BLE001 - whatever it is, the tests tell
            self.failure = f"{traceback.format_exc()}\n{self.logs()}"
        self.told = self._told()

    def _run(self) -> None:
        for experiment in (self.main, self.leaving):
            trial = self.trial(experiment)
            self.until(lambda trial=trial: self._waits(trial), f"trial {trial.id} waits to be preempted")
            experiment.pause()
            self.until(lambda trial=trial: self._has_left(trial), f"trial {trial.id} has left")
            if experiment is self.main:
                experiment.activate()
        for experiment in (self.main, self.leaving):
            self.until(lambda experiment=experiment: _has_ended(experiment), f"experiment {experiment.id} has ended")

    def trial(self, experiment: Experiment) -> Trial:
        """Its only trial."""
        return experiment.await_first_trial()

    def until(self, condition: Callable[[], Any], what: str) -> None:
        """Wait for a condition."""
        while not condition():
            assert time.monotonic() < self._deadline, f"waited in vain until {what}"
            time.sleep(0.1)

    def logs(self) -> str:
        """Of both trials."""
        return "".join(line for each in (self.main, self.leaving) for line in self.trial(each).iter_logs())

    def get(self, path: str) -> Any:
        """What the API answers."""
        return self._session.get(path).json()

    def _waits(self, trial: Trial) -> bool:
        shown = self.get(f"/api/v1/trials/{trial.id}")["trial"]
        experiment = self.master.get_experiment(shown["experimentId"])
        # Progress goes by way of the workflow, and may come a little later.
        if shown.get("runnerState") != STATUS or not experiment.progress:
            assert not _has_ended(experiment), f"experiment {experiment.id} has ended before"
            return False
        self.waiting[trial.id] = {**shown, "progress": experiment.progress}
        return True

    def _has_left(self, trial: Trial) -> bool:
        return [run["end_cause"] is not None for run in self.runs(trial)] == [True]

    def runs(self, trial: Trial) -> list[dict[str, Any]]:
        """The records of its allocations, in their order."""
        names = ("id", "placements", "preempt_acked_at", "end_cause", "exit_code")
        query = f"SELECT {', '.join(names)} FROM allocations WHERE trial_id = {trial.id} ORDER BY run_id"
        return [dict(zip(names, row, strict=True)) for row in self.cluster.rows(query)]

    @property
    def storage(self) -> Path:
        """The checkpoint storage."""
        return self.cluster.folder / "checkpoints"

    def tensorboard_folder(self) -> Path:
        """Where the storage has the files for TensorBoard of the trial `main`."""
        cluster = self.get("/api/v1/master")["clusterId"]
        trial = self.trial(self.main)
        return self.storage / cluster / "tensorboard" / "experiment" / str(self.main.id) / "trial" / str(trial.id)

    def tensorboard(self) -> dict[str, str]:
        """Those of them that are texts: name -> content."""
        folder = self.tensorboard_folder()
        return {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*.txt"))}

    def alerts(self) -> list[dict[str, Any]]:
        """The events for the webhook that hears of alerts."""
        deliveries = self.get(f"/api/v1/undeterred/webhooks/{self.webhook}/deliveries")["deliveries"]
        return [delivery["payload"] for delivery in deliveries]

    def folder(self) -> Path:
        """An empty folder."""
        return Path(tempfile.mkdtemp(dir=self.cluster.folder))

    def _ends(self) -> list[dict[str, Any]]:
        return [told for told in self._told() if told["name"] == "end"]

    def _told(self) -> list[dict[str, Any]]:
        lines = (line for each in (self.main, self.leaving) for line in self.trial(each).iter_logs())
        return [json.loads(line.partition(MARK)[2]) for line in lines if MARK in line]

    def facts(self, name: str) -> dict[str, list[Any]]:
        """What the checks of this name returned: phase -> by rank. Fails if one did not pass on each worker."""
        found: dict[str, list[Any]] = {}
        for check in (check for check in CHECKS if check.name == name):
            told = [t for t in self.told if (t["name"], t["phase"]) == (name, check.phase)]
            for each in told:
                assert each["failure"] is None, f"{name} failed on rank {each['rank']}:\n{each['failure']}"
            ranks = {t["rank"]: t["fact"] for t in told}
            assert sorted(ranks) == list(range(self.workers)), f"{name} was not checked on each worker; {self.failure}"
            found[check.phase] = [ranks[rank] for rank in range(self.workers)]
        return found


def _has_ended(experiment: Experiment) -> bool:
    experiment.reload()
    return experiment.state in (
        client.ExperimentState.COMPLETED,
        client.ExperimentState.ERROR,
        client.ExperimentState.CANCELED,
    )
