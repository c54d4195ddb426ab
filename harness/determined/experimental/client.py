"""Everything that `Determined` offers, as functions on one session.

Example::

    from determined.experimental import client

    exp = client.create_experiment(config="my_config.yaml", model_dir=".")
    print(exp.wait(), exp.top_checkpoint().uuid)

The session is made at the first call, from what `det user login` left and from the environment; call `login()` before
if that does not fit.
"""

from __future__ import annotations

import os

from determined.common.experimental._types import (
    CheckpointOrderBy,
    CheckpointSortBy,
    CheckpointState,
    DownloadMode,
    ExperimentOrderBy,
    ExperimentSortBy,
    ExperimentState,
    LogLevel,
    ModelOrderBy,
    ModelSortBy,
    OrderBy,
    TrialOrderBy,
    TrialSortBy,
    TrialState,
)
from determined.common.experimental.campaign import Campaign, CampaignRun
from determined.common.experimental.checkpoint import Checkpoint
from determined.common.experimental.determined import Determined
from determined.common.experimental.experiment import Experiment, ExperimentReference
from determined.common.experimental.metrics import TrainingMetrics, TrialMetrics, ValidationMetrics
from determined.common.experimental.model import Model, ModelVersion
from determined.common.experimental.oauth2_scim_client import Oauth2ScimClient
from determined.common.experimental.project import Project
from determined.common.experimental.resource_pool import ResourcePool
from determined.common.experimental.trial import Trial, TrialReference
from determined.common.experimental.user import User
from determined.common.experimental.workspace import Workspace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from determined.common.experimental._rows import Rows

__all__ = [
    "Campaign",
    "CampaignRun",
    "Checkpoint",
    "CheckpointOrderBy",
    "CheckpointSortBy",
    "CheckpointState",
    "Determined",
    "DownloadMode",
    "Experiment",
    "ExperimentOrderBy",
    "ExperimentReference",
    "ExperimentSortBy",
    "ExperimentState",
    "LogLevel",
    "Model",
    "ModelOrderBy",
    "ModelSortBy",
    "ModelVersion",
    "Oauth2ScimClient",
    "OrderBy",
    "Project",
    "ResourcePool",
    "TrainingMetrics",
    "Trial",
    "TrialMetrics",
    "TrialOrderBy",
    "TrialReference",
    "TrialSortBy",
    "TrialState",
    "User",
    "ValidationMetrics",
    "Workspace",
    "add_oauth_client",
    "create_campaign",
    "create_experiment",
    "create_experiments",
    "create_model",
    "create_user",
    "create_workspace",
    "delete_workspace",
    "get_campaign",
    "get_checkpoint",
    "get_experiment",
    "get_model",
    "get_model_by_id",
    "get_model_labels",
    "get_models",
    "get_session_username",
    "get_trial",
    "get_user_by_id",
    "get_user_by_name",
    "get_workspace",
    "iter_trials_metrics",
    "list_campaigns",
    "list_experiments",
    "list_models",
    "list_oauth_clients",
    "list_users",
    "list_workspaces",
    "login",
    "logout",
    "remove_oauth_client",
    "stream_trials_metrics",
    "stream_trials_training_metrics",
    "stream_trials_validation_metrics",
    "whoami",
]

_determined: Determined | None = None


def _client() -> Determined:
    global _determined
    if _determined is None:
        _determined = Determined()
    return _determined


def login(
    master: str | None = None,
    user: str | None = None,
    password: str | None = None,
    cert_path: str | None = None,
    cert_name: str | None = None,
    noverify: bool = False,
) -> None:
    """Make the session that the other functions use; the arguments are those of `Determined`.

    Raises:
        RuntimeError: Another function was called before.
    """
    global _determined
    if _determined is not None:
        raise RuntimeError(
            "client.login() must be called before any other function of this module; "
            "use Determined(…) objects for several masters or users"
        )
    _determined = Determined(master, user, password, cert_path, cert_name, noverify)


def create_experiment(
    config: str | os.PathLike[str] | dict[str, Any],
    model_dir: str | os.PathLike[str] | None = None,
    includes: Iterable[str | os.PathLike[str]] | None = None,
    project_id: int | None = None,
    template: str | None = None,
) -> Experiment:
    """See `Determined.create_experiment`."""
    return _client().create_experiment(config, model_dir, includes, project_id, template)


def create_experiments(
    configs: Iterable[str | os.PathLike[str] | dict[str, Any]],
    model_dir: str | os.PathLike[str] | None = None,
    includes: Iterable[str | os.PathLike[str]] | None = None,
    project_id: int | None = None,
    template: str | None = None,
) -> list[Experiment]:
    """See `Determined.create_experiments`."""
    return _client().create_experiments(configs, model_dir, includes, project_id, template)


def get_experiment(experiment_id: int) -> Experiment:
    """See `Determined.get_experiment`."""
    return _client().get_experiment(experiment_id)


def list_experiments(
    sort_by: ExperimentSortBy | None = None,
    order_by: OrderBy | None = None,
    experiment_ids: list[int] | None = None,
    labels: list[str] | None = None,
    users: list[str] | None = None,
    states: list[ExperimentState] | None = None,
    name: str | None = None,
    project_id: int | None = None,
) -> Rows[Experiment]:
    """See `Determined.list_experiments`."""
    return _client().list_experiments(sort_by, order_by, experiment_ids, labels, users, states, name, project_id)


def get_trial(trial_id: int) -> Trial:
    """See `Determined.get_trial`."""
    return _client().get_trial(trial_id)


def get_checkpoint(uuid: str) -> Checkpoint:
    """See `Determined.get_checkpoint`."""
    return _client().get_checkpoint(uuid)


def create_campaign(
    definition: str | os.PathLike[str] | dict[str, Any],
    model_dir: str | os.PathLike[str] | None = None,
    includes: Iterable[str | os.PathLike[str]] | None = None,
) -> Campaign:
    """See `Determined.create_campaign`."""
    return _client().create_campaign(definition, model_dir, includes)


def get_campaign(campaign_id: int) -> Campaign:
    """See `Determined.get_campaign`."""
    return _client().get_campaign(campaign_id)


def list_campaigns(name: str | None = None) -> Rows[Campaign]:
    """See `Determined.list_campaigns`."""
    return _client().list_campaigns(name)


def create_model(name: str, description: str | None = "", metadata: dict[str, Any] | None = None) -> Model:
    """See `Determined.create_model`."""
    return _client().create_model(name, description, metadata)


def get_model(identifier: str | int) -> Model:
    """See `Determined.get_model`."""
    return _client().get_model(identifier)


def get_model_by_id(model_id: int) -> Model:
    """See `Determined.get_model_by_id`."""
    return _client().get_model_by_id(model_id)


def get_models(
    sort_by: ModelSortBy = ModelSortBy.NAME,
    order_by: OrderBy = OrderBy.ASCENDING,
    name: str = "",
    description: str = "",
) -> Rows[Model]:
    """See `Determined.get_models`."""
    return _client().get_models(sort_by, order_by, name, description)


def list_models(
    sort_by: ModelSortBy = ModelSortBy.NAME,
    order_by: OrderBy = OrderBy.ASCENDING,
    name: str | None = None,
    description: str | None = None,
    model_id: int | None = None,
    workspace_names: list[str] | None = None,
    workspace_ids: list[int] | None = None,
) -> Rows[Model]:
    """See `Determined.list_models`."""
    return _client().list_models(sort_by, order_by, name, description, model_id, workspace_names, workspace_ids)


def get_model_labels() -> list[str]:
    """See `Determined.get_model_labels`."""
    return _client().get_model_labels()


def get_workspace(name: str) -> Workspace:
    """See `Determined.get_workspace`."""
    return _client().get_workspace(name)


def list_workspaces() -> Rows[Workspace]:
    """See `Determined.list_workspaces`."""
    return _client().list_workspaces()


def create_workspace(name: str) -> Workspace:
    """See `Determined.create_workspace`."""
    return _client().create_workspace(name)


def delete_workspace(name: str) -> None:
    """See `Determined.delete_workspace`."""
    _client().delete_workspace(name)


def iter_trials_metrics(trial_ids: list[int], group: str) -> Iterator[TrialMetrics]:
    """See `Determined.iter_trials_metrics`."""
    return _client().iter_trials_metrics(trial_ids, group)


def stream_trials_metrics(trial_ids: list[int], group: str) -> Iterator[TrialMetrics]:
    """See `Determined.stream_trials_metrics`."""
    return _client().stream_trials_metrics(trial_ids, group)


def stream_trials_training_metrics(trial_ids: list[int]) -> Iterator[TrialMetrics]:
    """See `Determined.stream_trials_training_metrics`."""
    return _client().stream_trials_training_metrics(trial_ids)


def stream_trials_validation_metrics(trial_ids: list[int]) -> Iterator[TrialMetrics]:
    """See `Determined.stream_trials_validation_metrics`."""
    return _client().stream_trials_validation_metrics(trial_ids)


def create_user(username: str, admin: bool, password: str | None = None, remote: bool = False) -> User:
    """See `Determined.create_user`."""
    return _client().create_user(username, admin, password, remote)


def get_user_by_id(user_id: int) -> User:
    """See `Determined.get_user_by_id`."""
    return _client().get_user_by_id(user_id)


def get_user_by_name(user_name: str) -> User:
    """See `Determined.get_user_by_name`."""
    return _client().get_user_by_name(user_name)


def whoami() -> User:
    """See `Determined.whoami`."""
    return _client().whoami()


def get_session_username() -> str:
    """See `Determined.get_session_username`."""
    return _client().get_session_username()


def list_users(active: bool | None = None) -> Rows[User]:
    """See `Determined.list_users`."""
    return _client().list_users(active)


def list_oauth_clients() -> list[Oauth2ScimClient]:
    """See `Determined.list_oauth_clients`."""
    return _client().list_oauth_clients()


def add_oauth_client(domain: str, name: str) -> Oauth2ScimClient:
    """See `Determined.add_oauth_client`."""
    return _client().add_oauth_client(domain, name)


def remove_oauth_client(client_id: str) -> None:
    """See `Determined.remove_oauth_client`."""
    _client().remove_oauth_client(client_id)


def logout() -> None:
    """See `Determined.logout`; the next call makes a new session."""
    global _determined
    _client().logout()
    _determined = None
