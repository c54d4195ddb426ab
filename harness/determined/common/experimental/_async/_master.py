"""Everything that can be asked of one master, but for logging in."""

from __future__ import annotations

from determined import errors
from determined.common.api._async import _io
from determined.common.api._async._login import logout
from determined.common.api._tokens import hash_password
from determined.common.api._url import api_path, path_of
from determined.common.experimental._async._wire import new_key, pages, warnings_of
from determined.common.experimental._async.campaign import AsyncCampaign
from determined.common.experimental._async.checkpoint import AsyncCheckpoint
from determined.common.experimental._async.experiment import AsyncExperiment
from determined.common.experimental._async.model import AsyncModel
from determined.common.experimental._async.trial import AsyncTrial, metrics_of_trials
from determined.common.experimental._async.user import AsyncUser
from determined.common.experimental._async.workspace import AsyncWorkspace, workspace_named
from determined.common.experimental._config import config_text
from determined.common.experimental._rows import Rows
from determined.common.experimental._types import ExperimentSortBy, ExperimentState, ModelSortBy, OrderBy, wire
from determined.common.experimental.oauth2_scim_client import Oauth2ScimClient

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import AsyncIterator, Iterable
    from typing import Any

    from determined.common.api._async._session import AsyncSession
    from determined.common.experimental.metrics import TrialMetrics

# Sending the model directory and storing it may take a while.
_CREATE_TIMEOUT_S = 300.0


class AsyncMaster:
    """One master, in the name of one user: with a session that is logged in."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def close(self) -> None:
        """Close all connections. The user stays logged in."""
        await self._session.close()

    async def create_experiment(
        self,
        config: str | os.PathLike[str] | dict[str, Any],
        model_dir: str | os.PathLike[str] | None = None,
        includes: Iterable[str | os.PathLike[str]] | None = None,
        project_id: int | None = None,
        template: str | None = None,
        *,
        activate: bool = True,
    ) -> AsyncExperiment:
        """Create an experiment and start it.

        Args:
            config: The configuration: the path of a YAML file, or a dictionary.
            model_dir: The directory with the training code. A large one is uploaded in chunks, those that the cluster
                lacks: up to what its setting `context_limit_mib` says.
            includes: Further files and directories to put beside it.
            project_id: The project to put it into.
            template: The name of a template to fill it up from.
            activate: False leaves it PAUSED.

        Raises:
            InvalidExperimentException: The configuration can't be read.
            InvalidContextException: The directory can't be packed.
            InvalidRequestException: The master refuses the configuration.
        """
        import logging

        body: dict[str, Any] = {
            "config": config_text(config),
            "activate": activate,
        }
        body |= await _code_of(self._session, "create_experiment", model_dir, includes)
        if project_id is not None:
            body["projectId"] = project_id
        if template is not None:
            body["template"] = template
        answer = (
            await self._session.post(
                api_path("experiments"), body, idempotency_key=new_key(), timeout_s=_CREATE_TIMEOUT_S
            )
        ).json()
        for warning in warnings_of(answer):
            logging.getLogger("determined").warning(f"creating the experiment: {warning}")
        return AsyncExperiment.from_wire(self._session, answer["experiment"], answer.get("config"))

    async def create_experiments(
        self,
        configs: Iterable[str | os.PathLike[str] | dict[str, Any]],
        model_dir: str | os.PathLike[str] | None = None,
        includes: Iterable[str | os.PathLike[str]] | None = None,
        project_id: int | None = None,
        template: str | None = None,
        *,
        activate: bool = True,
    ) -> list[AsyncExperiment]:
        """Create up to 100 experiments with the same code in one request, all or none.

        Args:
            configs: Their configurations, each as for `create_experiment`.
            model_dir: As for `create_experiment`, as is all that follows.
            includes: See there.
            project_id: See there.
            template: See there.
            activate: See there.

        Returns: The experiments, in the order of their configurations.

        Raises:
            InvalidExperimentException: A configuration can't be read.
            InvalidContextException: The directory can't be packed.
            InvalidRequestException: The master refuses a configuration. None was created.
        """
        import logging

        same: dict[str, Any] = {"activate": activate}
        same |= {"projectId": project_id} if project_id is not None else {}
        same |= {"template": template} if template is not None else {}
        body = {
            "experiments": [{"config": config_text(config), **same} for config in configs],
        }
        body |= await _code_of(self._session, "create_experiments", model_dir, includes)
        answer = (
            await self._session.post(
                api_path("undeterred/experiments"), body, idempotency_key=new_key(), timeout_s=_CREATE_TIMEOUT_S
            )
        ).json()
        for made in answer["experiments"]:
            for warning in warnings_of(made):
                logging.getLogger("determined").warning(f"creating experiment {made['id']}: {warning}")
        return [AsyncExperiment(int(made["id"]), self._session) for made in answer["experiments"]]

    async def create_campaign(
        self,
        definition: str | os.PathLike[str] | dict[str, Any],
        model_dir: str | os.PathLike[str] | None = None,
        includes: Iterable[str | os.PathLike[str]] | None = None,
    ) -> AsyncCampaign:
        """Create a campaign, with its schedule if it has one. Ours.

        Args:
            definition: The path of a YAML file, or a dictionary, whose steps keep their order.
            model_dir: The directory with the code of its steps, and the configurations that it names.
            includes: Further files and directories to put beside it.

        Raises:
            InvalidExperimentException: The file can't be read.
            InvalidContextException: The directory can't be packed.
            InvalidRequestException: The master refuses the definition.
        """
        import json

        text = json.dumps(definition) if isinstance(definition, dict) else config_text(definition)
        body: dict[str, Any] = {"definition": text, "files": await _packed("create_campaign", model_dir, includes)}
        path = api_path("undeterred", "campaigns")
        answer = await self._session.post(path, body, idempotency_key=new_key(), timeout_s=_CREATE_TIMEOUT_S)
        return AsyncCampaign.from_wire(self._session, answer.json()["campaign"])

    async def get_campaign(self, campaign_id: int) -> AsyncCampaign:
        """A campaign by its number. Ours.

        Raises:
            NotFoundException: There is none.
        """
        answer = await self._session.get(api_path("undeterred", "campaigns", campaign_id))
        return AsyncCampaign.from_wire(self._session, answer.json()["campaign"])

    async def list_campaigns(self, name: str | None = None) -> Rows[AsyncCampaign]:
        """Campaigns, the newest first. Ours.

        Args:
            name: Only those with this in their names.
        """
        found = pages(self._session, api_path("undeterred", "campaigns"), {"name": name}, "campaigns")
        return Rows([AsyncCampaign.from_wire(self._session, body) async for body in found])

    async def get_experiment(self, experiment_id: int) -> AsyncExperiment:
        """An experiment by its id.

        Raises:
            NotFoundException: There is none.
        """
        experiment = AsyncExperiment(int(experiment_id), self._session)
        await experiment.reload()
        return experiment

    async def list_experiments(
        self,
        sort_by: ExperimentSortBy | None = None,
        order_by: OrderBy | None = None,
        experiment_ids: list[int] | None = None,
        labels: list[str] | None = None,
        users: list[str] | None = None,
        states: list[ExperimentState] | None = None,
        name: str | None = None,
        project_id: int | None = None,
        archived: bool | None = None,
        limit: int | None = None,
    ) -> Rows[AsyncExperiment]:
        """The experiments that meet all of the given conditions, archived ones too unless `archived` is given."""
        params: dict[str, Any] = {
            "sortBy": wire(sort_by),
            "orderBy": wire(order_by),
            "experimentIdFilter.incl": experiment_ids,
            "labels": labels,
            "users": users,
            "states": [s.value for s in states] if states else None,
            "name": name,
            "projectId": project_id,
            "archived": archived,
        }
        found = pages(self._session, api_path("experiments"), params, "experiments", limit)
        return Rows([AsyncExperiment.from_wire(self._session, body) async for body in found])

    async def get_trial(self, trial_id: int) -> AsyncTrial:
        """A trial by its id.

        Raises:
            NotFoundException: There is none.
        """
        trial = AsyncTrial(int(trial_id), self._session)
        await trial.reload()
        return trial

    async def get_checkpoint(self, uuid: str) -> AsyncCheckpoint:
        """A checkpoint by its id.

        Raises:
            NotFoundException: There is none.
        """
        checkpoint = AsyncCheckpoint(self._session, uuid=uuid)
        await checkpoint.reload()
        return checkpoint

    async def create_user(
        self, username: str, admin: bool, password: str | None = None, remote: bool = False
    ) -> AsyncUser:
        """Create a user who may log in at once.

        Raises:
            ForbiddenException: Only admins may.
            ConflictException: The name is taken.
        """
        body: dict[str, Any] = {"user": {"username": username, "admin": admin, "active": True, "remote": remote}}
        if password:
            body |= {"password": hash_password(password), "isHashed": True}
        answer = await self._session.post(api_path("users"), body, idempotency_key=new_key())
        return AsyncUser.from_wire(self._session, answer.json()["user"])

    async def get_user_by_id(self, user_id: int) -> AsyncUser:
        """A user by the id."""
        user = AsyncUser(int(user_id), self._session)
        await user.reload()
        return user

    async def get_user_by_name(self, user_name: str) -> AsyncUser:
        """A user by the name."""
        body = (await self._session.get(api_path("users", user_name, "by-username"))).json()
        return AsyncUser.from_wire(self._session, body["user"])

    async def whoami(self) -> AsyncUser:
        """The user of this session."""
        return AsyncUser.from_wire(self._session, (await self._session.get(api_path("me"))).json()["user"])

    async def get_session_username(self) -> str:
        """The name of the user of this session."""
        return self._session.username or str((await self.whoami()).username)

    async def list_users(self, active: bool | None = None) -> Rows[AsyncUser]:
        """All users, or only the active (or inactive) ones."""
        found = pages(self._session, api_path("users"), {"active": active}, "users")
        return Rows([AsyncUser.from_wire(self._session, body) async for body in found])

    async def create_model(
        self,
        name: str,
        description: str | None = "",
        metadata: dict[str, Any] | None = None,
        labels: list[str] | None = None,
        workspace_name: str | None = None,
    ) -> AsyncModel:
        """Add a model to the registry.

        Args:
            name: Its name, unique in the cluster.
            description: What it is.
            metadata: Whatever is to be kept with it; JSON.
            labels: Labels.
            workspace_name: Where to put it; by default "Uncategorized".

        Raises:
            ConflictException: The name is taken.
            NotFoundException: There is no such workspace.
        """
        body = {
            "name": name,
            "description": description,
            "metadata": metadata,
            "labels": labels,
            "workspaceName": workspace_name,
        }
        answer = await self._session.post(api_path("models"), body, idempotency_key=new_key())
        return AsyncModel.from_wire(self._session, answer.json()["model"])

    async def get_model(self, identifier: str | int) -> AsyncModel:
        """A model, by its name or its id.

        Raises:
            NotFoundException: There is none.
        """
        answer = await self._session.get(api_path("models", identifier))
        return AsyncModel.from_wire(self._session, answer.json()["model"])

    async def get_model_by_id(self, model_id: int) -> AsyncModel:
        """`get_model`, under the name of the older releases.

        Raises:
            NotFoundException: There is none.
        """
        return await self.get_model(int(model_id))

    async def get_models(
        self,
        sort_by: ModelSortBy = ModelSortBy.NAME,
        order_by: OrderBy = OrderBy.ASCENDING,
        name: str | None = None,
        description: str | None = None,
        model_id: int | None = None,
        workspace_names: list[str] | None = None,
        workspace_ids: list[int] | None = None,
    ) -> Rows[AsyncModel]:
        """`list_models`, under the name of the older releases."""
        return await self.list_models(sort_by, order_by, name, description, model_id, workspace_names, workspace_ids)

    async def list_models(
        self,
        sort_by: ModelSortBy = ModelSortBy.NAME,
        order_by: OrderBy = OrderBy.ASCENDING,
        name: str | None = None,
        description: str | None = None,
        model_id: int | None = None,
        workspace_names: list[str] | None = None,
        workspace_ids: list[int] | None = None,
    ) -> Rows[AsyncModel]:
        """The models of the registry that meet all of the given conditions.

        Args:
            sort_by: What to sort them by.
            order_by: The direction.
            name: Only models whose name contains this.
            description: Only models whose description contains this.
            model_id: Only the model of this id.
            workspace_names, workspace_ids: Only models of these workspaces.
        """
        params: dict[str, Any] = {
            "sortBy": wire(sort_by),
            "orderBy": wire(order_by),
            "name": name or None,
            "description": description or None,
            "id": model_id,
            "workspaceNames": workspace_names,
            "workspaceIds": workspace_ids,
        }
        found = pages(self._session, api_path("models"), params, "models")
        return Rows([AsyncModel.from_wire(self._session, body) async for body in found])

    async def get_model_labels(self) -> list[str]:
        """The labels of all models, the most used first."""
        return list((await self._session.get(api_path("model", "labels"))).json()["labels"])

    async def get_workspace(self, name: str) -> AsyncWorkspace:
        """A workspace, by its name.

        Raises:
            NotFoundException: There is none that you may see.
        """
        return AsyncWorkspace.from_wire(self._session, await workspace_named(self._session, name))

    async def list_workspaces(self) -> Rows[AsyncWorkspace]:
        """The workspaces that you may see."""
        found = pages(self._session, api_path("workspaces"), {}, "workspaces")
        return Rows([AsyncWorkspace.from_wire(self._session, body) async for body in found])

    async def create_workspace(self, name: str) -> AsyncWorkspace:
        """Make a workspace. You are its administrator.

        Raises:
            ConflictException: The name is taken.
        """
        answer = await self._session.post(api_path("workspaces"), {"name": name}, idempotency_key=new_key())
        return AsyncWorkspace.from_wire(self._session, answer.json()["workspace"])

    async def delete_workspace(self, name: str) -> None:
        """Delete a workspace with its projects and their experiments; these in the background.

        Raises:
            NotFoundException: There is no such workspace.
        """
        body = await workspace_named(self._session, name)
        await self._session.delete(api_path("workspaces", int(body["id"])))

    def iter_trials_metrics(self, trial_ids: list[int], group: str) -> AsyncIterator[TrialMetrics]:
        """The metrics of trials, by trial and steps, as they arrive.

        Args:
            trial_ids: The trials.
            group: "training", "validation", or a name of the user's; an empty string for all.
        """
        return metrics_of_trials(self._session, trial_ids, group)

    def stream_trials_metrics(self, trial_ids: list[int], group: str) -> AsyncIterator[TrialMetrics]:
        """`iter_trials_metrics`, under the name of the older releases."""
        return self.iter_trials_metrics(trial_ids, group)

    def stream_trials_training_metrics(self, trial_ids: list[int]) -> AsyncIterator[TrialMetrics]:
        """`iter_trials_metrics` of the group "training", under the name of the older releases."""
        return self.iter_trials_metrics(trial_ids, "training")

    def stream_trials_validation_metrics(self, trial_ids: list[int]) -> AsyncIterator[TrialMetrics]:
        """`iter_trials_metrics` of the group "validation", under the name of the older releases."""
        return self.iter_trials_metrics(trial_ids, "validation")

    async def list_oauth_clients(self) -> list[Oauth2ScimClient]:
        """The clients of OAuth.

        Raises:
            EnterpriseOnlyError: The cluster has none of this, as ours.
        """
        found: list[dict[str, Any]] = (await self._oauth("GET")) or []
        return [Oauth2ScimClient(str(c["id"]), str(c.get("secret", "")), c["domain"], c["name"]) for c in found]

    async def add_oauth_client(self, domain: str, name: str) -> Oauth2ScimClient:
        """Add a client of OAuth.

        Raises:
            EnterpriseOnlyError: The cluster has none of this, as ours.
        """
        made: dict[str, Any] = await self._oauth("POST", body={"domain": domain, "name": name})
        return Oauth2ScimClient(str(made["id"]), str(made["secret"]), domain, name)

    async def remove_oauth_client(self, client_id: str) -> None:
        """Remove a client of OAuth.

        Raises:
            EnterpriseOnlyError: The cluster has none of this, as ours.
        """
        await self._oauth("DELETE", client_id)

    async def _oauth(self, method: str, *below: str, body: dict[str, Any] | None = None) -> Any:
        try:
            return (await self._session.request(method, path_of("oauth2", "clients", *below), json=body)).json()
        except errors.NotFoundException as e:
            raise errors.EnterpriseOnlyError(f"this cluster has no clients of OAuth: {e.message}", status=404) from e

    async def logout(self) -> None:
        """End this session, and forget its token."""
        await logout(self._session)


async def _code_of(
    session: AsyncSession,
    called: str,
    model_dir: str | os.PathLike[str] | None,
    includes: Iterable[str | os.PathLike[str]] | None,
) -> dict[str, Any]:
    """The fields of a request that say the code of an experiment; a large folder is uploaded. `called`: as `_packed`.

    Raises:
        InvalidContextException: It can't be read.
    """
    _check_includes(called, model_dir, includes)
    if model_dir is None:
        return {"modelDefinition": []}
    from determined.common.context import Folder
    from determined.common.experimental._async._contexts import code_of

    return await code_of(session, await _io.run(Folder, model_dir, includes or ()))


def _check_includes(
    called: str, model_dir: str | os.PathLike[str] | None, includes: Iterable[str | os.PathLike[str]] | None
) -> None:
    if model_dir is None and includes:
        raise errors.InvalidContextException(f"{called}: includes need a model_dir to be put beside")


async def _packed(
    called: str, model_dir: str | os.PathLike[str] | None, includes: Iterable[str | os.PathLike[str]] | None
) -> list[dict[str, Any]]:
    """Files as they are sent within a request. `called`: the method, for what it says.

    Raises:
        InvalidContextException: It can't be packed.
    """
    _check_includes(called, model_dir, includes)
    if model_dir is None:
        return []
    from determined.common.context import pack_context

    return await _io.run(pack_context, model_dir, includes or ())
