"""`det experiment create --local`: one trial of length 1 on this machine, without a cluster.

The script runs in a temporary copy of what would be sent, under the harness' stand-ins: the searcher hands out one
operation of length 1, metrics go to the log, nobody preempts. `det.get_cluster_info()` has the hyperparameters. A trial
class trains one batch, validates one, and saves.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli import render
from determined import errors
from determined.common.context import FILE_TYPE, FOLDER_TYPE

if TYPE_CHECKING:
    from workflows.config import ExperimentConfig, Hyperparameters

#: Becomes the entrypoint as a container of the cluster does, but without `startup-hook.sh`: what that installs is meant
#: for a container. `python3` is this Python.
_START = """
import json, sys
from determined.exec._entrypoint import execute, resolve
execute(resolve(json.loads(sys.argv[1])))
"""


def run_local(text: str, origin: str, files: Sequence[Mapping[str, Any]], *, has_positions: bool) -> int:
    """Run an experiment's entrypoint here; the exit code is the script's.

    Args:
        text: The configuration.
        origin: How to call it in errors.
        files: The packed folder.
        has_positions: Whether lines of `text` are lines of the file.

    Raises:
        InvalidExperimentException: The configuration can't be used.
    """
    config = _parse(text, origin, has_positions)
    hparams = chosen_hparams(config.hyperparameters)
    with tempfile.TemporaryDirectory(prefix="det-local-") as name:
        folder = Path(name)
        _unpack(files, folder / "workdir")
        _write_info(folder / "run" / "info", config, hparams)
        _say_what(config, hparams, files)
        return _run(config.entrypoint, folder, _environment(config, hparams, folder))


def chosen_hparams(space: Hyperparameters) -> dict[str, Any]:
    """One value of each hyperparameter: the middle of a range, the first of a list."""
    from workflows.config import CategoricalHp, ConstHp
    from workflows.searchers.space import axis_value

    chosen: dict[str, Any] = {}
    for name, leaf in space.items():
        if isinstance(leaf, dict):
            chosen[name] = chosen_hparams(leaf)
        elif isinstance(leaf, (ConstHp, CategoricalHp)):
            chosen[name] = axis_value(leaf, 0)
        else:
            chosen[name] = axis_value(leaf.model_copy(update={"count": 1}), 0)
    return chosen


def _parse(text: str, origin: str, has_positions: bool) -> ExperimentConfig:
    from workflows.config import ClusterDefaults, ConfigError, parse_experiment_config

    # Where the cluster's checkpoints would go plays no part here.
    defaults = ClusterDefaults(checkpoint_storage={"type": "directory", "container_path": "/checkpoints"})
    try:
        return parse_experiment_config(text, cluster=defaults, seed=0)
    except ConfigError as error:
        from cli.check import describe

        lines = [f"{origin} is not a valid configuration; nothing was run:"]
        raise errors.InvalidExperimentException(
            "\n".join(lines + [describe(problem, origin, has_positions) for problem in error.problems])
        ) from None


def _unpack(files: Sequence[Mapping[str, Any]], folder: Path) -> None:
    folder.mkdir()
    for file in files:
        path = folder / file["path"]
        if file["type"] == FOLDER_TYPE:
            path.mkdir(parents=True, exist_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(file["content"]))
        path.chmod(file["mode"] & 0o777 | 0o600)


def _write_info(folder: Path, config: ExperimentConfig, hparams: Mapping[str, Any]) -> None:
    """The files that tell a task about itself. Its type is LOCAL: the Core API takes its stand-ins then."""
    folder.mkdir(parents=True)
    cluster: dict[str, Any] = {
        "master_url": "",
        "cluster_id": "",
        "agent_id": "",
        "slot_ids": [],
        "task_id": "",
        "allocation_id": "",
        "session_token": "",
        "task_type": "LOCAL",
    }
    trial: dict[str, Any] = {
        "trial_id": 0,
        "experiment_id": 0,
        "trial_seed": config.reproducibility.experiment_seed,
        "hparams": hparams,
        "config": config.to_wire(),
        "steps_completed": 0,
        "trial_run_id": 0,
        "debug": config.debug,
    }
    for name, content in (("trial.json", trial), ("cluster.json", cluster)):
        (folder / name).write_text(json.dumps(content), encoding="utf-8")


def _environment(config: ExperimentConfig, hparams: Mapping[str, Any], folder: Path) -> dict[str, str]:
    wanted = config.environment.environment_variables.cpu
    own = {name: value for name, _, value in (variable.partition("=") for variable in wanted)}
    return {
        **os.environ,
        **own,
        "DET_RUN_DIR": str(folder / "run"),
        "DET_WORKDIR": str(folder / "workdir"),
        "DET_HPARAMS": json.dumps(hparams),
        "XDG_DATA_HOME": str(folder / "data"),  # the checkpoints of a test are not worth keeping
        "PYTHONUNBUFFERED": "1",
    }


def _say_what(config: ExperimentConfig, hparams: Mapping[str, Any], files: Sequence[Mapping[str, Any]]) -> None:
    entrypoint = config.entrypoint if isinstance(config.entrypoint, str) else " ".join(config.entrypoint or ())
    count = sum(file["type"] == FILE_TYPE for file in files)
    render.note(f"Running `{entrypoint}` here, without a cluster: one trial of length 1, in a temporary copy of")
    render.note(f"{count} file(s), which is removed afterwards with the checkpoints.")
    render.note(f"python3 is {_python()}; UNDETERRED_TRIAL_PYTHON names another.")
    if hparams:
        shown = ", ".join(f"{name}={render.cell(value)}" for name, value in hparams.items())
        render.note(f"Hyperparameters (the middle of a range, the first of a list): {shown}")


def _python() -> str:
    return os.environ.get("UNDETERRED_TRIAL_PYTHON") or sys.executable


def _run(entrypoint: Any, folder: Path, environment: Mapping[str, str]) -> int:
    command = [_python(), "-c", _START, json.dumps(entrypoint)]
    process = subprocess.Popen(command, cwd=folder / "workdir", env=environment)
    try:
        code = process.wait()
    except KeyboardInterrupt:
        process.wait()  # Ctrl-C reached it too: its folder stays until it has ended
        raise
    return code if code >= 0 else 128 - code  # ended by a signal: as a shell says it
