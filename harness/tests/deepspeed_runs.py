"""Runs of trials with DeepSpeed, against a master that records what is reported."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from .pytorch_trials import Jobs


class Runs:
    """Runs a trial of `deepspeed_trials` on some ranks of a cluster."""

    def __init__(self, jobs: Jobs, trial: Any, tmp_path: Path) -> None:
        self.jobs = jobs
        self.trial = trial
        self.out = tmp_path / "out"
        trial.config["searcher"] = {"name": "single", "metric": "accuracy"}
        trial.master.answers["GET /api/v1/trials/7"] = lambda _: _trial_of(trial.master)  # type: ignore[misc]
        trial.master.answer("POST /api/v1/trials/7/status", {})
        trial.master.answer("GET /api/v1/tasks/1.task/context_directory", {"b64Tgz": ""})

    def start(self, cls: str, size: int = 1, latest: str | None = None, **job: Any) -> tuple[list[int], str]:
        """Exit codes and errors of the ranks; `fit` and `hparams` may be given."""
        for file in self.out.parent.glob("out.*"):
            file.unlink()
        self.trial.slot_ids = list(range(size))
        self.trial.write_info()
        job["fit"] = {"checkpoint_policy": "none", **job.get("fit", {})}
        job.setdefault("hparams", {})
        folder = str(self.trial.run_dir)
        codes = self.jobs.run(size, cls=cls, folder=folder, latest=latest, out=str(self.out), timeout_s=90, **job)
        return codes, "\n".join(file.read_text() for file in self.out.parent.glob("out.error.*"))

    def run(self, cls: str, size: int = 1, latest: str | None = None, **job: Any) -> list[Any]:
        """What each rank found; it must have ended well."""
        codes, errors = self.start(cls, size, latest, **job)
        assert not any(codes), errors or codes
        return [json.loads(Path(f"{self.out}.{rank}").read_text()) for rank in range(size)]

    def fails(self, cls: str, told: str, size: int = 1, **job: Any) -> None:
        """It ends with an error of that kind and text, in one line."""
        codes, errors = self.start(cls, size, fit={"max_length": 2, **job.pop("fit", {})}, **job)
        assert any(codes)
        last = errors.strip().splitlines()[-1]
        assert re.search(told, last), errors

    def reported(self, group: str) -> dict[int, dict[str, Any]]:
        """Metrics by steps."""
        reports = [r for r in self.trial.master.reports() if r["group"] == group]
        return {r["stepsCompleted"]: r["metrics"]["avgMetrics"] for r in reports}

    def latest(self) -> str:
        """The id of the last checkpoint."""
        return self.trial.master.of("POST /api/v1/checkpoints")[-1].body["uuid"]

    def files(self) -> set[str]:
        """Of the last checkpoint."""
        folder = self.trial.storage / self.latest()
        return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}


def _trial_of(master: Any) -> dict[str, Any]:
    validations = [r for r in master.reports() if r.get("group") == "validation"]
    if not validations:
        return {"trial": {}}
    return {"trial": {"latestValidation": {"totalBatches": validations[-1]["stepsCompleted"], "metrics": {}}}}
