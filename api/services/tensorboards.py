"""What a TensorBoard shows: which experiments and trials, and where their files are. Source: spec tasks.md §1."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import orjson
from sqlalchemy import select
from sqlalchemy.orm import Session

from api.auth import config_secrets
from api.auth.authentication import UserPrincipal
from api.auth.authorization import changeable, check_trials, readable
from api.errors import BadRequest, FailedPrecondition, Forbidden
from api.queries import experiments
from api.queries.experiments import ExperimentFilter
from api.schemas.tasks import LaunchTensorboardRequest
from database.models import Cluster, Experiment, Task, Trial

#: Of experiments and trials together: their places are handed over in one environment variable.
_MOST = 100
_LONGEST = 96 * 1024
#: What of a storage's configuration its container needs: how many checkpoints are kept is nothing to it.
_ABOUT_CHECKPOINTS = ("save_experiment_best", "save_trial_best", "save_trial_latest")


@dataclass(frozen=True)
class Shown:
    """What a TensorBoard is to show.

    Attributes:
        experiment_ids: Those that are shown as a whole.
        trial_ids: Single ones.
        environment: Of the newest experiment: the image that could write these files can read them.
    """

    experiment_ids: list[int]
    trial_ids: list[int]
    environment: dict[str, Any]

    def layer(self, layers: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """What it adds to a configuration: an image and its registry's login, unless one of `layers` names an image.

        The login goes with that image only: another image would take it to another registry.
        """
        sections: list[Any] = [layer.get("environment") for layer in layers]
        named: list[dict[str, Any]] = [section for section in sections if isinstance(section, dict)]
        if any(section.get("image") for section in named) or not self.environment.get("image"):
            return {}
        taken = {"image": self.environment["image"]}
        login = self.environment.get("registry_auth")
        if login and not any(section.get("registry_auth") for section in named):
            taken["registry_auth"] = login
        return {"environment": taken}


@dataclass(frozen=True)
class Source:
    """Files of one experiment or trial, and the folder of the host that has them, if one has."""

    wire: dict[str, Any]
    mount: dict[str, Any] | None


def chosen(session: Session, wanted: LaunchTensorboardRequest, user: UserPrincipal) -> Shown:
    """What a user wants to see, and may. Raises: BadRequest, NotFound, Forbidden."""
    if not (wanted.experiment_ids or wanted.trial_ids or wanted.filters is not None):
        raise BadRequest("must set experiment, trial ids, or filters")
    experiment_ids = set(wanted.experiment_ids)
    trial_ids = sorted(set(wanted.trial_ids))
    _check_number(len(experiment_ids) + len(trial_ids))
    for experiment_id in sorted(experiment_ids):
        readable(session, experiment_id, user)
    check_trials(session, trial_ids, user)
    if wanted.filters is not None:
        narrowed = ExperimentFilter.of_bulk(wanted.filters, wanted.filters.project_id)
        experiment_ids |= set(experiments.ids(session, narrowed, user, limit=_MOST + 1))
    if not experiment_ids and not trial_ids:
        raise BadRequest("no experiments found")
    _check_number(len(experiment_ids) + len(trial_ids))
    all_ids = experiment_ids | _of_trials(session, trial_ids)
    rows = session.scalars(select(Experiment).where(Experiment.id.in_(all_ids)).order_by(Experiment.id)).all()
    for row in rows:
        if not _storage(row).get("type"):
            raise BadRequest(f"experiment {row.id}: it has no checkpoint storage, which TensorBoard's files are in")
        _check_login(session, row, user)
    environment = cast("dict[str, Any]", rows[-1].config.get("environment") or {})
    return Shown(sorted(experiment_ids), trial_ids, environment)


def _check_number(number: int) -> None:
    if number > _MOST:
        raise BadRequest(f"experimentIds, trialIds: {number} of them: a TensorBoard shows at most {_MOST} together")


def _of_trials(session: Session, trial_ids: Sequence[int]) -> set[int]:
    return set(session.scalars(select(Trial.experiment_id).where(Trial.id.in_(trial_ids))))


def _check_login(session: Session, row: Experiment, user: UserPrincipal) -> None:
    """Its container gets what opens the storage, which its user could read there. Raises: Forbidden."""
    storage = _storage(row)
    if config_secrets.shown({"checkpoint_storage": storage})["checkpoint_storage"] == storage:
        return
    try:
        changeable(session, row.id, user)
    except Forbidden:
        raise Forbidden(
            f"experiment {row.id}: its checkpoint storage is opened by credentials of its configuration, which only"
            " those who may change the experiment hand to a TensorBoard"
        ) from None


def _storage(row: Experiment) -> dict[str, Any]:
    storage: dict[str, Any] = row.config.get("checkpoint_storage") or {}
    return {name: value for name, value in storage.items() if name not in _ABOUT_CHECKPOINTS and value is not None}


def sources(session: Session, task: Task) -> list[Source]:
    """Where the files are that a TensorBoard shows, of what is still there; the newest experiment first.

    Raises: FailedPrecondition.
    """
    wanted: dict[str, list[int]] = task.sources or {}
    cluster_id = session.get_one(Cluster, 1).cluster_id
    trials = session.execute(select(Trial.id, Trial.experiment_id).where(Trial.id.in_(wanted.get("trial_ids", []))))
    pairs = [(experiment_id, None) for experiment_id in wanted.get("experiment_ids", [])]
    pairs += [(experiment_id, trial_id) for trial_id, experiment_id in trials.tuples()]
    ids = {experiment_id for experiment_id, _ in pairs}
    rows = {row.id: row for row in session.scalars(select(Experiment).where(Experiment.id.in_(ids)))}
    found = [
        _source(rows[experiment_id], trial_id, cluster_id)
        for experiment_id, trial_id in sorted(pairs, key=lambda pair: (-pair[0], pair[1] or 0))
        if experiment_id in rows
    ]
    if not found:
        raise FailedPrecondition(f"TensorBoard {task.id}: all experiments that it shows are deleted")
    return found


def as_text(found: Sequence[Source]) -> str:
    """For the container. Raises: BadRequest."""
    text = orjson.dumps([source.wire for source in found]).decode()
    if len(text) > _LONGEST:
        raise BadRequest(f"the places of its files have {len(text)} bytes, the limit is {_LONGEST}: show fewer at once")
    return text


def _source(row: Experiment, trial_id: int | None, cluster_id: str) -> Source:
    storage, mount = _storage(row), None
    if storage.get("type") == "shared_fs":
        folder = os.path.normpath(storage["host_path"])
        inside = os.path.normpath(os.path.join(folder, storage.get("storage_path") or ""))
        storage = {"type": "directory", "container_path": inside}
        folder = inside if folder == "/" else folder  # nothing can be mounted over all of a container
        mount = {"host_path": folder, "container_path": folder}
    elif storage.get("type") == "directory":
        mount = _covering(row, os.path.normpath(storage["container_path"]))
    wire = {"experiment_id": row.id, "trial_id": trial_id, "storage": storage, "cluster_id": cluster_id}
    return Source(wire, mount)


def _covering(row: Experiment, folder: str) -> dict[str, Any] | None:
    """The folder of the host that the experiment's containers have a folder of theirs in."""
    mounts: list[dict[str, Any]] = row.config.get("bind_mounts") or []
    for mount in mounts:
        target = os.path.normpath(mount["container_path"])
        if os.path.isabs(target) and (folder == target or folder.startswith(target.rstrip("/") + "/")):
            return {"host_path": mount["host_path"], "container_path": target}
    return None
