"""The endpoint behind each page and each list of `det`, with 100 rows: time of an answer among few trials and among many.

On both engines, among 2,000 trials, and among as many as `UNDETERRED_BENCH_ENDPOINT_TRIALS` says (1,000,000), each with
a run. A tenth of them are of one experiment, whose pages are asked for, and which goes on; all experiments are in one
project. A further search has recorded decisions. Each endpoint is said to the terminal, what they come to is a row.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import case, func, insert, literal, select, text, update
from sqlalchemy.orm import Session

from bench.data import fill
from bench.measure import Figure
from bench.searchers import Simulation, asha
from bench.served import Api, serving
from bench.wire import log_in
from database.models import (
    Allocation,
    Checkpoint,
    Experiment,
    Group,
    Model,
    ModelVersion,
    Project,
    ProjectVisit,
    Task,
    Template,
    Trial,
    User,
    UserToken,
    Webhook,
    Workspace,
)
from database.session import Database
from database.trials import record_decisions
from database.types import Document, utc_now
from tests.kit.servers import postgres_server
from workflows.searchers import Create

_TRIALS = int(os.environ.get("UNDETERRED_BENCH_ENDPOINT_TRIALS", "1000000"))
_FEW, _ROWS, _CALLS, _OPEN = 2000, 100, 40, 100
_GOAL_MS = 12

#: Each page or list, and what it asks for: `{experiment}` is the large search, `{trial}` one of its trials.
ENDPOINTS: dict[str, tuple[str, Any]] = {
    "list of experiments (det e ls)": ("experiments?limit=100", None),
    "list of experiments, newest first": (
        "experiments?limit=100&orderBy=ORDER_BY_DESC&sortBy=SORT_BY_START_TIME", None,
    ),
    "list of experiments, in short": ("experiments?limit=100&summary=true", None),
    "project: grid of experiments": ("undeterred/experiments-grid", {"projectId": 1, "limit": 100, "sort": "id=desc"}),
    "project: grid of runs": ("undeterred/runs-grid", {"projectId": 1, "limit": 100, "sort": "id=desc"}),
    "project": ("projects/1", None),
    "project: columns": ("projects/1/columns?tableType=TABLE_TYPE_EXPERIMENT", None),
    "experiment": ("experiments/{experiment}", None),
    "experiment: why": ("undeterred/experiments/{experiment}/why", None),
    "experiment: trials": ("experiments/{experiment}/trials?limit=100", None),
    "experiment: trials, best first": (
        "experiments/{experiment}/trials?limit=100&sortBy=SORT_BY_BEST_VALIDATION_METRIC", None,
    ),
    "experiment: trials, longest first": (
        "experiments/{experiment}/trials?limit=100&sortBy=SORT_BY_BATCHES_PROCESSED&orderBy=ORDER_BY_DESC", None,
    ),
    "experiment: checkpoints": ("experiments/{experiment}/checkpoints?limit=100", None),
    "experiment: runs of its trials": ("undeterred/experiments/{experiment}/allocations?most=100", None),
    "experiment: history": ("undeterred/experiments/{experiment}/history?limit=100", None),
    "experiment: search": ("undeterred/experiments/{search}/search", None),
    "experiment: gates": ("undeterred/gates?experimentId={experiment}", None),
    "trial": ("trials/{trial}", None),
    "trial: why": ("undeterred/trials/{trial}/why", None),
    "trial: decisions": ("undeterred/trials/{trial}/decisions", None),
    "trial: decisions of a long search": ("undeterred/trials/{searched}/decisions", None),
    "trial: checkpoints": ("trials/{trial}/checkpoints?limit=100", None),
    "trial: workloads": ("trials/{trial}/workloads?limit=100&orderBy=ORDER_BY_DESC", None),
    "workspaces": ("workspaces?limit=100&sortBy=SORT_BY_NAME", None),
    "workspace: projects": ("workspaces/1/projects?limit=100", None),
    "home: projects visited": ("user/projects/activity?limit=100", None),
    "queue": ("job-queues-v2?resourcePool=default&limit=100", None),
    "pools": ("resource-pools", None),
    "agents": ("agents", None),
    "commands": ("commands?limit=100", None),
    "notebooks": ("notebooks?limit=100", None),
    "tasks (det task list)": ("tasks", None),
    "generic tasks": ("generic-tasks?limit=100", None),
    "models": ("models?limit=100&orderBy=ORDER_BY_DESC&sortBy=SORT_BY_LAST_UPDATED_TIME", None),
    "model: versions": ("models/model%200/versions?limit=100&orderBy=ORDER_BY_DESC", None),
    "templates": ("templates?limit=100", None),
    "webhooks": ("webhooks", None),
    "campaigns": ("undeterred/campaigns?limit=100", None),
    "users": ("users?limit=100", None),
    "groups": ("groups/search", {"limit": 100}),
    "roles": ("roles/search", {"limit": 100}),
    "tokens": ("tokens?limit=100", None),
    "audit log": ("undeterred/audit?limit=100", None),
    "session: who I am": ("me", None),
    "session: permissions": ("permissions/summary", None),
    "master": ("master", None),
}  # fmt: skip


@dataclass(frozen=True)
class _Asked:
    """Of one endpoint: an answer's median in ms, the processor time of the API for one in ms, and its bytes."""

    median: float
    processor: float
    size: int


def figures() -> Iterator[Figure]:
    """SQLite, then PostgreSQL."""
    with tempfile.TemporaryDirectory() as folder:
        yield from _of_engine("SQLite", [f"sqlite:///{folder}/{size}.db" for size in (_FEW, _TRIALS)])
    with postgres_server() as few, postgres_server() as many:
        yield from _of_engine("PostgreSQL", [few, many])


def _of_engine(engine: str, urls: list[str]) -> Iterator[Figure]:
    few, many = (_asked(url, size) for url, size in zip(urls, (_FEW, _TRIALS), strict=True))
    print(f"{engine}, ms among {_FEW:,} and {_TRIALS:,} trials; processor time of the API; KB", file=sys.stderr)
    for what, one in many.items():
        times = f"{few[what].median:8.1f} {one.median:8.1f} {few[what].processor:8.1f} {one.processor:8.1f}"
        print(f"{what:44} {times} {one.size / 1000:6.0f}", file=sys.stderr)
    medians = [one.median for one in many.values()]
    slowest = max(many, key=lambda what: many[what].median)
    grown = {what: one.median / few[what].median for what, one in many.items()}
    most = max(grown, key=lambda what: grown[what])
    among = f"{len(many)} pages and lists among {_TRIALS:,} trials, {engine}"
    over = sum(median > _GOAL_MS for median in medians)
    yield Figure(f"{among}: the middle one", [statistics.median(medians)], "ms", _GOAL_MS, note=f"{over} take longer")
    yield Figure(f"{among}: the slowest", [many[slowest].median], "ms", _GOAL_MS, note=slowest)
    times = f"times that among {_FEW:,}"
    yield Figure(f"{among}: the middle one, {times}", [statistics.median(grown.values())], "x")
    yield Figure(f"{among}: what grows most, {times}", [grown[most]], "x", note=most)


def _asked(url: str, trials: int) -> dict[str, _Asked]:
    ids = fill_pages(url, trials)
    with serving(url) as api:
        log_in(api)
        return {what: _timed(api, path.format_map(ids), body) for what, (path, body) in ENDPOINTS.items()}


def _timed(api: Api, path: str, body: Any) -> _Asked:
    def ask() -> bytes:
        return api.ask("GET" if body is None else "POST", f"/api/v1/{path}", body)

    for _ in range(5):
        ask()
    size = len(ask())
    times: list[float] = []
    before = sum(api.process.cpu_times()[:2])
    for _ in range(_CALLS):
        began = time.perf_counter()
        ask()
        times.append((time.perf_counter() - began) * 1000)
    used = (sum(api.process.cpu_times()[:2]) - before) / _CALLS * 1000
    return _Asked(statistics.median(times), used, size)


def fill_pages(url: str, trials: int) -> dict[str, int]:
    """Fill an empty database so that each list has 100 rows.

    Returns: The ids of its large `experiment` and of a `trial` of it, of a `search` of a hundredth of the trials whose
        decisions are recorded, and of a trial of that (`searched`).
    """
    filled = fill(url, 0.0001, experiments=max(_ROWS, trials // 10), reported=_FEW)
    database = Database(url)
    search, last = 1, filled.trials // 10
    with database.write() as session:
        session.execute(update(Experiment).values(project_id=1))
        session.execute(update(Trial).where(Trial.id <= last).values(experiment_id=search))
        session.execute(update(Checkpoint).where(Checkpoint.trial_id <= last).values(experiment_id=search))
        counts = select(text("count(*)")).select_from(Trial).where(Trial.experiment_id == Experiment.id)
        session.execute(
            update(Experiment).where(Experiment.id <= last // 10 + 1).values(trial_count=counts.scalar_subquery())
        )
        _give_runs(session, search, last)
        admin = session.scalars(select(User.id).where(User.is_admin)).one()
        trial, checkpoint = last, session.scalars(select(Checkpoint.uuid).limit(1)).one()
        by = range(_ROWS)
        rows: list[tuple[type[Any], list[dict[str, Any]]]] = [
            (Workspace, [{"name": f"workspace {n}", "owner_id": admin} for n in by]),
            (Project, [{"name": f"one more {n}", "workspace_id": 1, "owner_id": admin} for n in by]),
            (ProjectVisit, [{"user_id": admin, "project_id": n + 1} for n in by]),
            (Template, [{"name": f"template {n}", "config": {"description": "x"}, "workspace_id": 1,
                         "owner_id": admin} for n in by]),
            (Webhook, [{"name": f"hook {n}", "url": "https://example.com", "secret": "s", "owner_id": admin} for n in by]),
            (Group, [{"name": f"group {n}"} for n in by]),
            (User, [{"username": f"person{n}"} for n in by]),
            (UserToken, [{"token_hash": f"{n}", "user_id": admin, "kind": "ACCESS_TOKEN", "expires_at": utc_now()}
                         for n in by]),
            (Model, [{"id": n + 1, "name": f"model {n}", "workspace_id": 1, "owner_id": admin} for n in by]),
            (ModelVersion, [{"model_id": 1, "version": n + 1, "checkpoint_uuid": checkpoint, "owner_id": admin}
                            for n in by]),
            *[(Task, [{"id": f"{kind}-{n}", "kind": kind, "owner_id": admin, "workspace_id": 1, "job_id": f"{kind}-{n}",
                       "config": {"description": "x", "entrypoint": "y", "resources": {"slots": 1}}, "state": "ACTIVE",
                       "name": f"{n}", "pool": "default", "slots": 1, "is_pausable": False, "written": "{}"}
                      for n in by]) for kind in ("COMMAND", "NOTEBOOK", "GENERIC")],
        ]  # fmt: skip
        for table, values in rows:
            session.execute(insert(table), values)
        recorded, searched = _search(session, admin, trials // 100)
    if not database.is_sqlite:
        with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("VACUUM ANALYZE"))
    database.close()
    return {"experiment": search, "trial": trial, "search": recorded, "searched": searched}


def _give_runs(session: Session, search: int, last: int) -> None:
    """One run for each trial, of which every fiftieth failed. The large search goes on: its last trials hold slots."""
    is_open = Trial.id.between(last - _OPEN + 1, last)
    session.execute(update(Experiment).where(Experiment.id == search).values(state="ACTIVE", ended_at=None))
    session.execute(update(Trial).where(is_open).values(state="ACTIVE", ended_at=None))
    runs: dict[str, Any] = {
        "id": Trial.task_id + ".1",
        "task_id": Trial.task_id,
        "trial_id": Trial.id,
        "experiment_id": Trial.experiment_id,
        "run_id": literal(1),
        "state": case((is_open, "RUNNING"), else_="TERMINATED"),
        "pool": literal("default"),
        "slots": literal(1),
        "placements": literal([{"agent_id": "host", "rank": 0, "slot_ids": [0]}], Document),
        "started_at": Trial.started_at,
        "ended_at": case((is_open, None), else_=func.coalesce(Trial.ended_at, Trial.started_at)),
        "end_kind": case((is_open, None), (Trial.id % 50 == 0, "failed"), else_="finished"),
    }
    session.execute(insert(Allocation).from_select(list(runs), select(*runs.values())))


def _search(session: Session, owner: int, trials: int) -> tuple[int, int]:
    """The ids of a search with its decisions, and of its first trial."""
    config = asha(trials, {"max_length": 81, "max_rungs": 5})
    simulation = Simulation(config)
    simulation.run(keep=True)
    experiment = Experiment(
        job_id="search", name="search", state="COMPLETED", config=config.model_dump(mode="json"), original_config="",
        searcher_name="adaptive_asha", searcher_metric="loss", resource_pool="default", owner_id=owner, project_id=2,
        trial_count=trials,
    )  # fmt: skip
    session.add(experiment)
    session.flush()
    created = [action.request_id for each in simulation.decisions for action in each.actions
               if isinstance(action, Create)]  # fmt: skip
    record_decisions(session, {experiment.id: simulation.decisions})
    session.execute(insert(Trial), [
        {"experiment_id": experiment.id, "request_id": request_id, "task_id": f"search.{request_id}", "seed": 0,
         "hparams": {}, "state": "COMPLETED", "ended_at": utc_now(), "is_settled": True} for request_id in created
    ])  # fmt: skip
    first = select(Trial.id).where(Trial.experiment_id == experiment.id, Trial.request_id == created[0])
    return experiment.id, session.scalars(first).one()
