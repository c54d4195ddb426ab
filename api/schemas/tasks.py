"""Messages of commands and of generic tasks. Names and fields: spec rest-api.md §6, tasks.md §6."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from api.schemas.base import EXAMPLE_UUID, Map, Pagination, Raw, Timestamp, Wire, example
from api.schemas.bulk import BulkFilters
from api.schemas.contexts import CONTEXT, File
from api.schemas.submissions import Submit, Submitted
from workflows.config.tasks import MOST_NEEDS


class LaunchRequest(
    Wire, json_schema_extra=example({"config": {"entrypoint": ["nvidia-smi"], "resources": {"slots": 1}}})
):
    """A configuration, and the files that the task finds in its folder."""

    config: Map = Field(default_factory=dict[str, Any])
    files: list[File] = Field(default_factory=list[File])
    template_name: str = ""
    workspace_id: int = 0
    context: str = Field(default="", max_length=64, description=CONTEXT)


class LaunchCommandRequest(
    LaunchRequest, json_schema_extra=example({"config": {"entrypoint": ["nvidia-smi"], "resources": {"slots": 1}}})
):
    """v1LaunchCommandRequest."""

    submit: Submit | None = None


class LaunchNotebookRequest(
    LaunchRequest, json_schema_extra=example({"config": {"idle_timeout": "1h", "resources": {"slots": 1}}})
):
    """v1LaunchNotebookRequest."""

    preview: bool = False


class LaunchShellRequest(LaunchRequest, json_schema_extra=example({"config": {"resources": {"slots": 1}}})):
    """v1LaunchShellRequest. `data`: base64 of JSON, with the `passphrase` that locks the private key."""

    data: str = Field(default="", max_length=10_000)
    submit: Submit | None = None


class LaunchTensorboardRequest(LaunchRequest, json_schema_extra=example({"experimentIds": [7, 8]})):
    """v1LaunchTensorboardRequest: experiments, single trials, or those that match filters."""

    experiment_ids: list[int] = Field(default_factory=list[int], max_length=1000)
    trial_ids: list[int] = Field(default_factory=list[int], max_length=1000)
    filters: BulkFilters | None = None


class Priority(Wire, json_schema_extra=example({"priority": 10})):
    """v1SetCommandPriorityRequest."""

    priority: int


class PatchTaskLimits(Wire, json_schema_extra=example({"idleTimeout": "2h", "maxLifetime": "0s"})):
    """Limits of a task's time, as its configuration has them; absent ones stay, and 0s is none."""

    idle_timeout: str | None = Field(default=None, max_length=100)
    max_lifetime: str | None = Field(default=None, max_length=100)


class TaskLimitsResponse(Wire):
    """The limits of a task's time that hold now. Null: it has none of its own, and the task never ends for that."""

    idle_timeout: str | None = None
    max_lifetime: str | None = None


class Seen(Wire):
    """What v1Command, v1Notebook, v1Shell and v1Tensorboard have in common."""

    id: str
    description: str
    state: str
    start_time: Timestamp
    username: str
    display_name: str
    user_id: int
    resource_pool: str
    exit_status: str
    job_id: str
    workspace_id: int
    container: Raw | None = None


class Command(Seen):
    """v1Command."""


class Notebook(Seen):
    """v1Notebook."""

    service_address: str = ""


class Shell(Seen):
    """v1Shell. The private key, and the address of its terminals, are in answers about one shell, to its owner and
    administrators.
    """

    private_key: str = ""
    public_key: str = ""
    terminal_address: str = ""
    addresses: list[Raw] = Field(default_factory=list[Any])
    agent_user_group: Map = Field(default_factory=dict[str, Any])


class Tensorboard(Seen):
    """v1Tensorboard."""

    experiment_ids: list[int]
    trial_ids: list[int]
    service_address: str = ""


class CommandResponse(Wire):
    """v1GetCommandResponse."""

    command: Command
    config: Raw


class LaunchCommandResponse(CommandResponse):
    """v1LaunchCommandResponse."""

    warnings: list[str]
    submission: Submitted | None = None


class ChangedCommandResponse(Wire):
    """v1KillCommandResponse, v1SetCommandPriorityResponse."""

    command: Command


class CommandsResponse(Wire):
    """v1GetCommandsResponse."""

    commands: list[Command]
    pagination: Pagination


class NotebookResponse(Wire):
    """v1GetNotebookResponse."""

    notebook: Notebook
    config: Raw


class LaunchNotebookResponse(NotebookResponse):
    """v1LaunchNotebookResponse."""

    warnings: list[str]


class ChangedNotebookResponse(Wire):
    """v1KillNotebookResponse, v1SetNotebookPriorityResponse."""

    notebook: Notebook


class NotebooksResponse(Wire):
    """v1GetNotebooksResponse."""

    notebooks: list[Notebook]
    pagination: Pagination


class ShellResponse(Wire):
    """v1GetShellResponse."""

    shell: Shell
    config: Raw


class LaunchShellResponse(ShellResponse):
    """v1LaunchShellResponse."""

    warnings: list[str]
    submission: Submitted | None = None


class ChangedShellResponse(Wire):
    """v1KillShellResponse, v1SetShellPriorityResponse."""

    shell: Shell


class ShellsResponse(Wire):
    """v1GetShellsResponse."""

    shells: list[Shell]
    pagination: Pagination


class TensorboardResponse(Wire):
    """v1GetTensorboardResponse."""

    tensorboard: Tensorboard
    config: Raw


class LaunchTensorboardResponse(TensorboardResponse):
    """v1LaunchTensorboardResponse."""

    warnings: list[str]


class ChangedTensorboardResponse(Wire):
    """v1KillTensorboardResponse, v1SetTensorboardPriorityResponse."""

    tensorboard: Tensorboard


class TensorboardsResponse(Wire):
    """v1GetTensorboardsResponse."""

    tensorboards: list[Tensorboard]
    pagination: Pagination


class IdleReport(Wire, json_schema_extra=example({"notebookId": EXAMPLE_UUID, "idle": False})):
    """v1IdleNotebookRequest."""

    notebook_id: str = ""
    idle: bool = False


class GenericTaskRequest(
    Wire, json_schema_extra=example({"config": "entrypoint: [python3, nightly.py]\nresources: {slots: 0}\n"})
):
    """v1CreateGenericTaskRequest. `config`: YAML or JSON, which may have `after` and `after_any` as well."""

    config: str = ""
    context_directory: list[File] = Field(default_factory=list[File])
    project_id: int = 0
    forked_from: str = ""
    parent_id: str = ""
    inherit_context: bool = False
    no_pause: bool = False
    after: list[str] = Field(default_factory=list[str], max_length=MOST_NEEDS)
    after_any: list[str] = Field(default_factory=list[str], max_length=MOST_NEEDS)
    submit: Submit | None = None
    context: str = Field(default="", max_length=64, description=CONTEXT)


class GenericTaskResponse(Wire, json_schema_extra=example({"taskId": EXAMPLE_UUID, "warnings": []})):
    """v1CreateGenericTaskResponse."""

    task_id: str
    warnings: list[str]
    submission: Submitted | None = None


class KillGenericTask(Wire, json_schema_extra=example({"killFromRoot": False})):
    """v1KillGenericTaskRequest: this task and those below it, or the whole tree that it belongs to."""

    kill_from_root: bool = False


class TaskConfigResponse(Wire):
    """v1GetGenericTaskConfigResponse: JSON text, as it was given."""

    config: str


class GenericTask(Wire):
    """A generic task in a list."""

    task_id: str
    user_id: int
    username: str
    name: str
    description: str
    state: str
    resource_pool: str
    workspace_id: int
    parent_id: str | None = None
    start_time: Timestamp
    end_time: Timestamp | None = None


class GenericTasksResponse(Wire):
    """Generic tasks, the newest first."""

    tasks: list[GenericTask]
    pagination: Pagination
