"""Experiments, trials, allocations and checkpoints: rows of the other database -> rows of ours. Pure."""

from __future__ import annotations

import re
import uuid
from typing import Any, cast

from pydantic import ValidationError

from api.services.experiments import steering
from database.models import Allocation, Checkpoint, Experiment, Task, Trial
from workers.importing.rows import Context, Record, Skipped, clean, moment, utc
from workers.importing.source import Row
from workflows import names
from workflows.config import ConfigError, ExperimentConfig, merge_configs, parse_experiment_config
from workflows.config.defaults import field_defaults
from workflows.lifecycle.allocation import AllocationState
from workflows.lifecycle.experiment import ExperimentState
from workflows.lifecycle.imports import Kind
from workflows.lifecycle.task import TaskKind
from workflows.searchers import Search, SearchError

GONE = ("DELETING", "DELETED", "DELETE_FAILED")
_ENDED = ("COMPLETED", "CANCELED", "ERROR")
_NO_UUID = "00000000-0000-0000-0000-000000000000"
#: How the tasks end that a trial got when its experiment continued.
_CONTINUED = re.compile(r"-(\d{1,9})$")


def read_config(raw: dict[str, Any], *, unmanaged: bool) -> ExperimentConfig:
    """A stored configuration as today's code has it. Raises: ConfigError, ValidationError, SearchError."""
    searcher = raw.get("searcher")
    if isinstance(searcher, dict) and cast("dict[str, Any]", searcher).get("name") == "adaptive_asha":
        # what that master did: a search that goes on here must decide as it did
        raw = raw | {"searcher": {"lend_places": False} | cast("dict[str, Any]", searcher)}
    if unmanaged:
        nothing = {"name": "single", "metric": "none", "max_length": {"batches": 1}}
        raw = merge_configs(raw, {"searcher": nothing, "entrypoint": "true"})
    return parse_experiment_config(raw, seed=0, managed=not unmanaged)


def state_of(row: Row) -> str:
    """An experiment's state here: what had not ended is over, so that it can be continued."""
    if row["state"] in _ENDED:
        return row["state"]
    return ExperimentState.PAUSED.value if row["unmanaged"] else ExperimentState.CANCELED.value


def experiment(row: Row, context: Context) -> Record | Skipped:
    """An experiment. One whose configuration today's code can't read is there to be looked at."""
    if row["state"] in GONE:
        return Skipped("they are being deleted there")
    project_id = context.id_of(Kind.PROJECTS, row["project_id"])
    if project_id is None:
        return Skipped("their projects did not come")
    number = context.number(Kind.EXPERIMENTS, row["id"])
    raw = _moved(row["config"], context)
    values: dict[str, Any] = {"error": ""}
    state = state_of(row)
    try:
        parsed = read_config(raw, unmanaged=row["unmanaged"])
        search = Search.new(parsed)
    except (ConfigError, ValidationError, SearchError) as error:
        values |= _only_shown(raw)
        values["error"] = f"It can be looked at, not continued: {str(error).splitlines()[0][:500]}"
    else:
        values |= steering(parsed, search) | {"config": parsed.to_wire()}
    if row["unmanaged"]:
        values |= {"wants_validations": False, "has_operations": False}
    if row["state"] not in _ENDED and not row["unmanaged"]:
        values["error"] = values["error"] or (
            f"It was {row['state']} on the cluster that it comes from;"
            f" `det experiment continue {number}` goes on with it"
        )
    config: dict[str, Any] = values["config"]
    retention: dict[str, Any] = config.get("retention_policy") or {}
    resources: dict[str, Any] = config.get("resources") or {}
    labels: list[Any] = config.get("labels") or []
    tasks: list[str] = row["tasks"] or []
    return Record(
        Experiment,
        {
            "id": number,
            "job_id": row["job_id"] or str(uuid.uuid5(uuid.NAMESPACE_OID, f"{context.source} {row['id']}")),
            "name": clean(str(config.get("name") or f"experiment {row['id']}")),
            "description": clean(config.get("description")),
            "notes": clean(row["notes"]),
            "labels": sorted(str(label) for label in labels),
            "state": state,
            "progress": row["progress"] or (1.0 if row["state"] == "COMPLETED" else 0.0),
            "original_config": clean(row["original_config"]),
            "resource_pool": str(resources.get("resource_pool") or context.pool)[:120],
            "owner_id": context.user(row["owner_id"]),
            "project_id": project_id,
            "parent_id": context.id_of(Kind.EXPERIMENTS, row["parent_id"]),
            "source_checkpoint": _source_checkpoint(config) or (row["warm_start"] if _source_trial(raw) else None),
            "continuations": max((_continuation(task) for task in tasks), default=0),
            "trial_count": row["trials"],
            "is_archived": row["archived"],
            "log_retention_days": retention.get("log_retention_days"),
            "is_unmanaged": row["unmanaged"],
            "external_id": row["external_experiment_id"],
            "started_at": moment(row["start_time"]),
            "ended_at": None if state == "PAUSED" else moment(row["end_time"], row["last_end"], row["start_time"]),
            **values,
        },
    )


def _only_shown(raw: dict[str, Any]) -> dict[str, Any]:
    """Of a configuration that can't be read: what lists and pages need to show it."""
    config = merge_configs(raw, field_defaults(0))
    searcher: Any = config.get("searcher")
    known = cast("dict[str, Any]", searcher) if isinstance(searcher, dict) else {}
    resources: Any = config.get("resources")
    slots = cast("dict[str, Any]", resources).get("slots_per_trial") if isinstance(resources, dict) else None
    return {
        "config": config,
        "searcher_name": str(known.get("name") or "unknown")[:40],
        "searcher_metric": str(known.get("metric") or ""),
        "smaller_is_better": known.get("smaller_is_better") is not False,
        "wants_validations": False,
        "time_metric": None,
        "has_operations": False,
        "max_length": None,
        "slots_per_trial": slots if isinstance(slots, int) else 1,
    }


def _source_trial(config: dict[str, Any]) -> int | None:
    """The trial that every trial starts from, if the configuration names one."""
    searcher: Any = config.get("searcher")
    found: Any = cast("dict[str, Any]", searcher).get("source_trial_id") if isinstance(searcher, dict) else None
    return found if isinstance(found, int) else None


def _moved(config: dict[str, Any], context: Context) -> dict[str, Any]:
    """A configuration with the numbers that trials have here."""
    there = _source_trial(config)
    if there is None:
        return config
    return config | {"searcher": config["searcher"] | {"source_trial_id": context.number(Kind.TRIALS, there)}}


def _source_checkpoint(config: dict[str, Any]) -> str | None:
    searcher = cast("dict[str, Any]", config.get("searcher") or {})
    found = searcher.get("source_checkpoint_uuid")
    return str(found)[:36] if found else None


def _continuation(task_id: str) -> int:
    """How often an experiment had continued when a trial got this task."""
    found = _CONTINUED.search(task_id.partition(".")[2][36:])
    return int(found[1]) if found else 0


def request_id(row: Row, context: Context) -> str:
    """What the search knows a trial by. Unmanaged and very old ones have none: they get one that is always the same."""
    known = row["request_id"]
    if known and known != _NO_UUID:
        return str(known)
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{context.source} trial {row['id']}"))


def trial(row: Row, context: Context) -> Record | Skipped:
    """A trial and its tasks."""
    experiment_id = context.id_of(Kind.EXPERIMENTS, row["experiment_id"])
    if experiment_id is None:
        return Skipped("their experiments did not come")
    number = context.number(Kind.TRIALS, row["id"])
    known = request_id(row, context)
    state = row["state"] if row["state"] in _ENDED else state_of(row | {"state": "ACTIVE"})
    ended = None if state == "PAUSED" else moment(row["end_time"], row["experiment_end"], row["start_time"])
    tasks: list[dict[str, Any]] = row["tasks"] or [{"id": names.trial_task(experiment_id, known)}]
    return Record(
        Trial,
        {
            "id": number,
            "experiment_id": experiment_id,
            "request_id": known,
            "task_id": tasks[-1]["id"],
            "seed": row["seed"] or 0,
            "hparams": row["hparams"] or {},
            "state": state,
            "restarts": row["restarts"],
            "run_id": row["restart_id"],
            "metrics_run_id": row["restart_id"],
            "is_closed": state != "PAUSED",
            "progress": 1.0 if state == "COMPLETED" else 0.0,
            "runner_state": "",
            "warm_start_checkpoint": row["warm_start"],
            "metadata": row["metadata"],
            "log_retention_days": row["log_retention_days"],
            "external_id": row["external_run_id"],
            "started_at": moment(row["start_time"]),
            "ended_at": ended,
        },
        also=[
            (
                Task,
                {
                    "id": task["id"],
                    "kind": TaskKind.TRIAL.value,
                    "owner_id": context.user(row["owner_id"]),
                    "trial_id": number,
                    "job_id": row["job_id"] or "",
                    "state": "ACTIVE" if ended is None else state,
                    "started_at": moment(task.get("start"), row["start_time"]),
                    "ended_at": None if ended is None else moment(task.get("end"), ended),
                },
            )
            for task in tasks
        ],
    )


def allocation(row: Row, context: Context) -> Record | Skipped:
    """A run of a trial. All are over here."""
    trial_id = context.id_of(Kind.TRIALS, row["trial_id"])
    if trial_id is None:
        return Skipped("they are of tasks that are no trials, or whose trials did not come")
    last = str(row["allocation_id"]).rpartition(".")[2]
    started = moment(row["start_time"], row["task_start"])
    return Record(
        Allocation,
        {
            "id": row["allocation_id"],
            "task_id": row["task_id"],
            "trial_id": trial_id,
            "experiment_id": context.id_of(Kind.EXPERIMENTS, row["experiment_id"]),
            "run_id": int(last) if last.isdecimal() and len(last) < 10 else 0,
            "state": AllocationState.TERMINATED.value,
            "pool": clean(row["resource_pool"])[:120],
            "slots": row["slots"] or 0,
            "placements": [],
            "started_at": started,
            "ended_at": moment(row["end_time"], row["task_end"], started),
            "end_message": clean(row["exit_error"] or row["exit_reason"]),
            "exit_code": row["status_code"],
        },
    )


def checkpoint(row: Row, context: Context) -> Record | Skipped:
    """A checkpoint. Its files stay where they are."""
    trial_id = context.id_of(Kind.TRIALS, row["run_id"])
    experiment_id = context.id_of(Kind.EXPERIMENTS, row["experiment_id"])
    if trial_id is None or experiment_id is None:
        return Skipped("they are of no trial, or of one that did not come")
    metadata: dict[str, Any] = row["metadata"] or {}
    steps = metadata.get("steps_completed")
    return Record(
        Checkpoint,
        {
            "uuid": str(row["uuid"]),
            "task_id": row["task_id"],
            "allocation_id": row["allocation_id"] or "",
            "trial_id": trial_id,
            "experiment_id": experiment_id,
            "state": row["state"],
            "resources": row["resources"] or {},
            "metadata": metadata,
            "steps_completed": steps if isinstance(steps, int) else 0,
            "size_bytes": row["size"] or 0,
            "reported_at": utc(row["report_time"]),
        },
    )
