"""What a user would pick instead, measured in an environment of its own: `python bench/peer_tools.py optuna`.

Prints what it measured as JSON. Nothing of this project is imported: these tools want versions of their own.
"""

# pyright: basic
# ty: ignore
from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from typing import Any

_REPORTS_A_TRIAL = 3


def optuna_storage() -> dict[str, float]:
    """Milliseconds a trial of three reports, each with the question whether to go on, by storage on disk."""
    import optuna
    from optuna.storages import JournalStorage, RDBStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        storages = {
            "database": RDBStorage(f"sqlite:///{folder}/optuna.db"),
            "journal": JournalStorage(JournalFileBackend(f"{folder}/journal")),
        }
        for name, storage in storages.items():
            pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3)
            study = optuna.create_study(storage=storage, pruner=pruner, sampler=optuna.samplers.RandomSampler(seed=1))
            _trials(study, 20)
            began = time.perf_counter()
            _trials(study, 200)
            found[name] = (time.perf_counter() - began) / 200 * 1000
    return found


def _trials(study: Any, count: int) -> None:
    for _ in range(count):
        trial = study.ask()
        quality = trial.suggest_float("lr", 1e-4, 1e-1, log=True) + trial.suggest_int("units", 16, 256)
        for step in (1, 3, 9)[:_REPORTS_A_TRIAL]:
            trial.report(quality / step, step)
            if trial.should_prune():
                break
        study.tell(trial, quality / 9)


def trackio_reports() -> dict[str, float]:
    """Reports of two metrics a second, from the first `log` until all are stored."""
    import trackio

    trackio.init(project="bench", name="warm")
    trackio.log({"loss": 1.0, "accuracy": 0.0})
    trackio.finish()
    count = 10_000
    trackio.init(project="bench", name="measured")
    began = time.perf_counter()
    for step in range(count):
        trackio.log({"loss": 0.5, "accuracy": 0.9}, step=step)
    trackio.finish()
    return {"reports": count / (time.perf_counter() - began)}


def ray_trials() -> dict[str, float]:
    """Seconds a trial of a search of 64 that do nothing, two at once, each in a process of its own."""
    import ray
    from ray import tune

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)

    def train(config: dict[str, Any]) -> None:
        tune.report({"x": config["lr"]})

    found = 0.0
    for count in (4, 64):  # the first starts what Ray starts once
        tuner = tune.Tuner(
            tune.with_resources(train, {"cpu": 1}),
            param_space={"lr": tune.loguniform(1e-4, 1e-1)},
            tune_config=tune.TuneConfig(num_samples=count, metric="x", mode="min", max_concurrent_trials=2),
            run_config=tune.RunConfig(storage_path=tempfile.mkdtemp(), verbose=0),
        )
        began = time.perf_counter()
        results = tuner.fit()
        found = (time.perf_counter() - began) / count
        assert not results.errors, results.errors
    ray.shutdown()
    return {"trial": found}


def tensorboard_events(folder: str, points: str) -> dict[str, float]:
    """Write a curve of so many points; seconds that it took."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    began = time.perf_counter()
    writer = EventFileWriter(folder)
    for step in range(int(points)):
        value = Summary.Value(tag="loss", simple_value=1.0 / (step + 1))
        writer.add_event(Event(wall_time=1.7e9 + step, step=step, summary=Summary(value=[value])))
    writer.close()
    return {"written": time.perf_counter() - began, "bytes": sum(f.stat().st_size for f in os.scandir(folder))}


def main() -> None:
    """Run what is named, and print what it returns."""
    tools = {
        "optuna": optuna_storage,
        "trackio": trackio_reports,
        "ray": ray_trials,
        "tensorboard": tensorboard_events,
    }
    print(json.dumps(tools[sys.argv[1]](*sys.argv[2:])))


if __name__ == "__main__":
    main()
